"""SCRAM's server (RFC 5802), for one login: two messages come, two are answered.

Nonces and verifiers are handed in; it does no I/O and draws no numbers. Channel binding is not
offered, so a client may say `n` or `y`, and its last message repeats what its first has said (Kafka
does not look at it). Names and extensions may be any UTF-8 (Kafka: ASCII only). Extensions are
left to who hands the verifier in: Kafka's `tokenauth`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from core.security.verifier import ScramMechanism, Verifier


class ScramState(Enum):
    """What comes next."""

    CLIENT_FIRST = auto()
    CLIENT_FINAL = auto()
    COMPLETE = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """A client's first message.

    authorization_id: as whom it wants to act; "" as itself. gs2_header, bare: its two parts, which
    later messages repeat.
    """

    user: str
    authorization_id: str
    nonce: str
    extensions: Mapping[str, str]
    gs2_header: str
    bare: str


@dataclass(frozen=True, slots=True, repr=False)
class ClientFinal:
    """A client's last message."""

    gs2_header: bytes
    nonce: str
    proof: bytes
    without_proof: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer to a first message."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Proved:
    """The answer to a last message that proves who is there."""

    message: bytes
    user: str


@dataclass(frozen=True, slots=True)
class Disproved:
    """No. reason: for the log, not for the client."""

    reason: str


ScramAnswer = Challenge | Proved | Disproved

_NAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\0,]+)*"
# An attribute `m` before the name is a mandatory extension, and none is known: no match.
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


def read_client_first(message: bytes) -> ClientFirst | None:
    """None for what is no such message."""
    found = _match(_CLIENT_FIRST, message)
    if found is None:
        return None
    extensions = (each.partition("=") for each in found["extensions"].split(",")[1:])
    return ClientFirst(
        user=_plain_name(found["user"]),
        authorization_id=_plain_name(found["authorization"] or ""),
        nonce=found["nonce"],
        extensions={name: value for name, _, value in extensions},
        gs2_header=found["gs2"],
        bare=found["bare"],
    )


def read_client_final(message: bytes) -> ClientFinal | None:
    """None for what is no such message."""
    found = _match(_CLIENT_FINAL, message)
    if found is None:
        return None
    try:
        gs2_header = b64decode(found["binding"], validate=True)
        proof = b64decode(found["proof"], validate=True)
    except NotBase64:
        return None
    return ClientFinal(gs2_header, found["nonce"], proof, found["bare"])


def _match(pattern: re.Pattern[str], message: bytes) -> re.Match[str] | None:
    try:
        return pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        return None


def _plain_name(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


class ScramServer:
    """One login. server_nonce: fresh, of characters of a nonce. verifier_of: always finds one; a
    user that is not there has one that nothing proves (`mock_verifier`)."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        server_nonce: str,
        verifier_of: Callable[[ClientFirst], Verifier],
    ) -> None:
        self.mechanism = mechanism
        self.state = ScramState.CLIENT_FIRST
        self._server_nonce = server_nonce
        self._verifier_of = verifier_of
        self._first: ClientFirst | None = None
        self._verifier: Verifier | None = None
        self._nonce = ""
        self._server_first = ""

    @property
    def user(self) -> str | None:
        """Who the client says it is, once it has."""
        return self._first.user if self._first else None

    @property
    def authorization_id(self) -> str:
        """As whom it wants to act; "" as itself, or if it has not said."""
        return self._first.authorization_id if self._first else ""

    @property
    def verifier(self) -> Verifier | None:
        """What the proof is held against, once the client has said who it is."""
        return self._verifier

    def receive(self, message: bytes) -> ScramAnswer:
        """Decides on a client's message. After an answer that is no challenge comes nothing."""
        match self.state:
            case ScramState.CLIENT_FIRST:
                answer = self._on_first(message)
            case ScramState.CLIENT_FINAL:
                answer = self._on_final(message)
            case _:
                answer = Disproved("a message after the end of the exchange")
        if isinstance(answer, Disproved):
            self.state = ScramState.FAILED
        return answer

    def _on_first(self, message: bytes) -> ScramAnswer:
        first = read_client_first(message)
        if first is None:
            return Disproved("the client's first message is malformed")
        self._first = first
        self._verifier = self._verifier_of(first)
        self._nonce = first.nonce + self._server_nonce
        salt = b64encode(self._verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self.state = ScramState.CLIENT_FINAL
        return Challenge(self._server_first.encode())

    def _on_final(self, message: bytes) -> ScramAnswer:
        assert self._first is not None, "the first message came first"
        assert self._verifier is not None, "and somebody's verifier was found"
        final = read_client_final(message)
        if final is None:
            return Disproved("the client's last message is malformed")
        if final.nonce != self._nonce:  # CVE-2024-56128
            return Disproved("the nonce is another one")
        if final.gs2_header != self._first.gs2_header.encode():
            return Disproved("the channel binding is another one")
        auth_message = f"{self._first.bare},{self._server_first},{final.without_proof}".encode()
        if not self._verifier.is_proved_by(final.proof, auth_message):
            return Disproved("wrong password, or no such user")
        self.state = ScramState.COMPLETE
        signature = b64encode(self._verifier.server_signature(auth_message)).decode()
        return Proved(f"v={signature}".encode(), self._first.user)
