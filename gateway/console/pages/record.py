"""One record: all that is known of it, and who wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from core.log.records import Record
from core.topic.topic import Topic
from core.types import BatchFormat, TimestampType
from gateway.console.api import Page, page
from gateway.console.pages.messages import readable_topic
from gateway.console.records.filters import Filter
from gateway.console.records.log import Stretch
from gateway.console.records.rows import json_line, writers_of
from gateway.console.records.schemas import version_of
from gateway.console.records.search import Hit, Sought
from gateway.console.records.seen import Fate, Seen
from gateway.console.records.values import (
    NO_VALUE,
    Format,
    as_avro,
    as_json,
    as_text,
    confluent_id,
    hex_dump,
    pretty,
)
from gateway.console.rendering import HEADERS, link
from gateway.console.visit import Visit
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.ports.console.records import BatchRow, WriterRow
    from core.schema.avro import AvroError, AvroSchema

_MOST_SHOWN: Final = 64 * 1024
"""Characters of each way in which a value is shown."""


@dataclass(frozen=True, slots=True)
class Way:
    """A value in one of the formats that fit it. text: cut off where it is long."""

    name: str
    text: str
    is_cut: bool


@page("/topic/record")
async def record(visit: Visit) -> Page:
    """What is at an offset."""
    topic, number, offset = await _place(visit)
    hit = await _find(visit, topic, number, offset)
    partition_id = topic.partition_ids[number]
    states = await visit.console.records.reader.states([partition_id])
    around = {
        "topic": topic,
        "number": number,
        "offset": offset,
        "state": states.get(partition_id),
    }
    if hit is None:
        return Page("record_gone.html", around, 404)
    seen = hit.seen
    batch = await visit.runtime.console.records.batch_at(partition_id, offset)
    ways, notes = await asyncio.to_thread(_ways, seen, hit.schema)
    writer = (await writers_of(visit, [seen.producer_id])).get(seen.producer_id)
    return Page(
        "record.html",
        {
            **around,
            "seen": seen,
            "record": seen.record,
            "key": None if seen.record is None else _key(seen.record),
            "same_key": _same_key(topic, seen.record),
            "headers": _headers(seen.record),
            "ways": ways,
            "notes": notes,
            "times": _times(seen),
            "schema_version": None if seen.record is None else version_of(seen.record),
            "batch": batch,
            "format": "Pulsar" if seen.format is BatchFormat.PULSAR else "Kafka",
            "compression": seen.of.compression.name.lower(),
            "writer": writer,
            "who": await _who(visit, partition_id, seen, batch, writer),
            "copy": link("/topic/record/json", name=topic.name, partition=number, offset=offset),
            "whole": link("/topic/record/value", name=topic.name, partition=number, offset=offset),
        },
    )


@page("/topic/record/json")
async def record_json(visit: Visit) -> Response:
    """The record as a line of JSON."""
    topic, number, offset = await _place(visit)
    hit = await _find(visit, topic, number, offset)
    if hit is None:
        raise ClientError(404, "Nothing is at this offset any more")
    line = await asyncio.to_thread(json_line, topic.name, hit, Format.AUTO)
    return Response(line, 200, HEADERS, "application/json")


@page("/topic/record/value")
async def record_value(visit: Visit) -> Response:
    """The value's bytes, as a file."""
    topic, number, offset = await _place(visit)
    hit = await _find(visit, topic, number, offset)
    if hit is None or hit.seen.record is None or hit.seen.record.value is None:
        raise ClientError(404, "There is no value at this offset")
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{number}-{offset}.bin"'}
    return Response(hit.seen.record.value, 200, headers, "application/octet-stream")


async def _place(visit: Visit) -> tuple[Topic, int, int]:
    topic = await readable_topic(visit)
    number, offset = visit.number("partition", 0), visit.number("offset", 0)
    if topic.partition_id(number) is None:
        raise ClientError(404, f"The topic has no partition {number}")
    return topic, number, offset


async def _find(visit: Visit, topic: Topic, number: int, offset: int) -> Hit | None:
    """What is at this offset; None where there is nothing."""
    stretch = Stretch(number, topic.partition_ids[number], offset, offset + 1)
    sought = Sought(Filter(), committed=False, is_backward=False, limit=1, format=Format.AUTO)
    room = visit.console.records
    search = room.search(topic, sought, [stretch])
    async with room.page_turn(visit.call.request):
        hits = await search.step()
    return hits[0] if hits else None


