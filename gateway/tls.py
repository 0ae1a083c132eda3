"""TLS at the door: contexts that keep up with their files, and clients' certificates.

Files are looked at once a second; what is there counts for connections from then on. Files that
cannot be read, or do not go together, leave the old in force, with one line in the log. Knows no
protocol, and not whom a certificate stands for.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, cast

import structlog

from core.security.listeners import ClientAuth

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 1.0
_READS_AFTER_AN_ALERT: Final = 8
_OF_CERTIFICATES: Final = {"CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"}


class TlsError(Exception):
    """No context can be made of the files; the text is one sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a listener's TLS is made of: files in PEM, without passwords.

    certificate: the chain that clients are shown, with `key`. client_ca: who may sign clients'
    certificates; needed unless client_auth is NONE. crl: lists of those that were taken back (RFC
    5280); where it is said, each of who signs has one in it.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    crl: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that are there."""
        every = (self.certificate, self.key, self.client_ca, self.crl)
        return tuple(path for path in every if path)


class TlsContext:
    """That of the listeners with the same files. Raises TlsError if it cannot be made."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._seen = self._read = _stamps(files.paths)
        self._current = _context(files)

    def __call__(self) -> ssl.SSLContext:
        """The one for a new connection."""
        return self._current

    def look(self) -> bool:
        """Reads the files again if they have changed, and have not since the last look; whether
        others are in force now. Blocks."""
        before, self._seen = self._seen, _stamps(self.files.paths)
        if self._seen == self._read or self._seen != before:
            return False
        self._read = self._seen
        try:
            self._current = _context(self.files)
        except TlsError as error:
            log.error("tls_files_unusable", reason=str(error), in_force="those read before")
            return False
        log.info("tls_files_read_again", certificate=str(self.files.certificate))
        return True

    @property
    def revoked(self) -> Revoked:
        """The certificates that were taken back, by the lists that are in force."""
        return self._current.revoked


class TlsContexts:
    """Those of a process: one for equal files."""

    def __init__(self) -> None:
        self._made: dict[TlsFiles, TlsContext] = {}

    def of(self, files: TlsFiles) -> TlsContext:
        """Raises TlsError."""
        if files not in self._made:
            self._made[files] = TlsContext(files)
        return self._made[files]

    @property
    def are_there(self) -> bool:
        return bool(self._made)

    async def keep_up(self, on_revoked: Callable[[TlsContext, Revoked], None]) -> None:
        """Follows the files, until cancelled. on_revoked: is told when they have changed of what
        was taken back."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for each in self._made.values():
                if await asyncio.to_thread(each.look) and each.files.crl is not None:
                    on_revoked(each, each.revoked)


def peer_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """A client's certificate as DER, which TLS has found good; None where it has shown none."""
    shaken = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    return None if shaken is None else shaken.getpeercert(binary_form=True)


# --- certificates that were taken back ---


@dataclass(frozen=True, slots=True)
class Revoked:
    """numbers: with each, who has signed it (DER of the name). ends: when the last list of who has
    signed it is out of date, in seconds since 1970."""

    numbers: frozenset[tuple[bytes, int]] = frozenset()
    ends: Mapping[bytes, float] = field(default_factory=dict, hash=False)

    def __contains__(self, certificate: bytes) -> bool:
        """Also of what cannot be read: nobody can say that it is on no list. certificate: DER."""
        from cryptography import x509

        try:
            found = x509.load_der_x509_certificate(certificate)
            return (found.issuer.public_bytes(), found.serial_number) in self.numbers
        except Exception:  # noqa: BLE001 - OpenSSL takes what it does not; InvalidVersion is plain
            return True

    def is_out_of_date_for(self, certificate: bytes, now_s: float) -> bool:
        """Whether no list says any more which ones of its signer are taken back; never without
        lists. certificate: DER. Raises what `cryptography` does."""
        if not self.ends:
            return False
        from cryptography import x509

        signer = x509.load_der_x509_certificate(certificate).issuer.public_bytes()
        # OpenSSL takes names for equal that are spelled otherwise.
        return self.ends.get(signer, min(self.ends.values())) <= now_s


def read_revoked(path: Path) -> Revoked:
    """Of lists in PEM, with which a context is made. Raises ValueError, OSError."""
    from cryptography import x509  # it takes a while, and few have such lists

    text = path.read_text()
    if not _CRLS.search(text):
        raise ValueError("there is no list in it")
    if "CERTIFICATE-----" in text:  # which would be trusted
        raise ValueError("there are certificates in it")
    try:
        lists = [x509.load_pem_x509_crl(each.encode()) for each in _CRLS.findall(text)]
        ends: dict[bytes, float] = {}
        for each in lists:
            signer, end = each.issuer.public_bytes(), each.next_update_utc
            end_s = end.timestamp() if end else math.inf
            ends[signer] = max(end_s, ends.get(signer, end_s))
        numbers = (
            (each.issuer.public_bytes(), revoked.serial_number)
            for each in lists
            for revoked in each
        )
        return Revoked(frozenset(numbers), ends)
    except x509.InvalidVersion as error:  # a plain Exception
        raise ValueError(str(error)) from error


