"""A partition's memory of an idempotent producer: its epoch and its last five batches.

Also where its open transaction began there. Knows the rules of sequences, duplicates and markers
(Kafka's ProducerAppendInfo and ProducerStateEntry), and nothing of transactional ids.
"""

from dataclasses import dataclass

from core.errors import Error
from core.transaction.values import Marker
from core.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch

BATCHES_TO_RETAIN = 5
NO_COORDINATOR_EPOCH = -1
MAX_SEQUENCE = 2**31 - 1


def next_sequence(sequence: int, increment: int = 1) -> int:
    """The sequence `increment` records later; 0 follows 2³¹-1 (DefaultRecordBatch)."""
    return (sequence + increment) % (MAX_SEQUENCE + 1)


def previous_sequence(sequence: int, decrement: int) -> int:
    """The sequence `decrement` records earlier, with the same wrap."""
    return (sequence - decrement) % (MAX_SEQUENCE + 1)


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch as ProducerState remembers it (Kafka's BatchMetadata)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """Sequence of the batch's first record."""
        return previous_sequence(self.last_sequence, self.offset_delta)


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer on one partition. `batches`: oldest first, at most five, all of this epoch.

    txn_first_offset: of the first record of its open transaction, or None. coordinator_epoch: of
    its last marker, or -1.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    batches: tuple[AppendedBatch, ...] = ()
    txn_first_offset: int | None = None
    coordinator_epoch: int = NO_COORDINATOR_EPOCH

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1 if the epoch has no batch yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: RecordBatch) -> AppendedBatch | None:
        """The retained batch with exactly this epoch and range of sequences, if any."""
        if batch.producer_epoch != self.producer_epoch or not batch.has_sequence:
            return None
        last = next_sequence(batch.base_sequence, batch.record_count - 1)
        for known in self.batches:
            if known.last_sequence == last and known.base_sequence == batch.base_sequence:
                return known
        return None

    def refusal(
        self, batch: RecordBatch, *, starts_at_zero: bool = False
    ) -> tuple[Error, str] | None:
        """Why the batch may not follow the batches before, or None if it may.

        starts_at_zero: whether its producer gets a new epoch with each transaction (KIP-890), so
        that it begins at sequence 0 in each partition that does not know it.
        """
        refused = self._epoch_refusal(batch.producer_epoch)
        if refused is None and batch.has_sequence:
            refused = self._sequence_refusal(batch, starts_at_zero)
        if refused is None and self.txn_first_offset is not None and not batch.is_transactional:
            return (
                Error.INVALID_TXN_STATE,
                f"Expected transactional write from producer {self.producer_id}",
            )
        return refused

    def marker_refusal(
        self, marker: Marker, *, raises_epoch: bool = False
    ) -> tuple[Error, str] | None:
        """Why a marker from outside may not be appended, or None if it may.

        raises_epoch: whether the marker has a new epoch, so that one with the known epoch is late
        (KIP-1228).
        """
        epoch = marker.producer_epoch - 1 if raises_epoch else marker.producer_epoch
        if refused := self._epoch_refusal(epoch):
            return refused
        if marker.coordinator_epoch >= self.coordinator_epoch:
            return None
        return (
            Error.TRANSACTION_COORDINATOR_FENCED,
            f"Invalid coordinator epoch for producer {self.producer_id}:"
            f" {marker.coordinator_epoch} (zombie), {self.coordinator_epoch} (current)",
        )

    def _epoch_refusal(self, producer_epoch: int) -> tuple[Error, str] | None:
        if producer_epoch >= self.producer_epoch:
            return None
        return (
            Error.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {self.producer_id} is {producer_epoch}, which is smaller"
            f" than the last seen epoch {self.producer_epoch}",
        )

    def _sequence_refusal(
        self, batch: RecordBatch, starts_at_zero: bool
    ) -> tuple[Error, str] | None:
        """An unknown producer may start at any sequence: retention may have deleted its records.
        As in Kafka 4, UNKNOWN_PRODUCER_ID is never raised here (KIP-360). With `starts_at_zero` it
        may not: then an earlier batch of the transaction is still on its way.
        """
        if self.producer_epoch == NO_PRODUCER_EPOCH:
            if not (starts_at_zero and batch.is_transactional and batch.base_sequence):
                return None
            return (
                Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for producer {self.producer_id} in a new transaction:"
                f" {batch.base_sequence} (seq. number), expected 0",
            )
        if batch.producer_epoch != self.producer_epoch:
            if batch.base_sequence == 0:
                return None
            return (
                Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {self.producer_id}:"
                f" {batch.producer_epoch} (request epoch), {batch.base_sequence} (seq. number),"
                f" {self.producer_epoch} (current producer epoch)",
            )
        expected = 0 if self.last_sequence == NO_SEQUENCE else next_sequence(self.last_sequence)
        if batch.base_sequence == expected:
            return None
        return (
            Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {self.producer_id}: {batch.base_sequence}"
            f" (incoming seq. number), {self.last_sequence} (current end sequence number)",
        )

    def replay_append(self, batch: RecordBatch, base_offset: int) -> "ProducerState":
        """The state once `batch` is at `base_offset`; a new epoch forgets old batches.

        The first transactional batch opens the transaction here. One without a sequence is not
        remembered: it cannot be told from another.
        """
        retained = self.batches if batch.producer_epoch == self.producer_epoch else ()
        if batch.has_sequence:
            delta = batch.record_count - 1
            appended = AppendedBatch(
                last_sequence=next_sequence(batch.base_sequence, delta),
                last_offset=base_offset + delta,
                offset_delta=delta,
                timestamp=batch.max_timestamp,
            )
            retained = (*retained[-(BATCHES_TO_RETAIN - 1) :], appended)
        return ProducerState(
            self.producer_id,
            batch.producer_epoch,
            batch.max_timestamp,
            retained,
            base_offset
            if batch.is_transactional and self.txn_first_offset is None
            else self.txn_first_offset,
            self.coordinator_epoch,
        )

    def replay_marker(self, marker: Marker, timestamp: int) -> "ProducerState":
        """The state once a marker has ended the transaction here, even if it had written nothing.

        A marker of the same epoch (V1) keeps the batches, so that a retry of one is still a
        duplicate; one of a higher epoch (V2, a fence) forgets them: sequences restart at 0.
        """
        epoch = max(marker.producer_epoch, self.producer_epoch)
        return ProducerState(
            self.producer_id,
            epoch,
            timestamp,
            self.batches if epoch == self.producer_epoch else (),
            None,
            max(marker.coordinator_epoch, self.coordinator_epoch),
        )
