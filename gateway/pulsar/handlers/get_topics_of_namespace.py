"""GET_TOPICS_OF_NAMESPACE: the names of a namespace's topics, partitions one by one.

Behavior: a pattern is matched here, as long as it has Pulsar's 50 characters and is one in RE2's
syntax; else all names are given, unfiltered, and the client picks. `topics_hash` is Pulsar's, so
that a client that has the same names already is told nothing but that. Nothing is non-persistent.
Sources: TopicList, TopicListService.
"""

from core.errors import Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, TopicMode
from gateway.pulsar.commands_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
)
from gateway.pulsar.names import parse_namespace
from gateway.pulsar.session import Session
from gateway.pulsar.topic_lists import list_names, seen_by


@command(CommandType.GET_TOPICS_OF_NAMESPACE)
async def get_topics_of_namespace(
    message: CommandGetTopicsOfNamespace, session: Session
) -> CommandGetTopicsOfNamespaceResponse | Refusal:
    """List, filter, compare with what the client has."""
    namespace = parse_namespace(message.namespace)
    if isinstance(namespace, Refusal):
        return namespace
    is_asked = message.mode != TopicMode.NON_PERSISTENT
    topics = await session.services.topics.all() if is_asked else ()
    listed = list_names(topics, namespace, message.topics_pattern, seen_by(session))
    is_same = bool(message.topics_hash) and message.topics_hash == listed.digest
    return CommandGetTopicsOfNamespaceResponse(
        request_id=message.request_id,
        topics=() if is_same else listed.names,
        filtered=listed.is_filtered,
        topics_hash=listed.digest,
        changed=not is_same,
    )
