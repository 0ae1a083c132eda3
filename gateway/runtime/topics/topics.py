"""Topics: a cache, and the changes that clients ask for.

If a topic is not in the cache, the database is read before a client is told that it does not exist.
Core has the rules; this knows no wire and no SQL.
"""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

import structlog

from core.config.definitions import NOT_COMPACTED
from core.config.rules import check_storable, check_topic_configs
from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.ports.topics import (
    ActiveProducer,
    MetadataChange,
    PartitionSize,
    StoredTopic,
    TopicRow,
    TopicStore,
)
from core.topic.rules import (
    NewTopic,
    TopicDefaults,
    check_new_name,
    check_total_added,
    collision_key,
    decide_added_partitions,
    decide_partition_count,
    find_repeated,
    is_internal,
    is_storable_name,
    names_by_key,
)
from core.topic.topic import Topic
from gateway.runtime.namespaces import Namespaces
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.shared_read import SharedRead

log = structlog.get_logger(__name__)

_DUPLICATE_NAME: Final = Refusal(Error.INVALID_REQUEST, "Duplicate topic name.")
_DUPLICATE_ID: Final = Refusal(Error.INVALID_REQUEST, "Duplicate topic id.")
_NAME_OF_GIVEN_ID: Final = Refusal(
    Error.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
)
_UNKNOWN_NAME: Final = Refusal(
    Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
)
_UNKNOWN_ID: Final = Refusal(Error.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created, or (validate_only) could be."""

    topic_id: UUID
    name: str
    partition_count: int
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionIncrease:
    """A request for `count` partitions in all; assignments: brokers per added partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class Topics:
    """The topics of the cluster. One per process.

    live_broker_ids: replication factors and assignments are checked against them. namespaces: they
    make settings for topics, too.
    """

    def __init__(
        self,
        store: TopicStore,
        configs: Configs,
        live_broker_ids: Callable[[], Collection[int]],
        namespaces: Namespaces | None = None,
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._configs = configs
        self._live_broker_ids = live_broker_ids
        self._names = SharedRead(self._read_names)
        self._ids = SharedRead(self._read_ids)
        configs.on_alter(self.invalidate)
        if namespaces is not None:
            namespaces.on_alter(self.invalidate)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._listing: tuple[Topic, ...] | None = None
        self._listing_version: int | None = None
        self._generation = 0
        self._on_invalidate: list[Callable[[], None]] = []

    def on_invalidate(self, listener: Callable[[], None]) -> None:
        """Registers a listener; it is called when topics have, or may have, changed."""
        self._on_invalidate.append(listener)

    # --- reading ---

    def cached(self, name: str) -> Topic | None:
        """The topic if it is known already; None says nothing."""
        return self._by_name.get(name)

    def cached_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic if it is known already; None says nothing."""
        return self._by_id.get(topic_id)

    async def get(self, name: str) -> Topic | None:
        """The topic of this name, or None if the database has none now.

        Raises StoreUnavailable.
        """
        return self._by_name.get(name) or (await self.get_many([name])).get(name)

    async def get_many(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of the topics that exist; one read for all that are not cached.

        Raises StoreUnavailable.
        """
        topics = {name: topic for name in names if (topic := self._by_name.get(name))}
        missing = [name for name in names if name not in topics and is_storable_name(name)]
        if missing:
            topics |= await self._names.find(missing)
        return topics

    async def get_many_by_id(self, topic_ids: Collection[UUID]) -> dict[UUID, Topic]:
        """Those of the topics that exist; one read for all that are not cached.

        Raises StoreUnavailable.
        """
        topics = {each: topic for each in topic_ids if (topic := self._by_id.get(each))}
        missing = [each for each in topic_ids if each not in topics]
        if missing:
            topics |= await self._ids.find(missing)
        return topics

    async def _read_names(self, names: Collection[str]) -> dict[str, Topic]:
        generation = await self._prepare()
        found = await self._store.find_topics(names)
        return {topic.name: topic for topic in self._keep(generation, found.values())}

    async def _read_ids(self, topic_ids: Collection[UUID]) -> dict[UUID, Topic]:
        generation = await self._prepare()
        found = await self._store.find_topics_by_id(topic_ids)
        return {topic.topic_id: topic for topic in self._keep(generation, found.values())}

    async def all(self) -> tuple[Topic, ...]:
        """Every topic, by name; from memory if the database's version is unchanged.

        While the database is away, the last list: Kafka's brokers, too, answer Metadata from
        memory. Raises StoreUnavailable if there is no list yet.
        """
        try:
            generation = await self._prepare()
            listing = await self._store.list_topics(self._listing_version)
        except StoreUnavailable:
            if self._listing is None:
                raise
            return self._listing
        if listing is None:
            assert self._listing is not None, "a version without a listing"
            return self._listing
        topics = tuple(self._keep(generation, listing.topics))
        self._listing = topics
        self._listing_version = listing.version if generation == self._generation else None
        return topics

    async def partition_sizes(self) -> tuple[PartitionSize, ...]:
        """The bytes in every partition, by topic and partition. Raises StoreUnavailable."""
        return await self._store.partition_sizes()

    async def active_producers(self, partition_ids: Collection[int]) -> tuple[ActiveProducer, ...]:
        """The producers that these partitions remember, by partition. Raises StoreUnavailable."""
        return await self._store.active_producers(partition_ids)

    def invalidate(self) -> None:
        """Topics have changed, here or at another broker: forgets what is cached."""
        self._generation += 1
        self._by_name.clear()
        self._by_id.clear()
        # The list itself is kept for times without a database.
        self._listing_version = None
        self._configs.invalidate()
        if self._namespaces is not None:
            self._namespaces.invalidate()
        for listener in self._on_invalidate:
            listener()

    async def _prepare(self) -> int:
        """Loads the broker's settings, topics' defaults, and namespaces' policies; returns the
        cache's generation."""
        generation = self._generation
        await self._configs.ensure_loaded()
        if self._namespaces is not None:
            await self._namespaces.ensure_loaded()
        return generation

    def _keep(self, generation: int, found: Iterable[StoredTopic]) -> list[Topic]:
        topics = [self._topic(stored) for stored in found]
        # Topics invalidated during the read may be old: good for one answer, not for the cache.
        if generation == self._generation:
            for topic in topics:
                self._by_name[topic.name] = topic
                self._by_id[topic.topic_id] = topic
        return topics

    def _topic(self, stored: StoredTopic) -> Topic:
        settings = stored.overrides
        if self._namespaces is not None:
            settings = {**self._namespaces.topic_settings(stored.name), **settings}
        return Topic(
            topic_id=stored.topic_id,
            name=stored.name,
            partition_ids=stored.partition_ids,
            leader_epochs=stored.leader_epochs,
            overrides=stored.overrides,
            config=self._configs.topic_config(settings),
            is_internal=stored.is_internal,
        )

    # --- changing ---

    @asynccontextmanager
    async def _change(self, name: str) -> AsyncIterator[MetadataChange]:
        try:
            async with self._store.change(name) as change:
                yield change
        finally:
            # Also if the outcome of the commit is unknown: it may have succeeded.
            self.invalidate()

    def defaults(self) -> TopicDefaults:
        """The defaults for a topic without a number of partitions or a replication factor."""
        return TopicDefaults(
            self._configs.broker_int("num.partitions"),
            self._configs.broker_int("default.replication.factor"),
        )

    async def create(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        check: Callable[[MetadataChange], Awaitable[Refusal | None]] | None = None,
    ) -> dict[str, CreatedTopic | Refusal]:
        """Creates topics, all that can be in one commit; answers by name.

        check: gives a reason against all of them, which has to hold when they are made. Raises
        StoreUnavailable.
        """
        await self._configs.ensure_loaded()
        repeated = find_repeated(new.name for new in wanted)
        answers: dict[str, CreatedTopic | Refusal] = dict.fromkeys(repeated, _DUPLICATE_NAME)
        async with self._change("create_topics") as change:
            if check is not None and (refusal := await check(change)):
                return dict.fromkeys((new.name for new in wanted), refusal)
            taken = names_by_key(await change.topic_names())
            rows = []
            for new in wanted:
                if new.name in repeated:
                    continue
                decided = self._decide_new(new, taken)
                if isinstance(decided, CreatedTopic):
                    # The next one in this request must not collide with it either.
                    taken[collision_key(new.name)] = new.name
                    rows.append(_row(decided))
                answers[new.name] = decided
            if refusal := check_total_added(row.partition_count for row in rows):
                return dict.fromkeys((new.name for new in wanted), refusal)
            if not validate_only:
                await change.create_topics(rows)
        if not validate_only:
            self._tell_of_compaction(rows)
        return answers

    def _tell_of_compaction(self, created: Iterable[TopicRow]) -> None:
        for row in created:
            if self._configs.topic_config(row.overrides).is_compacted:
                log.warning("topic_not_compacted", topic=row.name, reason=NOT_COMPACTED)

    def _decide_new(self, new: NewTopic, taken: Mapping[str, str]) -> CreatedTopic | Refusal:
        if refusal := check_new_name(new.name, taken):
            return refusal
        configs = dict(new.configs)
        if refusal := check_storable(configs):
            return refusal
        if wrong := check_topic_configs(configs, self._configs.values.merged()):
            return Refusal(Error.INVALID_CONFIG, wrong)
        count = decide_partition_count(new, self.defaults(), self._live_broker_ids())
        if isinstance(count, Refusal):
            return count
        overrides = {name: value for name, value in configs.items() if value is not None}
        return CreatedTopic(uuid4(), new.name, count, overrides)

    async def create_partitions(
        self, wanted: Sequence[PartitionIncrease], *, validate_only: bool = False
    ) -> dict[str, Refusal | None]:
        """Adds partitions, all that can be in one commit; answers by name, None is success.

        Raises StoreUnavailable.
        """
        repeated = find_repeated(each.name for each in wanted)
        answers: dict[str, Refusal | None] = dict.fromkeys(repeated, _DUPLICATE_NAME)
        async with self._change("create_partitions") as change:
            found = await change.find_topics(_storable(each.name for each in wanted))
            additions: list[tuple[StoredTopic, int]] = []
            for each in wanted:
                if each.name in repeated:
                    continue
                topic = found.get(each.name)
                added = self._decide_added(each, topic)
                answers[each.name] = added if isinstance(added, Refusal) else None
                if topic is not None and not isinstance(added, Refusal):
                    additions.append((topic, added))
            if refusal := check_total_added(added for _, added in additions):
                return dict.fromkeys((each.name for each in wanted), refusal)
            if not validate_only:
                for topic, added in additions:
                    await change.add_partitions(topic.topic_id, len(topic.partition_ids), added)
        return answers

    def _decide_added(self, each: PartitionIncrease, topic: StoredTopic | None) -> int | Refusal:
        if topic is None:
            return _UNKNOWN_NAME
        return decide_added_partitions(
            each.name,
            len(topic.partition_ids),
            each.count,
            each.assignments,
            self._live_broker_ids(),
        )

    async def delete(
        self, names: Sequence[str], topic_ids: Sequence[UUID] = ()
    ) -> list["DeletedTopic"]:
        """Deletes topics by name and by id in one commit (`ControllerApis.deleteTopics`).

        One answer for each different name or id. Raises StoreUnavailable.
        """
        async with self._change("delete_topics") as change:
            answers, doomed = await _decide_deletion(change, names, topic_ids)
            await change.delete_topics(doomed)
        return answers


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The result for a topic to be deleted. name, topic_id: None if unknown.

    refusal: None if it was deleted.
    """

    name: str | None
    topic_id: UUID | None
    refusal: Refusal | None = None


async def _decide_deletion(
    change: MetadataChange, names: Sequence[str], topic_ids: Sequence[UUID]
) -> tuple[list[DeletedTopic], list[UUID]]:
    """The answers, and the ids of the topics to delete."""
    repeated, repeated_ids = find_repeated(names), find_repeated(topic_ids)
    answers = [DeletedTopic(name, None, _DUPLICATE_NAME) for name in repeated]
    answers += [DeletedTopic(None, topic_id, _DUPLICATE_ID) for topic_id in repeated_ids]
    given_ids = set(topic_ids)
    single_ids = given_ids - repeated_ids
    doomed: dict[UUID, str] = {}
    by_id = await change.find_topics_by_id(single_ids)
    for topic_id in single_ids:
        if topic_id in by_id:
            doomed[topic_id] = by_id[topic_id].name
        else:
            answers.append(DeletedTopic(None, topic_id, _UNKNOWN_ID))
    by_name = await change.find_topics(_storable(names))
    for name in dict.fromkeys(names):
        if name in repeated:
            continue
        topic = by_name.get(name)
        if topic is None:
            answers.append(DeletedTopic(name, None, _UNKNOWN_NAME))
        elif topic.topic_id in given_ids:
            doomed.pop(topic.topic_id, None)
            answers.append(DeletedTopic(name, topic.topic_id, _NAME_OF_GIVEN_ID))
        else:
            doomed[topic.topic_id] = name
    answers += [DeletedTopic(name, topic_id) for topic_id, name in doomed.items()]
    return answers, list(doomed)


def _storable(names: Iterable[str]) -> list[str]:
    """The names that a query may contain; the database refuses the text of others."""
    return [name for name in names if is_storable_name(name)]


def _row(created: CreatedTopic) -> TopicRow:
    return TopicRow(
        topic_id=created.topic_id,
        name=created.name,
        is_internal=is_internal(created.name),
        partition_count=created.partition_count,
        overrides=created.overrides,
    )
