"""Keeps the order of an idempotent producer's batches after one of them was refused for now.

Producers have several batches on their way. If one is refused because the store was away, the
batches behind it are out of order. Were the producer told so, librdkafka would start a new epoch
and store again a batch that was stored without its knowledge; and if the log does not know the
producer yet, it would take a later batch for the first. So those batches are refused for now as
well, until the first one comes again. Knows no clock: `now` is any that rises, in seconds.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.errors import Error
from core.log.producer_state import ProducerState
from core.types import NO_PRODUCER_EPOCH, RecordBatch

REMEMBERED_FOR_S = 30.0
"""Producers retry much sooner; one that gave its batch up gets the real error after this."""

_PRUNE_FROM = 1_000


class Unresolved(NamedTuple):
    """A partition of a topic that has not been looked up yet, so its id is unknown.

    topic: its name or id.
    """

    topic: Hashable
    number: int


@dataclass(frozen=True, slots=True)
class _FirstRefused:
    producer_epoch: int
    base_sequence: int
    until: float


class RetryOrder:
    """By partition and producer, the first batch that was refused for now and must come again."""

    __slots__ = ("_first", "_prune_at", "_unresolved")

    def __init__(self) -> None:
        self._first: dict[tuple[int | Unresolved, int], _FirstRefused] = {}
        self._unresolved: dict[Hashable, set[tuple[Unresolved, int]]] = {}  # keys, by topic
        self._prune_at = _PRUNE_FROM

    def __len__(self) -> int:
        return len(self._first)

    @property
    def has_unresolved(self) -> bool:
        """Whether batches for partitions with unknown ids were noted."""
        return bool(self._unresolved)

    def note(self, partition: int | Unresolved, batch: RecordBatch, now: float) -> None:
        """The batch was refused, but the producer will send it again."""
        if not batch.has_sequence:
            return
        if len(self._first) >= self._prune_at:
            self._prune(now)
        if isinstance(partition, Unresolved):
            noted = self._unresolved.setdefault(partition.topic, set())
            noted.add((partition, batch.producer_id))
        key = (partition, batch.producer_id)
        known = self._first.get(key)
        first = batch.base_sequence
        if known and known.producer_epoch == batch.producer_epoch and known.until > now:
            first = known.base_sequence
        self._first[key] = _FirstRefused(batch.producer_epoch, first, now + REMEMBERED_FOR_S)

    def _prune(self, now: float) -> None:
        self._first = {key: each for key, each in self._first.items() if each.until > now}
        self._unresolved = {
            topic: left
            for topic, keys in self._unresolved.items()
            if (left := keys & self._first.keys())
        }
        self._prune_at = max(_PRUNE_FROM, 2 * len(self._first))

    def resolve(self, topic: Hashable, partition_ids: Sequence[int], now: float) -> None:
        """The topic is known now: moves the notes on its partitions to their ids.

        A note that is there already came before, while the topic was known.
        """
        for key in self._unresolved.pop(topic, ()):
            noted = self._first.pop(key)
            partition, producer_id = key
            if noted.until <= now or not 0 <= partition.number < len(partition_ids):
                continue
            under_id = (partition_ids[partition.number], producer_id)
            known = self._first.get(under_id)
            if known is None or known.until <= now or known.producer_epoch != noted.producer_epoch:
                self._first[under_id] = noted

    def is_early(self, partition_id: int, batch: RecordBatch, now: float) -> bool:
        """Whether a refused batch of the producer is still missing, and this is another one."""
        first = self._first.get((partition_id, batch.producer_id))
        return (
            first is not None
            and first.until > now
            and first.producer_epoch == batch.producer_epoch
            and first.base_sequence != batch.base_sequence
        )

    def must_wait(
        self, partition_id: int, batch: RecordBatch, state: ProducerState, now: float
    ) -> bool:
        """Whether the batch is too early: it fits the log only after a refused one.

        state: the producer's, in this log.
        """
        if not self.is_early(partition_id, batch, now) or state.find_duplicate(batch):
            return False
        if state.producer_epoch == NO_PRODUCER_EPOCH:
            return True
        refusal = state.refusal(batch)
        return refusal is not None and refusal[0] is Error.OUT_OF_ORDER_SEQUENCE_NUMBER

    def note_stored(self, partition_id: int, batch: RecordBatch, *, is_new: bool) -> None:
        """The log has the batch. A new one proves that the refused one is stored, too; a duplicate
        only if it is the refused one itself."""
        key = (partition_id, batch.producer_id)
        first = self._first.get(key)
        if first is not None and (is_new or first.base_sequence == batch.base_sequence):
            del self._first[key]

    def forget_everything(self) -> None:
        """The database has another history."""
        self._first.clear()
        self._unresolved.clear()
