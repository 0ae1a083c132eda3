"""SASL's mechanisms, on the server's side: tokens in, tokens out, and credentials in the end.

One class a mechanism. Knows neither sockets nor what may come before a login (`login.py`); what is
pure of a mechanism is in `core.security`. No secret is in a log line, or in a `repr`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from core.security.oauthbearer import INVALID_TOKEN, OAUTHBEARER, read_message
from core.security.plain import read_plain
from core.security.principal import Principal
from core.security.scram import Challenge, ClientFirst, Proved, ScramServer, read_client_first
from core.security.verifier import ScramMechanism, Verifier
from gateway.runtime.authentication import NotProved
from gateway.runtime.users import shown

if TYPE_CHECKING:
    from core.security.delegation_tokens import DelegationToken
    from gateway.runtime.bearer_tokens import BearerTokens
    from gateway.runtime.delegation_tokens import DelegationTokens
    from gateway.runtime.users import Users

PLAIN: Final = "PLAIN"
_NONCE_BYTES: Final = 24
_ANOTHER_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"


# --- what a login rests on ---


class Credentials(Protocol):
    """What a client has shown. It is disconnected when that is over."""

    @property
    def principal(self) -> Principal:
        """Who it is."""

    @property
    def expires_at_ms(self) -> int | None:
        """When the session ends at the latest, in milliseconds since the epoch."""

    def why_over(self) -> str | None:
        """Why it does not count any more, if so. For the log."""


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """A password."""

    users: Users
    user: str
    verifier: Verifier
    expires_at_ms: int | None = None

    @property
    def principal(self) -> Principal:
        """See Credentials."""
        return Principal(self.user)

    def why_over(self) -> str | None:
        """See Credentials."""
        if self.users.find(self.user, self.verifier.mechanism) == self.verifier:
            return None
        return f"user {shown(self.user)} was deleted, or its password was changed"


@dataclass(frozen=True, slots=True)
class TokenCredentials:
    """A delegation token, as it was when its client logged in."""

    tokens: DelegationTokens
    token: DelegationToken

    @property
    def principal(self) -> Principal:
        """See Credentials."""
        return replace(self.token.owner, is_by_token=True)

    @property
    def expires_at_ms(self) -> int | None:
        """See Credentials. It may be renewed meanwhile; clients log in again then, as in Kafka. An
        end that has become earlier is found by `why_over`."""
        return self.token.ends_at_ms

    def why_over(self) -> str | None:
        """See Credentials."""
        found = self.tokens.find(self.token.token_id)
        if found is not None and found.owner == self.token.owner:
            return None
        return f"delegation token {shown(self.token.token_id)} has ended"


@dataclass(frozen=True, slots=True)
class BearerCredentials:
    """A token of an issuer of the user's own: nobody but the issuer can take it back."""

    principal: Principal
    expires_at_ms: int | None

    def why_over(self) -> str | None:
        """See Credentials. Its session ends with it."""
        return None


# --- mechanisms ---


@dataclass(frozen=True, slots=True)
class Go:
    """The exchange goes on, or (credentials) has ended well."""

    token: bytes
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class No:
    """reason: for the log. told: to the client; None for the words that say nothing."""

    reason: str
    told: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It is over, and the client is told so by a token, which it acknowledges before it gets the
    answer `no`."""

    token: bytes
    no: No


class Exchange(Protocol):
    """One mechanism's part of a login."""

    user: str | None
    """Who the client says it is, once it has."""

    async def receive(self, token: bytes) -> Go | No | Refused:
        """Decides on a token of the client's. Raises StoreUnavailable."""


def exchange(
    mechanism: str, users: Users, tokens: DelegationTokens, bearers: BearerTokens | None
) -> Exchange:
    """A new one, of a mechanism that is offered."""
    if mechanism == PLAIN:
        return _Plain(users)
    if mechanism == OAUTHBEARER:
        assert bearers is not None, "else it is not offered"
        return _OAuthBearer(bearers)
    return _Scram(users, tokens, ScramMechanism(mechanism))


class _Plain:
    """One token. The verifier is SHA-256's if the user has one, else SHA-512's."""

    def __init__(self, users: Users) -> None:
        self.user: str | None = None
        self._users = users

    async def receive(self, token: bytes) -> Go | No:
        given = read_plain(token)
        if given is None:
            return No("the message is malformed")
        self.user = given.user
        verifier = self._users.find_any(given.user)
        # As long for a user that is not there.
        checked = verifier or self._users.mock_any(given.user)
        if not await self._users.is_password(checked, given.password) or verifier is None:
            return No("wrong password, or no such user", _WRONG_PASSWORD)
        if given.authorization_id not in ("", given.user):  # CVE-2017-12610
            return No("another user's name as authorization id", _ANOTHER_ID)
        return Go(b"", UserCredentials(self._users, given.user, verifier))


class _Scram:
    """Two tokens. With the extension `tokenauth` the user is a delegation token's id (KIP-48)."""

    def __init__(self, users: Users, tokens: DelegationTokens, mechanism: ScramMechanism) -> None:
        self.user: str | None = None
        self._users = users
        self._tokens = tokens
        self._by_token: DelegationToken | None = None
        self._of_token: Verifier | None = None
        self._server = ScramServer(
            mechanism, secrets.token_urlsafe(_NONCE_BYTES), self._verifier_of
        )

    def _verifier_of(self, first: ClientFirst) -> Verifier:
        mechanism = self._server.mechanism
        is_token = _is_by_token(first)
        found = self._of_token if is_token else self._users.find(first.user, mechanism)
        return found or self._users.mock(first.user, mechanism)

    async def receive(self, token: bytes) -> Go | No:
        await self._look_for_token(token)
        answer = self._server.receive(token)
        self.user = self._server.user
        if isinstance(answer, Challenge):
            if self._server.authorization_id not in ("", self.user):
                return No("another user's name as authorization id", _ANOTHER_ID)
            return Go(answer.message)
        if isinstance(answer, Proved):
            assert self._server.verifier is not None, "it has proved something"
            return Go(answer.message, self._credentials(answer.user, self._server.verifier))
        return No(answer.reason)

    async def _look_for_token(self, message: bytes) -> None:
        """What a login by a delegation token is held against is made when it is asked for."""
        first = None if self.user is not None else read_client_first(message)
        if first is not None and _is_by_token(first):
            mechanism = self._server.mechanism
            self._of_token = await self._tokens.verifier(first.user, mechanism)
            self._by_token = self._tokens.find(first.user) if self._of_token else None

    def _credentials(self, user: str, verifier: Verifier) -> Credentials:
        if self._by_token is not None:
            return TokenCredentials(self._tokens, self._by_token)
        return UserCredentials(self._users, user, verifier)


def _is_by_token(first: ClientFirst) -> bool:
    return first.extensions.get("tokenauth", "").lower() == "true"


class _OAuthBearer:
    """One token, a JWT; where it is not good a second one, that acknowledges it (RFC 7628)."""

    def __init__(self, bearers: BearerTokens) -> None:
        self.user: str | None = None
        self._bearers = bearers

    async def receive(self, token: bytes) -> Go | No | Refused:
        message = read_message(token)
        if message is None:
            return No("the message is malformed")
        found = await self._bearers.check(message.token)
        if isinstance(found, NotProved):
            return Refused(INVALID_TOKEN.encode(), No(found.reason, INVALID_TOKEN))
        self.user = found.name
        if message.authorization_id not in ("", found.name):
            return No("another user's name as authorization id", _ANOTHER_ID)
        return Go(b"", BearerCredentials(Principal(found.name), found.expires_at_ms))
