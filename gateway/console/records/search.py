"""A search: stretches of partitions, looked through step by step until enough is found.

Each step is made in a turn of all who search, which the caller has. Knows no page; who asks, and
whether he still may, is the caller's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from core.log.records import Record
from core.schema.avro import AvroSchema
from core.topic.topic import Topic
from gateway.console.records.budget import Budget
from gateway.console.records.filters import Filter, TooLong
from gateway.console.records.log import LogReader, News, Part, Stretch
from gateway.console.records.schemas import AvroSchemas, version_of
from gateway.console.records.seen import Seen
from gateway.console.records.values import NO_VALUE, Format, Shown, as_json, show

MOST_SHOWN: Final = 1_000
"""Characters of a key or a value in a list; the record's own page has all."""
_MOST_UNSURE: Final = 10
"""Records with which a path takes too long before it is given up."""

Place = tuple[int, int, int]
"""By it records of all partitions are put in order: ms since the epoch, partition, offset.

A partition's records stay in order of offsets whatever their timestamps are: each has at least the
ms of those before it, or at most where the order is backward. So what comes first of all is of each
partition what was found first, too."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What is searched for. limit: records wanted of all partitions together; None: all."""

    filter: Filter
    committed: bool
    is_backward: bool
    limit: int | None
    format: Format


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that was found. key, value: as text, None where it has none; a little more than
    MOST_SHOWN where they are longer. schema: which Avro schema's its value is."""

    seen: Seen
    place: Place
    key: str | None
    value: str | None
    schema: AvroSchema | None

    @property
    def value_size(self) -> int:
        """In bytes."""
        record = self.seen.record
        return 0 if record is None else len(record.value or b"")


