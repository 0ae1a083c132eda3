"""What a decision on a partition changes, as values: persisted, then replayed in memory."""

from dataclasses import dataclass
from typing import NamedTuple

from core.log.aborted_txns import AbortedTransaction
from core.log.producer_state import ProducerState
from core.types import RecordBatch

NO_BATCH_ID = -1


class Place(NamedTuple):
    """Where in its segment a batch begins: a payload, and a position in it, in bytes."""

    payload_id: int
    position: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch whose payload has (or gets) a place in the store, and no offset yet.

    batch_id: from a block of ids this broker holds, or NO_BATCH_ID where `place` says that the
    payload lies there already. segment_id: the payload's table.
    """

    batch: RecordBatch
    batch_id: int
    segment_id: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class AppendedRow:
    """A row of the log's index: where a staged batch has been given its place."""

    staged: StagedBatch
    base_offset: int
    running_max_timestamp: int

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.staged.batch.record_count - 1


class OpenTransaction(NamedTuple):
    """A transaction that has written to a partition and has not ended."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LogEffects:
    """All that one flush changes on one partition.

    expected_offset: the version decided on; the store refuses the flush if the partition's
    next_offset is another one by then. producers: their whole new state, each once.
    open_transactions: all that are open afterwards, oldest first (the store has them in the rows
    of producers; memory replays this). aborted: those that this flush ends.
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
