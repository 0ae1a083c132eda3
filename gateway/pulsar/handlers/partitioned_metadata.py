"""PARTITIONED_METADATA: how many partitions a topic has; 0 for a plain one, and for a partition.

Behavior: a topic of one partition is a plain one unless its setting `penstock.pulsar.partitioned`
says otherwise. One that is not there is told as plain, and made by who uses it, as is Pulsar's
default; it is made at once where its namespace has partitioned topics made (`autoTopicCreation`).
Where topics are not made by using them, or the client asks so (`metadata_auto_creation_enabled`),
or the namespace is not there, it is TopicNotFound. Source: PersistentTopicsBase,
unsafeGetPartitionedTopicMetadataAsync.
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
from gateway.pulsar.rights import refuse_topic
from gateway.pulsar.session import Session
from gateway.pulsar.topics import count_partitions

_AWAY = "The database is away"


@command(CommandType.PARTITIONED_METADATA)
async def partitioned_metadata(
    message: CommandPartitionedTopicMetadata, session: Session
) -> CommandPartitionedTopicMetadataResponse:
    """Look the topic up."""
    if refused := refuse_topic(session, message.topic, "PARTITIONED_METADATA"):
        return _failed(message.request_id, *refused)
    try:
        may_make = message.metadata_auto_creation_enabled
        count = await count_partitions(message.topic, session.services, may_make=may_make)
    except StoreUnavailable:
        return _failed(message.request_id, ServerError.SERVICE_NOT_READY, _AWAY)
    if isinstance(count, Refusal):
        return _failed(message.request_id, server_error(count.error), count.message or "")
    return CommandPartitionedTopicMetadataResponse(
        request_id=message.request_id,
        partitions=count,
        response=PartitionedMetadataResult.SUCCESS,
    )


def _failed(
    request_id: int, code: ServerError, message: str
) -> CommandPartitionedTopicMetadataResponse:
    return CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=PartitionedMetadataResult.FAILED,
        error=code,
        message=message,
    )
