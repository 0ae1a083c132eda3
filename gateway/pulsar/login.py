"""A client's login on one connection of Pulsar's: CONNECT, and AUTH_CHALLENGE before it is over.

Commands and texts are ServerCnx's (handleConnect, authenticationFailed, completeConnect). Otherwise
than in Pulsar, a client is asked for another token before its own runs out, and nobody stays after
that. Knows no socket; no secret is in a log line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from core.ports.log import StoreUnavailable
from core.security.principal import Caller, Principal, java_host
from core.version import VERSION
from gateway.pulsar.api import Refused
from gateway.pulsar.commands import MalformedCommand, ProtocolVersion, ServerError
from gateway.pulsar.commands_pb2 import AuthData, CommandAuthChallenge
from gateway.runtime.authentication import UNSUPPORTED, Credentials, NotProved, Proof
from gateway.runtime.users import shown

if TYPE_CHECKING:
    from gateway.pulsar.commands_pb2 import CommandAuthResponse, CommandConnect
    from gateway.pulsar.session import Session
    from gateway.runtime.authentication import Authentication
    from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

_REFRESH: Final = b"PulsarAuthRefresh"  # AuthData.REFRESH_AUTH_DATA: asks for another token
_FAILED: Final = Refused(ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")
_INVALID_ROLES: Final = Refused(ServerError.AUTHORIZATION_ERROR, "Invalid roles.")
_NO_PROXY: Final = Refused(
    ServerError.AUTHORIZATION_ERROR,
    "Must not set proxyVersion without connecting as a ProxyRole.",
)
_LEAST_APART_S: Final = 1.0  # between two times that a client is asked

LoginObserver = Callable[[str, str], None]
"""Called with a method (or "unsupported") and an outcome for each login that has ended."""


class Door:
    """What the logins of a listener share, and who has come in by it.

    Starts to keep up with the users. observe: counts logins. clock: seconds since the epoch.
    """

    def __init__(
        self,
        listener: str,
        authentication: Authentication,
        configs: Configs,
        observe: LoginObserver,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.listener = listener
        self.authentication = authentication
        self.observe = observe
        self.clock = clock
        self._configs = configs
        self._inside: set[Login] = set()
        authentication.users.watch(self._look_at_everybody)

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

    @property
    def refresh_s(self) -> float:
        """So long before a login runs out it is asked for again."""
        return float(self._configs.broker_int("authenticationRefreshCheckSeconds"))

    @property
    def is_original_proved(self) -> bool:
        """Whether what the client of a proxy has logged in by is checked here, too."""
        return self._configs.broker_bool("authenticateOriginalAuthData")

    def let_in(self, login: Login) -> None:
        """It is told when users have changed."""
        self._inside.add(login)

    def leave(self, login: Login) -> None:
        """Its connection has closed."""
        self._inside.discard(login)

    def _look_at_everybody(self) -> None:
        for login in list(self._inside):
            login.look_at_user()


class Login:
    """One connection's: `connect` once, `answer` each AUTH_RESPONSE, `end` in the end.

    certificate: DER of what its client has shown.
    """

    def __init__(self, door: Door, session: Session, certificate: bytes | None = None) -> None:
        self._door = door
        self._certificate = certificate
        self._session = session
        self._proofs: tuple[Proof, ...] = ()  # the connection's own, then what it passes on
        self._method = ""  # by which the last of them was given
        self._can_be_asked = False
        self._is_asked = False
        self._ask_at = 0.0  # by the door's clock
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self, connect: CommandConnect) -> Refused | None:
        """Decides on CONNECT; a refusal comes late."""
        own = Credentials(connect.auth_method_name, connect.auth_data, self._certificate)
        proof = await self._prove(own)
        if not isinstance(proof, Proof):
            return proof
        proofs = [proof]
        original = connect.original_principal if connect.original_principal.strip() else ""
        if original and self._door.is_original_proved:
            data = connect.original_auth_data.encode()
            its = await self._prove(Credentials(connect.original_auth_method, data))
            if not isinstance(its, Proof):
                return its
            proofs.append(its)
            original = its.principal.name
        role = proof.principal.name
        roles = self._door.authentication
        if (wrong := roles.why_not_for(role, original)) is not None:
            await self._refuse(self._method, wrong, role)
            return _INVALID_ROLES
        if connect.proxy_version and role not in roles.proxy_roles:
            await self._refuse(self._method, "it is no proxy role", role)
            return _NO_PROXY
        self._proofs = tuple(proofs)
        self._can_be_asked = (
            connect.feature_flags.supports_auth_refresh
            and connect.protocol_version >= ProtocolVersion.AUTH_CHALLENGE
            # What a proxy says of its client it cannot say again.
            and (not original or len(proofs) > 1)
        )
        self._session.caller = Caller(
            Principal(original) if original else proof.principal,
            java_host(self._session.peer),
            proof.principal if original else None,
        )
        self._succeed()
        return None

    async def answer(self, response: CommandAuthResponse) -> Refused | None:
        """Decides on AUTH_RESPONSE. Raises MalformedCommand where nobody has asked."""
        if not self._is_asked:
            raise MalformedCommand("AUTH_RESPONSE without AUTH_CHALLENGE")
        self._is_asked = False
        proof = await self._prove(Credentials(self._method, response.response.auth_data))
        if not isinstance(proof, Proof):
            return proof
        *before, last = self._proofs
        if proof.principal != last.principal:
            await self._refuse(self._method, "another role", proof.principal.name)
            return _FAILED
        is_another = proof.expires_at != last.expires_at
        self._proofs = (*before, proof)
        if is_another:
            self._succeed()
        elif not self._session.is_lost:
            self._plan()  # its own is good for some time still: it is asked once more
        return None

    def look_at_user(self) -> None:
        """Users have changed, at some broker."""
        for proof in self._proofs:
            if (reason := proof.why_over(self._door.authentication.users)) is not None:
                self._door.leave(self)
                self._session.outlet.close_for(f"user {shown(proof.principal.name)} {reason}")
                return

    def end(self) -> None:
        """The connection has gone."""
        self._door.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    # --- the outcome ---

    async def _prove(self, credentials: Credentials) -> Proof | Refused:
        self._method = credentials.method
        try:
            found = await self._door.authentication.prove(credentials)
        except StoreUnavailable as away:
            # Clients try again.
            log.warning("login_impossible", reason=str(away), peer=self._session.peer)
            return Refused(ServerError.SERVICE_NOT_READY, "The database is away")
        if isinstance(found, NotProved):
            await self._refuse(credentials.method, found.reason, found.user)
            return _FAILED
        return found

    def _succeed(self) -> None:
        caller = self._session.caller
        log.debug(
            "logged_in",
            user=shown(caller.principal.name),
            proxy=None if caller.proxy is None else shown(caller.proxy.name),
            mechanism=self._method,
            listener=self._door.listener,
            peer=self._session.peer,
        )
        self._door.observe(self._method, "success")
        if self._session.is_lost:
            return
        self._door.let_in(self)
        self.look_at_user()  # they may have changed while the other was proved
        if (over_at := self._over_at) is None:
            if self._timer is not None:
                self._timer.cancel()
        else:
            left = over_at - self._door.clock()
            self._ask_at = over_at - min(self._door.refresh_s, left / 2)
            self._plan()

    async def _refuse(self, method: str, reason: str, user: str | None) -> None:
        """Notes it, and lets the client wait, so that guessing takes time."""
        log.warning(
            "login_refused",
            reason=shown(reason),
            user=None if user is None else shown(user),
            mechanism=shown(method) or None,
            listener=self._door.listener,
            peer=self._session.peer,
        )
        known = method in self._door.authentication.methods
        self._door.observe(method if known else UNSUPPORTED, "failure")
        await asyncio.sleep(self._door.failure_delay_s)

    # --- its time ---

    @property
    def _over_at(self) -> float | None:
        ends = [each.expires_at for each in self._proofs if each.expires_at is not None]
        return min(ends, default=None)

    def _plan(self) -> None:
        """Looks again when something is due. The clock of tokens may be set meanwhile: no wait is
        longer than the time between two of Pulsar's checks."""
        over_at = self._over_at
        assert over_at is not None, "it ends"
        if self._timer is not None:
            self._timer.cancel()
        now = self._door.clock()
        if now >= over_at:
            self._door.leave(self)
            self._session.outlet.close_for("its token has run out, and it has given no other")
            return
        if self._can_be_asked and not self._is_asked and now >= self._ask_at:
            self._ask()
            self._ask_at = now + max((over_at - now) / 2, _LEAST_APART_S)
        may_ask = self._can_be_asked and not self._is_asked
        due_at = max(min(self._ask_at, over_at), now) if may_ask else over_at
        wait_s = min(max(due_at - now, 0.001), self._door.refresh_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._plan)

    def _ask(self) -> None:
        self._is_asked = True
        self._session.send(
            CommandAuthChallenge(
                server_version=f"Penstock {VERSION}",
                protocol_version=self._session.protocol_version,
                challenge=AuthData(auth_method_name=self._method, auth_data=_REFRESH),
            )
        )
