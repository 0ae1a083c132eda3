"""What producers were told, against what the log holds: every promise that was broken, by name.

Values name their own producer, partition and sequence, and every byte of them follows from these.
Must not know any client, broker or database; `reading.py` reads the log, `load.py` writes it.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

NO_OFFSET = -1
"""Of an acknowledgement that names none: with idempotence, librdkafka takes a later batch for
proof of an earlier one whose own acknowledgement was lost."""


class Outcome(Enum):
    """What a producer was told of a record."""

    PENDING = "pending"  # nothing yet: it may or may not be in the log
    UNKNOWN = "unknown"  # given up on, or "possibly stored"
    REFUSED = "refused"  # certainly not stored
    ACKNOWLEDGED = "acknowledged"


class Flaw(Enum):
    """A broken promise."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    TORN = "torn"
    INVENTED = "invented"
    GAP = "gap"
    MISPLACED = "misplaced"
    REFUSED_BUT_STORED = "refused but stored"
    READERS_DISAGREE = "readers disagree"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise and where."""

    flaw: Flaw
    where: str


@dataclass(frozen=True, slots=True, order=True)
class RecordId:
    """Which record: the sequence counts from 0 for each producer and partition."""

    producer: str
    partition: int
    sequence: int


@dataclass(slots=True)
class Attempt:
    """A record that was handed to a client, and what became of it."""

    size: int
    outcome: Outcome = Outcome.PENDING
    offset: int = NO_OFFSET
    error: str = ""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as a reader found it."""

    partition: int
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition from its log start offset to its end, as one reader saw it."""

    start_offset: int
    end_offset: int
    records: tuple[StoredRecord, ...]


def value_of(record: RecordId, size: int) -> bytes:
    """The record's value: its name, then bytes that follow from the name, `size` in all at least.

    Different from each record to the next everywhere, so that pieces of two cannot pass for one.
    """
    name = f"{record.producer}|{record.partition}|{record.sequence}|{size}|".encode()
    filler = random.Random(zlib.crc32(name)).randbytes(max(0, size - len(name)))
    return name + filler


def parse_value(value: bytes) -> tuple[RecordId, int] | None:
    """The record that a value says it is, and its size; None where it says nothing of the kind."""
    parts = value.split(b"|", 4)
    try:
        producer, partition, sequence, size, _ = parts
        return RecordId(producer.decode(), int(partition), int(sequence)), int(size)
    except (ValueError, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class History:
    """Everything that was tried. Producers of any thread write to it.

    A record is handed to a client once. unsequenced: producers without idempotence, which do not
    retry either: nothing of theirs may be there twice, but what they gave up on may come late.
    may_repeat: producers whose client may send a record again all the same.
    """

    attempts: dict[RecordId, Attempt] = field(default_factory=dict)
    unsequenced: set[str] = field(default_factory=set)
    may_repeat: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, record: RecordId, size: int) -> bytes:
        """Notes that a record is about to be sent; gives its value."""
        with self._lock:
            if record in self.attempts:
                raise ValueError(f"{record} was tried before")
            self.attempts[record] = Attempt(size)
        return value_of(record, size)

    def end(
        self, record: RecordId, outcome: Outcome, *, offset: int = NO_OFFSET, error: str = ""
    ) -> None:
        """Notes what the producer was told of it."""
        with self._lock:
            attempt = self.attempts[record]
            attempt.outcome, attempt.offset, attempt.error = outcome, offset, error

    def count(self, outcome: Outcome, producer: str | None = None) -> int:
        """How many records ended so, of one producer or of all."""
        with self._lock:
            return sum(
                attempt.outcome is outcome and producer in (None, record.producer)
                for record, attempt in self.attempts.items()
            )

    def errors(self) -> dict[str, int]:
        """What was said of records that were not acknowledged, and how often."""
        said: dict[str, int] = {}
        with self._lock:
            for attempt in self.attempts.values():
                if attempt.error:
                    said[attempt.error] = said.get(attempt.error, 0) + 1
        return said


def check(history: History, log: Mapping[int, PartitionView]) -> list[Anomaly]:
    """Every anomaly of the log against the history, once all producers have ended.

    log: each partition whole, from its log start offset on; what lies before that was deleted.
    """
    anomalies: list[Anomaly] = []
    places: dict[RecordId, list[int]] = {}
    for partition, view in sorted(log.items()):
        anomalies += _check_offsets(partition, view)
        for stored in view.records:
            where = f"partition {partition} offset {stored.offset}"
            parsed = parse_value(stored.value)
            if parsed is None:
                anomalies.append(Anomaly(Flaw.TORN, f"{where}: {stored.value[:40]!r}"))
                continue
            record, size = parsed
            attempt = history.attempts.get(record)
            if attempt is None or record.partition != partition:
                anomalies.append(Anomaly(Flaw.INVENTED, f"{where}: {record}"))
            elif attempt.size != size or stored.value != value_of(record, size):
                anomalies.append(Anomaly(Flaw.TORN, f"{where}: {record}"))
            else:
                places.setdefault(record, []).append(stored.offset)
    for record, attempt in sorted(history.attempts.items()):
        found = places.get(record, [])
        start = log[record.partition].start_offset if record.partition in log else 0
        anomalies += _check_record(record, attempt, found, start)
        if len(found) > 1 and record.producer not in history.may_repeat:
            anomalies.append(Anomaly(Flaw.DUPLICATED, f"{record} at {found}"))
    anomalies += _check_order(history, places)
    return anomalies


def check_seen(history: History, seen: Iterable[StoredRecord]) -> list[Anomaly]:
    """What a consumer saw on its way, of a log whose beginning may be deleted meanwhile."""
    anomalies = []
    for stored in seen:
        where = f"partition {stored.partition} offset {stored.offset}"
        parsed = parse_value(stored.value)
        record, size = parsed or (None, 0)
        attempt = history.attempts.get(record) if record else None
        if record is None or attempt is None or record.partition != stored.partition:
            anomalies.append(Anomaly(Flaw.INVENTED if record else Flaw.TORN, f"seen at {where}"))
        elif stored.value != value_of(record, size) or size != attempt.size:
            anomalies.append(Anomaly(Flaw.TORN, f"seen at {where}: {record}"))
        elif attempt.offset not in (stored.offset, NO_OFFSET):
            anomalies.append(
                Anomaly(Flaw.MISPLACED, f"{record} of offset {attempt.offset} seen at {where}")
            )
    return anomalies


def _check_offsets(partition: int, view: PartitionView) -> list[Anomaly]:
    """Offsets run from the start to the end, each once."""
    expected = view.start_offset
    for stored in view.records:
        if stored.offset != expected:
            where = f"partition {partition}: offset {stored.offset} where {expected} follows"
            return [Anomaly(Flaw.GAP, where)]
        expected += 1
    if expected != view.end_offset:
        where = f"partition {partition}: ends at {expected}, not at {view.end_offset}"
        return [Anomaly(Flaw.GAP, where)]
    return []


def _check_record(
    record: RecordId, attempt: Attempt, found: list[int], start: int
) -> list[Anomaly]:
    anomalies = []
    if attempt.outcome is Outcome.REFUSED and found:
        where = f"{record} at {found} ({attempt.error})"
        anomalies.append(Anomaly(Flaw.REFUSED_BUT_STORED, where))
    if attempt.outcome is Outcome.ACKNOWLEDGED and attempt.offset not in found:
        if found and attempt.offset == NO_OFFSET:
            pass
        elif found:
            where = f"{record} acknowledged at {attempt.offset}, found at {found}"
            anomalies.append(Anomaly(Flaw.MISPLACED, where))
        elif attempt.offset >= start or attempt.offset == NO_OFFSET:
            anomalies.append(Anomaly(Flaw.LOST, f"{record} acknowledged at {attempt.offset}"))
    return anomalies


def _check_order(history: History, places: Mapping[RecordId, list[int]]) -> list[Anomaly]:
    """A producer's records lie in a partition in the order they were sent, by first appearance."""
    anomalies = []
    last: dict[tuple[str, int], tuple[RecordId, int]] = {}
    for record in sorted(places):
        is_acknowledged = history.attempts[record].outcome is Outcome.ACKNOWLEDGED
        if record.producer in history.unsequenced and not is_acknowledged:
            continue
        of = (record.producer, record.partition)
        offset = min(places[record])
        if of in last and offset < last[of][1]:
            before, at = last[of]
            anomalies.append(
                Anomaly(Flaw.REORDERED, f"{record} at {offset}, but {before.sequence} at {at}")
            )
        last[of] = (record, offset)
    return anomalies


