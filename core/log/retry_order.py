"""Idempotent producers whose batch was refused for now: what follows it must not overtake it.

Producers have several batches on their way. Where one is refused because the store was away, those
behind it are out of order for no fault of their own; told so, librdkafka starts a new epoch, in
which a batch that had been stored unknown to anybody is stored again, and of a producer the log
does not know yet a later batch would be taken for its first. They are refused for now as well,
until the first comes again. Knows no clock: `now` is any that rises, in seconds.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from core.errors import Error
from core.log.producer_state import ProducerState
from core.types import NO_PRODUCER_EPOCH, RecordBatch

REMEMBERED_FOR_S = 30.0
"""A producer comes again much sooner; one that gave its batch up hears the truth after this."""

_PRUNE_FROM = 1_000


@dataclass(frozen=True, slots=True)
class _FirstRefused:
    producer_epoch: int
    base_sequence: int
    until: float


class RetryOrder:
    """By partition and producer, the first batch that was refused for now and has to come again.

    A partition is named by its id, or by anything else that names it while its id is not known.
    """

    __slots__ = ("_first", "_prune_at")

    def __init__(self) -> None:
        self._first: dict[tuple[Hashable, int], _FirstRefused] = {}
        self._prune_at = _PRUNE_FROM

    def __len__(self) -> int:
        return len(self._first)

    def note(self, partition_id: Hashable, batch: RecordBatch, now: float) -> None:
        """The batch was refused, but the producer will send it again."""
        if not batch.has_producer_id:
            return
        if len(self._first) >= self._prune_at:
            self._first = {key: each for key, each in self._first.items() if each.until > now}
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._first))
        key = (partition_id, batch.producer_id)
        known = self._first.get(key)
        first = batch.base_sequence
        if known and known.producer_epoch == batch.producer_epoch and known.until > now:
            first = known.base_sequence
        self._first[key] = _FirstRefused(batch.producer_epoch, first, now + REMEMBERED_FOR_S)

    def is_early(self, partition_id: Hashable, batch: RecordBatch, now: float) -> bool:
        """Whether the producer's batch is another than the one refused, which has not come yet."""
        first = self._first.get((partition_id, batch.producer_id))
        return (
            first is not None
            and first.until > now
            and first.producer_epoch == batch.producer_epoch
            and first.base_sequence != batch.base_sequence
        )

    def must_wait(
        self, partition_id: Hashable, batch: RecordBatch, state: ProducerState, now: float
    ) -> bool:
        """Whether the batch comes too early: it fits the log only after one that was refused.

        state: what the log knows of the producer.
        """
        if not self.is_early(partition_id, batch, now) or state.find_duplicate(batch):
            return False
        if state.producer_epoch == NO_PRODUCER_EPOCH:
            return True
        refusal = state.refusal(batch)
        return refusal is not None and refusal[0] is Error.OUT_OF_ORDER_SEQUENCE_NUMBER

    def settle(self, partition_id: Hashable, batch: RecordBatch, *, is_new: bool) -> None:
        """The log has the batch. A new one proves that the one refused is there; a duplicate does
        only if it is that one."""
        key = (partition_id, batch.producer_id)
        first = self._first.get(key)
        if first is not None and (is_new or first.base_sequence == batch.base_sequence):
            del self._first[key]

    def forget_everything(self) -> None:
        """The database has another history."""
        self._first.clear()
