"""A search: stretches of partitions, looked through step by step until enough is found.

Each step is a turn of all who search. Knows no page; who asks, and whether he still may, is the
caller's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from core.log.records import Record
from core.schema.avro import AvroSchema
from core.topic.topic import Topic
from gateway.console.records.filters import Filter, TooLong
from gateway.console.records.log import LogReader, News, Part, Stretch
from gateway.console.records.schemas import AvroSchemas, version_of
from gateway.console.records.seen import Seen
from gateway.console.records.turns import Turns
from gateway.console.records.values import NO_VALUE, Format, Shown, as_json, show

_NOTHING: Final = Shown(Format.TEXT, "")


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
    """A record that was found. key, value: None where it has none. schema: which Avro schema's its
    value is."""

    seen: Seen
    key: Shown | None
    value: Shown | None
    schema: AvroSchema | None

    @property
    def value_size(self) -> int:
        """In bytes."""
        record = self.seen.record
        return 0 if record is None else len(record.value or b"")


class Search:
    """One search. reading: by which turns it goes. looked: offsets that were looked at by now, of
    `total`. found: records by now. unsure: those with which a path took too long."""

    def __init__(
        self,
        reader: LogReader,
        schemas: AvroSchemas,
        turns: Turns,
        topic: Topic,
        sought: Sought,
        stretches: Sequence[Stretch],
    ) -> None:
        self._reader = reader
        self._schemas = schemas
        self._turns = turns
        self._topic = topic
        self._sought = sought
        self._latest: int | None = None
        self._knows_latest = False
        self._found_in: Counter[int] = Counter()
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
        """Whether nothing is left, or of each partition enough was found."""
        return all(self._is_full(each) or not each.left for each in self.stretches)

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
        async with self._turns.turn():
            if sought.is_backward:
                is_all = sought.filter.is_there or sought.limit is None
                most = {} if is_all else {"most_records": sought.limit or 0}
                part = await self._reader.backward(stretch, committed=sought.committed, **most)
            else:
                part = await self._reader.forward(stretch, committed=sought.committed)
            return [] if part is None else await self._look(part)

    async def news(self) -> tuple[list[Hit], News]:
        """What has come since, and what to wait by for more. Raises StoreUnavailable."""
        async with self._turns.turn():
            news = await self._reader.news(self.stretches, committed=self._sought.committed)
            hits = [hit for part in news.parts for hit in await self._look(part)]
        self.total += sum(part.end - part.start for part in news.parts)
        return hits, news

    async def wait(self, news: News, timeout_s: float, until: asyncio.Future[None]) -> None:
        """Until there may be more, or `until`, or for a while. Raises StoreUnavailable."""
        await self._reader.wait(news, timeout_s, until)

    async def _look(self, part: Part) -> list[Hit]:
        candidates = await asyncio.to_thread(self._candidates, part)
        schemas = await self._schemas_for(candidates)
        hits = await asyncio.to_thread(self._shown, candidates, schemas)
        stretch, limit = part.stretch, self._sought.limit
        room = len(hits) if limit is None else limit - self._found_in[stretch.number]
        if len(hits) > room:
            hits = hits[:room]
        if limit is not None and len(hits) == room and hits:  # the rest was not looked at
            self._rewind(stretch, hits[-1].seen.offset, is_taken=True)
        self._found_in[stretch.number] += len(hits)
        self.found += len(hits)
        return hits

    def _rewind(self, stretch: Stretch, offset: int, *, is_taken: bool) -> None:
        if self._sought.is_backward:
            stretch.end = max(stretch.end or 0, offset if is_taken else offset + 1)
        else:
            stretch.start = min(stretch.start, offset + 1 if is_taken else offset)

    def _candidates(self, part: Part) -> list[Seen]:
        """Those that their bytes do not rule out. In a thread."""
        sought = self._sought
        seen: Iterable[Seen] = self._reader.open(
            part, sought.filter.may_match, committed=sought.committed
        )
        if sought.is_backward:
            seen = reversed(list(seen))
        if sought.limit is None or sought.filter.path is not None:
            return list(seen)
        return list(islice(seen, sought.limit - self._found_in[part.stretch.number]))

    def _shown(self, candidates: Sequence[Seen], schemas: Mapping[int, AvroSchema]) -> list[Hit]:
        """In a thread."""
        hits = []
        for each in candidates:
            record = each.record
            if record is None:
                hits.append(Hit(each, None, None, None))
                continue
            schema = schemas.get(self._version(record, -1))
            value = None if record.value is None else self._value(record.value, schema)
            if not self._is_hit(record, value):
                continue
            key = None if record.key is None else show(record.key, Format.TEXT, None)
            hits.append(Hit(each, key, value, schema))
        return hits

    def _value(self, data: bytes, schema: AvroSchema | None) -> Shown:
        return show(data, self._sought.format, schema)

    def _is_hit(self, record: Record, value: Shown | None) -> bool:
        said = NO_VALUE if value is None else value.value
        if said is NO_VALUE and value is not None and self._sought.filter.path is not None:
            said = as_json(record.value or b"")  # which it may be in whatever format it is shown
        try:
            return self._sought.filter.matches_value(said)
        except TooLong:
            self.unsure += 1
            return False

    async def _schemas_for(self, candidates: Sequence[Seen]) -> dict[int, AvroSchema]:
        records = [each.record for each in candidates if each.record is not None]
        if not records:
            return {}
        if self._sought.format is Format.AVRO and not self._knows_latest:
            self._latest = await self._schemas.latest(self._topic)
            self._knows_latest = True
        versions = {self._version(each, -1) for each in records} - {-1}
        return await self._schemas.load(self._topic, versions)

    def _version(self, record: Record, default: int) -> int:
        """Whose version a record's value is: what its writer says, else, where Avro is asked for,
        the topic's latest."""
        said = version_of(record)
        if said is None:
            said = self._latest
        return default if said is None else said

    # --- in order ---

    def keep(self, places: Iterable[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
        """Of what was found, by places, what comes first of all partitions' and fits the limit. The
        rest is left to be looked at."""
        ordered = sorted(places, reverse=self._sought.is_backward)
        kept, dropped = ordered[: self._sought.limit], ordered[len(ordered[: self._sought.limit]) :]
        by_number = {each.number: each for each in self.stretches}
        for _, number, offset in dropped:
            self._rewind(by_number[number], offset, is_taken=False)
        self.found -= len(dropped)
        return set(kept)