def compare(readers: Mapping[str, Mapping[int, PartitionView]]) -> list[Anomaly]:
    """Whether all readers saw the same records at the same offsets."""
    anomalies = []
    names = list(readers)
    for other in names[1:]:
        for partition, view in readers[names[0]].items():
            seen = readers[other].get(partition)
            if seen != view:
                where = f"partition {partition}: {names[0]} and {other}"
                if seen is not None:
                    where += f" ({_first_difference(view.records, seen.records)})"
                anomalies.append(Anomaly(Flaw.READERS_DISAGREE, where))
    return anomalies


def _first_difference(one: Iterable[StoredRecord], two: Iterable[StoredRecord]) -> str:
    left, right = list(one), list(two)
    for a, b in zip(left, right, strict=False):
        if a != b:
            return f"offsets {a.offset} and {b.offset}: {a.value[:40]!r} and {b.value[:40]!r}"
    return f"{len(left)} and {len(right)} records"


def summary(anomalies: Iterable[Anomaly], limit: int = 20) -> str:
    """For an assertion's message: how many of each, and the first ones."""
    listed = list(anomalies)
    counts: dict[str, int] = {}
    for anomaly in listed:
        counts[anomaly.flaw.value] = counts.get(anomaly.flaw.value, 0) + 1
    lines = [f"{anomaly.flaw.value}: {anomaly.where}" for anomaly in listed[:limit]]
    return "\n".join([str(counts), *lines])
