"""Whether a schema is what its type says it is, and what of it tells it from others.

Knows nothing of topics or of what may follow what. Sources: SchemaDataValidator and its kin,
KeyValueSchemaInfo, SchemaRegistryServiceImpl.getSchemaVersionBySchemaData.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from typing import Final, NamedTuple

from core.schema.avro import AvroError, AvroSchema, canonical, parse, parse_json
from core.schema.values import MAX_AVRO_BYTES, MAX_SCHEMA_BYTES, Schema, SchemaRefusal, SchemaType

_LENGTH: Final = struct.Struct(">i")
_NOTHING: Final = (b"", b"null")  # the latter Python's client says of a string
_ON_CLIENTS_ONLY: Final = (SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH)
_ENCODING: Final = "kv.encoding.type"
_INLINE: Final = "INLINE"
_ROOT_MESSAGE: Final = "rootMessageTypeName"
_ROOT_FILE: Final = "rootFileDescriptorName"
_DESCRIPTORS: Final = "fileDescriptorSet"


class KeyAndValue(NamedTuple):
    """The two schemas of a KEY_VALUE."""

    key: Schema
    value: Schema


class MalformedError(Exception):
    """The schema's data is not what its type says; the sentence says why."""


def refuse_malformed(schema: Schema) -> SchemaRefusal | None:
    """Why a schema cannot be one, whatever it is compared with."""
    try:
        size = schema.size
    except UnicodeEncodeError:  # half of a surrogate pair
        return SchemaRefusal("The schema's name or properties are no text")
    if size > MAX_SCHEMA_BYTES:
        return SchemaRefusal(
            f"The schema has {size} bytes with its properties; {MAX_SCHEMA_BYTES} are the limit"
        )
    try:
        _check(schema)
    except (AvroError, MalformedError) as error:
        return SchemaRefusal(f"Invalid schema definition data for {schema.type.name}: {error}")
    return None


def _check(schema: Schema) -> None:
    kind = schema.type
    if kind in _ON_CLIENTS_ONLY:
        raise MalformedError("it is a client-side schema type")
    if kind is SchemaType.KEY_VALUE:
        for part in split(schema):
            if part.type is SchemaType.KEY_VALUE:
                raise MalformedError("a KEY_VALUE is in a KEY_VALUE")
            _check(part)
    elif kind is SchemaType.PROTOBUF_NATIVE:
        root_message(schema)
    elif kind.has_avro_data:
        _check_avro(schema)
    elif not kind.is_bytes and schema.data not in _NOTHING[: 1 + (kind is SchemaType.STRING)]:
        raise MalformedError(f"its length should be zero, but {len(schema.data)} bytes came")


def _check_avro(schema: Schema) -> None:
    if len(schema.data) > MAX_AVRO_BYTES:
        raise MalformedError(f"it has {len(schema.data)} bytes; {MAX_AVRO_BYTES} are the limit")
    try:
        is_union = parse(schema.data).kind == "union"
    except AvroError:
        # JSON Schema, as of before Pulsar 2.1.
        if schema.type is SchemaType.JSON and isinstance(parse_json(schema.data), dict):
            return
        raise
    if is_union and schema.type is SchemaType.AVRO:
        raise MalformedError("it is a union")


def read_avro(schema: Schema) -> AvroSchema | None:
    """The Avro schema that the data is; None where it is JSON Schema of old, in one of JSON."""
    try:
        return parse(schema.data)
    except AvroError:
        return None


def fingerprint(schema: Schema) -> bytes:
    """32 bytes, equal for schemas of one type that mean the same. The schema is well formed.

    That of a KEY_VALUE knows the types of both and how they are encoded (Pulsar's compares the
    data alone, so that all of primitive types are one): readers go by what is stored with it.
    """
    if schema.type is SchemaType.KEY_VALUE:
        encoding = schema.properties.get(_ENCODING, _INLINE)
        parts = [(part.type.name.encode(), fingerprint(part)) for part in split(schema)]
        return _digest(encoding.encode(), *(each for part in parts for each in part))
    if schema.type.has_avro_data and (avro := read_avro(schema)) is not None:
        return _digest(canonical(avro))
    return _digest(schema.data)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for each in parts:
        digest.update(len(each).to_bytes(4) + each)
    return digest.digest()


def split(schema: Schema) -> KeyAndValue:
    """The key's and the value's schema of a KEY_VALUE. Raises MalformedError."""
    parts = []
    rest = schema.data
    for what in ("key", "value"):
        if len(rest) < _LENGTH.size:
            raise MalformedError(f"the {what} is missing")
        length = max(_LENGTH.unpack_from(rest)[0], 0)  # -1: there is none
        rest = rest[_LENGTH.size :]
        if len(rest) < length:
            raise MalformedError(f"the {what} is cut off")
        parts.append(_part(schema, what, rest[:length]))
        rest = rest[length:]
    return KeyAndValue(*parts)


def _part(schema: Schema, what: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{what}.schema.type", SchemaType.BYTES.name)
    if name not in SchemaType.__members__:
        raise MalformedError(f"there is no schema type '{name}'")
    return Schema(SchemaType[name], data, schema.properties.get(f"{what}.schema.name", ""))


def root_message(schema: Schema) -> str:
    """The full name of the message that a PROTOBUF_NATIVE describes. Its descriptors are not looked
    into. Raises MalformedError."""
    try:
        given = json.loads(schema.data)
        names = [given[_ROOT_MESSAGE], given[_ROOT_FILE]]
        base64.b64decode(given[_DESCRIPTORS], validate=True)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        needed = f"{_DESCRIPTORS} in base64, {_ROOT_MESSAGE} and {_ROOT_FILE}"
        raise MalformedError(f"it is no JSON with {needed}") from None
    if not all(isinstance(name, str) and name for name in names):
        raise MalformedError("it names no message")
    return str(names[0])
