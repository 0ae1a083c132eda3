"""Where in the log a topic's name points: a partition that is there, or is made now.

A topic of the log with one partition is a plain topic to Pulsar's clients unless its setting
`penstock.pulsar.partitioned` says otherwise, one with more is partitioned; `t-partition-N` is
partition N of `t` in both. Topics that Pulsar's clients make have one partition, as is Pulsar's
default, unless their namespace says otherwise, and take entries as large as Pulsar does. None is
made in a namespace that is not there. Knows no command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import Error, Refusal
from core.namespace.rules import auto_topic_creation
from core.namespace.values import TopicType
from core.topic.rules import NewTopic
from gateway.pulsar.framing import DEFAULT_MAX_MESSAGE_SIZE, max_frame_size
from gateway.pulsar.names import TopicName, log_topic_name, parse_topic_name
from gateway.pulsar.session import LISTENER, Services
from gateway.pulsar.transactions import (
    count_coordinators,
    is_coordinator,
    owner_of_coordinator,
)
from gateway.runtime.namespaces import NAMESPACE_NOT_FOUND, check_there
from gateway.runtime.topics.topics import CreatedTopic

if TYPE_CHECKING:
    from core.namespace.values import AutoTopicCreation
    from core.topic.topic import Topic
    from core.types import LiveBroker

OWN_SETTINGS: Final = (
    ("max.message.bytes", str(max_frame_size(DEFAULT_MAX_MESSAGE_SIZE))),
    ("penstock.pulsar.retention", "true"),
)
PARTITIONED_SETTINGS: Final = (*OWN_SETTINGS, ("penstock.pulsar.partitioned", "true"))
"""Of a topic that is to be partitioned, be it with one partition."""

_AUTO_CREATION: Final = "auto.create.topics.enable"


class NamedPartition(NamedTuple):
    """A partition by its name. partition: its index in the log's topic, where Pulsar may have -1:
    that is `name.partition`."""

    name: TopicName
    topic: Topic
    partition: int

    @property
    def partition_id(self) -> int:
        """Its number in the store, which is its ledger's id as well."""
        return self.topic.partition_ids[self.partition]


def parse_name(text: str) -> tuple[TopicName, str] | Refusal:
    """The name, and what the log calls its topic; or why there can be none."""
    name = parse_topic_name(text)
    if isinstance(name, Refusal):
        return name
    if not name.is_persistent:
        return Refusal(
            Error.INVALID_REQUEST,
            f"{name}: only persistent topics are served; use one of persistent://",
        )
    log_name = log_topic_name(name)
    return log_name if isinstance(log_name, Refusal) else (name, log_name)


async def find_topic(text: str, services: Services) -> tuple[TopicName, Topic | None] | Refusal:
    """The name, and its topic where there is one. Raises StoreUnavailable."""
    parsed = parse_name(text)
    if isinstance(parsed, Refusal):
        return parsed
    name, log_name = parsed
    return name, await services.topics.get(log_name)


async def find_place(text: str, services: Services, *, create: bool) -> NamedPartition | Refusal:
    """The partition that a producer or a consumer names. create: make the topic if it may be made.

    Raises StoreUnavailable.
    """
    found = await find_topic(text, services)
    if isinstance(found, Refusal):
        return found
    name, topic = found
    if topic is None and create:
        if refusal := await refuse_namespace(name, services):
            # As Pulsar has it: the client looks the topic up, and is told then.
            return Refusal(Error.NOT_LEADER_OR_FOLLOWER, f"{refusal.message}: look {name} up again")
        if name.partition < 0 and creation_of(name, services).is_allowed:
            made = await make_topic(name, services)
            if isinstance(made, Refusal):
                return made
            topic = made
    if topic is None or name.partition >= len(topic.partition_ids):
        return unknown(name)
    if topic.is_internal:
        return Refusal(Error.INVALID_REQUEST, f"{name} is an internal topic of Kafka's")
    if name.partition < 0 and is_partitioned(topic):
        reason = f"{name} is partitioned; name a partition, from {name}-partition-0 on"
        return Refusal(Error.INVALID_REQUEST, reason)
    return NamedPartition(name, topic, max(name.partition, 0))


def is_partitioned(topic: Topic) -> bool:
    """Whether Pulsar's clients see partitions: else it is a plain topic to them."""
    return len(topic.partition_ids) > 1 or topic.config.pulsar_partitioned


