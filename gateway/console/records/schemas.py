"""The Avro schemas that a topic's records were written by, read once.

A version's number is never given to another schema, so what is known stays true.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Final
from uuid import UUID

from core.log.records import Record
from core.schema.avro import AvroError, AvroSchema, parse
from core.schema.values import SchemaType
from core.topic.topic import Topic
from gateway.runtime.schemas import Schemas

_REMEMBERED: Final = 200


class AvroSchemas:
    """Of all topics; one per process."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: OrderedDict[tuple[UUID, int], AvroSchema | None] = OrderedDict()

    async def load(self, topic: Topic, version: int) -> AvroSchema | None:
        """None where it is no Avro's, or not there any more. Raises StoreUnavailable."""
        key = (topic.topic_id, version)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        stored = await self._schemas.get(topic, version)
        schema = None
        if stored is not None and stored.schema.type is SchemaType.AVRO:
            with contextlib.suppress(AvroError):
                schema = parse(stored.schema.data)
        self._known[key] = schema
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return schema

    async def latest(self, topic: Topic) -> int | None:
        """The version that a record is taken to have which names none. Raises StoreUnavailable."""
        heads = await self._schemas.heads(topic)
        return heads[-1].version if heads else None


def version_of(record: Record) -> int | None:
    """The version that a record's writer names: as Pulsar's wire has it, a long."""
    said = record.extras.schema_version
    return None if said is None or len(said) != 8 else int.from_bytes(said, "big")