class Search:
    """One search. looked: offsets that were looked at by now, of `total`. found: records by now.
    unsure: those with which a path took too long."""

    def __init__(
        self,
        reader: LogReader,
        schemas: AvroSchemas,
        topic: Topic,
        sought: Sought,
        stretches: Sequence[Stretch],
    ) -> None:
        self._reader = reader
        self._schemas = schemas
        self._topic = topic
        self._sought = sought
        self._latest: int | None = None
        self._knows_latest = False
        self._by_version: dict[int, AvroSchema | None] = {}
        self._found_in: Counter[int] = Counter()
        self._times: dict[int, int] = {}
        self._began = time.monotonic()
        self.stretches = list(stretches)
        self.total = sum(each.left for each in stretches)
        self.found = 0
        self.unsure = 0

    # --- how far it is ---

    @property
    def looked(self) -> int:
        """Offsets that were looked at."""
        return self.total - sum(each.left for each in self.stretches)

    @property
    def is_through(self) -> bool:
        """Whether nothing is left to be looked at."""
        return not any(each.left for each in self.stretches)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left, of each partition enough was found, or it was given up."""
        return self.is_given_up or all(
            self._is_full(each) or not each.left for each in self.stretches
        )

    @property
    def is_given_up(self) -> bool:
        """Whether the path took too long too often."""
        return self.unsure >= _MOST_UNSURE

    @property
    def per_s(self) -> float:
        """Offsets looked at in a second."""
        return self.looked / max(time.monotonic() - self._began, 0.001)

    @property
    def wrong(self) -> list[str]:
        """What was wrong with partitions, in sentences."""
        return [f"Partition {each.number}: {each.wrong}" for each in self.stretches if each.wrong]

    def _is_full(self, stretch: Stretch) -> bool:
        limit = self._sought.limit
        return limit is not None and self._found_in[stretch.number] >= limit

    # --- steps ---

    async def step(self) -> list[Hit]:
        """What is found in the next bytes of one of the partitions, each in turn. Raises
        StoreUnavailable."""
        stretch = next(each for each in self.stretches if each.left and not self._is_full(each))
        self.stretches.remove(stretch)
        self.stretches.append(stretch)
        sought = self._sought
        if sought.is_backward:
            is_all = sought.filter.is_there or sought.limit is None
            most = {} if is_all else {"most_records": sought.limit or 0}
            part = await self._reader.backward(stretch, committed=sought.committed, **most)
        else:
            part = await self._reader.forward(stretch, committed=sought.committed)
        return [] if part is None else await self._look(part, Budget())

    async def news(self) -> tuple[list[Hit], News]:
        """What has come since, and what to wait by for more. Raises StoreUnavailable."""
        # Each is the first for once: what one has may spend all of the budget.
        self.stretches = [*self.stretches[1:], *self.stretches[:1]]
        news = await self._reader.news(self.stretches, committed=self._sought.committed)
        budget = Budget()
        hits = [hit for part in news.parts for hit in await self._look(part, budget)]
        return hits, news

    async def wait(self, news: News, timeout_s: float, until: asyncio.Future[None]) -> None:
        """Until there may be more, or `until`, or for a while. Raises StoreUnavailable."""
        await self._reader.wait(news, timeout_s, until)

    async def _look(self, part: Part, budget: Budget) -> list[Hit]:
        if self._sought.format is Format.AVRO and not self._knows_latest:
            self._latest = await self._schemas.latest(self._topic)
            self._knows_latest = True
        hits: list[Hit] = []
        looking = self._hits(part, budget)
        while (version := await asyncio.to_thread(_collect, looking, hits)) is not None:
            self._by_version[version] = await self._schemas.load(self._topic, version)
        self.found += len(hits)
        return hits

    def _hits(self, part: Part, budget: Budget) -> Iterator[Hit | int]:
        """What is found, as far as the budget goes and until it is enough, and versions of schemas
        that are to be loaded before it goes on. What is not looked at is left to the stretch. In
        threads."""
        sought, stretch = self._sought, part.stretch
        for seen in self._reader.open(
            part,
            sought.filter.may_match,
            budget,
            committed=sought.committed,
            is_backward=sought.is_backward,
        ):
            record = seen.record
            version = None if record is None else self._version(record)
            if version is not None and version not in self._by_version:
                yield version
            schema = None if version is None else self._by_version[version]
            with budget.timed():
                hit = self._hit(seen, schema, budget)
            if hit is None:
                continue
            yield hit
            self._found_in[stretch.number] += 1
            if self._is_full(stretch):  # the rest is not looked at
                stretch.leave(seen.offset, is_taken=True, is_backward=sought.is_backward)
                return

    def _hit(self, seen: Seen, schema: AvroSchema | None, budget: Budget) -> Hit | None:
        record = seen.record
        if record is None:
            return Hit(seen, self._place(seen), None, None, None)
        value = None if record.value is None else show(record.value, self._sought.format, schema)
        key = None if record.key is None else show(record.key, Format.TEXT, None)
        budget.spend(len(_text(value) or "") + len(_text(key) or ""))
        if not self._is_hit(record, value):
            return None
        return Hit(seen, self._place(seen), _beginning(key), _beginning(value), schema)

    def _is_hit(self, record: Record, value: Shown | None) -> bool:
        said = NO_VALUE if value is None else value.value
        if said is NO_VALUE and value is not None and self._sought.filter.path is not None:
            said = as_json(record.value or b"")  # which it may be in whatever format it is shown
        try:
            return self._sought.filter.matches_value(said)
        except TooLong:
            self.unsure += 1
            return False

    def _version(self, record: Record) -> int | None:
        """Whose version a record's value is: what its writer says, else, where Avro is asked for,
        the topic's latest."""
        said = version_of(record)
        return self._latest if said is None else said

    # --- in order ---

    def _place(self, seen: Seen) -> Place:
        before = self._times.get(seen.number, seen.timestamp)
        at = (min if self._sought.is_backward else max)(before, seen.timestamp)
        self._times[seen.number] = at
        return at, seen.number, seen.offset

    def keep(self, places: Iterable[Place]) -> list[Place]:
        """Of what was found, by places, what comes first of all partitions' and fits the limit, in
        order. The rest is left to be looked at."""
        ordered = sorted(places, reverse=self._sought.is_backward)
        limit = len(ordered) if self._sought.limit is None else self._sought.limit
        by_number = {each.number: each for each in self.stretches}
        for _, number, offset in ordered[limit:]:
            by_number[number].leave(offset, is_taken=False, is_backward=self._sought.is_backward)
        self.found -= len(ordered[limit:])
        return ordered[:limit]


def _collect(looking: Iterator[Hit | int], hits: list[Hit]) -> int | None:
    """Adds what is found; up to a version that is to be loaded, or the end (None)."""
    for each in looking:
        if isinstance(each, int):
            return each
        hits.append(each)
    return None


def _text(shown: Shown | None) -> str | None:
    return None if shown is None else shown.text


def _beginning(shown: Shown | None) -> str | None:
    return None if shown is None else shown.text[: MOST_SHOWN + 1]
