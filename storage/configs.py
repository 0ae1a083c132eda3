"""Settings in the database: rows of `config_entry`, by resource.

Knows no property: `core.config.definitions` says what a setting means, and if it may be set.
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Text, and_, bindparam, cast, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.topics import StoredConfigs
from storage.connection.pool import Database
from storage.schema import config_entry

TOPIC = "topic"
BROKER = "broker"
GROUP = "group"
ALL_BROKERS = ""


class ConfigStore:
    """Settings of brokers and groups (`core.ports.topics.ConfigStore`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_configs(self, broker_id: int) -> StoredConfigs:
        """Settings for all brokers, for this one, and of groups, from one snapshot."""
        own = str(broker_id)
        query = select(config_entry).where(
            or_(_belongs_to(BROKER, [ALL_BROKERS, own]), config_entry.c.resource_type == GROUP)
        )
        brokers: dict[str, dict[str, str]] = {ALL_BROKERS: {}, own: {}}
        groups: dict[str, dict[str, str]] = {}
        async with self._database.begin("read_configs") as connection:
            for resource_type, resource_name, name, value in await connection.execute(query):
                level = brokers if resource_type == BROKER else groups
                level.setdefault(resource_name, {})[name] = value
        return StoredConfigs(brokers[ALL_BROKERS], brokers[own], groups)


async def read_many(
    connection: AsyncConnection, resource_type: str, resource_names: Collection[str]
) -> dict[str, dict[str, str]]:
    """Settings by the resource's name; resources without any are omitted."""
    found: dict[str, dict[str, str]] = {}
    if resource_names:
        query = select(config_entry).where(_belongs_to(resource_type, resource_names))
        for row in await connection.execute(query):
            found.setdefault(row.resource_name, {})[row.name] = row.value
    return found


async def write(
    connection: AsyncConnection,
    resource_type: str,
    resource_name: str,
    changes: Mapping[str, str | None],
) -> None:
    """Sets or (None) deletes settings of one resource."""
    gone = [name for name, value in changes.items() if value is None]
    if gone:
        await connection.execute(
            delete(config_entry).where(
                _belongs_to(resource_type, [resource_name]), config_entry.c.name.in_(gone)
            )
        )
    await insert_entries(
        connection,
        [
            (resource_type, resource_name, name, value)
            for name, value in changes.items()
            if value is not None
        ],
    )


async def insert_entries(
    connection: AsyncConnection, entries: Collection[tuple[str, str, str, str]]
) -> None:
    """Sets many (resource type, resource name, name, value); replaces old values."""
    if not entries:
        return
    statement = insert(config_entry).values(
        resource_type=bindparam("resource_type"),
        resource_name=bindparam("resource_name"),
        name=bindparam("name"),
        value=bindparam("value"),
    )
    statement = statement.on_conflict_do_update(
        index_elements=["resource_type", "resource_name", "name"],
        set_={"value": statement.excluded.value},
    )
    rows = [
        {"resource_type": kind, "resource_name": resource, "name": name, "value": value}
        for kind, resource, name, value in entries
    ]
    await connection.execute(statement, rows)


async def delete_all(
    connection: AsyncConnection, resource_type: str, resource_names: Collection[str]
) -> None:
    """Deletes every setting of these resources."""
    await connection.execute(delete(config_entry).where(_belongs_to(resource_type, resource_names)))


def topic_overrides(topic_id: ColumnElement[UUID]) -> Select[Any]:
    """A scalar subquery's SELECT: the settings of the topic in the outer query, as one object."""
    return select(func.jsonb_object_agg(config_entry.c.name, config_entry.c.value)).where(
        config_entry.c.resource_type == TOPIC,
        config_entry.c.resource_name == cast(topic_id, Text),
    )


def overrides_by_topic() -> Select[Any]:
    """The settings of all topics that have any, as one object each: topic_id (text), overrides."""
    return (
        select(
            config_entry.c.resource_name.label("topic_id"),
            func.jsonb_object_agg(config_entry.c.name, config_entry.c.value).label("overrides"),
        )
        .where(config_entry.c.resource_type == TOPIC)
        .group_by(config_entry.c.resource_name)
    )


def _belongs_to(resource_type: str, resource_names: Collection[str]) -> ColumnElement[bool]:
    return and_(
        config_entry.c.resource_type == resource_type,
        config_entry.c.resource_name.in_(list(resource_names)),
    )
