"""A client's login by SASL on one connection: what may come when, and who is there in the end.

States and texts are Kafka's (SaslServerAuthenticator): ApiVersions once, a handshake that chooses
the mechanism, tokens of the mechanism; later the same again without ApiVersions, to prolong the
session (KIP-368). Decides nothing about requests after that. Otherwise than in Kafka, a user that
is not there goes through the whole of SCRAM. Knows no socket; no secret is in a log line, or in a
`repr`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.security.plain import read_plain
from core.security.principal import ANONYMOUS, Principal
from core.security.scram import Challenge, ClientFirst, Proved, ScramServer
from core.security.verifier import ScramMechanism, Verifier
from gateway.kafka.codec import API_VERSIONS_KEY
from gateway.runtime.users import Users, shown

if TYPE_CHECKING:
    from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

PLAIN: Final = "PLAIN"
SASL_HANDSHAKE_KEY: Final = 17
SASL_AUTHENTICATE_KEY: Final = 36
_NONCE_BYTES: Final = 24
_BEGINS_APART_S: Final = 1.0  # MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS
_ANOTHER_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"
_UNSUPPORTED: Final = "unsupported"

LoginObserver = Callable[[str, str], None]
"""Called with a mechanism (or "unsupported") and an outcome for each login that has ended."""


class CutOff(Exception):
    """Nobody can be let in: the users are not known for certain. The client tries again."""


# --- what is there once a listener ---


class Held(Protocol):
    """A connection, as logins know it."""

    def close_for(self, reason: str) -> None:
        """Closes, with one line in the log."""


class Door:
    """A listener that asks who comes: what its logins share, and who has logged in by it.

    Starts to keep up with the users. observe: counts logins.
    """

    def __init__(
        self, listener: str, users: Users, configs: Configs, observe: LoginObserver
    ) -> None:
        self.listener = listener
        self.users = users
        self.observe = observe
        self._configs = configs
        self._inside: dict[Held, Credentials] = {}
        users.watch(self._look_at_everybody)

    @property
    def mechanisms(self) -> Sequence[str]:
        """Those that are offered now (`sasl.enabled.mechanisms`)."""
        return self._configs.broker_list("sasl.enabled.mechanisms")

    @property
    def session_s(self) -> float | None:
        """For how long a login counts, if there is a limit (`connections.max.reauth.ms`)."""
        milliseconds = self._configs.broker_int("connections.max.reauth.ms")
        return milliseconds / 1000 if milliseconds > 0 else None

    @property
    def failure_delay_s(self) -> float:
        """How long a client waits to hear that it has failed."""
        return self._configs.broker_int("connection.failed.authentication.delay.ms") / 1000

    @property
    def timeout_s(self) -> float:
        """How long a connection may take to log in."""
        return self._configs.broker_int("penstock.login.timeout.ms") / 1000

    @property
    def max_receive_bytes(self) -> int:
        """Largest frame before the login."""
        return self._configs.broker_int("sasl.server.max.receive.size")

    def let_in(self, connection: Held, credentials: Credentials) -> None:
        """Notes who has logged in: it is disconnected when its password changes."""
        self._inside[connection] = credentials

    def leave(self, connection: Held) -> None:
        """The connection has closed."""
        self._inside.pop(connection, None)

    def _look_at_everybody(self) -> None:
        for connection, credentials in list(self._inside.items()):
            if not credentials.are_good(self.users):
                self._inside.pop(connection, None)
                name = shown(credentials.user)
                connection.close_for(f"user {name} was deleted, or its password was changed")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a login rests on."""

    user: str
    verifier: Verifier

    def are_good(self, users: Users) -> bool:
        """Whether the user still has this verifier."""
        return users.find(self.user, self.verifier.mechanism) == self.verifier


# --- mechanisms ---


@dataclass(frozen=True, slots=True)
class _Go:
    """The exchange goes on, or (credentials) has ended well."""

    token: bytes
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class _No:
    """reason: for the log. told: to the client; None for the words that say nothing."""

    reason: str
    told: str | None = None


class _Exchange(Protocol):
    """One mechanism's part of a login."""

    user: str | None
    """Who the client says it is, once it has."""

    async def receive(self, token: bytes) -> _Go | _No:
        """Decides on a token of the client's."""


