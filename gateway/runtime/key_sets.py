"""Key sets (JWKS, RFC 7517) of issuers of tokens: read from a file, or fetched by HTTP and kept.

Only public keys for signatures are taken, and each with the algorithms that it is for. An endpoint
is asked when what is known is older than it may be, or when a token names a key that is not in it,
but for that once in a while only. While it does not answer the last keys stay. Nothing that a
client sends says where keys come from. Knows no wire. Loaded where tokens are taken.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import h11
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from core.config.types import ConfigError
from core.ports.log import StoreUnavailable

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 1024 * 1024
"""Of a key set, with its HTTP headers."""
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
FETCH_TIMEOUT_S: Final = 10.0
"""For all of it, redirects included."""
UNKNOWN_KEY_APART_S: Final = 10.0
"""Between two fetches that are made since a token names a key that is not known."""
PATIENCE_S: Final = 2.0
"""So long a login waits for newer keys where there are some."""
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = {301, 302, 303, 307, 308}
_READ_BYTES: Final = 64 * 1024

_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class KeysUnavailable(StoreUnavailable):
    """There are no keys yet: it cannot be said whether a token is good."""


class NoKeySet(ValueError):
    """What was read or fetched is no key set, or none can be; the text says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """One that checks signatures. key_id: what tokens call it, if it has a name."""

    key_id: str | None
    public: PublicKey
    algorithms: frozenset[str]


