"""TC_CLIENT_CONNECT_REQUEST: a client wants to work with a coordinator by this connection.

Behavior: success where the coordinator is this broker's, else TransactionCoordinatorNotFound: then
the client looks it up again. The connection keeps it: a broker that joins takes over coordinators,
but of what it was given a client hears only when the connection ends.
"""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandTcClientConnectRequest,
    CommandTcClientConnectResponse,
)
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import refuse_coordinator


@command(CommandType.TC_CLIENT_CONNECT_REQUEST)
async def tc_client_connect_request(
    message: CommandTcClientConnectRequest, session: Session
) -> CommandTcClientConnectResponse:
    """See whether the coordinator is here."""
    answer = CommandTcClientConnectResponse(request_id=message.request_id)
    if failed := refuse_coordinator(message.tc_id, session):
        answer.error, answer.message = failed
    else:
        session.coordinators.add(message.tc_id)
    return answer
