"""Cursors on their way into the database: one flush for all that have changed.

What has changed is taken when a flush begins, so that many acknowledgements of one subscription are
one write. Knows no rule of a cursor and no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    StoreUnavailable,
    VersionMismatch,
)
from core.ports.subscriptions import CursorWrite, GuardedWrites
from gateway.runtime.flush.queue import FlushQueue

if TYPE_CHECKING:
    from core.ports.leases import Lease
    from core.ports.subscriptions import SubscriptionFlush, SubscriptionStore

log = structlog.get_logger(__name__)

LAZY_S: Final = 0.2
"""How long an acknowledgement waits for company that nobody has asked a receipt for."""
_MOST_AT_ONCE: Final = 5_000


class Writable(Protocol):
    """A durable subscription in memory. is_dropped: nothing of it is written any more."""

    @property
    def lease(self) -> Lease: ...

    @property
    def is_dropped(self) -> bool: ...

    def take(self) -> CursorWrite | None:
        """What has changed since the last time, if anything."""

    def refuse(self) -> None:
        """The database refuses what was taken: it has to leave memory, with its partition."""


OnFailed = Callable[["Lease", bool], None]
"""(lease, whether the writes may have come through all the same)."""


class CursorWriter:
    """All writes of cursors of this process.

    on_failed: called before whoever waits is told; all of the lease's has to leave memory then.
    """

    def __init__(self, store: SubscriptionStore, on_failed: OnFailed) -> None:
        self._store = store
        self._on_failed = on_failed
        self._flush: SubscriptionFlush | None = None
        self._queue: FlushQueue[Writable] = FlushQueue(
            self._settle, limit=_MOST_AT_ONCE, weigh=lambda _: 1
        )
        self._queued: dict[Writable, asyncio.Future[bool]] = {}
        self._taken: dict[int, Writable] = {}  # by id, those of the flush under way
        self._lazy: dict[Writable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushed: asyncio.Future[None] | None = None  # done when the flush under way is over

    def put(self, subscription: Writable) -> asyncio.Future[bool]:
        """Writes what has changed of it, as soon as it can. Done once it is stored (True), or has
        failed: then the subscription has been dropped.

        All who ask before its flush begins share the future: nobody may cancel it.
        """
        self._lazy.pop(subscription, None)
        stored = self._queued.get(subscription)
        if stored is None:
            stored = self._queued[subscription] = asyncio.get_running_loop().create_future()
            self._queue.put(subscription)
        return stored

    def later(self, subscription: Writable) -> None:
        """The same, soon, and nobody waits for it."""
        if subscription in self._queued:
            return  # taken along
        self._lazy[subscription] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, self._put_lazy)

    def _put_lazy(self) -> None:
        self._timer = None
        for subscription in list(self._lazy):
            self.put(subscription)

    async def wait_for_flush(self) -> None:
        """Returns when the flush under way is over: what a subscription that has left memory had
        given it is in the database, or never will be."""
        if self._flushed is not None:
            await asyncio.wait([self._flushed])

    async def drain(self) -> None:
        """Returns when all that was given so far is stored, or has failed."""
        self._cancel_timer()
        self._put_lazy()
        # Whoever gives up waiting must not end the flush.
        await asyncio.shield(asyncio.ensure_future(self._queue.close()))

    async def close(self) -> None:
        """Writes what is left, then stops."""
        await self.drain()
        if self._flush is not None:
            await self._flush.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _settle(self, wanted: list[Writable]) -> None:
        waiting = [(each, self._queued.pop(each)) for each in wanted]
        writes: dict[Lease, list[CursorWrite]] = {}
        self._taken = {}
        for subscription in wanted:
            if not subscription.is_dropped and (write := subscription.take()) is not None:
                writes.setdefault(subscription.lease, []).append(write)
                self._taken[write.subscription_id] = subscription
        guarded = [GuardedWrites(lease, tuple(each)) for lease, each in writes.items()]
        flushed = self._flushed = asyncio.get_running_loop().create_future()
        try:
            await self._commit(guarded)
        except Exception:  # a bug must not stop every later write
            log.exception("subscription_flush_failed")
            self._fail(guarded, is_unknown=True)
        finally:
            self._flushed = None
            flushed.set_result(None)
        for subscription, stored in waiting:
            stored.set_result(not subscription.is_dropped)

    async def _commit(self, writes: Sequence[GuardedWrites]) -> None:
        """All at once; where that is refused, shard by shard, and then one by one."""
        if not writes:
            return
        if self._flush is None:
            self._flush = self._store.open_flush()
        try:
            await self._flush.commit(writes)
        except (VersionMismatch, RowLocked, EffectRefused) as error:
            if len(writes) > 1:
                for each in writes:
                    await self._commit([each])
                return
            is_lost = isinstance(error, VersionMismatch)
            if isinstance(error, EffectRefused) and not error.out_of_space:
                await self._find_culprit(writes[0], error)
                return
            log.warning("cursors_not_stored", shard=writes[0].lease.shard, reason=str(error))
            self._fail(writes, is_unknown=is_lost)
        except StoreUnavailable as error:
            log.warning("cursors_not_stored", reason=str(error))
            self._fail(writes, is_unknown=isinstance(error, CommitUnknown))

    async def _find_culprit(self, writes: GuardedWrites, error: EffectRefused) -> None:
        """The others of its shard are stored, and go on."""
        if len(writes.writes) > 1:
            for each in writes.writes:
                await self._commit([GuardedWrites(writes.lease, (each,))])
            return
        (culprit,) = writes.writes
        log.error("cursor_refused_by_database", of=culprit.subscription_id, reason=str(error))
        self._taken[culprit.subscription_id].refuse()

    def _fail(self, writes: Sequence[GuardedWrites], *, is_unknown: bool) -> None:
        for each in writes:
            self._on_failed(each.lease, is_unknown)