class _Plain:
    """One token. The verifier is SHA-256's if the user has one, else SHA-512's."""

    def __init__(self, users: Users) -> None:
        self.user: str | None = None
        self._users = users

    async def receive(self, token: bytes) -> _Go | _No:
        given = read_plain(token)
        if given is None:
            return _No("the message is malformed")
        self.user = given.user
        verifier = self._users.find_any(given.user)
        # As long for a user that is not there.
        checked = verifier or self._users.mock_any(given.user)
        if not await self._users.is_password(checked, given.password) or verifier is None:
            return _No("wrong password, or no such user", _WRONG_PASSWORD)
        if given.authorization_id not in ("", given.user):  # CVE-2017-12610
            return _No("another user's name as authorization id", _ANOTHER_ID)
        return _Go(b"", Credentials(given.user, verifier))


class _Scram:
    """Two tokens."""

    def __init__(self, users: Users, mechanism: ScramMechanism) -> None:
        self.user: str | None = None
        self._users = users
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        self._server = ScramServer(mechanism, nonce, self._verifier_of)

    def _verifier_of(self, first: ClientFirst) -> Verifier:
        mechanism = self._server.mechanism
        is_token = first.extensions.get("tokenauth", "").lower() == "true"  # KIP-48; none is there
        found = None if is_token else self._users.find(first.user, mechanism)
        return found or self._users.mock(first.user, mechanism)

    async def receive(self, token: bytes) -> _Go | _No:
        answer = self._server.receive(token)
        self.user = self._server.user
        if isinstance(answer, Challenge):
            if self._server.authorization_id not in ("", self.user):
                return _No("another user's name as authorization id", _ANOTHER_ID)
            return _Go(answer.message)
        if isinstance(answer, Proved):
            assert self._server.verifier is not None, "it has proved something"
            return _Go(answer.message, Credentials(answer.user, self._server.verifier))
        return _No(answer.reason)


def _exchange(mechanism: str, users: Users) -> _Exchange:
    return _Plain(users) if mechanism == PLAIN else _Scram(users, ScramMechanism(mechanism))


# --- one connection's login ---


