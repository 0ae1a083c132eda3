"""CLOSE_CONSUMER: the consumer goes; what it has not acknowledged goes to others.

SUCCESS comes once what its subscription has acknowledged is stored. One that is still being made is
given up; one that is not there is an error, as in Pulsar.
"""

import asyncio

from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandCloseConsumer, CommandSuccess
from gateway.pulsar.session import Session


@command(CommandType.CLOSE_CONSUMER)
async def close_consumer(
    message: CommandCloseConsumer, session: Session
) -> CommandSuccess | Refused:
    """Let go of it."""
    success = CommandSuccess(request_id=message.request_id)
    consumer_id = message.consumer_id
    if consumer_id in session.opening_consumers:
        session.opening_consumers.discard(consumer_id)
        return success
    consumer = session.consumers.get(consumer_id)
    if consumer is None or consumer.member is None:
        if consumer_id in session.closed_consumers:  # both have closed it at a time
            session.closed_consumers.discard(consumer_id)
            return success
        return Refused(ServerError.METADATA_ERROR, "Consumer not found")
    stored = consumer.member.stored()
    consumer.detach()
    await asyncio.shield(stored)  # others wait for the same
    return success
