"""FLOW: the consumer takes so many more messages. Of one that is not there it is nothing."""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import CommandFlow
from gateway.pulsar.session import Session


@command(CommandType.FLOW)
def flow(message: CommandFlow, session: Session) -> None:
    """Pass it on."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is not None and consumer.member is not None:
        consumer.member.flow(message.message_permits)
