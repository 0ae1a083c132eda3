"""Schemas of topics: read, added, deleted. Implements SchemaStore. Knows no rule.

A deletion is a row as well: all below it counts as deleted, and no version is given twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Uuid,
    and_,
    any_,
    cast,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from core.schema.values import Schema, SchemaHead, SchemaType, VersionedSchema
from storage.connection.client_text import read, written
from storage.connection.pool import Database
from storage.schema import topic, topic_schema

_s: Final = topic_schema.c


def _is_live() -> ColumnElement[bool]:
    """Not deleted, nor a deletion."""
    deletion = topic_schema.alias()
    last = (
        select(func.max(deletion.c.version))
        .where(deletion.c.topic_id == _s.topic_id, deletion.c.is_deletion)
        .correlate(topic_schema)
        .scalar_subquery()
    )
    return _s.version > func.coalesce(last, -1)


async def _heads(
    connection: AsyncConnection, topic_ids: Collection[UUID]
) -> dict[UUID, Sequence[SchemaHead]]:
    found = await connection.execute(
        select(_s.topic_id, _s.version, _s.type, _s.fingerprint, _s.size)
        .where(_s.topic_id == any_(cast(list(topic_ids), ARRAY(Uuid))), _is_live())
        .order_by(_s.topic_id, _s.version)
    )
    heads: dict[UUID, list[SchemaHead]] = {}
    for topic_id, version, kind, fingerprint, size in found:
        head = SchemaHead(version, SchemaType[kind], fingerprint, size)
        heads.setdefault(topic_id, []).append(head)
    return dict(heads)


async def _load(
    connection: AsyncConnection, topic_id: UUID, version: int | None
) -> VersionedSchema | None:
    created_ms = cast(func.extract("epoch", _s.created_at) * 1000, BigInteger)
    columns = (_s.version, _s.type, _s.data, _s.name, _s.properties)
    query = select(*columns, created_ms.label("created_ms"))
    query = query.where(_s.topic_id == topic_id, _is_live())
    if version is not None:
        query = query.where(_s.version == version)
    found = (await connection.execute(query.order_by(_s.version.desc()).limit(1))).first()
    return None if found is None else _versioned(found)


def _versioned(row: Row[Any]) -> VersionedSchema:
    properties = {read(key): read(value) for key, value in row.properties.items()}
    schema = Schema(SchemaType[row.type], row.data, read(row.name), properties)
    return VersionedSchema(row.version, schema, row.created_ms)


class SchemaChange:
    """`core.ports.schemas.SchemaChange`, inside its transaction."""

    def __init__(self, connection: AsyncConnection, topic_id: UUID, is_there: bool) -> None:
        self._connection = connection
        self._topic_id = topic_id
        self._is_topic_there = is_there

    @property
    def is_topic_there(self) -> bool:
        """See the port."""
        return self._is_topic_there

    async def heads(self) -> Sequence[SchemaHead]:
        """See the port."""
        return (await _heads(self._connection, [self._topic_id])).get(self._topic_id, ())

    async def load(self, version: int) -> VersionedSchema | None:
        """See the port."""
        return await _load(self._connection, self._topic_id, version)

    async def add(self, schema: Schema, fingerprint: bytes) -> int:
        """See the port."""
        return await self._insert(
            type=schema.type.name,
            name=written(schema.name),
            data=schema.data,
            properties={written(key): written(value) for key, value in schema.properties.items()},
            fingerprint=fingerprint,
            size=schema.size,
            is_deletion=False,
        )

    async def delete(self, *, force: bool) -> int:
        """See the port."""
        version = await self._insert(
            type=SchemaType.NONE.name,
            name="",
            data=b"",
            properties={},
            fingerprint=b"",
            size=0,
            is_deletion=True,
        )
        if force:
            older = and_(_s.topic_id == self._topic_id, _s.version < version)
            await self._connection.execute(delete(topic_schema).where(older))
        return version

    async def _insert(self, **values: Any) -> int:
        """Under the topic's lock, so that the newest version is the newest."""
        newest = select(func.max(_s.version)).where(_s.topic_id == self._topic_id)
        last = await self._connection.scalar(newest)
        version = 0 if last is None else int(last) + 1
        row = {"topic_id": self._topic_id, "version": version, **values}
        await self._connection.execute(insert(topic_schema).values(row))
        return version


class SchemaStore:
    """`core.ports.schemas.SchemaStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Changes of one process wait here, not each on its own connection.
        self._one_change = asyncio.Lock()

    @asynccontextmanager
    async def change(self, topic_id: UUID, name: str) -> AsyncIterator[SchemaChange]:
        """See the port."""
        async with self._one_change, self._database.begin(name) as connection:
            # New partitions do not wait for it: their foreign key takes the weaker lock.
            held = select(topic.c.topic_id).where(topic.c.topic_id == topic_id)
            found = await connection.scalar(held.with_for_update(key_share=True))
            yield SchemaChange(connection, topic_id, found is not None)

    async def heads(self, topic_ids: Collection[UUID]) -> dict[UUID, Sequence[SchemaHead]]:
        """See the port."""
        async with self._database.begin("schema_heads") as connection:
            return await _heads(connection, topic_ids)

    async def load(self, topic_id: UUID, version: int | None) -> VersionedSchema | None:
        """See the port."""
        async with self._database.begin("load_schema") as connection:
            return await _load(connection, topic_id, version)
