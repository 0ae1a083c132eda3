"""What the transaction machine plays with: clients, their requests, and the store as SQL keeps it.

The store is a model of the statements in `storage/flush/transactions.py`: it compares versions and
applies whole flushes, or nothing. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from core.log.aborted_txns import AbortedTransaction
from core.log.effects import LogEffects, OpenTransaction
from core.log.partition_log import PartitionLog, PartitionState
from core.log.producer_state import ProducerState
from core.ports.transactions import TransactionJoin
from core.subscription.cursor import Cursor
from core.subscription.subscription import Subscription
from core.subscription.values import DispatchSettings
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import (
    Marker,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    TransactionVersion,
    TransitionAnswer,
    first_version,
)
from core.types import RecordBatch

NOBODY = ProducerIdAndEpoch()
MESSAGES = 12
"""That the subscription has."""
SUBSCRIPTION = Participant.of_subscription(1)


class Kind(Enum):
    """What a request asks."""

    INIT = auto()
    JOIN = auto()
    JOIN_GROUP = auto()
    WRITE = auto()
    OFFSETS = auto()
    ACK = auto()
    END = auto()


@dataclass(eq=False)
class Txn:
    """A transaction as its client sees it.

    told: how the client was told it ended. fate: how its records were marked, None while open.
    """

    sent: list[Sent] = field(default_factory=list)
    joined: set[int] = field(default_factory=set)
    has_group: bool = False
    is_failed: bool = False
    end: Sent | None = None
    told: bool | None = None
    fate: bool | None = None

    def unanswered(self, *kinds: Kind) -> list[Sent]:
        return [each for each in self.sent if each.kind in kinds and not each.is_answered]


@dataclass(eq=False)
class Instance:
    """A client with a transactional id.

    is_disturbed: something has happened after which even a healthy client may be refused.
    """

    key: TransactionKey
    version: TransactionVersion
    producer: ProducerIdAndEpoch = NOBODY
    sequences: dict[int, int] = field(default_factory=dict)
    init: Sent | None = None
    txn: Txn | None = None
    needs_bump: bool = False
    is_dead: bool = False
    is_disturbed: bool = False

    @property
    def is_single(self) -> bool:
        """Whether it has but one transaction, and its key is never used again (Pulsar's)."""
        return self.key.kind.is_used_once

    def become(self, producer: ProducerIdAndEpoch) -> None:
        """Sequences restart with each epoch."""
        if producer != self.producer:
            self.sequences.clear()
        self.producer = producer

    @property
    def may_send(self) -> bool:
        is_ready = self.producer != NOBODY and not self.init and not self.is_dead
        return is_ready and not (self.txn and self.txn.end)

    def awaits(self, sent: Sent) -> bool:
        if sent.is_answered or self.is_dead:
            return False
        return sent is self.init or (self.txn is not None and sent.txn is self.txn)


@dataclass(eq=False)
class Sent:
    """A request a client has sent: the same object however often it arrives.

    first_end: the first answer to an EndTxn, and the version of the row that it left behind.
    """

    kind: Kind
    instance: Instance
    producer: ProducerIdAndEpoch
    txn: Txn | None = None
    partition: int = 0
    batch: RecordBatch | None = None
    is_commit: bool = False
    acks: tuple[int, ...] = ()
    is_answered: bool = False
    is_stored: bool = False
    first_end: tuple[TransitionAnswer, int] | None = None


@dataclass(frozen=True)
class Row:
    """A batch of the log. sent: None for a marker, and for what is in no transaction."""

    base_offset: int
    last_offset: int
    batch: RecordBatch
    sent: Sent | None = None
    marker: Marker | None = None


@dataclass
class ModelStore:
    """The rows. The row of a transaction has its joins in it.

    One subscription has pending acknowledgements, by producer and offset: whether each is
    committed; `cursor` is what is acknowledged otherwise, `lease` the generation of its holder's.
    """

    states: dict[int, PartitionState]
    log: dict[int, list[Row]]
    aborted: dict[int, list[AbortedTransaction]]
    rows: dict[TransactionKey, StoredTransaction] = field(default_factory=dict)
    pending: dict[int, Sent] = field(default_factory=dict)
    acks: dict[tuple[int, int], bool] = field(default_factory=dict)
    cursor: frozenset[int] = frozenset()
    lease: int = 1
    producers: dict[tuple[int, int], ProducerState] = field(default_factory=dict)
    committed_offsets: list[Sent] = field(default_factory=list)

    def copy(self) -> ModelStore:
        return replace(
            self,
            states=dict(self.states),
            log={p: list(rows) for p, rows in self.log.items()},
            aborted={p: list(each) for p, each in self.aborted.items()},
            rows=dict(self.rows),
            pending=dict(self.pending),
            acks=dict(self.acks),
            committed_offsets=list(self.committed_offsets),
            producers=dict(self.producers),
        )

    def holds(self, each: TransactionEffects | TransactionJoin) -> bool:
        """The guard of a row."""
        known = self.rows.get(each.key)
        if each.expected_version != (known.metadata.version if known else 0):
            return False
        if known is None or isinstance(each, TransactionJoin) or each.marker is None:
            return True
        return (each.partitions, each.participants) == (known.partitions, known.participants)

    def join(self, each: TransactionJoin, now: int, step: int = 1) -> None:
        """A join of its own, or with a commit of offsets.

        step: how far an opening moves the version. One that a crash may lose must not leave a
        version behind that somebody else's next change gets too, for brokers remember it.
        """
        self.put(
            TransactionEffects(each.key, each.expected_version, each.put, each.partitions),
            now,
            step,
        )
        row = self.rows[each.key]
        self.rows[each.key] = replace(row, participants=row.participants | set(each.participants))

    def put(self, each: TransactionEffects, now: int, step: int = 1) -> None:
        """The row anew or deleted, and what an end brings with it."""
        known = self.rows.get(each.key)
        if each.is_deleted:
            del self.rows[each.key]
            return
        if each.put is not None:
            metadata = replace(
                each.put,
                version=each.expected_version + step
                if known
                else first_version(each.put.producer_id),
                started_at=now if each.put.started_at >= 0 else -1,
                updated_at=now,
            )
            known = replace(known or StoredTransaction(metadata), metadata=metadata)
        assert known is not None, "only what is there is held still"
        if each.marker is not None:
            if SUBSCRIPTION in each.participants:
                self.end_acks(each.marker)
            offsets = self.pending.pop(each.marker.producer_id, None) if each.participants else None
            if offsets and each.marker.is_commit:
                self.committed_offsets.append(offsets)
            known = StoredTransaction(known.metadata)
        joined = known.partitions | set(each.joined)
        self.rows[each.key] = replace(known, partitions=joined)

    def end_acks(self, marker: Marker) -> None:
        """COMMIT_ACKS and DROP_ACKS."""
        for place, is_committed in list(self.acks.items()):
            if place[0] == marker.producer_id and not is_committed:
                if marker.is_commit:
                    self.acks[place] = True
                else:
                    del self.acks[place]

    def put_acks(self, producer_id: int, offsets: Iterable[int], lease: int) -> bool:
        """Whether the lease is held and none of them is committed already."""
        if lease != self.lease or any(self.acks.get((producer_id, each)) for each in offsets):
            return False
        self.acks.update({(producer_id, each): False for each in offsets})
        return True

    def append(self, each: LogEffects, rows: list[Row]) -> None:
        """Index rows, producers, aborted transactions; what is open is read from the producers."""
        p = each.partition_id
        for producer in each.producers:
            self.producers[p, producer.producer_id] = producer
        for producer_id in each.forgotten:
            self.producers.pop((p, producer_id), None)
        opened = [
            OpenTransaction(producer_id, state.txn_first_offset)
            for (of, producer_id), state in self.producers.items()
            if of == p and state.txn_first_offset is not None
        ]
        self.states[p] = replace(
            self.states[p],
            next_offset=each.next_offset,
            max_timestamp=each.max_timestamp,
            open_transactions=tuple(sorted(opened, key=lambda each: each.first_offset)),
        )
        self.aborted[p] += each.aborted
        self.log[p] += rows


class Dispatched:
    """The subscription in the memory of who has its lease; all it knows was read under that.

    owned: offsets with the transactions that hold them.
    """

    def __init__(self, store: ModelStore) -> None:
        self.lease = store.lease
        self.core = Subscription(Cursor(), DispatchSettings())
        self.load(store)

    def load(self, store: ModelStore) -> None:
        """What the rows say, of what is not known of them yet."""
        for offset in store.cursor:
            self.core.acknowledge(offset, offset + 1, MESSAGES)
        for owner in set(self.core.pending_owners):
            rows = {offset for of, offset in store.acks if of == owner}
            if not rows or any(store.acks[owner, each] for each in rows):
                self.core.abort_pending(owner)
        for (owner, offset), is_committed in store.acks.items():
            if is_committed:
                self.core.acknowledge(offset, offset + 1, MESSAGES)
            else:
                self.core.load_pending(owner, [(offset, offset + 1)], None)

    @property
    def acknowledged(self) -> frozenset[int]:
        cursor = self.core.cursor
        return frozenset(n for n in range(MESSAGES) if cursor.count_acknowledged(n, n + 1))


@dataclass
class Broker:
    """What one broker remembers."""

    transactions: dict[TransactionKey, StoredTransaction | None] = field(default_factory=dict)
    subscription: Dispatched | None = None
    logs: dict[int, PartitionLog] = field(default_factory=dict)


def is_committed(row: Row) -> bool:
    """Whether its transaction has ended so."""
    assert row.sent is not None
    assert row.sent.txn is not None
    return row.sent.txn.fate is True


def as_the_consumer_filters(rows: list[Row], told: list[AbortedTransaction]) -> list[Row]:
    """What a read_committed consumer shows of an answer (Java's CompletedFetch)."""
    told = sorted(told, key=lambda each: each.first_offset)
    aborted: set[int] = set()
    shown = []
    for row in rows:
        while told and told[0].first_offset <= row.last_offset:
            aborted.add(told.pop(0).producer_id)
        if row.marker:
            if not row.marker.is_commit:
                aborted.discard(row.marker.producer_id)
        elif not (row.batch.is_transactional and row.batch.producer_id in aborted):
            shown.append(row)
    return shown
