"""Schemas on Pulsar's wire: as clients bring them, and as they get them; their versions as bytes.

Knows no command and decides nothing. Sources: Commands.getSchema, SchemaInfoUtil,
LongSchemaVersion.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from core.schema.values import Schema, SchemaRefusal, SchemaType
from gateway.pulsar import commands_pb2
from gateway.pulsar.api import Refused
from gateway.pulsar.commands import ServerError

if TYPE_CHECKING:
    from gateway.pulsar.names import TopicName

NO_VERSION: Final = b""
"""Of a topic without a schema, and of a producer without one. Java wants it to be set."""

_VERSION: Final = struct.Struct(">q")
_AUTO_CONSUME: Final = 21  # on the wire; the only type that has another number there
_STORED: Final = range(SchemaType.STRING, SchemaType.PROTOBUF_NATIVE + 1)
_MOST_LETTERS: Final = 1_000  # of a sentence, which may have a client's names in it


def read_schema(given: commands_pb2.Schema) -> Schema | SchemaRefusal | None:
    """The schema that a client brings; None where it says that there are bytes."""
    number = given.type
    if number == _AUTO_CONSUME:
        kind = SchemaType.AUTO_CONSUME
    elif number in _STORED:
        kind = SchemaType(number)
    elif number <= SchemaType.NONE:
        return None
    else:
        return SchemaRefusal(f"Unknown schema type: {number}")
    properties = {each.key: each.value for each in given.properties}
    return Schema(kind, given.schema_data, given.name, properties)


def write_schema(schema: Schema, name: TopicName) -> commands_pb2.Schema:
    """The schema of a topic, named as Pulsar names it: by the topic."""
    return commands_pb2.Schema(
        name=f"{name.full_namespace}/{name.local_name}",
        schema_data=schema.data,
        type=schema.type,
        properties=[
            commands_pb2.KeyValue(key=key, value=value)
            for key, value in sorted(schema.properties.items())
        ],
    )


def write_version(version: int | None) -> bytes:
    """A version as messages bear it: 8 bytes, signed, the greatest first."""
    return NO_VERSION if version is None else _VERSION.pack(version)


def read_version(given: bytes) -> int | None:
    """The version that a client asks for, None for the latest. ValueError: it is none."""
    if len(given) not in (0, _VERSION.size):
        raise ValueError(f"A schema's version has {_VERSION.size} bytes, not {len(given)}")
    return int(_VERSION.unpack(given)[0]) if given else None


def refused(refusal: SchemaRefusal) -> Refused:
    """As an ERROR says it. Schemas that are none count as incompatible ones, as Pulsar does it for
    older clients."""
    return Refused(ServerError.INCOMPATIBLE_SCHEMA, refusal.message[:_MOST_LETTERS])