# --- what it says ---


def _ways(seen: Seen, schema: AvroSchema | None) -> tuple[list[Way], list[str]]:
    """The value in all formats that fit, the best first, and what is to be said of it. In a
    thread."""
    data = None if seen.record is None else seen.record.value
    if data is None:
        return [], []
    found: list[tuple[str, str]] = []
    notes: list[str] = []
    if schema is not None:
        value: Any | AvroError = as_avro(data, schema)
        if isinstance(value, Exception):
            notes.append(f"It does not fit the Avro schema that its writer names: {value}.")
        else:
            found.append(("Avro", pretty(value, len(data))))
    if (value := as_json(data)) is not NO_VALUE:
        found.append(("JSON", pretty(value, len(data))))
    if (text := as_text(data)) is not None:
        found.append(("Text", text))
    if (schema_id := confluent_id(data)) is not None and text is None:
        notes.append(
            f"It begins as values do that were written with schema {schema_id} of a Confluent "
            "Schema Registry, which this broker does not know."
        )
    found.append(("Hex", hex_dump(data[: _MOST_SHOWN // 4])))
    is_long = len(data) > _MOST_SHOWN // 4
    ways = [
        Way(name, text[:_MOST_SHOWN], len(text) > _MOST_SHOWN or (name == "Hex" and is_long))
        for name, text in found
    ]
    return ways, notes


def _key(record: Record) -> str | None:
    """As text, or in hex."""
    if record.key is None:
        return None
    text = as_text(record.key)
    return record.key.hex(" ")[:_MOST_SHOWN] if text is None else text[:_MOST_SHOWN]


def _same_key(topic: Topic, record: Record | None) -> str | None:
    """The address of all messages with this key, the newest first."""
    if record is None or not record.key or len(record.key) > 2_000:
        return None
    text = as_text(record.key)
    chosen = {"key_hex": record.key.hex()} if text is None else {"key": text}
    return link("/topic/messages", name=topic.name, **chosen)


def _headers(record: Record | None) -> Sequence[tuple[str, str | None]]:
    return [
        (name, None if value is None else as_text(value) or value.hex(" "))
        for name, value in (() if record is None else record.headers)
    ]


def _times(seen: Seen) -> list[tuple[str, int]]:
    """By what they are: ms since the epoch."""
    created = None if seen.record is None else seen.record.event_time
    if seen.of.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return [("Appended, by the broker's clock", seen.of.timestamp)]
    if seen.format is BatchFormat.PULSAR:
        published = [("Published, by its producer's clock", seen.of.timestamp)]
        return published if created is None else [*published, ("Event time", created)]
    return [("Created, by its producer's clock", seen.timestamp)]


async def _who(
    visit: Visit,
    partition_id: int,
    seen: Seen,
    batch: BatchRow | None,
    writer: WriterRow | None,
) -> str:
    """Who wrote it, in a sentence; what the page shows as facts is not repeated."""
    reads = visit.runtime.console.records
    if seen.format is BatchFormat.PULSAR and seen.of.producer is not None:
        named = await reads.named_producer(partition_id, seen.of.producer)
        last = "" if named is None else " The broker remembers it: duplicates of it are left out."
        return f"Pulsar's producer of this name wrote it.{last}"
    if writer is not None and writer.transactional_id is not None:
        return "The producer with this transactional id wrote it; the client is its last one."
    if writer is not None:
        return "The client wrote it that had asked for this producer id."
    if seen.fate is not Fate.NONE:
        return (
            "A producer in a transaction wrote it. Its transactional id is forgotten, has another "
            "producer id by now, or may not be told to you."
        )
    if seen.producer_id < 0:
        return (
            "Its producer left no name, for it is not idempotent. With enable.idempotence=true its "
            "client's id and address are remembered, with a transactional.id its name, too."
        )
    known = await reads.producer(partition_id, seen.producer_id)
    last = "" if known is None else " The partition still remembers it, so it may be at work."
    return (
        "An idempotent producer wrote it. Which client had asked for the id is not remembered any "
        f"more.{last}"
    )
