"""GET_LAST_MESSAGE_ID: the last message that can be read, and what the subscription has done.

Behavior: below any open transaction, and no marker nor what was aborted. An empty topic has
(-1, -1). batch_index is that of a batch's last message; the mark-delete position is the offset
before the first that is not acknowledged, so it lies within an entry that is half done.
"""

from core.errors import Refusal
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    MessageIdData,
)
from gateway.pulsar.entries import InvalidEntry, open_stored
from gateway.pulsar.ids import earliest, message_id
from gateway.pulsar.session import Session


@command(CommandType.GET_LAST_MESSAGE_ID)
async def get_last_message_id(
    message: CommandGetLastMessageId, session: Session
) -> CommandGetLastMessageIdResponse | Refused | Refusal:
    """Look for it from the end."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is None or consumer.member is None:
        return Refused(ServerError.METADATA_ERROR, "Consumer not found")
    place, member = consumer.place, consumer.member
    batch = await member.partition.last_entry()
    last = earliest()
    if batch is not None:
        try:
            is_batch = open_stored(batch.payload).is_batch
        except InvalidEntry:
            is_batch = batch.record_count > 1
        index = batch.record_count - 1 if is_batch else -1
        last = message_id(place.partition_id, batch.base_offset, place.name.partition, index)
    mark: MessageIdData = earliest()
    if member.mark_delete > 0:
        mark = message_id(place.partition_id, member.mark_delete - 1, place.name.partition)
    return CommandGetLastMessageIdResponse(
        request_id=message.request_id, last_message_id=last, consumer_mark_delete_position=mark
    )
