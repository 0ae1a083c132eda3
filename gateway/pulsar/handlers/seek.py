"""SEEK: the subscription begins anew at a message, or at a time.

Behavior: all its consumers are closed (CLOSE_CONSUMER), then comes SUCCESS; their clients subscribe
again. The message that is named is delivered again; one that is not there stands for the next one.
By time, it begins at the first batch that has a message published then or later.
"""

from core.errors import Refusal
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError, signed
from gateway.pulsar.commands_pb2 import CommandSeek, CommandSuccess
from gateway.pulsar.ids import seek_offset
from gateway.pulsar.session import Session


@command(CommandType.SEEK)
async def seek(message: CommandSeek, session: Session) -> CommandSuccess | Refused | Refusal:
    """Find the offset, pass it on."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is None or consumer.member is None:
        return Refused(ServerError.METADATA_ERROR, "Consumer not found")
    member = consumer.member
    offset: int | None
    if message.HasField("message_id"):
        offset = seek_offset(message.message_id, consumer.place.partition_id)
    elif message.HasField("message_publish_time"):
        offset = await member.partition.offset_of_time(signed(message.message_publish_time))
    else:
        return Refused(ServerError.METADATA_ERROR, "Message id and message publish time missing")
    if offset is None:
        return Refused(ServerError.TOPIC_NOT_FOUND, "The topic has been deleted")
    refusal = await member.partition.seek(member.subscription, offset)
    return refusal or CommandSuccess(request_id=message.request_id)
