"""CONSUMER_STATS: what the broker has of a consumer, of this connection. Rates are not kept: 0."""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandConsumerStats, CommandConsumerStatsResponse
from gateway.pulsar.session import Session


@command(CommandType.CONSUMER_STATS)
def consumer_stats(message: CommandConsumerStats, session: Session) -> CommandConsumerStatsResponse:
    """Ask the runtime."""
    consumer = session.consumers.get(message.consumer_id)
    status = consumer.member.status() if consumer and consumer.member else None
    if consumer is None or consumer.member is None or status is None:
        return CommandConsumerStatsResponse(
            request_id=message.request_id,
            error_code=ServerError.CONSUMER_NOT_FOUND,
            error_message="Consumer not found",
        )
    return CommandConsumerStatsResponse(
        request_id=message.request_id,
        consumer_name=status.name,
        available_permits=consumer.member.permits,
        unacked_messages=status.unacked,
        blocked_consumer_on_unacked_msgs=status.is_blocked,
        address=session.peer,
        type=consumer.type.name.title(),
        msg_backlog=consumer.member.backlog,
    )
