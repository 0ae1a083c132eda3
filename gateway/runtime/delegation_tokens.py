"""Delegation tokens: those that are good, what a login by one is held against, and their changes.

On where `delegation.token.secret.key` is set, which all brokers of a cluster need alike: a token's
secret is made of its id by this key, and is stored nowhere. A change counts at every broker within
a second, news lost or not. Core has the rules; this knows no wire and no SQL.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from base64 import urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.security.delegation_tokens import (
    DelegationToken,
    Ended,
    Lifetimes,
    create_token,
    describe_tokens,
    expire_token,
    hmac_of,
    renew_token,
    verifier_of,
)
from gateway.runtime.users import shown
from gateway.runtime.watched import LOOK_AGAIN_S, Watched

if TYPE_CHECKING:
    from core.ports.delegation_tokens import DelegationTokenStore, StoredTokens
    from core.security.principal import Principal
    from core.security.verifier import ScramMechanism, Verifier
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.users import Users

log = structlog.get_logger(__name__)

_DISABLED: Final = Refusal(Error.DELEGATION_TOKEN_AUTH_DISABLED)
_NOT_FOUND: Final = Refusal(Error.DELEGATION_TOKEN_NOT_FOUND)
_TRIES: Final = 5
_OTHERS: Final = "others keep changing the delegation token"


class DelegationTokens:
    """The tokens of the cluster. One per process; without a key nothing is read.

    users: makes verifiers beside the event loop. is_on_duty: whether this broker deletes those that
    are over. clock: milliseconds since the epoch, now.
    """

    def __init__(
        self,
        store: DelegationTokenStore,
        configs: Configs,
        users: Users,
        *,
        is_on_duty: Callable[[], bool],
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._configs = configs
        self._users = users
        self._is_on_duty = is_on_duty
        self._clock = clock
        self._key: Final = configs.broker_secret("delegation.token.secret.key") or ""
        self._stored: Watched[DelegationToken] = Watched(
            "delegation_tokens", store.read, self._take
        )
        self._tokens: Mapping[str, DelegationToken] = {}
        self._ends: Sequence[int] = ()  # of all, in order
        self._ids: Mapping[bytes, str] = {}  # by HMAC
        self._verifiers: dict[tuple[str, ScramMechanism], Verifier] = {}
        self._on_change: list[Callable[[], None]] = []

    @property
    def is_on(self) -> bool:
        """Whether this broker knows the key."""
        return self._key != ""

    # --- reading ---

    def watch(self, on_change: Callable[[], None]) -> None:
        """on_change: called when they differ, and (`run_ends`) when one has come to its end."""
        self._on_change.append(on_change)

    def invalidate(self) -> None:
        """They may have changed, at any broker: makes `run` look at once."""
        self._stored.invalidate()

    def forget(self) -> None:
        """The database has another history: they are compared with what is there, not by their
        version."""
        self._stored.forget()

    async def refresh(self) -> None:
        """Reads what has changed, by a read that begins after this call; callers share it. Raises
        StoreUnavailable."""
        await self._stored.refresh()

    async def run(self) -> None:
        """Looks for changes, until cancelled; sleeps where they are off."""
        if not self.is_on:
            await asyncio.Event().wait()
        await self._stored.run()

    async def _take(self, before: StoredTokens, found: StoredTokens) -> None:
        if found.unreadable and not before.unreadable:
            log.error(
                "delegation_tokens_unreadable",
                rows=found.unreadable,
                what_happens="nobody logs in by them",
                what_to_do="correct the rows of table delegation_token, or run the version that "
                "wrote them",
            )
        known = {token_id: token_hmac for token_hmac, token_id in self._ids.items()}
        self._tokens = {each.token_id: each for each in found.rows.values()}
        self._ids = {
            known.get(token_id) or hmac_of(token_id, self._key): token_id
            for token_id in self._tokens
        }
        self._ends = sorted(each.ends_at_ms for each in self._tokens.values())
        for key in [each for each in self._verifiers if each[0] not in self._tokens]:
            del self._verifiers[key]
        self._tell()

    def _tell(self) -> None:
        for on_change in self._on_change:
            on_change()

    def find(self, token_id: str) -> DelegationToken | None:
        """The token of this id that is good now, as last read."""
        token = self._tokens.get(token_id)
        return None if token is None or token.is_over(self._clock()) else token

    def _of(self, token_hmac: bytes) -> DelegationToken | None:
        """By its secret, good or not."""
        token_id = self._ids.get(token_hmac)
        return None if token_id is None else self._tokens[token_id]

    async def verifier(self, token_id: str, mechanism: ScramMechanism) -> Verifier | None:
        """What a login by the token is held against; None if it is not good. Raises
        StoreUnavailable."""
        if not self.is_on:
            return None
        if self.find(token_id) is None:
            await self.refresh()  # it may be new, and from another broker
        if self.find(token_id) is None:
            return None
        key = (token_id, mechanism)
        verifier = self._verifiers.get(key)
        if verifier is None:
            verifier = await self._users.compute(verifier_of, mechanism, token_id, self._key)
            if token_id in self._tokens:
                self._verifiers[key] = verifier
        return verifier

    # --- what clients ask for ---

    async def create(
        self,
        owner: Principal,
        renewers: Sequence[Principal],
        max_lifetime_ms: int,
        *,
        principal: Principal,
        peer: str,
    ) -> tuple[DelegationToken, bytes] | Refusal:
        """Makes a token; with its secret. principal, peer: who asks. Raises StoreUnavailable."""
        if not self.is_on:
            return _DISABLED
        token_id = _new_id()
        now_ms = self._clock()
        made = create_token(
            token_id, principal, owner, renewers, max_lifetime_ms, self._lifetimes, now_ms
        )
        if isinstance(made, Refusal):
            return made
        try:
            await self._store.put(made)
        finally:
            self.invalidate()  # also if the outcome of the commit is unknown
        _note("created", made, principal, peer)
        await self._stored.refresh_quietly()
        return made, hmac_of(token_id, self._key)

    async def renew(
        self, token_hmac: bytes, period_ms: int, *, principal: Principal, peer: str
    ) -> int | Refusal:
        """Prolongs a token; when it ends now. Raises StoreUnavailable."""
        if not self.is_on:
            return _DISABLED
        for _ in range(_TRIES):
            await self.refresh()
            token = self._of(token_hmac)
            decided = renew_token(token, principal, period_ms, self._lifetimes, self._clock())
            if isinstance(decided, Refusal):
                return decided
            assert token is not None, "it was decided on"
            if await self._move_end(token, decided, "renewed", principal, peer):
                return decided.expires_at_ms
        raise StoreUnavailable(_OTHERS)

    async def expire(
        self, token_hmac: bytes, period_ms: int, *, principal: Principal, peer: str
    ) -> int | Refusal:
        """Gives a token another end; when that is. Raises StoreUnavailable."""
        if not self.is_on:
            return _DISABLED
        for _ in range(_TRIES):
            await self.refresh()
            token = self._of(token_hmac)
            now_ms = self._clock()
            decided = expire_token(token, principal, period_ms, now_ms)
            if isinstance(decided, Refusal):
                return decided
            assert token is not None, "it was decided on"
            if isinstance(decided, Ended):
                return await self._delete(decided, token, now_ms, principal, peer)
            if await self._move_end(token, decided, "expiry changed", principal, peer):
                return decided.expires_at_ms
        raise StoreUnavailable(_OTHERS)

    async def _move_end(
        self,
        before: DelegationToken,
        after: DelegationToken,
        change: str,
        principal: Principal,
        peer: str,
    ) -> bool:
        """False if another has changed it meanwhile: that may have been its end."""
        try:
            is_done = await self._store.move_end(after, before.expires_at_ms)
        finally:
            self.invalidate()
        if is_done:
            _note(change, after, principal, peer)
            await self._stored.refresh_quietly()
        return is_done

    async def _delete(
        self, ended: Ended, token: DelegationToken, now_ms: int, principal: Principal, peer: str
    ) -> int | Refusal:
        try:
            was_there = await self._store.delete(ended.token_id)
        finally:
            self.invalidate()
        if not was_there:
            return _NOT_FOUND
        _note("expired", token, principal, peer)
        await self._stored.refresh_quietly()
        return now_ms

    async def describe(
        self,
        owners: Collection[Principal] | None,
        may_describe: Callable[[DelegationToken], bool],
        *,
        principal: Principal,
    ) -> Sequence[tuple[DelegationToken, bytes]] | Refusal:
        """Those that somebody is shown, with their secrets. See `describe_tokens`. Raises
        StoreUnavailable."""
        if not self.is_on:
            return _DISABLED
        await self.refresh()
        found = describe_tokens(self._tokens.values(), principal, owners, may_describe)
        return [(each, hmac_of(each.token_id, self._key)) for each in found]

    @property
    def _lifetimes(self) -> Lifetimes:
        return Lifetimes(
            self._configs.broker_int("delegation.token.max.lifetime.ms"),
            self._configs.broker_int("delegation.token.expiry.time.ms"),
        )

    # --- in the background ---

    async def run_ends(self) -> None:
        """Tells those who watch when a token has come to its end, until cancelled."""
        if not self.is_on:
            await asyncio.Event().wait()
        looked_at_ms = self._clock()
        while True:
            # A nearer end may be read at any time, and the clock may be set.
            wait_s = LOOK_AGAIN_S
            at = bisect_left(self._ends, looked_at_ms)
            if at < len(self._ends):
                wait_s = min(wait_s, (self._ends[at] + 1 - looked_at_ms) / 1000)
            await asyncio.sleep(wait_s)
            before_ms, looked_at_ms = looked_at_ms, self._clock()
            if bisect_left(self._ends, before_ms) < bisect_left(self._ends, looked_at_ms):
                self._tell()

    async def run_expiry(self) -> None:
        """Deletes those that are over, until cancelled: one broker does it for all."""
        if not self.is_on:
            await asyncio.Event().wait()
        while True:
            interval_ms = self._configs.broker_int("delegation.token.expiry.check.interval.ms")
            await asyncio.sleep(interval_ms / 1000)
            if not self._is_on_duty():
                continue
            try:
                count = await self._store.delete_over(self._clock())
            except StoreUnavailable as error:
                log.debug("delegation_tokens_not_deleted", reason=str(error))
                continue
            if count:
                log.info("delegation_tokens_expired", tokens=count)


def _new_id() -> str:
    """Kafka's Uuid, as text; one that begins with a dash would be an option to its tools."""
    while (made := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


def _note(change: str, token: DelegationToken, principal: Principal, peer: str) -> None:
    log.info(
        "delegation_token_changed",
        change=change,
        token=token.token_id,
        owner=shown(str(token.owner)),
        principal=shown(str(principal)),
        peer=peer,
    )
