"""GET_OR_CREATE_SCHEMA: a producer brings another schema than the one it began with.

Behavior: the version that the schema is, or becomes, as in PRODUCER; empty for one of bytes. The
topic must be there. Source: ServerCnx.handleGetOrCreateSchema.
"""

from core.errors import Refusal
from core.schema.values import SchemaRefusal
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
)
from gateway.pulsar.errors import server_error
from gateway.pulsar.rights import refuse_topic
from gateway.pulsar.schemas import read_schema, refused, write_version
from gateway.pulsar.session import Session
from gateway.pulsar.topics import find_topic, unknown


@command(CommandType.GET_OR_CREATE_SCHEMA)
async def get_or_create_schema(
    message: CommandGetOrCreateSchema, session: Session
) -> CommandGetOrCreateSchemaResponse:
    """Find the topic, and let the runtime register the schema."""
    version = await _register(message, session)
    if isinstance(version, Refused):
        return CommandGetOrCreateSchemaResponse(
            request_id=message.request_id, error_code=version.error, error_message=version.message
        )
    return CommandGetOrCreateSchemaResponse(request_id=message.request_id, schema_version=version)


async def _register(message: CommandGetOrCreateSchema, session: Session) -> bytes | Refused:
    services = session.services
    if refusal := refuse_topic(session, message.topic, "GET_OR_CREATE_SCHEMA"):
        return refusal
    found = await find_topic(message.topic, services)
    if not isinstance(found, Refusal) and found[1] is None:
        found = unknown(found[0])
    if isinstance(found, Refusal):
        return Refused(server_error(found.error), found.message or "")
    schema = read_schema(message.schema)
    if isinstance(schema, SchemaRefusal):
        return refused(schema)
    topic = found[1]
    assert topic is not None, "it was found"
    version = await services.schemas.admit_writer(topic, schema)
    return refused(version) if isinstance(version, SchemaRefusal) else write_version(version)
