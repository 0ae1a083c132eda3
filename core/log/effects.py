"""The changes that a decision makes to a partition: persisted, then replayed in memory."""

from dataclasses import dataclass
from typing import NamedTuple

from core.log.aborted_txns import AbortedTransaction
from core.log.named_sequences import NamedSequence
from core.log.producer_state import ProducerState
from core.types import NO_OFFSET, NO_TOPIC_EPOCH, Payload, RecordBatch


class StoredBytes:
    """Names bytes that are in the store already; only the store knows where."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class IncomingBatch:
    """A batch on its way into the log; it has no offset yet.

    content: its bytes; or their name, if they were staged before. retention_class: new bytes go to
    its segment. Compared by identity: one control batch may enter many partitions, and its bytes
    are stored once.
    """

    batch: RecordBatch
    content: Payload | StoredBytes
    retention_class: str = ""


@dataclass(frozen=True, slots=True)
class AppendedRow:
    """A row of the log's index: a batch with its offsets."""

    incoming: IncomingBatch
    base_offset: int
    running_max_timestamp: int

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.incoming.batch.record_count - 1


class OpenTransaction(NamedTuple):
    """A transaction that has written to a partition and has not ended."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LogEffects:
    """All that one flush changes in one partition.

    expected_offset, terminated_offset, topic_epoch: the version decided on; the store refuses
    the flush if the partition's next_offset has changed by then, it was terminated, or somebody
    has been admitted alone. producers: their whole new state, each once. forgotten: ids of
    producers that write nothing any more. names: the new state of named producers; the store
    refuses the flush, too, if one of them was claimed again. open_transactions: all that are open
    afterwards, oldest first (the store has them in the rows of producers; memory replays this).
    aborted: those that this flush aborts.
    """

    partition_id: int
    expected_offset: int
    next_offset: int
    max_timestamp: int
    added_bytes: int
    rows: tuple[AppendedRow, ...]
    producers: tuple[ProducerState, ...]
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    names: tuple[NamedSequence, ...] = ()
    terminated_offset: int = NO_OFFSET
    topic_epoch: int = NO_TOPIC_EPOCH
    forgotten: tuple[int, ...] = ()
