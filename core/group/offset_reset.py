"""Where committed offsets are to be put: kafka-consumer-groups' ways of saying it.

Kafka's OffsetsUtils. Does not know how ends and times are looked up.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

Place = tuple[str, int]
"""Topic and partition."""


class Way(Enum):
    """How new offsets are said; the value is Kafka's word for it."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    SHIFT = "shift-by"
    DATETIME = "to-datetime"
    DURATION = "by-duration"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to. number: the offset, the shift, or the time in ms; 0 for ways without one."""

    way: Way
    number: int = 0


@dataclass(frozen=True, slots=True)
class NewOffset:
    """A partition's offset to be. note: where it is not quite what was asked for, why."""

    topic: str
    partition: int
    old_offset: int | None
    new_offset: int
    note: str | None = None


_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?=.)(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?"
    r"(?:(?P<seconds>[-+]?\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


def parse_datetime(text: str) -> int:
    """Milliseconds since the epoch; without a time zone it is UTC, as Kafka has it.

    Raises ValueError.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration(text: str) -> timedelta:
    """Java's Duration: P1DT2H3M4.5S, days and smaller. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    parts = {name: float(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")}
    duration = timedelta(**parts)
    return -duration if found["sign"] == "-" else duration


def new_offsets(
    target: Target,
    places: Collection[Place],
    old: Mapping[Place, int],
    ends: Mapping[Place, tuple[int, int]],
    by_time: Mapping[Place, int],
) -> list[NewOffset]:
    """The new offset of each partition; offsets and shifts end at the ends of what it holds.

    old: what is committed now. ends: first and next offset. by_time: of ways by a time, the first
    record's offset from then on; -1: there is none. Raises ValueError where a shift has nothing to
    start from.
    """
    decided = []
    for where in sorted(places):
        offset, note = _wanted(target, where, old.get(where), ends[where], by_time)
        first, last = ends[where]
        if target.way in {Way.OFFSET, Way.SHIFT}:
            if offset > last:
                offset, note = last, f"{offset} is after the end"
            elif offset < first:
                offset, note = first, f"{offset} is before the start"
        topic, partition = where
        decided.append(NewOffset(topic, partition, old.get(where), offset, note))
    return decided


def _wanted(
    target: Target,
    where: Place,
    old: int | None,
    ends: tuple[int, int],
    by_time: Mapping[Place, int],
) -> tuple[int, str | None]:
    first, last = ends
    match target.way:
        case Way.EARLIEST:
            return first, None
        case Way.LATEST:
            return last, None
        case Way.OFFSET:
            return target.number, None
        case Way.CURRENT:
            return (last, "nothing is committed: the end") if old is None else (old, None)
        case Way.SHIFT:
            if old is None:
                topic, partition = where
                raise ValueError(f"{topic}-{partition} cannot be shifted: nothing is committed")
            return old + target.number, None
        case Way.DATETIME | Way.DURATION:
            offset = by_time[where]
            return (last, "no record is that late: the end") if offset < 0 else (offset, None)
