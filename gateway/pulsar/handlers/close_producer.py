"""CLOSE_PRODUCER: the producer writes no more; SUCCESS once all it has sent is confirmed.

Its name is free at once after that. One that is not there is an error, as in Pulsar; one that is
still being made is given up.
"""

from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandCloseProducer, CommandSuccess
from gateway.pulsar.session import Session


@command(CommandType.CLOSE_PRODUCER)
async def close_producer(
    message: CommandCloseProducer, session: Session
) -> CommandSuccess | Refused | None:
    """Wait for its receipts, forget it."""
    success = CommandSuccess(request_id=message.request_id)
    if message.producer_id in session.opening:
        session.opening.discard(message.producer_id)
        return success
    producer = session.producers.get(message.producer_id)
    if producer is None:
        if message.producer_id in session.closed_producers:  # both have closed it at a time
            session.closed_producers.discard(message.producer_id)
            return success
        reason = "Producer was not registered on the connection"
        return Refused(ServerError.UNKNOWN_ERROR, reason)
    await producer.all_answered()
    if session.producers.get(message.producer_id) is producer:
        del session.producers[message.producer_id]
        producer.detach()
    return success
