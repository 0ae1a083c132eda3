"""Kafka messages to and from bytes: the request header, bodies by (key, version), sized responses.

The only module that imports a message library. `from gateway.kafka.codec import EndTxnRequest`
works for every message of kafka-python's protocol package, and for every file in `schemas` beside
this one (what kafka-python lacks, and Penstock's own); to mypy all of them are `Any`. It does not
know which APIs are served, nor what a message means.

Anything malformed is a `MalformedRequest`, in time and memory bounded by the frame and
`compiled.MAX_ELEMENTS`. Records are memoryviews into the frame. Strings are text (bytes that are
not UTF-8 have become U+FFFD, as in Java) but may hold NUL, which Kafka allows and PostgreSQL's text
does not: whatever goes to a text column (topic names, configuration, client ids) is checked by its
handler or by the runtime.

Messages decoded or made without naming a field read as the schema's default there. Make messages
with the nested classes (`ProduceResponse.TopicProduceResponse(…)`), not with tuples; where there is
one for each batch, with `made`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import new_class
from typing import Any, Final

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage

from core.types import IsolationLevel
from gateway.kafka import schemas
from gateway.kafka.compiled import MalformedRequest as MalformedRequest
from gateway.kafka.compiled import Unencodable as Unencodable
from gateway.kafka.compiled import make_decoder, make_encoder, read_text, read_varint

API_VERSIONS_KEY: Final = 18
FETCH_KEY: Final = 1
FIRST_KEY_OF_PENSTOCK: Final = 10_000
"""APIs from here on are Penstock's own."""

Buffer = bytes | bytearray | memoryview


def _messages() -> dict[str, Any]:
    """Every request and response by its name in Kafka's documentation."""
    found = {
        name: message
        for room in (admin, consumer, metadata, producer, sasl)
        for name in room.__all__
        if isinstance(message := getattr(room, name), type(ApiMessage))
    }
    for schema in files(schemas).iterdir():
        name, _, kind = schema.name.rpartition(".")
        if kind == "json":
            found[name] = new_class(name, (ApiMessage,), {"load_json": schemas})
    return found


_MESSAGES: Final = _messages()
_REQUESTS: Final[dict[int, Any]] = {
    message.API_KEY: message for message in _MESSAGES.values() if message.is_request()
}
_FIXED_HEADER: Final = struct.Struct(">hhih")  # key, version, correlation id, client id's length
_RESPONSE_HEADER: Final = struct.Struct(">ii")  # size, correlation id
_BROKEN: Final = (struct.error, IndexError, ValueError, OverflowError, MemoryError)
_decoders: Final[dict[tuple[Any, int], Any]] = {}
_encoders: Final[dict[tuple[Any, int], Any]] = {}


def __getattr__(name: str) -> Any:
    """The message of this name, so that a handler imports its own: PEP 562."""
    try:
        return _MESSAGES[name]
    except KeyError:
        raise AttributeError(f"the codec has no message {name}") from None


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Kafka's request header, v1 or v2.

    client_id: "" where it is null (RequestHeader.parse). body: where the body begins in the frame.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int


def made(kind: Any, **fields: Any) -> Any:
    """A nested message with these fields, in a quarter of its constructor's time, which goes
    through every field of the schema. AttributeError for one that it lacks."""
    message = object.__new__(kind)
    message._version = message.tags = message.unknown_tags = None
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def java_length(text: str | None) -> int:
    """As Java counts and Kafka compares: a character beyond the first 65,536 is two."""
    return len((text or "").encode("utf-16-le")) // 2


def isolation_level(number: int) -> IsolationLevel | None:
    """What a request's int8 stands for (IsolationLevel.forId). None: for nothing."""
    try:
        return IsolationLevel(number)
    except ValueError:
        return None


def request_class(key: int) -> Any:
    """The request message of API `key`. Raises ValueError for a key without one."""
    try:
        return _REQUESTS[key]
    except KeyError:
        raise ValueError(f"the codec has no request for API key {key}") from None


def decode_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request frame (without its size). Raises MalformedRequest.

    The header of ApiVersions is understood in every version, so that an unknown one can be refused
    politely; an unknown key is malformed, because its header's version cannot be known.
    """
    try:
        key, version, correlation_id, length = _FIXED_HEADER.unpack_from(frame)
        pos = _FIXED_HEADER.size
        message = _REQUESTS.get(key)
        if message is None:
            raise MalformedRequest(f"unknown API key {key}")
        client_id = ""
        if length >= 0:
            if pos + length > len(frame):
                raise MalformedRequest("the header's client id is cut short")
            client_id = read_text(frame[pos : pos + length])
            pos += length
        if message.flexible_version_q(version):
            pos = _skip_tags(frame, pos)
    except _BROKEN as broken:
        raise MalformedRequest(f"the header is cut short or broken: {broken}") from broken
    return RequestHeader(key, version, correlation_id, client_id, pos)


def _skip_tags(frame: memoryview, pos: int) -> int:
    count, pos = read_varint(frame, pos)
    for _ in range(count):  # each takes two bytes or raises at the frame's end
        _, pos = read_varint(frame, pos)
        size, pos = read_varint(frame, pos)
        pos += size
        if pos > len(frame):
            raise MalformedRequest("a tagged field of the header is cut short")
    return pos


def decode_body(header: RequestHeader, frame: memoryview) -> Any:
    """The request message after `header`. Raises MalformedRequest.

    The version must be one the message has (the registry vouches for it). Bytes after the message
    are ignored, as Kafka's AbstractRequest.parseRequest does.
    """
    return decode_message(_REQUESTS[header.api_key], header.api_version, frame, header.body)


def decode_message(message: Any, version: int, frame: memoryview, pos: int = 0) -> Any:
    """The message of class `message` at `pos` of `frame`. Raises MalformedRequest."""
    decode = _decoders.get((message, version))
    if decode is None:
        flexible = message.flexible_version_q(version)
        decode = make_decoder(message._struct, message, version, flexible)
        _decoders[message, version] = decode
    try:
        decoded, _ = decode(frame, pos, len(frame))
    except _BROKEN as broken:
        raise MalformedRequest(f"{message.name} v{version}: {broken}") from broken
    except MalformedRequest as broken:
        raise MalformedRequest(f"{message.name} v{version}: {broken}") from None
    return decoded


def encode_response(response: Any, version: int, correlation_id: int) -> Sequence[Buffer]:
    """The response in `version` with its size and header, as buffers to be written in turn.

    Records may be given as bytes or as a list of buffers; large ones are passed on by reference.
    Raises Unencodable, struct.error or AttributeError where the response cannot be encoded: a bug.
    """
    message = type(response)
    out = bytearray(_RESPONSE_HEADER.pack(0, correlation_id))
    # A client asking for ApiVersions cannot know what the broker speaks: header v0 (KIP-511).
    if message.API_KEY != API_VERSIONS_KEY and message.flexible_version_q(version):
        out.append(0)
    parts = encode_message(response, version, out)
    struct.pack_into(">i", out, 0, sum(map(len, parts)) - 4)
    return parts


def encode_message(message: Any, version: int, out: bytearray | None = None) -> Sequence[Buffer]:
    """The message's body in `version`, appended to `out` (else to a new buffer); see above."""
    if out is None:
        out = bytearray()
    encode = _encoders.get((type(message), version))
    if encode is None:
        kind = type(message)
        encode = make_encoder(kind._struct, kind.name, version, kind.flexible_version_q(version))
        _encoders[kind, version] = encode
    parts: list[Buffer] = []
    last = encode(message, out, parts)
    if last or not parts:
        parts.append(last)
    return parts
