"""Subscriptions, as handlers ask for them: this broker's share of the partitions, in memory.

Only the holder of a shard's lease touches its partitions' subscriptions. If something cannot be
stored, or the lease is lost, all of the shard leaves memory, consumers are closed, and whoever
comes next finds it as the database has it. Knows no wire, no SQL and no rule.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from core.ports.log import StoreUnavailable
from core.shard import shard_of_partition
from core.subscription.values import DispatchSettings
from gateway.runtime.subscriptions.partition import OwnedPartition, Surroundings
from gateway.runtime.subscriptions.pending_acks import PendingAckTracker
from gateway.runtime.subscriptions.pieces import Pieces
from gateway.runtime.subscriptions.writes import CursorWriter

if TYPE_CHECKING:
    from core.ports.leases import Lease
    from core.ports.subscriptions import SubscriptionStore
    from core.types import LiveBroker
    from gateway.runtime.cluster.leases import ShardLeases
    from gateway.runtime.log.partitions import Partitions
    from gateway.runtime.log.translation import Translator
    from gateway.runtime.subscriptions.pending_acks import Transactions
    from gateway.runtime.subscriptions.values import Describe, Split

log = structlog.get_logger(__name__)

_STOP_S: Final = 2.0
"""How long a broker that stops waits for what was acknowledged."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Subscriptions:
    """All partitions that this broker dispatches. One per process.

    translator: gives stored batches in the format that consumers read. describe, split,
    acknowledge: see Describe, Split and Acknowledge.
    """

    def __init__(
        self,
        store: SubscriptionStore,
        leases: ShardLeases,
        partitions: Partitions,
        translator: Translator,
        describe: Describe,
        split: Split,
        transactions: Transactions,
    ) -> None:
        self._store = store
        self._leases = leases
        self._owned: dict[int, OwnedPartition] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._writer = CursorWriter(store, self._on_failed)
        self._pieces = Pieces(describe, split)
        self.pending_acks = PendingAckTracker(store, transactions, self._on_failed)
        self._around = Surroundings(
            store,
            partitions,
            translator,
            describe,
            self._pieces,
            self._writer,
            self.pending_acks,
            _now_ms,
            DispatchSettings(),
            leases.is_valid,
            self._on_failed,
            self._on_dropped,
        )
        leases.on_lost(self._on_lease_lost)

    @property
    def owned(self) -> list[OwnedPartition]:
        """The partitions in memory."""
        return list(self._owned.values())

    # --- finding ---

    async def owner_of(self, partition_id: int) -> LiveBroker:
        """The broker that dispatches the partition, or is to. Raises StoreUnavailable."""
        return await self._leases.find(shard_of_partition(partition_id))

    async def claim(self, partition_id: int) -> Lease | None:
        """The lease by which this broker dispatches the partition, taken if nobody has it; None if
        another broker has. Raises StoreUnavailable."""
        if self._is_stopping:
            return None
        return await self._leases.take(shard_of_partition(partition_id))

    async def find(self, partition_id: int) -> OwnedPartition | None:
        """The partition, loaded; None where another broker has it. Raises StoreUnavailable."""
        while not self._is_stopping:
            owned = self._owned.get(partition_id)
            if owned is not None and self._leases.is_valid(owned.lease):
                return owned
            lease = await self._leases.take(shard_of_partition(partition_id))
            if lease is None:
                return None
            task = self._loading.get(partition_id)
            if task is None:
                task = asyncio.create_task(self._load(partition_id, lease))
                self._loading[partition_id] = task
                task.add_done_callback(lambda _: self._loading.pop(partition_id, None))
            await asyncio.shield(task)
        return None

    async def _load(self, partition_id: int, lease: Lease) -> None:
        # What was dropped before may have left under the same lease, and have writes under way.
        await self.pending_acks.wait_for_writes(partition_id)
        await self._writer.wait_for_flush()
        found = await self._store.load(partition_id)
        if self._leases.is_valid(lease) and partition_id not in self._owned:
            self._owned[partition_id] = OwnedPartition(partition_id, lease, self._around, found)

    async def find_id(self, partition_id: int, name: str) -> int | None:
        """A durable subscription's id, whoever dispatches it: from memory where it is this broker
        and has it there. Raises StoreUnavailable."""
        owned = self._owned.get(partition_id)
        if owned is not None and self._leases.is_valid(owned.lease):
            known = owned.id_of(name)
            if known is not None:
                return known
        return await self._store.find_id(partition_id, name)

    # --- losing ---

    def _on_lease_lost(self, lease: Lease) -> None:
        self._drop_all(lease)

    def _on_failed(self, lease: Lease, is_unknown: bool) -> None:
        self._drop_all(lease)
        if is_unknown:
            self._leases.give_up(lease)

    def _drop_all(self, lease: Lease) -> None:
        for owned in list(self._owned.values()):
            if owned.lease is lease:
                owned.drop()

    def _on_dropped(self, owned: OwnedPartition) -> None:
        if self._owned.get(owned.partition_id) is owned:
            del self._owned[owned.partition_id]

    def forget_everything(self) -> None:
        """The database has another history: drops all that is in memory."""
        for owned in list(self._owned.values()):
            owned.drop()
        self._pieces.forget_everything()

    # --- its end ---

    async def stop(self) -> None:
        """Stores what was acknowledged, sends consumers elsewhere. Before leases are released."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(_STOP_S):
                await self._writer.drain()
        except (StoreUnavailable, TimeoutError) as error:
            log.info("subscriptions_left_unsettled", reason=str(error))
        for owned in list(self._owned.values()):
            owned.close_consumers()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._writer.drain()
        except (StoreUnavailable, TimeoutError) as error:
            log.info("subscriptions_left_unsettled", reason=str(error))

    async def close(self) -> None:
        """Ends the work in the background. After `stop`."""
        for task in list(self._loading.values()):
            task.cancel()
        await self._writer.close()
        for owned in list(self._owned.values()):
            await owned.close()
