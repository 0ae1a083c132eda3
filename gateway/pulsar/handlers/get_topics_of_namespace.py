"""GET_TOPICS_OF_NAMESPACE: the names of a namespace's topics, partitions one by one.

Behavior: a pattern is matched here, against names without domain and partition, as long as it has
Pulsar's 50 characters (`subscriptionPatternMaxLength`) and is one in RE2's syntax; else all names
are given, unfiltered, and the client picks. `topics_hash` is Pulsar's, so that a client that has
the same names already is told nothing but that. Nothing is non-persistent; Kafka's internal
topics, and those whose name ends like a partition's, have no name here.
Sources: TopicList, TopicListService.
"""

from collections.abc import Iterable

from crc32c import crc32c

from core.errors import Refusal
from core.group.subscribed_topics import InvalidRegularExpression
from core.topic.topic import Topic
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, TopicMode
from gateway.pulsar.commands_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
)
from gateway.pulsar.names import TopicName, parse_namespace, pulsar_topic_name
from gateway.pulsar.session import Session
from gateway.runtime.groups.topic_images import compiled

_LONGEST_PATTERN = 50
_SCHEME = "://"


@command(CommandType.GET_TOPICS_OF_NAMESPACE)
async def get_topics_of_namespace(
    message: CommandGetTopicsOfNamespace, session: Session
) -> CommandGetTopicsOfNamespaceResponse | Refusal:
    """List, filter, compare with what the client has."""
    namespace = parse_namespace(message.namespace)
    if isinstance(namespace, Refusal):
        return namespace
    topics: Iterable[Topic] = ()
    if message.mode != TopicMode.NON_PERSISTENT:
        topics = await session.services.topics.all()
    named = [
        (name, topic)
        for topic in topics
        if not topic.is_internal and (name := pulsar_topic_name(topic.name)) is not None
        if (name.tenant, name.namespace) == namespace
    ]
    is_filtered = False
    if message.topics_pattern:
        matching = _matching(message.topics_pattern, [name for name, _ in named])
        if matching is not None:
            is_filtered = True
            named = [(name, topic) for name, topic in named if name in matching]
    names = sorted(each for name, topic in named for each in _names(name, topic))
    digest = topics_hash(names)
    is_same = bool(message.topics_hash) and message.topics_hash == digest
    return CommandGetTopicsOfNamespaceResponse(
        request_id=message.request_id,
        topics=() if is_same else names,
        filtered=is_filtered,
        topics_hash=digest,
        changed=not is_same,
    )


def topics_hash(names: Iterable[str]) -> str:
    """CRC-32C of the sorted names, spelt as Guava's HashCode spells it: lowest byte first."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def _names(name: TopicName, topic: Topic) -> list[str]:
    count = len(topic.partition_ids)
    return [str(name)] if count == 1 else [f"{name}-partition-{each}" for each in range(count)]


def _matching(pattern: str, names: Iterable[TopicName]) -> frozenset[TopicName] | None:
    """Those that match as a whole; None where the client has to look for itself."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    try:
        regexp = compiled(pattern.partition(_SCHEME)[2] or pattern)
    except InvalidRegularExpression:
        return None
    return frozenset(
        name
        for name in names
        if regexp.fullmatch(f"{name.full_namespace}/{name.local_name}".encode())
    )
