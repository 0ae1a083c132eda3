"""REDELIVER_UNACKNOWLEDGED_MESSAGES: the consumer gives entries back: those named, or all it has.

Behavior: on Exclusive and Failover always all, in order, from the first that is not acknowledged;
they bear the epoch that the command has. No answer.
"""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import CommandRedeliverUnacknowledgedMessages
from gateway.pulsar.ids import AFTER_ALL, BEFORE_ALL, entry_offset
from gateway.pulsar.session import Session


@command(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES)
def redeliver(message: CommandRedeliverUnacknowledgedMessages, session: Session) -> None:
    """Pass it on."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is None or consumer.member is None:
        return
    offsets: list[int] | None = None
    if message.message_ids:
        ledger_id = consumer.place.partition_id
        found = [entry_offset(each, ledger_id) for each in message.message_ids]
        offsets = [each for each in found if each not in (BEFORE_ALL, AFTER_ALL)]
    consumer.member.redeliver(offsets, message.consumer_epoch)
