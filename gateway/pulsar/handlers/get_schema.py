"""GET_SCHEMA: schemas are not kept yet, so no topic has one. TopicNotFound, as Pulsar says it."""

from core.errors import Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandGetSchema, CommandGetSchemaResponse
from gateway.pulsar.errors import server_error
from gateway.pulsar.session import Session
from gateway.pulsar.topics import parse_name


@command(CommandType.GET_SCHEMA)
def get_schema(message: CommandGetSchema, session: Session) -> CommandGetSchemaResponse:
    """There is none."""
    code, reason = ServerError.TOPIC_NOT_FOUND, "Topic not found or no-schema"
    name = parse_name(message.topic)
    if isinstance(name, Refusal):
        code, reason = server_error(name.error), name.message or ""
    return CommandGetSchemaResponse(
        request_id=message.request_id, error_code=code, error_message=reason
    )
