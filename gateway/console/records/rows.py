"""Records that were found, as rows of a table and as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.types import BatchFormat
from gateway.console.records.search import MOST_SHOWN, Hit, Place
from gateway.console.records.seen import Fate, Seen
from gateway.console.records.values import Format, for_json
from gateway.console.rendering import link

if TYPE_CHECKING:
    from core.ports.console.records import WriterRow
    from core.topic.topic import Topic
    from gateway.console.visit import Visit


@dataclass(frozen=True, slots=True)
class Row:
    """A record in a list. key, value: cut off where they are long. transaction: its id, where that
    is known and may be told."""

    seen: Seen
    place: Place
    to: str
    copy: str
    key: str | None
    value: str | None
    is_cut: bool
    value_size: int
    transaction: str | None

    @property
    def is_marker(self) -> bool:
        """Whether it only says how a transaction ended."""
        return self.seen.record is None

    @property
    def fate(self) -> str:
        """In words."""
        return self.seen.fate.value

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """As text, cut off where they are long."""
        record = self.seen.record
        return [
            (name[:200], "null" if value is None else value[:200].decode(errors="replace"))
            for name, value in (() if record is None else record.headers[:20])
        ]


async def writers_of(visit: Visit, producer_ids: Iterable[int]) -> Mapping[int, WriterRow]:
    """Whose these producer ids are, where who asks may be told. Raises StoreUnavailable."""
    wanted = {each for each in producer_ids if each >= 0}
    if not wanted:
        return {}
    found = await visit.runtime.console.records.writers(wanted)
    return {
        producer_id: row
        for producer_id, row in found.items()
        if visit.may_see_transaction(row.transactional_id)
    }


async def rows_of(visit: Visit, topic: Topic, hits: Sequence[Hit]) -> list[Row]:
    """Rows of a table. Raises StoreUnavailable."""
    ids = {each.seen.producer_id for each in hits if each.seen.fate is not Fate.NONE}
    writers = await writers_of(visit, ids)
    return [_row(topic.name, each, writers.get(each.seen.producer_id)) for each in hits]


def _row(topic: str, hit: Hit, writer: WriterRow | None) -> Row:
    seen = hit.seen
    key, value = hit.key, hit.value
    place = {"name": topic, "partition": seen.number, "offset": seen.offset}
    is_told = writer is not None and seen.fate is not Fate.NONE
    return Row(
        seen,
        hit.place,
        link("/topic/record", **place),
        link("/topic/record/json", **place),
        key if key is None else key[:MOST_SHOWN],
        value if value is None else value[:MOST_SHOWN],
        len(value or "") > MOST_SHOWN or len(key or "") > MOST_SHOWN,
        hit.value_size,
        writer.transactional_id if writer is not None and is_told else None,
    )


def json_line(topic: str, hit: Hit, wanted: Format) -> bytes:
    """A record as a line of JSON, with all of it."""
    seen = hit.seen
    line: dict[str, Any] = {
        "topic": topic,
        "partition": seen.number,
        "offset": seen.offset,
        "timestamp": seen.timestamp,
    }
    if seen.record is None:
        line["marker"] = seen.fate.value
    else:
        record = seen.record
        line |= for_json("key", record.key, Format.TEXT, None)
        line |= for_json("value", record.value, wanted, hit.schema)
        line["headers"] = [
            {"name": name, **for_json("value", value, Format.TEXT, None)}
            for name, value in record.headers
        ]
    if seen.fate is not Fate.NONE:
        line["transaction"] = seen.fate.value
    line["format"] = "pulsar" if seen.format is BatchFormat.PULSAR else "kafka"
    return json.dumps(line).encode() + b"\n"