def read_key_set(text: bytes) -> tuple[Key, ...]:
    """The keys of a set that can be used. Raises NoKeySet where there is none."""
    try:
        found = json.loads(text)
        given = found["keys"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise NoKeySet("it is no JSON object with keys in it") from error
    if not isinstance(given, list) or len(given) > MAX_KEYS:
        raise NoKeySet(f"keys is no list of at most {MAX_KEYS}")
    keys = tuple(key for each in given if (key := _read_key(each)) is not None)
    if not keys:
        raise NoKeySet("there is no public key in it that checks signatures")
    return keys


def _read_key(given: Any) -> Key | None:
    """None for one that is not for this: of encryption, of a secret, too short, or malformed."""
    if not isinstance(given, dict) or given.get("use", "sig") != "sig" or "d" in given:
        return None
    if "verify" not in given.get("key_ops", ["verify"]):
        return None
    key_id = given.get("kid")
    try:
        public = jwt.PyJWK(given, _algorithm_to_read(given)).key
    # PyJWT lets pass what strange values make Python and OpenSSL raise.
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None
    algorithms = _algorithms(public)
    if (only := given.get("alg")) is not None:
        algorithms = [each for each in algorithms if each == only]
    if not algorithms or not isinstance(key_id, str | None):
        return None
    return Key(key_id, public, frozenset(algorithms))


def _algorithm_to_read(given: Mapping[str, Any]) -> str | None:
    """By which PyJWT reads a key of its kind; what the key may then be used for is ours to say."""
    return "RS256" if given.get("kty") == "RSA" else None


def _algorithms(public: object) -> list[str]:
    if isinstance(public, RSAPublicKey):
        return list(_OF_RSA) if public.key_size >= MIN_RSA_BITS else []
    if isinstance(public, EllipticCurvePublicKey):
        algorithm = _OF_CURVES.get(public.curve.name)
        return [] if algorithm is None else [algorithm]
    return ["EdDSA"] if isinstance(public, Ed25519PublicKey) else []


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where keys come from, and how often they are looked for. url: of http, https or file.

    refresh_s: so old they may be. backoff_s, backoff_max_s: after a failure an endpoint is left
    alone so long, twice as long after each further one, up to a most (KIP-768).
    """

    url: str
    refresh_s: float = 3600.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0


class KeySets:
    """The keys of one source, as they are now.

    clock: seconds that only rise.
    """

    def __init__(self, source: KeySource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._url = urlsplit(source.url)
        self._clock = clock
        self._keys: Sequence[Key] = ()
        self._read_at = float("-inf")
        self._asked_for_unknown_at = float("-inf")
        self._failures = 0
        self._not_before = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Looks for the keys before the first login does."""
        self._fetch()

    async def find(self, key_id: str | None, algorithm: str) -> Sequence[Key]:
        """The keys that may have signed a token of this algorithm. key_id: as its header names it;
        None: it names none. Raises KeysUnavailable where none are known at all."""
        now = self._clock()
        if now - self._read_at > self._refresh_s:
            await self._refreshed()
        found = self._matching(key_id, algorithm)
        if not found and self._may_look_for_unknown(now):
            await self._refreshed()
            found = self._matching(key_id, algorithm)
        return found

    def _may_look_for_unknown(self, now: float) -> bool:
        """Whoever makes up keys makes the broker ask once in a while, and no more."""
        if self._fetching is None and now - self._asked_for_unknown_at < UNKNOWN_KEY_APART_S:
            return False
        self._asked_for_unknown_at = now
        return True

    @property
    def _refresh_s(self) -> float:
        """A file costs nothing to look at: its changes count within a second."""
        return min(self._source.refresh_s, 1.0) if self._is_file else self._source.refresh_s

    @property
    def _is_file(self) -> bool:
        return self._url.scheme == "file"

    def _matching(self, key_id: str | None, algorithm: str) -> Sequence[Key]:
        return [
            each
            for each in self._keys
            if algorithm in each.algorithms and key_id in (None, each.key_id)
        ]

    async def _refreshed(self) -> None:
        """Waits for newer keys, not for long where there are some."""
        fetching = self._fetch()
        if fetching is not None:
            await asyncio.wait({fetching}, timeout=PATIENCE_S if self._keys else None)
        if not self._keys:
            raise KeysUnavailable(f"no keys are known from {self._source.url}")

    def _fetch(self) -> asyncio.Task[None] | None:
        """That is under way, or a new one; None while the endpoint is left alone."""
        if self._fetching is None and self._clock() >= self._not_before:
            self._fetching = asyncio.create_task(self._read())
            self._fetching.add_done_callback(lambda _: setattr(self, "_fetching", None))
        return self._fetching

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                text = await (
                    asyncio.to_thread(_file, self._url) if self._is_file else _get(self._url)
                )
            keys = await asyncio.to_thread(read_key_set, text)
        except (OSError, ValueError, h11.ProtocolError) as error:  # of time and TLS as well
            self._failed(error)
            return
        if self._failures or keys != self._keys:
            log.info("keys_read", url=self._source.url, keys=len(keys))
        self._keys = keys
        self._read_at = self._clock()
        self._failures = 0

    def _failed(self, error: Exception) -> None:
        """One line, and no more until it has answered again."""
        if not self._failures:
            log.error(
                "keys_unavailable",
                url=self._source.url,
                reason=str(error) or type(error).__name__,
                in_force=f"{len(self._keys)} keys read before",
            )
        pause_s = self._source.backoff_s * 2 ** min(self._failures, 30)
        self._failures += 1
        self._not_before = self._clock() + min(pause_s, self._source.backoff_max_s)


def check_file(url: str) -> None:
    """Reads the keys, if they are in a file: no broker starts without. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return
    try:
        read_key_set(_file(parts))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"sasl.oauthbearer.jwks.endpoint.url: {url} cannot be used ({error}); name a key set "
            "(JWKS) with public keys"
        ) from error


def _file(url: SplitResult) -> bytes:
    with Path(unquote(url.path)).open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise NoKeySet(f"it has more than {MAX_BYTES} bytes")
    return text


# --- HTTP ---


async def _get(url: SplitResult) -> bytes:
    """What is at a URL of http or https. Redirects are followed within the scheme. Raises OSError,
    ValueError, h11.ProtocolError."""
    for _ in range(_MAX_REDIRECTS + 1):
        status, location, body = await _get_once(url)
        if status == 200:
            return body
        if status not in _REDIRECTS:
            raise NoKeySet(f"the answer has status {status}")
        before, url = url, urlsplit(urljoin(url.geturl(), location))
        if url.scheme != before.scheme or not url.hostname:
            raise NoKeySet(f"it is redirected to another scheme, {url.scheme or 'none'}")
    raise NoKeySet(f"it is redirected more than {_MAX_REDIRECTS} times")


async def _get_once(url: SplitResult) -> tuple[int, str, bytes]:
    """One request: the answer's status, its Location and its body."""
    tls = ssl.create_default_context() if url.scheme == "https" else None
    assert url.hostname is not None, "it has been looked at"
    port = url.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=tls)
    try:
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method="GET",
            target=f"{url.path or '/'}{'?' if url.query else ''}{url.query}",
            headers=[
                ("Host", url.netloc.rpartition("@")[2]),
                ("Accept", "application/json"),
                ("Connection", "close"),
            ],
        )
        writer.write(connection.send(request) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        status, location, body, taken = 0, "", bytearray(), 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                taken += len(data)
                if taken > MAX_BYTES:
                    raise NoKeySet(f"it has more than {MAX_BYTES} bytes")
                connection.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = dict(event.headers)
                location = headers.get(b"location", b"").decode("latin-1")
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return status, location, bytes(body)
    finally:
        writer.transport.abort()
