"""PARTITIONED_METADATA: how many partitions a topic has; 0 for a plain one, and for a partition.

Behavior: a topic of one partition is a plain one unless its setting `penstock.pulsar.partitioned`
says otherwise. One that is not there is told as plain, and made by who uses it, as is Pulsar's
default; where topics are not made by using them, or the client asks so
(`metadata_auto_creation_enabled`), it is TopicNotFound.
"""

from core.errors import Refusal
from core.ports.log import StoreUnavailable
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, PartitionedMetadataResult, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)
from gateway.pulsar.errors import server_error
from gateway.pulsar.session import Session
from gateway.pulsar.topics import find_topic, is_partitioned, may_create, unknown

_AWAY = "The database is away"


@command(CommandType.PARTITIONED_METADATA)
async def partitioned_metadata(
    message: CommandPartitionedTopicMetadata, session: Session
) -> CommandPartitionedTopicMetadataResponse:
    """Look the topic up."""
    try:
        found = await find_topic(message.topic, session.services)
    except StoreUnavailable:
        return _failed(message.request_id, ServerError.SERVICE_NOT_READY, _AWAY)
    if isinstance(found, Refusal):
        return _refused(message.request_id, found)
    name, topic = found
    count = 0
    if topic is None:
        may_be_made = may_create(session.services) and message.metadata_auto_creation_enabled
        if name.partition >= 0 or not may_be_made:
            return _refused(message.request_id, unknown(name))
    elif name.partition >= len(topic.partition_ids):
        return _refused(message.request_id, unknown(name))
    elif name.partition < 0 and is_partitioned(topic):
        count = len(topic.partition_ids)
    return CommandPartitionedTopicMetadataResponse(
        request_id=message.request_id,
        partitions=count,
        response=PartitionedMetadataResult.SUCCESS,
    )


def _refused(request_id: int, refusal: Refusal) -> CommandPartitionedTopicMetadataResponse:
    return _failed(request_id, server_error(refusal.error), refusal.message or "")


def _failed(
    request_id: int, code: ServerError, message: str
) -> CommandPartitionedTopicMetadataResponse:
    return CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=PartitionedMetadataResult.FAILED,
        error=code,
        message=message,
    )
