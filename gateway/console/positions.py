"""Where a reader's positions are to be put: chosen on a page, shown, and then done as shown.

Of groups and of subscriptions. Knows neither what holds a position nor how it is moved.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.group.offset_reset import NewOffset, Place, Target, Way, new_offsets, parse_datetime
from gateway.console.rendering import time_field
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.ports.log import StoredBatch
    from gateway.console.visit import Visit
    from gateway.runtime.runtime import Runtime

WAYS: Final[Sequence[tuple[Way, str]]] = (
    (Way.EARLIEST, "to the start"),
    (Way.LATEST, "to the end"),
    (Way.OFFSET, "to an offset"),
    (Way.DATETIME, "to a time"),
    (Way.SHIFT, "by a number of offsets"),
)
SHOWN_MAX: Final = 200
_PARTITIONS_MAX: Final = 20_000
_LAST_OFFSET: Final = 2**63 - 1
_OPENED_MAX: Final = 20
"""Batches of a partition that are opened in search of a time."""
_LOOKS_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Move:
    """A position's way. again: offsets that will be read once more; skipped: that will not be."""

    offset: NewOffset
    again: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a reset would do. told: the same for the action, as the form brings it back."""

    moves: Sequence[Move]
    told: str

    @property
    def again(self) -> int:
        """Of all partitions."""
        return sum(each.again for each in self.moves)

    @property
    def skipped(self) -> int:
        """Of all partitions."""
        return sum(each.skipped for each in self.moves)


def preview(
    target: Target,
    old: Mapping[Place, int],
    ends: Mapping[Place, tuple[int, int]],
    by_time: Mapping[Place, int],
) -> Preview:
    """ends: first and next offset of each partition that is meant. Raises ClientError."""
    try:
        decided = new_offsets(target, list(ends), old, ends, by_time)
    except ValueError as error:
        raise ClientError(400, f"{error}.") from None
    moves = [_move(each, ends[each.topic, each.partition][0]) for each in decided]
    rows = [[each.topic, each.partition, each.old_offset, each.new_offset] for each in decided]
    return Preview(moves, json.dumps(rows))


def _move(offset: NewOffset, start: int) -> Move:
    if offset.old_offset is None:
        return Move(offset, 0, 0)
    ahead = offset.new_offset - max(offset.old_offset, start)
    return Move(offset, max(-ahead, 0), max(ahead, 0))


def read_moves(told: str) -> list[NewOffset]:
    """What a preview has told the form. Raises ClientError."""
    try:
        rows = json.loads(told)
        moves = [NewOffset(topic, partition, old, new) for topic, partition, old, new in rows]
    except (ValueError, TypeError, RecursionError):
        raise ClientError(400, "The form lacks what is to be done") from None
    for each in moves:
        numbers = (each.partition, each.new_offset, each.old_offset or 0)
        is_right = isinstance(each.topic, str) and all(
            type(number) is int and 0 <= number <= _LAST_OFFSET for number in numbers
        )
        if not is_right:
            raise ClientError(400, "The form says what cannot be done")
    return moves


def target_of(visit: Visit) -> Target | None:
    """Where to, as the query says; None where it does not. Raises ClientError."""
    chosen = visit.text("way")
    if not chosen:
        return None
    way = next((each for each, _ in WAYS if each.value == chosen), None)
    match way:
        case Way.EARLIEST | Way.LATEST:
            return Target(way)
        case Way.OFFSET:
            return Target(way, _number(visit, "offset", "Which offset?"))
        case Way.SHIFT:
            return Target(way, _number(visit, "shift", "By how many offsets?"))
        case Way.DATETIME:
            return Target(way, _time_ms(visit))
    raise ClientError(400, "There is no such way")


def _number(visit: Visit, name: str, question: str) -> int:
    if not visit.text(name).strip():
        raise ClientError(400, question)
    return visit.number(name, 0, -_LAST_OFFSET)


def _time_ms(visit: Visit) -> int:
    text = visit.text("time").strip()
    if not text:
        raise ClientError(400, "Which time?")
    try:
        return parse_datetime(text)
    except (ValueError, OverflowError):
        example = "2026-01-31T12:00:00"
        raise ClientError(400, f"'{text[:100]}' is no time: write for example {example}") from None


def shown_time(visit: Visit) -> str:
    """The time of the query as a form's field has it, in UTC; empty where it is none."""
    try:
        return time_field(_time_ms(visit))
    except ClientError:
        return ""


def partitions_of(text: str) -> Collection[int] | None:
    """Numbers as they are written, `0,2-5`; None where nothing is. Raises ClientError."""
    found: set[int] = set()
    left = _PARTITIONS_MAX
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or len(first) > 9 or len(last) > 9:
            raise ClientError(400, f"'{text[:100]}' names no partitions: write for example 0,2-5")
        stretch = range(int(first), int(last) + 1)
        left -= len(stretch)  # also those that are named again: they take time
        if not stretch:
            raise ClientError(400, f"{part} names no partitions: write the lower number first")
        if left < 0:
            raise ClientError(400, f"These are more than {_PARTITIONS_MAX} partitions")
        found.update(stretch)
    return found or None


async def offsets_of_time(
    visit: Visit, places: Iterable[tuple[Place, int, int]], timestamp: int, *, by_record: bool
) -> dict[Place, int]:
    """The first record stamped `timestamp` (ms) or later in each partition, -1 where there is none.
    places: with a partition's id, and its first offset. by_record: else where the first batch
    begins that has that time or a later one, as Pulsar seeks.

    By record, it is too early, never too late, where many batches have no such record: event times
    may be long before they were written. Raises ClientError where it takes too long or who asks is
    gone; StoreUnavailable.
    """
    found: dict[Place, int] = {}
    opened_max = _OPENED_MAX if by_record else 0
    ends_at = time.monotonic() + _LOOKS_S
    for place, partition_id, start in places:
        if await visit.call.request.is_disconnected():
            raise ClientError(400, "Nobody waits for it")
        if time.monotonic() > ends_at:
            raise ClientError(
                400,
                f"After {len(found)} partitions this takes too long: name some of them, or fewer",
            )
        found[place] = await _offset_of_time(
            visit.runtime, partition_id, start, timestamp, opened_max
        )
    return found


async def _offset_of_time(
    runtime: Runtime, partition_id: int, start: int, timestamp: int, opened_max: int
) -> int:
    while batch := await runtime.partitions.find_timestamp(partition_id, timestamp, start):
        if not opened_max:
            return max(start, batch.base_offset)
        offset = await asyncio.to_thread(_first_stamped, runtime, batch, start, timestamp)
        if offset is not None:
            return offset
        opened_max, start = opened_max - 1, batch.last_offset + 1
    return -1


def _first_stamped(runtime: Runtime, batch: StoredBatch, start: int, timestamp: int) -> int | None:
    """Opens the batch, which takes long: for a thread."""
    stamps = _stamps(runtime, batch)
    return next((each for each, at in stamps if each >= start and at >= timestamp), None)


def _stamps(runtime: Runtime, batch: StoredBatch) -> Iterator[tuple[int, int]]:
    """Offset and timestamp (ms) of each record; markers of transactions have none."""
    if batch.is_control:
        return
    found = runtime.translations.read(batch)
    for number, record in enumerate(found.records):
        if record is not None:
            own = record.event_time
            yield batch.base_offset + number, found.timestamp if own is None else own