_CRLS: Final = re.compile(r"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


# --- making one ---


def _stamps(paths: Iterable[Path]) -> tuple[tuple[int, int, int], ...]:
    """Changes when a file does: also one that a link now leads to elsewhere (Kubernetes)."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return ()
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


class _Context(ssl.SSLContext):
    """revoked: by the lists that it was made with."""

    revoked = Revoked()


def _context(files: TlsFiles) -> _Context:
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _Shaken
    try:
        # A key with a password would be asked for at the terminal, if there is one.
        context.load_cert_chain(files.certificate, files.key, password=bytes)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"TLS cannot start with the certificate {files.certificate} and the key {files.key} "
            f"({error}): name both, in PEM and without a password, with --tls-cert and --tls-key"
        ) from error
    if files.client_auth is ClientAuth.NONE:
        return context
    assert files.client_ca is not None, "whoever asks for certificates names it"
    context.verify_mode = (
        ssl.CERT_REQUIRED if files.client_auth is ClientAuth.REQUIRED else ssl.CERT_OPTIONAL
    )
    # As in Java, whatever is in the file is trusted, also what another has signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(files.client_ca)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"clients' certificates cannot be checked with {files.client_ca} ({error}): name a "
            "file of certificates in PEM with --tls-client-ca, or ssl.truststore.location"
        ) from error
    # What is shown again is looked at again: it may have expired meanwhile. By TLS 1.2 sessions
    # are resumed all the same, which Python cannot turn off: see `_Shaken`.
    context.num_tickets = 0
    if files.crl is not None:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        try:
            context.revoked = read_revoked(files.crl)
            context.load_verify_locations(files.crl)
        except (OSError, ValueError) as error:
            raise TlsError(
                f"it cannot be said which certificates were taken back: {files.crl} is no list of "
                f"them ({error}); name a file of CRLs in PEM with penstock.ssl.crl.location"
            ) from error
    return context


# --- a handshake ---


@dataclass(slots=True)
class Handshake:
    """One that a listener has begun. failure: what TLS had against it, if it had something."""

    failure: ssl.SSLError | None = None


HANDSHAKE: ContextVar[Handshake] = ContextVar("HANDSHAKE")
"""That of the connection for which a context is used."""


_UNWATCHED: Final = Handshake()


class _Shaken(ssl.SSLObject):
    """A connection's TLS that tells its client what is wrong with its certificate.

    The event loop drops a connection as soon as it hears of a failure, with the alert unsent. By
    TLS 1.3 the client takes itself for connected by then, and would try again for ever. So the loop
    is asked to wait for more instead: it sends what there is to send, the alert. It is over when
    the client hangs up, or its time is up.
    """

    _handshake: Handshake
    _reads_left = _READS_AFTER_AN_ALERT

    def __new__(cls, *_: object) -> Self:
        made = super().__new__(cls)
        made._handshake = HANDSHAKE.get(_UNWATCHED)
        return made

    def do_handshake(self) -> None:
        """See ssl.SSLObject."""
        of = self._handshake
        if of.failure is None:
            try:
                super().do_handshake()
            except ssl.SSLError as error:
                if error.reason not in _OF_CERTIFICATES:
                    raise
                of.failure = error
            else:
                self._look_at_a_session()
                return
        self._reads_left -= 1
        if self._reads_left < 0:  # it sends on and on
            raise of.failure
        raise ssl.SSLWantReadError

    def _look_at_a_session(self) -> None:
        """A client's certificate, where OpenSSL has not looked at it: in a session that is resumed.
        Raises SSLError if it would not do any more."""
        shown = self.getpeercert(binary_form=True) if self.session_reused else None
        if shown is None:
            return
        now_s = int(time.time())
        try:
            days = cast("dict[str, str]", self.getpeercert())
            begins_s, ends_s = (
                ssl.cert_time_to_seconds(days[each]) for each in ("notBefore", "notAfter")
            )
            lists = self.context.revoked if isinstance(self.context, _Context) else Revoked()
            if not begins_s <= now_s < ends_s:
                why = "its certificate is not good at this time"
            elif lists.is_out_of_date_for(shown, now_s):
                why = "its list of revoked certificates is out of date"
            else:
                return
        except Exception as error:  # noqa: BLE001 - what cannot be read is not let in
            why = f"its certificate cannot be read: {error}"
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"it resumes a session, but {why}")
