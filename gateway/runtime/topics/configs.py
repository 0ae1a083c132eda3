"""Effective settings: those that this process was started with, overridden by the database's.

Core knows the properties and their valid values; this knows no wire and no SQL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from core.config.definitions import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
)
from core.config.rules import (
    ConfigAlteration,
    ConfigChanges,
    ConfigResource,
    ConfigResourceType,
    check_alterable,
    decide_alteration,
    parse_broker_id,
)
from core.config.values import (
    BrokerValues,
    ConfigEntry,
    TopicConfig,
    broker_bool,
    broker_int,
    broker_list,
    broker_secret,
    broker_text,
    describe_broker_config,
    describe_dynamic_default,
    describe_group_config,
    describe_topic_config,
    describe_unknown,
    topic_config,
)
from core.errors import Error, Refusal
from core.group.settings import OffsetSettings, group_settings, offset_settings
from core.group.values import GroupSettings
from core.ports.topics import ConfigStore, MetadataChange, StoredTopic, TopicStore
from core.topic.rules import find_repeated, is_storable_name, unknown_topic

_ALL_BROKERS: Final = ""


class Configs:
    """Settings of this broker, of topics and of groups. One per process.

    static: set by the command line, a file or the environment, by Kafka's name. Until `load`, only
    these are in effect.
    """

    def __init__(
        self,
        store: ConfigStore,
        topic_store: TopicStore,
        broker_id: int,
        static: Mapping[str, str],
    ) -> None:
        self._store = store
        self._topic_store = topic_store
        self._broker_id = broker_id
        self._values = BrokerValues(static, {}, {})
        self._merged = self._values.merged()
        self._groups: Mapping[str, Mapping[str, str]] = {}
        self._group_settings: dict[str | None, GroupSettings] = {}
        self._topic_configs: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        self._is_fresh = False
        self._generation = 0
        self._on_alter: Callable[[], None] = self.invalidate

    def on_alter(self, listener: Callable[[], None]) -> None:
        """Registers a listener; it is called when `alter` has, or may have, altered something."""
        self._on_alter = listener

    @property
    def values(self) -> BrokerValues:
        """The broker's values at each level, as last read."""
        return self._values

    def broker_int(self, name: str) -> int:
        """The value in effect of a property that is a whole number, as last read."""
        return broker_int(name, self._merged)

    def reader(self, name: str) -> Callable[[], int]:
        """A function that returns `broker_int(name)` at the time of each call."""
        return partial(self.broker_int, name)

    def broker_bool(self, name: str) -> bool:
        """The value in effect of a property that is true or false, as last read."""
        return broker_bool(name, self._merged)

    def broker_text(self, name: str) -> str:
        """The value in effect of a property that is text, as last read."""
        return broker_text(name, self._merged)

    def broker_secret(self, name: str) -> str | None:
        """The value in effect of a property that is a password, if there is one."""
        return broker_secret(name, self._merged)

    def broker_list(self, name: str) -> tuple[str, ...]:
        """The value in effect of a property that is a list, as last read."""
        return broker_list(name, self._merged)

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings of a topic with these overrides, with the broker's as last read.

        Made once for all topics that are alike: of 10,000 most have no overrides.
        """
        key = frozenset(overrides.items())
        config = self._topic_configs.get(key)
        if config is None:
            config = self._topic_configs[key] = topic_config(overrides, self._merged)
        return config

    def group_settings(self, group_id: str) -> GroupSettings:
        """A group's settings, as last read: its own, else the broker's.

        Cheap enough to be called at every heartbeat.
        """
        key = group_id if group_id in self._groups else None
        settings = self._group_settings.get(key)
        if settings is None:
            settings = group_settings(self._groups.get(group_id, {}), self._merged)
            self._group_settings[key] = settings
        return settings

    def offers_group_protocol(self, protocol: str) -> bool:
        """Whether groups may use "classic", "consumer" (KIP-848), …"""
        return protocol in broker_list("group.coordinator.rebalance.protocols", self._merged)

    def offset_settings(self) -> OffsetSettings:
        """The settings for committed offsets, as last read."""
        return offset_settings(self._merged)

    def invalidate(self) -> None:
        """The database's settings may have changed: reads them before the next use."""
        self._is_fresh = False
        self._generation += 1
        self._topic_configs.clear()  # topics come and go, and their overrides with them

    async def ensure_loaded(self) -> None:
        """Reads the broker's settings, unless nothing has changed. Raises StoreUnavailable."""
        if not self._is_fresh:
            await self.load()

    async def load(self) -> None:
        """Reads the settings of the broker and of groups. Raises StoreUnavailable."""
        generation = self._generation
        stored = await self._store.read_configs(self._broker_id)
        values = BrokerValues(self._values.static, stored.all_brokers, stored.broker)
        if (values, stored.groups) != (self._values, self._groups):
            self._values = values
            self._merged = values.merged()
            self._groups = stored.groups
            self._group_settings = {}
            self._topic_configs = {}
        # Changes during the read are not in it.
        self._is_fresh = generation == self._generation

    async def describe(
        self, resources: Sequence[ConfigResource]
    ) -> list[tuple[ConfigEntry, ...] | Refusal]:
        """The present settings of each resource, by name.

        Two reads for all of them (Kafka's `ConfigHelper`). Raises StoreUnavailable.
        """
        names = {each.name for each in resources if each.type is ConfigResourceType.TOPIC}
        storable = [name for name in names if is_storable_name(name)]
        topics = await self._topic_store.find_topics(storable) if storable else {}
        await self.load()
        return [self._describe(resource, topics) for resource in resources]

    def _describe(
        self, resource: ConfigResource, topics: Mapping[str, StoredTopic]
    ) -> tuple[ConfigEntry, ...] | Refusal:
        match resource.type:
            case ConfigResourceType.TOPIC if resource.name in topics:
                return self.describe_overrides(topics[resource.name].overrides)
            case ConfigResourceType.TOPIC:
                return unknown_topic(resource.name)
            case ConfigResourceType.GROUP:
                return self._describe_group(resource.name)
            case ConfigResourceType.BROKER:
                return self._describe_broker(resource.name)
            case ConfigResourceType.UNKNOWN:
                message = f"Unexpected resource type UNKNOWN for resource {resource.name}"
                return Refusal(Error.INVALID_REQUEST, message)
            case other:
                message = f"Unsupported resource type: {other.name}"
                return Refusal(Error.INVALID_REQUEST, message)

    def describe_overrides(self, overrides: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
        """Every setting of a topic with these overrides, by name."""
        return tuple(
            describe_topic_config(name, overrides, self._values) for name in sorted(TOPIC_CONFIGS)
        )

    def _describe_group(self, group_id: str) -> tuple[ConfigEntry, ...] | Refusal:
        if not group_id:
            return Refusal(Error.INVALID_REQUEST, "Group name must not be empty")
        overrides = self._groups.get(group_id, {})
        return tuple(
            describe_group_config(name, overrides, self._merged) for name in sorted(GROUP_CONFIGS)
        )

    def _describe_broker(self, name: str) -> tuple[ConfigEntry, ...] | Refusal:
        if name == _ALL_BROKERS:
            return describe_dynamic_default(self._values)
        broker_id = parse_broker_id(name)
        if broker_id is None:
            message = f"Broker id must be an integer, but it is: {name}"
            return Refusal(Error.INVALID_REQUEST, message)
        if broker_id != self._broker_id:
            message = (
                f"Unexpected broker id, expected {self._broker_id} or empty string, "
                f"but received {name}"
            )
            return Refusal(Error.INVALID_REQUEST, message)
        known = (describe_broker_config(each, self._values) for each in BROKER_CONFIGS)
        return *known, *describe_unknown(self._values)

    async def groups_with_settings(self) -> list[str]:
        """The ids of groups that have settings of their own now. Raises StoreUnavailable."""
        await self.load()
        return sorted(self._groups)

    async def alter(
        self, alterations: Sequence[ConfigAlteration], *, validate_only: bool
    ) -> list[Refusal | None]:
        """Alters settings, each resource whole or not at all; None stands for success.

        Answers in the order of the alterations. Raises StoreUnavailable.
        """
        try:
            async with self._topic_store.change("alter_configs") as change:
                return await self._alter(change, alterations, validate_only)
        finally:
            # Also if the outcome of the commit is unknown: it may have succeeded.
            self._on_alter()

    async def _alter(
        self, change: MetadataChange, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> list[Refusal | None]:
        repeated = find_repeated(each.resource for each in alterations)
        current = await self._read_current(change, alterations)
        answers: list[Refusal | None] = []
        for each in alterations:
            if each.resource in repeated:
                message = "Each resource must appear at most once."
                answers.append(Refusal(Error.INVALID_REQUEST, message))
                continue
            decided = self._decide(each, current)
            answers.append(decided if isinstance(decided, Refusal) else None)
            if not isinstance(decided, Refusal) and not validate_only:
                await self._write(change, each.resource, current, decided)
        return answers

    async def _read_current(
        self, change: MetadataChange, alterations: Sequence[ConfigAlteration]
    ) -> "_Current":
        asked = [each for each in alterations if check_alterable(each, self._broker_id) is None]

        def names(kind: ConfigResourceType) -> set[str]:
            return {each.resource.name for each in asked if each.resource.type is kind}

        levels = [
            await change.read_broker_configs(name) for name in (_ALL_BROKERS, str(self._broker_id))
        ]
        return _Current(
            BrokerValues(self._values.static, *levels),
            await change.find_topics(names(ConfigResourceType.TOPIC)),
            await change.read_group_configs(names(ConfigResourceType.GROUP)),
        )

    def _decide(self, alteration: ConfigAlteration, current: "_Current") -> ConfigChanges | Refusal:
        if refusal := check_alterable(alteration, self._broker_id):
            return refusal
        name, broker = alteration.resource.name, current.broker
        match alteration.resource.type:
            case ConfigResourceType.TOPIC:
                topic = current.topics.get(name)
                decided = decide_alteration(alteration, topic.overrides if topic else {}, broker)
                # As Kafka does, checks the settings first, and then the topic.
                if topic is None and not isinstance(decided, Refusal):
                    message = f"The topic '{name}' does not exist."
                    return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, message)
                return decided
            case ConfigResourceType.GROUP:
                return decide_alteration(alteration, current.groups.get(name, {}), broker)
            case _:
                level = broker.dynamic if name else broker.dynamic_default
                return decide_alteration(alteration, level, broker)

    async def _write(
        self,
        change: MetadataChange,
        resource: ConfigResource,
        current: "_Current",
        changes: ConfigChanges,
    ) -> None:
        match resource.type:
            case ConfigResourceType.TOPIC:
                topic = current.topics[resource.name]
                await change.write_topic_configs(topic.topic_id, changes)
            case ConfigResourceType.GROUP:
                await change.write_group_configs(resource.name, changes)
            case _:
                # "+1" is broker 1 too.
                name = str(self._broker_id) if resource.name else _ALL_BROKERS
                await change.write_broker_configs(name, changes)


@dataclass(frozen=True, slots=True)
class _Current:
    """The present settings of the resources to be altered."""

    broker: BrokerValues
    topics: Mapping[str, StoredTopic]
    groups: Mapping[str, Mapping[str, str]]
