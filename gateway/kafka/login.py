"""A client's login by SASL on one connection: what may come when, and who is there in the end.

States and texts are Kafka's (SaslServerAuthenticator): ApiVersions once, a handshake that chooses
the mechanism, tokens of the mechanism; later the same again without ApiVersions, to prolong the
session (KIP-368). Decides nothing about requests after that. Otherwise than in Kafka, a user that
is not there goes through the whole of SCRAM. Knows no socket; no secret is in a log line, or in a
`repr`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.security.oauthbearer import OAUTHBEARER
from core.security.principal import ANONYMOUS, Principal
from gateway.kafka.codec import API_VERSIONS_KEY
from gateway.kafka.mechanisms import Credentials, Exchange, No, Refused, exchange
from gateway.runtime.users import shown

if TYPE_CHECKING:
    from gateway.runtime.bearer_tokens import BearerTokens
    from gateway.runtime.delegation_tokens import DelegationTokens
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.users import Users

log = structlog.get_logger(__name__)

SASL_HANDSHAKE_KEY: Final = 17
SASL_AUTHENTICATE_KEY: Final = 36
_BEGINS_APART_S: Final = 1.0  # MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS
_UNSUPPORTED: Final = "unsupported"

LoginObserver = Callable[[str, str], None]
"""Called with a mechanism (or "unsupported") and an outcome for each login that has ended."""


class CutOff(Exception):
    """Nobody can be let in: who is there is not known for certain. The client tries again."""


# --- what is there once a listener ---


class Held(Protocol):
    """A connection, as logins know it."""

    def close_for(self, reason: str) -> None:
        """Closes, with one line in the log."""


class Door:
    """A listener that asks who comes: what its logins share, and who has logged in by it.

    Starts to keep up with the users. observe: counts logins. bearers: checks tokens of
    OAUTHBEARER, where that can be offered.
    """

    def __init__(
        self,
        listener: str,
        users: Users,
        tokens: DelegationTokens,
        configs: Configs,
        observe: LoginObserver,
        bearers: BearerTokens | None = None,
    ) -> None:
        self.listener = listener
        self.users = users
        self.tokens = tokens
        self.bearers = bearers
        self.observe = observe
        self._configs = configs
        self._inside: dict[Held, Credentials] = {}
        users.watch(self._look_at_everybody)
        tokens.watch(self._look_at_everybody)

    @property
    def mechanisms(self) -> Sequence[str]:
        """Those that are offered now (`sasl.enabled.mechanisms`)."""
        enabled = self._configs.broker_list("sasl.enabled.mechanisms")
        return [each for each in enabled if each != OAUTHBEARER or self.bearers is not None]

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
        """Notes who has logged in: it is disconnected when what it has shown is over."""
        self._inside[connection] = credentials

    def leave(self, connection: Held) -> None:
        """The connection has closed."""
        self._inside.pop(connection, None)

    def _look_at_everybody(self) -> None:
        for connection, credentials in list(self._inside.items()):
            if (reason := credentials.why_over()) is not None:
                self._inside.pop(connection, None)
                connection.close_for(reason)


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
        self._exchange: Exchange | None = None
        self._wrong_mechanism: str | None = None
        self._refused: No | None = None
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
        self._exchange = exchange(
            self._mechanism, self._door.users, self._door.tokens, self._door.bearers
        )
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
            return await self._fail(No("another mechanism", self._wrong_mechanism))
        if self._refused is not None:  # it has been told, noted and counted
            self.state = LoginState.FAILED
            return Refusal(Error.SASL_AUTHENTICATION_FAILED, self._told(self._refused))
        try:
            await self._door.users.ensure_current()
        except StoreUnavailable as error:
            self.state = LoginState.FAILED
            raise CutOff("the users are not known for certain") from error
        try:
            answer = await self._exchange.receive(token)
        except StoreUnavailable as error:
            self.state = LoginState.FAILED
            raise CutOff(str(error)) from error
        if isinstance(answer, No):
            return await self._fail(answer)
        if isinstance(answer, Refused):
            self._refused = answer.no
            await self._refuse(answer.no.reason)
            self.state = LoginState.TOKEN
            return Accepted(answer.token)
        if answer.credentials is None:
            return Accepted(answer.token)
        if (reason := answer.credentials.why_over()) is not None:
            return await self._fail(No(f"meanwhile {reason}"))
        principal = answer.credentials.principal
        if not self.awaits_login and principal != self.principal:
            before, after = self.principal, principal
            text = (
                "Cannot change principals during re-authentication from "
                f"{before.kind}.{before.name}: {after.kind}.{after.name}"
            )
            return await self._fail(No("another user", text))
        return Accepted(answer.token, self._succeed(principal, answer.credentials))

    def _succeed(self, principal: Principal, credentials: Credentials) -> int:
        """The session's lifetime in milliseconds; 0 for no limit."""
        now = asyncio.get_running_loop().time()
        session_s = self._session_s(credentials)
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

    def _session_s(self, credentials: Credentials) -> float | None:
        """For how long this login counts: as long as each, and as what was shown does."""
        session_s = self._door.session_s
        if credentials.expires_at_ms is None:
            return session_s
        left_s = max(0.001, credentials.expires_at_ms / 1000 - time.time())
        return left_s if session_s is None else min(session_s, left_s)

    async def _fail(self, no: No) -> Refusal:
        await self._refuse(no.reason)
        return Refusal(Error.SASL_AUTHENTICATION_FAILED, self._told(no))

    def _told(self, no: No) -> str:
        again = "" if self.awaits_login else "re-"
        return no.told or (
            f"Authentication failed during {again}authentication due to invalid credentials with "
            f"SASL mechanism {self._mechanism}"
        )

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
