"""UNSUBSCRIBE: the consumer goes, and its subscription with it.

Behavior: while others are there it is a MetadataError, as in Pulsar, but with `force`, which closes
them.
"""

from core.errors import Error, Refusal
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandSuccess, CommandUnsubscribe
from gateway.pulsar.session import Session


@command(CommandType.UNSUBSCRIBE)
async def unsubscribe(
    message: CommandUnsubscribe, session: Session
) -> CommandSuccess | Refused | Refusal:
    """Pass it on."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is None or consumer.member is None:
        return Refused(ServerError.METADATA_ERROR, "Consumer not found")
    member = consumer.member
    refusal = await member.partition.unsubscribe(member, force=message.force)
    if refusal is not None:
        if refusal.error is Error.NON_EMPTY_GROUP:
            return Refused(ServerError.METADATA_ERROR, refusal.message or "")
        return refusal
    consumer.detach()
    return CommandSuccess(request_id=message.request_id)
