"""A broker's side of transactions for tests of the store: begin, join, write, put offsets, end.

Decides as little as it can: versions are what was read, states are put as told. Must not know what
a test is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from core.group.records import CommittedOffset, GroupEffects, OffsetEffects
from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import LogDraft
from core.log.retention import CONTROL
from core.ports.groups import GuardedEffects
from core.ports.leases import Lease
from core.ports.log import ToLock
from core.ports.transactions import PendingOffsets, TransactionJoin
from core.shard import shard_of
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import (
    Marker,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
)
from storage.connection.pool import Database
from storage.flush.groups import GroupFlush
from storage.flush.log import FlushSession
from storage.flush.segments import Segments
from storage.groups.store import GroupStore
from storage.log.store import PostgresLogStore
from storage.transactions import PostgresTransactionStore
from tests.batches import batch, control_batch, incoming, payload_of
from tests.keys import named

T0 = 1_750_000_000_000
LEASES = (
    "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
    " SELECT shard, 1, gen_random_uuid(), 1 FROM generate_series(0, 127) AS shard"
    " ON CONFLICT DO NOTHING"
)
"""Every lease of groups and of partitions, with generation 1."""


def row_of(name: str, producer_id: int = 7, **fields: Any) -> TransactionMetadata:
    """A row that is complete, and idle unless `fields` say otherwise."""
    return TransactionMetadata(named(name), producer_id, 0, TransactionState.EMPTY, **fields)


def opened(metadata: TransactionMetadata) -> TransactionMetadata:
    """The row once a transaction is open."""
    return replace(metadata, state=TransactionState.ONGOING, started_at=1)


def offset(partition_id: int, value: int, *, at: int = T0, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(partition_id, value, 3, metadata, at)


@dataclass
class Broker:
    """One broker's connections: a flush of the log, one of groups, and the transactions' own."""

    url: str
    database: Database = field(init=False)
    logs: PostgresLogStore = field(init=False)
    store: PostgresTransactionStore = field(init=False)
    groups: GroupStore = field(init=False)
    flush: FlushSession = field(init=False)
    group_flush: GroupFlush = field(init=False)
    marks: int = 0

    def __post_init__(self) -> None:
        self.database = Database(self.url)
        self.logs = PostgresLogStore(self.database, Segments(self.database))
        self.store = PostgresTransactionStore(self.database)
        self.groups = GroupStore(self.database)
        self.flush = self.logs.open_flush()
        self.group_flush = self.groups.open_flush()

    async def close(self) -> None:
        await self.flush.close()
        await self.database.close()

    async def find(self, name: str) -> StoredTransaction | None:
        return (await self.store.load([named(name)])).get(named(name))

    async def load(self, name: str) -> StoredTransaction:
        return (await self.store.load([named(name)]))[named(name)]

    async def put(self, *effects: TransactionEffects) -> None:
        """A flush of these alone."""
        await self.flush.commit([], effects)

    async def begin(
        self, name: str, producer_id: int = 7, partitions: Iterable[int] = (), **fields: Any
    ) -> StoredTransaction:
        """A new id with an open transaction."""
        metadata = opened(row_of(name, producer_id, **fields))
        await self.put(TransactionEffects(named(name), 0, metadata, joined=tuple(partitions)))
        return await self.load(name)

    async def reopen(self, stored: StoredTransaction, partitions: Iterable[int] = ()) -> None:
        """The next transaction of an id, opened by what a flush writes (V2)."""
        metadata = stored.metadata
        effects = TransactionEffects(
            metadata.key,
            metadata.version,
            opened(metadata),
            joined=tuple(partitions),
        )
        await self.put(effects)

    async def join(
        self,
        stored: StoredTransaction,
        partitions: Iterable[int] = (),
        groups: Iterable[str] = (),
        *,
        opens: bool = False,
    ) -> int:
        metadata = stored.metadata
        put = opened(metadata) if opens else None
        join = TransactionJoin(
            metadata.key,
            metadata.version,
            put,
            tuple(partitions),
            tuple(map(Participant.of_group, groups)),
        )
        (version,) = await self.store.join([join])
        return version

    async def drafted(
        self, stored: StoredTransaction, *partition_ids: int
    ) -> tuple[list[LogEffects], list[bytes]]:
        """A transactional batch for each partition, in sequence; gives effects and payload."""
        producer_id = stored.metadata.producer_id
        states, known, _ = await self.logs.load(
            partition_ids, [(partition_id, producer_id) for partition_id in partition_ids]
        )
        effects, payload = [], []
        for partition_id in partition_ids:
            producer = known.get((partition_id, producer_id))
            draft = LogDraft(states[partition_id], {producer_id: producer})
            of = batch(
                producer=producer_id,
                epoch=stored.metadata.producer_epoch,
                sequence=producer.last_sequence + 1 if producer else 0,
                transactional=True,
            )
            self.marks += 1
            payload.append(payload_of(of, self.marks))
            draft.prepare_append(IncomingBatch(of, payload[-1], "week"))
            effects.append(effect_of(draft))
        return effects, payload

    async def append(
        self, stored: StoredTransaction, *partition_ids: int, joins: bool = False
    ) -> None:
        """A batch for each partition, in one flush that stands on what is known."""
        effects, _ = await self.drafted(stored, *partition_ids)
        metadata = stored.metadata
        joined = partition_ids if joins else ()
        held = TransactionEffects(metadata.key, metadata.version, None, tuple(joined))
        await self.flush.commit(effects, [held])

    async def end(
        self, *names: str | TransactionKey, commit: bool = True, skip_locked: bool = False
    ) -> bool:
        """Ends what is open under the ids, by what is read under the lock; whether any was."""
        keys = [named(each) if isinstance(each, str) else each for each in names]
        locked = await self.flush.lock(ToLock((), (), keys), skip_locked=skip_locked)
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        drafts: dict[int, LogDraft] = {}
        ended = []
        for found in locked.transactions:
            metadata = found.metadata
            is_asked = metadata.key in keys
            if not is_asked or metadata.state is not TransactionState.ONGOING:
                continue
            marker = Marker(metadata.producer_id, metadata.producer_epoch, commit, 0)
            control = incoming(control_batch(marker), retention_class=CONTROL)
            for partition_id in sorted(found.partitions & set(locked.partitions)):
                draft = drafts.setdefault(
                    partition_id,
                    LogDraft(
                        locked.partitions[partition_id],
                        {
                            producer_id: locked.producers.get((partition_id, producer_id))
                            for producer_id in (
                                each.metadata.producer_id for each in locked.transactions
                            )
                        },
                    ),
                )
                draft.prepare_marker(marker, control)
            ended.append(
                TransactionEffects(
                    metadata.key,
                    metadata.version,
                    replace(metadata, state=done, started_at=-1),
                    marker=marker,
                    partitions=found.partitions,
                    participants=found.participants,
                )
            )
        if not ended:
            await self.flush.rollback()
            return False
        await self.flush.commit([effect_of(draft) for draft in drafts.values()], ended)
        return True

    async def pend(
        self,
        stored: StoredTransaction,
        group_id: str,
        *offsets: CommittedOffset,
        opens: bool = False,
        generation: int = 1,
    ) -> None:
        """TxnOffsetCommit."""
        await self.store.put_pending(
            [pending(stored, group_id, *offsets, opens=opens, generation=generation)]
        )

    async def write_group(self, effects: GroupEffects | OffsetEffects) -> None:
        """A flush of groups with one effect."""
        lease = Lease(shard_of(effects.group_id), 1)
        if isinstance(effects, GroupEffects):
            await self.group_flush.commit([GuardedEffects(lease, groups=(effects,))])
        else:
            await self.group_flush.commit([GuardedEffects(lease, offsets=(effects,))])

    async def commit_offsets(self, group_id: str, *offsets: CommittedOffset) -> None:
        """OffsetCommit."""
        await self.write_group(OffsetEffects(group_id, offsets))

    async def offsets(self, group_id: str) -> Mapping[int, int]:
        """What is committed, by partition."""
        (found,) = await self.groups.fetch_offsets([(group_id, None)])
        return {partition_id: each.offset for partition_id, each in found.items()}


def pending(
    stored: StoredTransaction,
    group_id: str,
    *offsets: CommittedOffset,
    opens: bool = False,
    generation: int = 1,
) -> PendingOffsets:
    """Offsets of a group in a transaction, decided on it as it is known."""
    metadata = stored.metadata
    put = opened(metadata) if opens else None
    join = TransactionJoin(
        metadata.key, metadata.version, put, participants=(Participant.of_group(group_id),)
    )
    lease = Lease(shard_of(group_id), generation)
    return PendingOffsets(lease, join, metadata.producer_id, group_id, offsets)


def effect_of(draft: LogDraft) -> LogEffects:
    effects = draft.effects()
    assert effects is not None
    return effects
