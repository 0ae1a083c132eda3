"""What somebody asks of a topic's records, as an address says it: to be read, and to be linked to.

A place in a search is a text, too: `3:100-250,4:0-17`, for each partition the offsets that are left
to be looked at, where `100-` goes up to the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from core.inbox.partitioner import partition_of
from gateway.console.records.filters import BadPath, Filter
from gateway.console.records.log import LogReader, Stretch, Turn
from gateway.console.records.search import Sought
from gateway.console.records.values import Format
from gateway.console.rendering import link, time_field
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.log.partition_log import PartitionState
    from core.topic.topic import Topic
    from gateway.console.records.paths import Path
    from gateway.console.visit import Visit

WAYS: Final[Mapping[str, str]] = {
    "end": "newest first",
    "start": "oldest first",
    "offset": "from an offset on",
    "time": "from a time on",
    "live": "live: what comes from now on",
}
_WAY: Final = "end"
LIMITS: Final = (20, 50, 200, 500)
_LIMIT: Final = 50
_LONGEST_PLACE: Final = 24_000  # an address is to fit into a request's headers
_PLACE: Final = re.compile(r"(\d{1,9}):(\d{1,19})-(\d{0,19})")


@dataclass(frozen=True, slots=True)
class Asked:
    """An address's query. number: of the one partition; None: all. at: a place to go on from."""

    name: str
    number: int | None
    way: str
    offset: int
    time: str
    key: str
    key_hex: str
    text: str
    path: str
    format: Format
    committed: bool
    limit: int
    at: str

    @classmethod
    def of(cls, visit: Visit) -> Asked:
        """Raises ClientError."""
        way, format_ = visit.text("from", _WAY), visit.text("format", Format.AUTO.value)
        if way not in WAYS or format_ not in list(Format):
            raise ClientError(400, f"There is no way '{way[:50]}', or no format '{format_[:50]}'")
        return cls._read(visit, visit.number)

    @classmethod
    def as_far_as_known(cls, visit: Visit) -> Asked:
        """The same without what cannot be read: for the form that says what is wrong. Raises
        ClientError without a topic."""

        def number(name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
            try:
                return visit.number(name, default, least, most)
            except ClientError:
                return default

        return cls._read(visit, number)

    @classmethod
    def _read(cls, visit: Visit, number: Callable[..., int]) -> Asked:
        way, format_ = visit.text("from", _WAY), visit.text("format", Format.AUTO.value)
        partition = number("partition", -1) if visit.text("partition") else -1
        return cls(
            visit.needed("name"),
            None if partition < 0 else partition,
            way if way in WAYS else _WAY,
            number("offset", 0),
            visit.text("time"),
            visit.text("key"),
            visit.text("key_hex"),
            visit.text("text"),
            visit.text("jsonpath"),
            Format(format_) if format_ in list(Format) else Format.AUTO,
            visit.text("read", "committed") != "all",
            number("limit", _LIMIT, 1, LIMITS[-1]),
            visit.text("at"),
        )

    def link(self, path: str = "/topic/messages", /, **changes: object) -> str:
        """An address of the same, but for changes."""
        query: dict[str, object] = {
            "name": self.name,
            "partition": self.number,
            "from": self.way,
            "offset": self.offset if self.way == "offset" else None,
            "time": self.time if self.way == "time" else None,
            "key": self.key or None,
            "key_hex": self.key_hex or None,
            "text": self.text or None,
            "jsonpath": self.path or None,
            "format": None if self.format is Format.AUTO else self.format.value,
            "read": None if self.committed else "all",
            "limit": None if self.limit == _LIMIT else self.limit,
            "at": self.at or None,
        }
        return link(path, **{**query, **changes})

    @property
    def is_live(self) -> bool:
        """Whether what is new is followed."""
        return self.way == "live"

    def sought(self, *, is_all: bool = False) -> Sought:
        """What is searched for. is_all: without a limit. Raises ClientError."""
        try:
            path = _path(self.path) if self.path.strip() else None
        except BadPath as error:
            raise ClientError(400, str(error)) from None
        limit = None if is_all or self.is_live else self.limit
        return Sought(
            Filter(self._key(), self.text, path),
            self.committed,
            self.way == "end",
            limit,
            self.format,
        )

    def _key(self) -> bytes | None:
        if not self.key_hex:
            return self.key.encode(errors="surrogateescape") or None
        try:
            return bytes.fromhex(self.key_hex)
        except ValueError:
            raise ClientError(400, "key_hex: this is not hexadecimal") from None

    # --- where ---

    async def stretches(self, topic: Topic, reader: LogReader, turn: Turn) -> list[Stretch]:
        """The offsets it is about, in all partitions that it is about; first the one that Kafka's
        producers choose for the key. turn: in which batches are looked into. Raises
        ClientError, StoreUnavailable."""
        numbers = self._numbers(topic)
        ids = [topic.partition_ids[number] for number in numbers]
        states = await reader.states(ids)
        there = [
            (number, states[partition_id])
            for number, partition_id in zip(numbers, ids, strict=True)
            if partition_id in states
        ]
        found = [
            await self._stretch(number, state, reader, turn)
            for number, state in self._first_for_key(there, len(topic.partition_ids))
        ]
        return found if not self.at else list(_at(self.at, found, is_live=self.is_live))

    def _numbers(self, topic: Topic) -> Sequence[int]:
        if self.number is None:
            return range(len(topic.partition_ids))
        if topic.partition_id(self.number) is None:
            raise ClientError(404, f"The topic has no partition {self.number}")
        return [self.number]

    def _first_for_key(
        self, there: list[tuple[int, PartitionState]], count: int
    ) -> list[tuple[int, PartitionState]]:
        key = self._key()
        if key is None:
            return there
        likely = partition_of(key, count)
        return sorted(there, key=lambda each: each[0] != likely)

    async def _stretch(
        self, number: int, state: PartitionState, reader: LogReader, turn: Turn
    ) -> Stretch:
        start = state.log_start_offset
        end = state.last_stable_offset if self.committed else state.high_watermark
        is_held = end < state.high_watermark
        match self.way:
            case "offset":
                start = min(max(start, self.offset), end)
            case "time":
                start = min(await reader.find_time(state, _time_ms(self.time), turn), end)
            case "live":
                return Stretch(number, state.partition_id, end, None, is_held=is_held)
        return Stretch(number, state.partition_id, start, end, is_held=is_held)


def _path(text: str) -> Path:
    """Raises BadPath."""
    # Its library would be a fifth of what the first page loads, and few ask for a path.
    from gateway.console.records.paths import Path

    return Path(text)


def _at(at: str, whole: Sequence[Stretch], *, is_live: bool) -> Iterable[Stretch]:
    places: dict[int, tuple[int, int | None]] = {}
    for each in at.split(","):
        found = _PLACE.fullmatch(each)
        if found is None:
            raise ClientError(400, f"'{each[:50]}' is no place in a partition")
        number, start, end = found.groups()
        places[int(number)] = int(start), int(end) if end else None
    for stretch in whole:
        if stretch.number not in places:
            continue
        start, end = places[stretch.number]
        if not is_live:
            assert stretch.end is not None, "only live ones are open"
            end = stretch.end if end is None else min(end, stretch.end)
        yield replace(stretch, start=start, end=end)


def place(stretches: Iterable[Stretch]) -> str:
    """A place in a search as text; empty where nothing is left, or it would be too long."""
    parts = [
        f"{each.number}:{each.start}-{'' if each.end is None else each.end}"
        for each in sorted(stretches, key=lambda each: each.number)
        if each.end is None or each.left
    ]
    text = ",".join(parts)
    return text if len(text) <= _LONGEST_PLACE else ""


def _time_ms(text: str) -> int:
    """ISO 8601, in UTC where it names no zone; or ms since the epoch. Raises ClientError."""
    if text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ClientError(400, f"'{text[:50]}' is no time, such as 2026-01-31T08:15") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)


def shown_time(asked: Asked) -> str:
    """The time as a form's field has it, in UTC."""
    if asked.way != "time":
        return ""
    try:
        return time_field(_time_ms(asked.time))
    except ClientError:
        return ""
