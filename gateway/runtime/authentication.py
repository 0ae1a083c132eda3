"""Who somebody is in Pulsar's ways: by token, by a user's name and password, by certificate.

What front-ends ask with whatever their wire carries; the roles are principals of Kafka's ACLs. One
per process. Knows no wire; no secret is in what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.config.definitions import TLS
from core.config.values import authentication_methods, broker_bool, broker_list
from core.security.names import MalformedName, common_name_of
from core.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.security.verifier import Verifier
    from gateway.runtime.tokens import Tokens
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.users import Users

TOKEN: Final = "token"
BASIC: Final = "basic"
_NOBODY: Final = "its role is that of those who have not logged in"
UNSUPPORTED: Final = "unsupported"
"""What a method is called, in metrics, that is not among those which are asked for."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a client shows. method: as CONNECT's `auth_method_name`. certificate: DER, of one that
    TLS has found good."""

    method: str
    data: bytes = b""
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What a login rests on. expires_at: seconds since the epoch; None: it does not end by itself.
    verifier: of the password that was given."""

    principal: Principal
    expires_at: float | None = None
    verifier: Verifier | None = None

    def why_over(self, users: Users) -> str | None:
        """Why it counts no more, whatever the time, for the log."""
        known = self.verifier
        if known is None or users.find(self.principal.name, known.mechanism) == known:
            return None
        return "was deleted, or its password was changed"


@dataclass(frozen=True, slots=True)
class NotProved:
    """reason: for the log; clients are told nothing. user: who the client says it is."""

    reason: str
    user: str | None = None


def read_tokens(static: Mapping[str, str]) -> Tokens | None:
    """What checks tokens, where they are taken. static: the broker's own properties. Raises
    ConfigError where a key cannot be used."""
    if not broker_bool("authenticationEnabled", static):
        return None
    if TOKEN not in authentication_methods(static):
        return None
    from gateway.runtime.tokens import tokens_of  # it takes a tenth of a second to load

    return tokens_of(static)


class Authentication:
    """The ways in which roles are proved. Raises ConfigError where a key cannot be used."""

    def __init__(self, users: Users, configs: Configs) -> None:
        static = configs.values.static
        self.is_on: Final = broker_bool("authenticationEnabled", static)
        self.methods: Final = authentication_methods(static) if self.is_on else ()
        self.proxy_roles: Final = frozenset(broker_list("proxyRoles", static))
        self.users: Final = users
        self._tokens = read_tokens(static)

    def why_not_for(self, own: str, original: str, *, may_be_same: bool = False) -> str | None:
        """Why a role may not ask for another, or has to, for the log. original: for whom it says
        that it asks, if it does. may_be_same: whether that may be the role itself. As
        AuthorizationService.isValidOriginalPrincipal."""
        if original.strip() == ANONYMOUS.name:
            return _NOBODY
        if own not in self.proxy_roles:
            if not original.strip() or (may_be_same and original == own):
                return None
            return "only a proxy role may say for whom it asks"
        if not original.strip():
            return "a proxy role has to say for whom it asks"
        return "it asks for a proxy role" if original in self.proxy_roles else None

    async def prove(self, shown: Credentials) -> Proof | NotProved:
        """Who shows these. Raises StoreUnavailable where the database is away for longer than the
        broker's session: nobody new is let in, by a token neither."""
        await self.users.ensure_current()
        found = await self._prove(shown)
        if isinstance(found, Proof) and found.principal.name.strip() == ANONYMOUS.name:
            return NotProved(_NOBODY, ANONYMOUS.name)
        return found

    async def _prove(self, shown: Credentials) -> Proof | NotProved:
        if shown.method not in self.methods:
            return NotProved(
                f"method {shown.method or 'none'} is not among authenticationProviders"
            )
        if shown.method == TOKEN:
            return self._by_token(shown.data)
        if shown.method == TLS:
            return _by_certificate(shown.certificate)
        return await self._by_password(shown.data)

    def _by_token(self, token: bytes) -> Proof | NotProved:
        assert self._tokens is not None, "it is among the methods"
        found = self._tokens.check(token)
        if isinstance(found, NotProved):
            return found
        return Proof(Principal(found.name), found.expires_at)

    async def _by_password(self, data: bytes) -> Proof | NotProved:
        """`NAME:PASSWORD` (AuthenticationBasic)."""
        try:
            name, colon, password = data.decode().partition(":")
        except UnicodeDecodeError:
            colon = ""
        if not colon:
            return NotProved("no name and password in it")
        verifier = self.users.find_any(name)
        # As long for a user that is not there.
        checked = verifier or self.users.mock_any(name)
        if not await self.users.is_password(checked, password) or verifier is None:
            return NotProved("wrong password, or no such user", name)
        proof = Proof(Principal(name), verifier=verifier)
        if proof.why_over(self.users) is not None:
            return NotProved("the password was changed meanwhile", name)
        return proof


def _by_certificate(certificate: bytes | None) -> Proof | NotProved:
    if certificate is None:
        return NotProved("it has shown no certificate")
    try:
        name = common_name_of(certificate)
    except MalformedName as error:
        return NotProved(f"its certificate cannot be read: {error}")
    if name is None or not name.strip():
        return NotProved("its certificate has no CN")
    return Proof(Principal(name))
