"""This broker's shards: takes leases, confirms them by heartbeats, and loses them.

A lease lasts as long as its holder's session. Other brokers go by the database's clock; the holder
goes by its own clock, which ends sooner. Shards of partitions are for brokers that consumers can
reach. Does not know what else is in a shard.
"""

import asyncio
from collections.abc import Callable

import structlog

from core.leadership import choose_leader
from core.ports.leases import Lease, LeaseStore
from core.ports.topics import Heartbeat
from core.shard import SHARDS, is_of_partitions
from core.types import LiveBroker
from gateway.runtime.cluster.membership import Cluster, session_clock

log = structlog.get_logger(__name__)


class ShardLeases:
    """The leases of this broker. One per process.

    A lease is held from `take` until it is lost. Each `take` raises its generation, so that nothing
    decided under an earlier one can be written once the shard has been read.

    can_dispatch: whether those to whom a broker dispatches can reach it.
    """

    def __init__(
        self,
        store: LeaseStore,
        cluster: Cluster,
        can_dispatch: Callable[[LiveBroker], bool] = lambda broker: True,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._can_dispatch = can_dispatch
        self._held: dict[int, Lease] = {}
        self._taken_at: dict[int, float] = {}
        self._forgotten: set[int] = set()  # ours by the last heartbeat, but not held here
        self._acquiring: dict[int, asyncio.Task[Lease | int]] = {}
        self._valid_until = float("-inf")
        self._lapse: asyncio.TimerHandle | None = None
        self._beat = asyncio.Event()
        self._has_claimed_all = False
        self._is_releasing = False
        self._on_lost: list[Callable[[Lease], None]] = []
        cluster.on_heartbeat(self._on_heartbeat)

    def on_lost(self, listener: Callable[[Lease], None]) -> None:
        """Registers a listener; all are called as soon as a lease is lost."""
        self._on_lost.append(listener)

    # --- asking ---

    @property
    def is_live(self) -> bool:
        """Whether this broker's session lasts, counted from before its last renewal was sent."""
        if self._is_releasing or self._cluster.has_left:
            return False
        return session_clock() < self._valid_until

    def held(self, shard: int) -> Lease | None:
        """The shard's lease, if it is this broker's and valid now."""
        return self._held.get(shard) if self.is_live else None

    def is_valid(self, lease: Lease) -> bool:
        """Whether this very lease is held now; if not, nothing may be answered for its shard."""
        return self._held.get(lease.shard) is lease and self.is_live

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards of groups whose leases are valid now."""
        if not self.is_live:
            return ()
        return tuple(shard for shard in self._held if not is_of_partitions(shard))

    async def find(self, shard: int) -> LiveBroker:
        """The shard's live holder, else the live broker that the hash chooses for it.

        Raises StoreUnavailable.
        """
        if self.held(shard) is not None:
            return self._cluster.this
        holder = (await self._store.holders([shard])).get(shard)
        if holder is not None and (known := self._cluster.find(holder)):
            return known
        # The holder may have joined since the last heartbeat. Or there is none, and the last holder
        # may still seem live: no client may be sent there.
        live = {each.broker_id: each for each in await self._cluster.look_now()}
        if holder is not None and holder in live:
            return live[holder]
        chosen = self._choose(shard)
        return self._cluster.this if chosen is None else live[chosen]

    def _choose(self, shard: int) -> int | None:
        """The live broker that the hash gives a free shard to."""
        return choose_leader(shard % SHARDS, self._fit(shard))

    def _fit(self, shard: int) -> frozenset[int]:
        """The live brokers that may have a shard: of partitions, those that can dispatch, or all
        while none can, so that what time brings is done to their subscriptions."""
        live = self._cluster.live_ids
        if not is_of_partitions(shard):
            return live
        fit = (each.broker_id for each in self._cluster.live if self._can_dispatch(each))
        return frozenset(fit) or live

    # --- taking ---

    async def take(self, shard: int) -> Lease | None:
        """The shard's lease, or None if another broker has it. Concurrent callers share one request
        to the database. Raises StoreUnavailable."""
        if lease := self.held(shard):
            return lease
        if not self.is_live or self._cluster.broker_id not in self._fit(shard):
            return None
        task = self._acquiring.get(shard)
        if task is None:
            task = asyncio.create_task(self._acquire(shard))
            self._acquiring[shard] = task
            task.add_done_callback(_take_exception)
        # A cancelled caller must not cancel it for the others.
        await asyncio.shield(task)
        return self.held(shard)

    async def _acquire(self, shard: int) -> Lease | int:
        try:
            answer = await self._store.acquire(
                shard, self._cluster.broker_id, self._cluster.incarnation
            )
        finally:
            del self._acquiring[shard]
        if isinstance(answer, Lease):
            self._lose(shard)
            self._held[shard] = answer
            # A heartbeat sent before now could not know of it.
            self._taken_at[shard] = session_clock()
        return answer

    async def claim(self) -> list[Lease]:
        """Takes the shards that have lost their holder and that the hash gives to this broker.

        So groups there stop waiting for clients that have vanished. Raises StoreUnavailable.
        """
        if not self.is_live:
            return []
        await self._hand_over()
        is_alone = self._cluster.is_alone
        wanted = set(self._forgotten)
        # While this broker is alone, only leases that it has lost itself become free.
        if not (is_alone and self._has_claimed_all):
            free = await self._store.free()
            own_id = self._cluster.broker_id
            wanted |= {shard for shard in free if self._choose(shard) == own_id}
        leases = [await self.take(shard) for shard in sorted(wanted)]
        self._has_claimed_all = is_alone and None not in leases
        return [lease for lease in leases if lease is not None]

    # --- losing ---

    async def _hand_over(self) -> None:
        """Frees what others are for by now."""
        own_id = self._cluster.broker_id
        others = [
            shard for shard in {*self._held, *self._forgotten} if own_id not in self._fit(shard)
        ]
        if others:
            for shard in others:
                self._lose(shard)
            log.info("coordinator_leases_handed_over", shards=len(others))
            await self._store.release(own_id, self._cluster.incarnation, others)

    def give_up(self, lease: Lease) -> None:
        """A write under the lease may or may not have been stored, and may still be on its way:
        the lease must be taken again before the shard is read."""
        if self._held.get(lease.shard) is lease:
            self._lose(lease.shard)
            self._forgotten.add(lease.shard)

    def forget_everything(self) -> None:
        """The database has another history: what it knows of leases is unknown."""
        self._valid_until = float("-inf")
        self._lose_all()

    async def release(self) -> None:
        """Frees all leases at once and takes none again. Raises StoreUnavailable."""
        self._is_releasing = True
        if self._lapse is not None:
            self._lapse.cancel()
        try:
            await self._store.release(self._cluster.broker_id, self._cluster.incarnation)
        finally:
            self._lose_all()

    async def close(self) -> None:
        """Ends requests that are still under way. Call it after `release`."""
        asking = list(self._acquiring.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _lose(self, shard: int) -> None:
        lease = self._held.pop(shard, None)
        self._taken_at.pop(shard, None)
        self._forgotten.discard(shard)
        if lease is not None:
            for told in self._on_lost:
                told(lease)

    def _lose_all(self) -> None:
        self._has_claimed_all = False  # others may come and go before this broker checks again
        for shard in list(self._held):
            self._lose(shard)

    # --- heartbeats ---

    async def wait_for_heartbeat(self) -> None:
        """Returns after the next heartbeat, or at once if one came since the last call."""
        await self._beat.wait()
        self._beat.clear()

    def _on_heartbeat(self, sent_at: float, heartbeat: Heartbeat) -> None:
        """A heartbeat confirms leases, or shows that they are lost."""
        if not heartbeat.is_registered:
            return
        if not self.is_live:
            # Waiting clients were told already, or are now. Other holders may have come and gone.
            self._lose_all()
        self._valid_until = max(self._valid_until, sent_at + self._cluster.session_timeout_s)
        ours = set(heartbeat.leases)
        for shard, lease in list(self._held.items()):
            if lease not in ours and self._taken_at[shard] <= sent_at:
                log.warning("coordinator_lease_lost", shard=shard, generation=lease.generation)
                self._has_claimed_all = False
                self._lose(shard)
        self._forgotten = {each.shard for each in ours} - set(self._held)
        if self._lapse is None and not self._is_releasing:
            self._watch_lapse()
        self._beat.set()

    def _watch_lapse(self) -> None:
        """Loses all leases the moment the session ends here, so that waiting clients are told."""
        left_s = self._valid_until - session_clock()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self._lapse = loop.call_later(left_s, self._watch_lapse)
            return
        self._lapse = None
        if self._held:
            log.warning("coordinator_leases_lapsed", shards=len(self._held))
        self._lose_all()


def _take_exception(task: asyncio.Task[Lease | int]) -> None:
    """Retrieves an exception, in case all callers have given up."""
    if not task.cancelled():
        task.exception()
