"""GET_OR_CREATE_SCHEMA: a producer brings another schema than the one it began with.

Behavior: schemas are neither checked nor kept yet. The empty version says that the topic has none:
clients then send messages without one, and read them by the schema they have.
"""

from core.errors import Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
)
from gateway.pulsar.errors import server_error
from gateway.pulsar.session import Session
from gateway.pulsar.topics import parse_name


@command(CommandType.GET_OR_CREATE_SCHEMA)
def get_or_create_schema(
    message: CommandGetOrCreateSchema, session: Session
) -> CommandGetOrCreateSchemaResponse:
    """The version of no schema."""
    name = parse_name(message.topic)
    if isinstance(name, Refusal):
        return CommandGetOrCreateSchemaResponse(
            request_id=message.request_id,
            error_code=server_error(name.error),
            error_message=name.message or "",
        )
    return CommandGetOrCreateSchemaResponse(request_id=message.request_id, schema_version=b"")
