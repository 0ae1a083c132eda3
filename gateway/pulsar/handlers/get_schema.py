"""GET_SCHEMA: a version of a topic's schema, or the latest.

Behavior: TopicNotFound where there is none, as Pulsar says it; also of a version that was deleted.
A partition has its topic's. The schema bears the topic's name, not the one that its client gave it.
Source: ServerCnx.handleGetSchema.
"""

from core.errors import Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandGetSchema, CommandGetSchemaResponse
from gateway.pulsar.errors import server_error
from gateway.pulsar.rights import refuse_topic
from gateway.pulsar.schemas import read_version, write_schema, write_version
from gateway.pulsar.session import Session
from gateway.pulsar.topics import find_topic


@command(CommandType.GET_SCHEMA)
async def get_schema(message: CommandGetSchema, session: Session) -> CommandGetSchemaResponse:
    """Find the topic, and its schema."""
    services = session.services
    if refused := refuse_topic(session, message.topic, "GET_SCHEMA"):
        return _refused(message, *refused)
    try:
        version = read_version(message.schema_version)
    except ValueError as error:
        return _refused(message, ServerError.METADATA_ERROR, str(error))
    found = await find_topic(message.topic, services)
    if isinstance(found, Refusal):
        return _refused(message, server_error(found.error), found.message or "")
    name, topic = found
    schema = None if topic is None else await services.schemas.get(topic, version)
    if schema is None:
        return _refused(message, ServerError.TOPIC_NOT_FOUND, "Topic not found or no-schema")
    return CommandGetSchemaResponse(
        request_id=message.request_id,
        schema=write_schema(schema.schema, name),
        schema_version=write_version(schema.version),
    )


def _refused(message: CommandGetSchema, code: ServerError, reason: str) -> CommandGetSchemaResponse:
    return CommandGetSchemaResponse(
        request_id=message.request_id, error_code=code, error_message=reason
    )