def unknown(name: TopicName) -> Refusal:
    """There is no such topic, or no such partition of it."""
    return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist")


async def refuse_namespace(name: TopicName, services: Services) -> Refusal | None:
    """Why the topic cannot be made: its namespace is not there. Raises StoreUnavailable."""
    if await services.namespaces.get(name.tenant, name.namespace) is None:
        return NAMESPACE_NOT_FOUND
    return None


def creation_of(name: TopicName, services: Services) -> AutoTopicCreation:
    """Whether clients make topics in a namespace by using them, and which. Where the namespace does
    not say, Kafka's setting holds for both."""
    policies = services.namespaces.policies(name.tenant, name.namespace)
    by_broker = services.configs.broker_bool(_AUTO_CREATION)
    return auto_topic_creation(policies, is_allowed_by_broker=by_broker)


async def make_topic(
    name: TopicName, services: Services, partitions: int | None = None
) -> Topic | Refusal | None:
    """Makes a topic, partitioned where a number is given; None where it is gone again. Raises
    StoreUnavailable."""
    log_name = log_topic_name(name)
    if isinstance(log_name, Refusal):
        return log_name
    settings = OWN_SETTINGS if partitions is None else PARTITIONED_SETTINGS
    full_name = name.tenant, name.namespace
    made = await services.topics.create(
        [NewTopic(log_name, partitions or 1, configs=settings)],
        check=lambda change: check_there(change, full_name),
    )
    answer = made[log_name]
    # Another may have been faster; then the topic is there just the same.
    if isinstance(answer, CreatedTopic) or answer.error is Error.TOPIC_ALREADY_EXISTS:
        return await services.topics.get(log_name)
    return answer


async def count_partitions(text: str, services: Services, *, may_make: bool) -> int | Refusal:
    """How many partitions a topic has; 0 for a plain one, for one that is to be made by who uses
    it, and for a partition. may_make: make it now, if its namespace makes partitioned ones. Raises
    StoreUnavailable."""
    found = await find_topic(text, services)
    if isinstance(found, Refusal):
        return found
    name, topic = found
    if is_coordinator(name):
        return count_coordinators(services) if name.partition < 0 else 0
    if topic is None:
        if refusal := await refuse_namespace(name, services):
            return refusal
        creation = creation_of(name, services)
        if name.partition >= 0 or not may_make or not creation.is_allowed:
            return unknown(name)
        if creation.type is not TopicType.PARTITIONED:
            return 0
        made = await make_topic(name, services, creation.default_partitions or 1)
        if isinstance(made, Refusal):
            return made
        topic = made
    if topic is None or name.partition >= len(topic.partition_ids):
        return unknown(name)
    return len(topic.partition_ids) if name.partition < 0 and is_partitioned(topic) else 0


async def broker_of(
    name: TopicName, topic: Topic | None, services: Services
) -> LiveBroker | Refusal:
    """The broker that Pulsar's clients are sent to for a topic: any for a topic that is not there
    yet. It may have no address for them. Raises StoreUnavailable."""
    if is_coordinator(name):
        owner = owner_of_coordinator(name.partition, services)
        return owner or Refusal(Error.NOT_COORDINATOR, f"{name} is no transaction coordinator")
    if topic is None and (refusal := await refuse_namespace(name, services)):
        return refusal
    if topic is not None and name.partition < len(topic.partition_ids):
        return await owner_of(topic.partition_ids[max(name.partition, 0)], services)
    return any_broker(services) or services.cluster.this


async def owner_of(partition_id: int, services: Services) -> LiveBroker:
    """The broker that Pulsar's clients are sent to for a partition: the one that dispatches it, or
    is to. It may have no address for them. Raises StoreUnavailable."""
    return await services.subscriptions.owner_of(partition_id)


def any_broker(services: Services) -> LiveBroker | None:
    """A broker that Pulsar's clients can reach: this one, or else the first that they can."""
    cluster = services.cluster
    return next((each for each in (cluster.this, *cluster.live) if each.at(LISTENER)), None)


def service_url(broker: LiveBroker, services: Services) -> str:
    """Its address, as clients have it."""
    endpoint = broker.at(LISTENER)
    assert endpoint is not None, "only such are told"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"pulsar{'+ssl' if services.is_tls else ''}://{host}:{endpoint.port}"
