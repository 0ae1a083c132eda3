"""What transactional producers were told, against what readers of committed data find.

Every value names its producer, its transaction and its place in it, so that each promise can be
checked by name: whole or not at all, once, in order, nothing aborted, offsets with their records.
Must not know any client, broker or database; `txn_load.py` writes, `test_transactions.py` reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """What a producer was told of a transaction."""

    OPEN = "open"  # nothing yet
    UNKNOWN = "unknown"  # its end was tried, and no answer came
    ABORTED = "aborted"
    COMMITTED = "committed"


class TxnFlaw(Enum):
    """A broken promise."""

    LOST = "committed, but not all there"
    TORN = "partly there"
    DIRTY = "aborted, but there"
    DUPLICATED = "there twice"
    REORDERED = "behind what came after it"
    INVENTED = "never sent"
    ZOMBIE = "written after its successor"
    OFFSETS_APART = "offsets without their records, or records without their offsets"
    HANGING = "never ended"
    VIEWS_APART = "another one to Kafka's readers than to Pulsar's"


@dataclass(frozen=True, slots=True)
class TxnAnomaly:
    """One broken promise and where."""

    flaw: TxnFlaw
    where: str


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """One record: `number`th transaction of a producer, `index`th record of it."""

    producer: str
    number: int
    index: int

    def encode(self) -> bytes:
        """As it is sent."""
        return f"{self.producer}|{self.number}|{self.index}".encode()


def parse(value: bytes) -> Value | None:
    """What a record says it is; None where it says nothing of the kind."""
    try:
        producer, number, index = value.decode().split("|")
        return Value(producer, int(number), int(index))
    except ValueError:
        return None


@dataclass(slots=True)
class Attempt:
    """A transaction: which partition each of its records was sent to, and how it ended.

    has_offsets: whether the producer's group was to go on to `number` + 1 with it.
    """

    partitions: list[int] = field(default_factory=list)
    ending: Ending = Ending.OPEN
    has_offsets: bool = False


@dataclass(slots=True)
class TxnHistory:
    """Everything that was tried. Producers of any thread write to it."""

    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, producer: str, number: int, partitions: Sequence[int], offsets: bool) -> None:
        """Notes that a transaction is about to be tried."""
        with self._lock:
            if (producer, number) in self.attempts:
                raise ValueError(f"{producer} has tried {number} before")
            self.attempts[producer, number] = Attempt(list(partitions), has_offsets=offsets)

    def end(self, producer: str, number: int, ending: Ending) -> None:
        """Notes what the producer was told."""
        with self._lock:
            self.attempts[producer, number].ending = ending

    def count(self, ending: Ending, producer: str | None = None) -> int:
        """How many transactions ended so, of one producer or of all."""
        with self._lock:
            return sum(
                attempt.ending is ending and producer in (None, name)
                for (name, _), attempt in self.attempts.items()
            )


Found = Mapping[int, Sequence[bytes]]
"""By partition: values in the order of their offsets."""


def check_transactions(
    history: TxnHistory,
    committed: Found,
    everything: Found,
    offsets: Mapping[str, int] | None = None,
) -> list[TxnAnomaly]:
    """Every anomaly, once all producers have ended and what was open has been aborted.

    committed, everything: as readers of committed, and of uncommitted data see the partitions.
    offsets: what each producer's group has committed; a producer without lacks.
    """
    anomalies: list[TxnAnomaly] = []
    places: dict[Value, list[int]] = {}
    for partition, values in sorted(committed.items()):
        anomalies += _check_order(TxnFlaw.REORDERED, partition, values)
        for raw in values:
            value = parse(raw)
            attempt = history.attempts.get((value.producer, value.number)) if value else None
            is_known = value and attempt and value.index < len(attempt.partitions)
            if not (value and attempt and is_known) or attempt.partitions[value.index] != partition:
                anomalies.append(TxnAnomaly(TxnFlaw.INVENTED, f"{raw!r} in partition {partition}"))
            else:
                places.setdefault(value, []).append(partition)
    for partition, values in sorted(everything.items()):
        anomalies += _check_order(TxnFlaw.ZOMBIE, partition, values)
    for value, found in sorted(places.items()):
        if len(found) > 1:
            anomalies.append(TxnAnomaly(TxnFlaw.DUPLICATED, f"{value}"))
    last_visible: dict[str, int] = {}
    for (producer, number), attempt in sorted(history.attempts.items()):
        name = f"{producer}'s transaction {number}"
        count = sum(Value(producer, number, i) in places for i in range(len(attempt.partitions)))
        if 0 < count < len(attempt.partitions):
            anomalies.append(TxnAnomaly(TxnFlaw.TORN, f"{name}: {count} of its records"))
        if attempt.ending is Ending.COMMITTED and count < len(attempt.partitions):
            anomalies.append(TxnAnomaly(TxnFlaw.LOST, f"{name}: {count} of its records"))
        if attempt.ending in (Ending.ABORTED, Ending.OPEN) and count:
            anomalies.append(TxnAnomaly(TxnFlaw.DIRTY, f"{name} is {attempt.ending.value}"))
        if count and attempt.has_offsets:
            last_visible[producer] = number
    for producer, committed_offset in sorted((offsets or {}).items()):
        expected = last_visible.get(producer, -1) + 1
        if committed_offset != expected:
            where = f"{producer}: its group is at {committed_offset}, its records at {expected}"
            anomalies.append(TxnAnomaly(TxnFlaw.OFFSETS_APART, where))
    return anomalies


def _check_order(flaw: TxnFlaw, partition: int, values: Iterable[bytes]) -> list[TxnAnomaly]:
    """A producer's records lie in the order they were sent."""
    anomalies = []
    last: dict[str, Value] = {}
    for raw in values:
        value = parse(raw)
        if value is None:
            continue
        before = last.get(value.producer)
        if before is not None and value <= before:
            where = f"partition {partition}: {value} after {before}"
            anomalies.append(TxnAnomaly(flaw, where))
        last[value.producer] = value
    return anomalies
