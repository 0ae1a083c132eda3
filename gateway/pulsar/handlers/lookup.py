"""LOOKUP: the broker to connect to for a topic.

Behavior: of the live brokers that listen for Pulsar's clients, the one that dispatches the
partition; this one for a topic that is not there yet; TopicNotFound where its namespace is not
there either. A transaction coordinator is looked up as a partition of
`transaction_coordinator_assign`. The client is sent there at once, never redirected to ask there
again. While no other broker has ever listened for Pulsar it may as well go on by the address that
it has, behind whatever maps ports: `proxy_through_service_url`; see `gateway/pulsar/proxied.py`.
After that it has addresses of others, too, and would take one that is dead: Go's takes the next in
its list each time. `advertised_listener_name` is not looked at.
"""

from core.errors import Refusal
from core.ports.log import StoreUnavailable
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, LookupResult, ServerError
from gateway.pulsar.commands_pb2 import CommandLookupTopic, CommandLookupTopicResponse
from gateway.pulsar.errors import server_error
from gateway.pulsar.rights import refuse_topic
from gateway.pulsar.session import LISTENER, Session
from gateway.pulsar.topics import broker_of, find_topic, service_url


@command(CommandType.LOOKUP)
async def lookup(message: CommandLookupTopic, session: Session) -> CommandLookupTopicResponse:
    """Look the topic up, and who leads it."""
    services = session.services
    if refused := refuse_topic(session, message.topic, "LOOKUP"):
        return _failed(message, *refused)
    try:
        found = await find_topic(message.topic, services)
        if isinstance(found, Refusal):
            return _failed(message, server_error(found.error), found.message or "")
        broker = await broker_of(*found, services)
        if isinstance(broker, Refusal):
            return _failed(message, server_error(broker.error), broker.message or "")
    except StoreUnavailable:
        return _failed(message, ServerError.SERVICE_NOT_READY, "The database is away")
    if broker.at(LISTENER) is None:
        reason = (
            "The broker that has the topic does not listen for Pulsar's clients; it gives it away"
        )
        return _failed(message, ServerError.SERVICE_NOT_READY, reason)
    answer = CommandLookupTopicResponse(
        request_id=message.request_id,
        response=LookupResult.CONNECT,
        authoritative=True,
        proxy_through_service_url=services.cluster.was_always_alone_at(LISTENER),
    )
    url = service_url(broker, services)
    if services.is_tls:
        answer.broker_service_url_tls = url
    else:
        answer.broker_service_url = url
    return answer


def _failed(
    message: CommandLookupTopic, code: ServerError, reason: str
) -> CommandLookupTopicResponse:
    return CommandLookupTopicResponse(
        request_id=message.request_id,
        response=LookupResult.FAILED,
        error=code,
        message=reason,
    )
