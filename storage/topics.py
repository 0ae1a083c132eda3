"""Topics, their partitions and settings: reads and changes for the runtime.

Every change runs under one lock, so that all brokers' changes happen one after the other, as in
Kafka's controller. The transaction that makes a change also notifies all brokers. Knows no rule.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from core.namespace.values import FullName, Namespace, Tenant
from core.ports.log import StoreUnavailable
from core.ports.namespaces import StoredNamespaces
from core.ports.topics import (
    ActiveProducer,
    PartitionSize,
    StoredTopic,
    TopicListing,
    TopicRow,
)
from storage import configs, namespaces
from storage.connection.pool import Database
from storage.notifications import METADATA_CHANGED
from storage.schema import (
    cluster,
    deleted_partition,
    leader_epoch,
    pending_ack,
    producer_state,
    subscription,
    subscription_range,
    topic,
    topic_partition,
)

# Any number that no other advisory lock has: the bytes of "metadata".
_CHANGE_LOCK: Final = 0x6D65_7461_6461_7461

_LOCK_NOT_AVAILABLE: Final = "55P03"


def _select_topics() -> Select[Any]:
    """Complete topics, each from the snapshot of one statement. For some of them: their partitions
    are looked up one topic after the other."""
    partitions = (
        _select_partitions().where(topic_partition.c.topic_id == topic.c.topic_id).lateral()
    )
    overrides = configs.topic_overrides(topic.c.topic_id).scalar_subquery()
    return _select_complete(overrides, partitions.c).join(partitions, true(), isouter=True)


def _select_all_topics() -> Select[Any]:
    """The same for all there are, each table read once: a third of the time with 10,000."""
    topic_id = topic_partition.c.topic_id
    partitions = _select_partitions().add_columns(topic_id).group_by(topic_id).subquery()
    overrides = configs.overrides_by_topic().subquery()
    return (
        _select_complete(overrides.c.overrides, partitions.c)
        .join(partitions, partitions.c.topic_id == topic.c.topic_id, isouter=True)
        .join(overrides, overrides.c.topic_id == cast(topic.c.topic_id, Text), isouter=True)
    )


def _select_partitions() -> Select[Any, Any]:
    number = topic_partition.c.partition
    return select(
        func.array_agg(aggregate_order_by(topic_partition.c.partition_id, number)).label("ids"),
        func.array_agg(aggregate_order_by(topic_partition.c.leader_epoch, number)).label("epochs"),
    )


def _select_complete(
    overrides: ColumnElement[Any], partitions: ReadOnlyColumnCollection[str, Any]
) -> Select[Any]:
    return select(
        topic.c.topic_id,
        topic.c.name,
        topic.c.is_internal,
        partitions.ids.label("partition_ids"),
        partitions.epochs.label("leader_epochs"),
        overrides.label("overrides"),
    ).select_from(topic)


def _stored_topic(row: Row[Any]) -> StoredTopic:
    return StoredTopic(
        topic_id=row.topic_id,
        name=row.name,
        is_internal=row.is_internal,
        partition_ids=tuple(row.partition_ids or ()),
        leader_epochs=tuple(row.leader_epochs or ()),
        overrides=row.overrides or {},
    )


async def _find_by_name(
    connection: AsyncConnection, names: Collection[str]
) -> dict[str, StoredTopic]:
    wanted = cast(list(names), ARRAY(Text))  # one parameter: a request may name 200,000
    found = await connection.execute(_select_topics().where(topic.c.name == any_(wanted)))
    return {row.name: _stored_topic(row) for row in found}


async def _find_by_id(
    connection: AsyncConnection, topic_ids: Collection[UUID]
) -> dict[UUID, StoredTopic]:
    wanted = cast(list(topic_ids), ARRAY(Uuid))
    found = await connection.execute(_select_topics().where(topic.c.topic_id == any_(wanted)))
    return {row.topic_id: _stored_topic(row) for row in found}


class MetadataChange:
    """`core.ports.topics.MetadataChange`, inside its transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.is_changed = False

    async def topic_names(self) -> set[str]:
        """The names of all topics."""
        return set((await self._connection.execute(select(topic.c.name))).scalars())

    async def find_topics(self, names: Collection[str]) -> dict[str, StoredTopic]:
        """Those topics that exist, by name."""
        return await _find_by_name(self._connection, names)

    async def find_topics_by_id(self, topic_ids: Collection[UUID]) -> dict[UUID, StoredTopic]:
        """Those topics that exist, by id."""
        return await _find_by_id(self._connection, topic_ids)

    async def create_topics(self, rows: Sequence[TopicRow]) -> None:
        """Inserts topics with their partitions, leader epochs and settings."""
        if not rows:
            return
        self.is_changed = True
        await self._connection.execute(
            insert(topic),
            [
                {"topic_id": row.topic_id, "name": row.name, "is_internal": row.is_internal}
                for row in rows
            ],
        )
        await self._insert_partitions([(row.topic_id, 0, row.partition_count) for row in rows])
        await configs.insert_entries(
            self._connection,
            [
                (configs.TOPIC, str(row.topic_id), name, value)
                for row in rows
                for name, value in row.overrides.items()
            ],
        )

    async def add_partitions(self, topic_id: UUID, first: int, count: int) -> None:
        """Adds partitions `first` to `first + count - 1` to a topic."""
        self.is_changed = True
        await self._insert_partitions([(topic_id, first, count)])

    async def _insert_partitions(self, wanted: Sequence[tuple[UUID, int, int]]) -> None:
        """Adds (topic id, first partition, count), and the leader epoch each begins with.

        Always two statements, since the lock of all changes is held meanwhile.
        """
        topic_ids, firsts, counts = zip(*wanted, strict=True)
        given = (
            func.unnest(
                literal(topic_ids, ARRAY(Uuid)),
                literal(firsts, ARRAY(Integer)),
                literal(counts, ARRAY(Integer)),
            )
            .table_valued(
                column("topic_id", Uuid), column("first", Integer), column("count", Integer)
            )
            .render_derived("given")
        )
        last = given.c.first + given.c.count - 1
        number = func.generate_series(given.c.first, last).column_valued(
            "number", joins_implicitly=True
        )
        await self._connection.execute(
            insert(topic_partition).from_select(
                ["topic_id", "partition"],
                select(given.c.topic_id, number).order_by(given.c.topic_id, number),
            )
        )
        inserted = and_(
            topic_partition.c.topic_id == given.c.topic_id,
            topic_partition.c.partition >= given.c.first,
        )
        await self._connection.execute(
            insert(leader_epoch).from_select(
                ["partition_id", "leader_epoch", "start_offset"],
                select(
                    topic_partition.c.partition_id,
                    topic_partition.c.leader_epoch,
                    topic_partition.c.log_start_offset,
                ).join(given, inserted),
            )
        )

    async def delete_topics(self, topic_ids: Collection[UUID]) -> None:
        """Deletes topics and settings; `deleted_partition` lists partitions still to be deleted."""
        if not topic_ids:
            return
        self.is_changed = True
        doomed = topic_partition.c.topic_id.in_(list(topic_ids))
        # In the order of every flush, so that a flush and a deletion cannot deadlock.
        locked = (
            select(topic_partition.c.partition_id)
            .where(doomed)
            .order_by(topic_partition.c.partition_id)
            .with_for_update()
            .cte("locked")
        )
        await self._connection.execute(
            insert(deleted_partition).from_select(["partition_id"], select(locked.c.partition_id))
        )
        await self._delete_subscriptions(doomed)
        names = [str(topic_id) for topic_id in topic_ids]
        await configs.delete_all(self._connection, configs.TOPIC, names)
        await self._connection.execute(delete(topic).where(topic.c.topic_id.in_(list(topic_ids))))

    async def _delete_subscriptions(self, doomed: ColumnElement[bool]) -> None:
        """Of partitions that are locked: so none is made meanwhile. Ranges go behind their
        subscription, whose lock whoever writes ranges has."""
        of_doomed = subscription.c.partition_id.in_(
            select(topic_partition.c.partition_id).where(doomed)
        )
        gone = await self._connection.execute(
            delete(subscription).where(of_doomed).returning(subscription.c.subscription_id)
        )
        ids = cast(list(gone.scalars()), ARRAY(BigInteger))
        for table in (subscription_range, pending_ack):
            await self._connection.execute(
                delete(table).where(table.c.subscription_id == any_(ids))
            )

    async def read_broker_configs(self, resource_name: str) -> dict[str, str]:
        """Settings for a broker id, or for all brokers ("")."""
        found = await configs.read_many(self._connection, configs.BROKER, [resource_name])
        return found.get(resource_name, {})

    async def write_topic_configs(self, topic_id: UUID, changes: Mapping[str, str | None]) -> None:
        """Sets or (None) deletes settings of a topic."""
        self.is_changed = True
        await configs.write(self._connection, configs.TOPIC, str(topic_id), changes)

    async def write_broker_configs(
        self, resource_name: str, changes: Mapping[str, str | None]
    ) -> None:
        """Sets or (None) deletes settings of a broker id, or of all brokers ("")."""
        self.is_changed = True
        await configs.write(self._connection, configs.BROKER, resource_name, changes)

    async def read_group_configs(self, group_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Settings for groups that have any, by group id."""
        return await configs.read_many(self._connection, configs.GROUP, group_ids)

    async def write_group_configs(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        """Sets or (None) deletes settings of a group."""
        self.is_changed = True
        await configs.write(self._connection, configs.GROUP, group_id, changes)

    async def read_namespaces(self) -> StoredNamespaces:
        """All tenants and namespaces."""
        return await namespaces.read_all(self._connection)

    async def put_tenant(self, tenant: Tenant) -> None:
        """Inserts a tenant, or gives it these roles and clusters."""
        self.is_changed = True
        await namespaces.put_tenant(self._connection, tenant)

    async def delete_tenant(self, name: str) -> None:
        """Deletes a tenant that has no namespaces."""
        self.is_changed = True
        await namespaces.delete_tenant(self._connection, name)

    async def put_namespace(self, namespace: Namespace) -> None:
        """Inserts a namespace, or gives it these policies."""
        self.is_changed = True
        await namespaces.put_namespace(self._connection, namespace)

    async def delete_namespace(self, full_name: FullName) -> None:
        """Deletes a namespace; not its topics."""
        self.is_changed = True
        await namespaces.delete_namespace(self._connection, full_name)

    async def announce(self) -> None:
        """Raises the metadata version and tells every broker, when this transaction commits."""
        await self._connection.execute(
            update(cluster).values(metadata_version=cluster.c.metadata_version + 1)
        )
        await self._connection.execute(select(func.pg_notify(METADATA_CHANGED, "")))


class TopicStore:
    """`core.ports.topics.TopicStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Changes of one process wait here, not each on its own connection.
        self._one_change = asyncio.Lock()

    @asynccontextmanager
    async def change(self, name: str) -> AsyncIterator[MetadataChange]:
        """See the port. Also raises StoreUnavailable if another broker's change takes too long."""
        try:
            async with self._one_change, self._database.begin(name) as connection:
                await connection.execute(select(func.pg_advisory_xact_lock(_CHANGE_LOCK)))
                change = MetadataChange(connection)
                yield change
                if change.is_changed:
                    await change.announce()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise StoreUnavailable("another broker is changing topics or settings") from error
            raise

    async def find_topics(self, names: Collection[str]) -> dict[str, StoredTopic]:
        """Those topics that exist, by name."""
        async with self._database.begin("find_topics") as connection:
            return await _find_by_name(connection, names)

    async def find_topics_by_id(self, topic_ids: Collection[UUID]) -> dict[UUID, StoredTopic]:
        """Those topics that exist, by id."""
        async with self._database.begin("find_topics_by_id") as connection:
            return await _find_by_id(connection, topic_ids)

    async def list_topics(self, known_version: int | None) -> TopicListing | None:
        """Every topic by name, or None if nothing has changed since `known_version`."""
        async with self._database.begin("list_topics") as connection:
            # Reads the version first: topics may then be newer than it says, never older.
            version: int = await connection.scalar(select(cluster.c.metadata_version)) or 0
            if version == known_version:
                return None
            found = await connection.execute(_select_all_topics().order_by(topic.c.name))
            return TopicListing(version, tuple(_stored_topic(row) for row in found))

    async def partition_sizes(self) -> tuple[PartitionSize, ...]:
        """The size of every partition, by topic and partition."""
        query = (
            select(
                topic.c.name,
                topic_partition.c.partition,
                topic_partition.c.partition_id,
                topic_partition.c.size_bytes,
            )
            .join(topic_partition, topic_partition.c.topic_id == topic.c.topic_id)
            .order_by(topic.c.name, topic_partition.c.partition)
        )
        async with self._database.begin("partition_sizes") as connection:
            found = await connection.execute(query)
            return tuple(PartitionSize(*row) for row in found)

    async def active_producers(self, partition_ids: Collection[int]) -> tuple[ActiveProducer, ...]:
        """The producers that these partitions remember, by partition and producer id."""
        state = producer_state.c
        newest = func.array_upper(state.last_sequences, 1)
        query = (
            select(
                state.partition_id,
                state.producer_id,
                state.producer_epoch,
                func.coalesce(state.last_sequences[newest], -1),
                state.last_timestamp,
                state.coordinator_epoch,
                func.coalesce(state.txn_first_offset, -1),
            )
            .where(state.partition_id.in_(list(partition_ids)))
            .order_by(state.partition_id, state.producer_id)
        )
        async with self._database.begin("active_producers") as connection:
            found = await connection.execute(query)
            return tuple(ActiveProducer(*row) for row in found)
