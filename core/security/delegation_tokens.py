"""Delegation tokens (KIP-48): who may make, prolong and end one, and how long it lasts.

Rules are those of Kafka's DelegationTokenControlManager and DelegationTokenManager. A token's id is
the name to log in with by SCRAM (`tokenauth=true`), its HMAC by the cluster's secret key, in
Base64, the password; so nothing that is stored opens anything. Times are milliseconds since the
epoch. Knows no wire and no store.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from core.config.types import LONG_MAX
from core.errors import Error, Refusal
from core.security.principal import USER, Principal
from core.security.verifier import MIN_ITERATIONS, SALT_BYTES, ScramMechanism, Verifier

MAX_PRINCIPAL_BYTES: Final = 32_767
"""Of a principal's name, in UTF-8: what the answers of older versions can carry."""

_NOT_FOUND: Final = Refusal(Error.DELEGATION_TOKEN_NOT_FOUND)
_EXPIRED: Final = Refusal(Error.DELEGATION_TOKEN_EXPIRED)
_NOT_THEIRS: Final = Refusal(Error.DELEGATION_TOKEN_OWNER_MISMATCH)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """Kafka's TokenInformation. There is no secret in it.

    owner: as whom one acts with it. requester: who has asked for it. renewers: who may prolong and
    end it, beside the owner. max_at_ms: beyond it nobody prolongs it.
    """

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_at_ms: int

    @property
    def ends_at_ms(self) -> int:
        """The last moment at which it is good."""
        return min(self.expires_at_ms, self.max_at_ms)

    def is_over(self, now_ms: int) -> bool:
        """Whether nobody logs in with it any more."""
        return self.ends_at_ms < now_ms

    def is_of(self, principal: Principal) -> bool:
        """Whether this is its owner or one of its renewers."""
        return principal == self.owner or principal in self.renewers


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Milliseconds: `delegation.token.max.lifetime.ms`, `delegation.token.expiry.time.ms`."""

    max_ms: int
    expiry_ms: int


def hmac_of(token_id: str, secret_key: str) -> bytes:
    """A token's HMAC, the secret that its user has."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def verifier_of(mechanism: ScramMechanism, token_id: str, secret_key: str) -> Verifier:
    """What a login by the token is held against: the same at each broker. Slow, as for each
    password."""
    password = b64encode(hmac_of(token_id, secret_key)).decode()
    text = f"salt {mechanism.value} {token_id}".encode()
    salt = hmac.digest(secret_key.encode(), text, "sha256")[:SALT_BYTES]
    return Verifier.of_password(mechanism, salt, MIN_ITERATIONS, password)


def create_token(
    token_id: str,
    requester: Principal,
    owner: Principal,
    renewers: Sequence[Principal],
    max_lifetime_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken | Refusal:
    """A new token. max_lifetime_ms: what is asked for; 0 and less: as long as allowed."""
    if any(each.kind != USER for each in renewers):
        return Refusal(Error.INVALID_PRINCIPAL_TYPE)
    for each in (owner, *renewers):
        if "\0" in each.name or len(each.name.encode()) > MAX_PRINCIPAL_BYTES:
            return Refusal(Error.INVALID_REQUEST)
    longest = lifetimes.max_ms
    if max_lifetime_ms > 0:
        longest = min(longest, max_lifetime_ms)
    max_at_ms = _later(now_ms, longest)
    expires_at_ms = min(max_at_ms, _later(now_ms, lifetimes.expiry_ms))
    return DelegationToken(
        token_id, owner, requester, tuple(renewers), now_ms, expires_at_ms, max_at_ms
    )


def renew_token(
    token: DelegationToken | None,
    principal: Principal,
    period_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken | Refusal:
    """The token, prolonged. token: the one meant, if it is there. period_ms: what is asked for; 0
    and less: as long as allowed."""
    if token is None:
        return _NOT_FOUND
    if token.is_over(now_ms):
        return _EXPIRED
    if not token.is_of(principal):
        return _NOT_THEIRS
    period = lifetimes.expiry_ms
    if period_ms > 0:
        period = min(period, period_ms)
    return replace(token, expires_at_ms=min(token.max_at_ms, _later(now_ms, period)))


@dataclass(frozen=True, slots=True)
class Ended:
    """A token is to be deleted at once."""

    token_id: str


def expire_token(
    token: DelegationToken | None, principal: Principal, period_ms: int, now_ms: int
) -> DelegationToken | Ended | Refusal:
    """The token with another end, which may be later than before. period_ms: from now; below 0 it
    is deleted, also if it is over."""
    if token is None:
        return _NOT_FOUND
    if not token.is_of(principal):
        return _NOT_THEIRS
    if period_ms < 0:
        return Ended(token.token_id)
    if token.is_over(now_ms):
        return _EXPIRED
    return replace(token, expires_at_ms=min(token.max_at_ms, _later(now_ms, period_ms)))


def describe_tokens(
    tokens: Collection[DelegationToken],
    principal: Principal,
    owners: Collection[Principal] | None,
    may_describe: Callable[[DelegationToken], bool],
) -> list[DelegationToken]:
    """Those that somebody is shown: his own, those he may prolong, and others by right. owners:
    only those of which one of them is owner or renewer; None for all."""
    return [
        each
        for each in tokens
        if (owners is None or any(each.is_of(owner) for owner in owners))
        and (each.is_of(principal) or may_describe(each))
    ]


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, LONG_MAX)