class LoginState(Enum):
    """What may come next."""

    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKEN = auto()
    LOGGED_IN = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Handshake:
    """The answer to a handshake. error: None for success. is_last: the connection closes then."""

    mechanisms: Sequence[str] = ()
    error: Error | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a token. session_lifetime_ms: 0 for no limit, or if there is more to come."""

    token: bytes
    session_lifetime_ms: int = 0


class Login:
    """One connection's. on_logged_in: called at each success. peer: for the log."""

    def __init__(
        self, door: Door, connection: Held, peer: str, on_logged_in: Callable[[], None]
    ) -> None:
        self.state = LoginState.VERSIONS_OR_HANDSHAKE
        self.principal: Principal = ANONYMOUS
        self.has_bare_tokens = False
        self._door = door
        self._connection = connection
        self._peer = peer
        self._on_logged_in = on_logged_in
        self._mechanism = ""
        self._exchange: _Exchange | None = None
        self._wrong_mechanism: str | None = None
        self._is_known = False
        self._began_again_at = float("-inf")
        self._expires_at: float | None = None

    @property
    def awaits_login(self) -> bool:
        """Whether nobody has logged in yet."""
        return not self._is_known

    @property
    def expects_bare_token(self) -> bool:
        """Whether the next frame is a token without a request around it (handshake v0)."""
        return self.state is LoginState.TOKEN and self.has_bare_tokens

    def check(self, api_key: int, name: str, received: float) -> str | None:
        """Why a request closes the connection without an answer. received: by the loop's clock."""
        match self.state:
            case LoginState.LOGGED_IN:
                is_over = self._expires_at is not None and received > self._expires_at
                if is_over and api_key != SASL_HANDSHAKE_KEY:
                    return "its session is over, and it has not logged in again"
                return None
            case LoginState.TOKEN:
                if api_key not in (SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY):
                    return f"a request of {name} amid a login"
            case LoginState.VERSIONS_OR_HANDSHAKE:
                if api_key not in (API_VERSIONS_KEY, SASL_HANDSHAKE_KEY):
                    return f"a request of {name} before a login"
            case LoginState.HANDSHAKE:
                if api_key != SASL_HANDSHAKE_KEY:
                    return f"a request of {name} before a login"
            case LoginState.FAILED:
                return f"a request of {name} after a login that failed"
        return None

    def told_versions(self) -> None:
        """ApiVersions was answered: it is not answered again before the login."""
        if self.state is LoginState.VERSIONS_OR_HANDSHAKE:
            self.state = LoginState.HANDSHAKE

    async def handshake(self, mechanism: str, version: int) -> Handshake:
        """Begins a login, or begins it again."""
        now = asyncio.get_running_loop().time()
        if self.state is LoginState.TOKEN:
            self.state = LoginState.FAILED
            await self._refuse("a handshake amid a login")
            return Handshake(error=Error.ILLEGAL_SASL_STATE, is_last=True)
        if self.state is LoginState.LOGGED_IN and not self._may_begin_again(now):
            return Handshake(error=Error.ILLEGAL_SASL_STATE)
        self.has_bare_tokens = version == 0
        offered = self._door.mechanisms
        if mechanism not in offered:
            self._mechanism = _UNSUPPORTED if self.awaits_login else self._mechanism
            await self._refuse(f"mechanism {shown(mechanism)} is not offered")
            error = Error.UNSUPPORTED_SASL_MECHANISM
            return Handshake(offered, error, is_last=True)
        if not self.awaits_login and mechanism != self._mechanism:
            self._wrong_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self._mechanism}'"
            )
        else:
            self._mechanism = mechanism
        self._exchange = _exchange(self._mechanism, self._door.users)
        self.state = LoginState.TOKEN
        return Handshake(offered)

    def _may_begin_again(self, now: float) -> bool:
        """Only where sessions end; else the handshake is a mistake. And once a second at most
        (KafkaChannel.maybeBeginServerReauthentication)."""
        if self._expires_at is None or now - self._began_again_at < _BEGINS_APART_S:
            return False
        self._began_again_at = now
        return True

    async def receive(self, token: bytes) -> Accepted | Refusal:
        """Decides on a token; a refusal comes late. Raises CutOff."""
        assert self._exchange is not None, "a handshake came first"
        if self._wrong_mechanism is not None:
            return await self._fail(_No("another mechanism", self._wrong_mechanism))
        try:
            await self._door.users.ensure_current()
        except StoreUnavailable as error:
            self.state = LoginState.FAILED
            raise CutOff from error
        answer = await self._exchange.receive(token)
        if isinstance(answer, _No):
            return await self._fail(answer)
        if answer.credentials is None:
            return Accepted(answer.token)
        if not answer.credentials.are_good(self._door.users):
            return await self._fail(_No("the password was changed meanwhile"))
        principal = Principal(answer.credentials.user)
        if not self.awaits_login and principal != self.principal:
            before, after = self.principal, principal
            text = (
                "Cannot change principals during re-authentication from "
                f"{before.kind}.{before.name}: {after.kind}.{after.name}"
            )
            return await self._fail(_No("another user", text))
        return Accepted(answer.token, self._succeed(principal, answer.credentials))

    def _succeed(self, principal: Principal, credentials: Credentials) -> int:
        """The session's lifetime in milliseconds; 0 for no limit."""
        now = asyncio.get_running_loop().time()
        session_s = self._door.session_s
        log.debug(
            "logged_in",
            user=shown(principal.name),
            mechanism=self._mechanism,
            listener=self._door.listener,
            peer=self._peer,
        )
        self.principal = principal
        self.state = LoginState.LOGGED_IN
        self._exchange = None
        self._is_known = True
        self._expires_at = None if session_s is None else now + session_s
        self._door.observe(self._mechanism, "success")
        self._door.let_in(self._connection, credentials)
        self._on_logged_in()
        return 0 if session_s is None else int(session_s * 1000)

    async def _fail(self, no: _No) -> Refusal:
        again = "" if self.awaits_login else "re-"
        told = no.told or (
            f"Authentication failed during {again}authentication due to invalid credentials with "
            f"SASL mechanism {self._mechanism}"
        )
        await self._refuse(no.reason)
        return Refusal(Error.SASL_AUTHENTICATION_FAILED, told)

    async def _refuse(self, reason: str) -> None:
        """Notes it, and lets the client wait, so that guessing takes time."""
        self.state = LoginState.FAILED
        user = self._exchange.user if self._exchange else None
        log.warning(
            "login_refused",
            reason=reason,
            user=None if user is None else shown(user),
            mechanism=self._mechanism or None,
            listener=self._door.listener,
            peer=self._peer,
        )
        self._door.observe(self._mechanism or _UNSUPPORTED, "failure")
        await asyncio.sleep(self._door.failure_delay_s)
