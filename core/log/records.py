"""Records in neutral words, as both front-ends understand them.

A front-end reads its stored batches into a `RecordSet`. From a `RecordSet` it writes, for its
clients, batches that the other front-end stored. Values only; this room knows no bytes of a wire.

| here | Kafka | Pulsar |
| --- | --- | --- |
| `Record.key` | key | partition_key, decoded where it is Base64 |
| `Record.value`, None for null | value | payload, null_value |
| `Record.headers` | headers | properties |
| `Record.event_time` | timestamp, where it is CreateTime | event_time |
| `RecordSet.timestamp` | the greatest timestamp, or LogAppendTime | publish_time |
| `Record.ordering_key`, `Extras` | headers of reserved names | fields of their own |
| `Record.key_is_text` | what its bytes are | not partition_key_b64_encoded |
| a None among the records | an offset that compaction has emptied | compacted_out |
| `RecordSet.producer`, `sequence` | producer id and epoch, sequence | producer_name, sequence_id |
| `RecordSet.compression` | attributes | compression |
| `RecordSet.is_transactional` | attributes, with a producer id | SEND's TxnID |
| `Extras.envelope` | header of a reserved name | all metadata of a chunk or an encrypted entry |

Fields that only one protocol has travel in headers with reserved names, `penstock.*`, behind all
others and in the order of `_FIELDS`. Headers count as such fields only there and only if they are
well-formed, so that reading them is the inverse of writing them.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from core.types import Payload, TimestampType

Header = tuple[str, bytes | None]
"""A name and a value. Bytes of a name that are not UTF-8 are surrogates (`surrogateescape`)."""

RESERVED_PREFIX: Final = "penstock."
"""Translation adds and removes headers and properties with this prefix."""


_UNREADABLE: Final = RESERVED_PREFIX + "unreadable"


class Compression(Enum):
    """How a batch's records are compressed, whatever each wire wraps around it."""

    NONE = auto()
    DEFLATE = auto()  # Kafka's gzip, Pulsar's ZLIB
    SNAPPY = auto()
    LZ4 = auto()
    ZSTD = auto()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Which part of a too large message a record holds (Pulsar's chunks).

    uuid: of the message. chunk_id: from 0 to chunk_count - 1. total_size: bytes of all chunks.
    """

    uuid: str
    chunk_id: int
    chunk_count: int
    total_size: int


@dataclass(frozen=True, slots=True)
class Extras:
    """Pulsar's metadata of a whole entry; a Kafka batch has none of it.

    schema_version: of the value. deliver_at: ms; consumers must not see it earlier (Kafka's do).
    replicated_from: the cluster it was first written in. chunk: None for a whole message.
    envelope: the writer's own metadata of a value that is encrypted, or a chunk of a message
    compressed as a whole: readers need all of it, and nothing else can open the value.
    """

    schema_version: bytes | None = None
    deliver_at: int | None = None
    replicated_from: str | None = None
    chunk: Chunk | None = None
    envelope: bytes | None = None


NO_EXTRAS: Final = Extras()


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    event_time: ms since the epoch, when it happened according to its writer; None if only the time
    of its set is known. ordering_key: the key that keeps the order, if that is not `key`.
    key_is_text: whether its writer took the key for text; never true if the key is not UTF-8.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    event_time: int | None = None
    ordering_key: bytes | None = None
    key_is_text: bool = False
    extras: Extras = NO_EXTRAS


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The records of one batch, at consecutive offsets.

    records: one for each offset, None where it was removed. timestamp: ms, when it was published.
    timestamp_type: which side set that. sequence: of the first record, each next has the next;
    producer and sequence are None if it has none. is_transactional: whether it was written in a
    transaction; how that ended the log knows.
    """

    records: tuple[Record | None, ...]
    timestamp: int
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    compression: Compression = Compression.NONE
    producer: str | None = None
    sequence: int | None = None
    is_transactional: bool = False

    @property
    def is_opaque(self) -> bool:
        """Whether its one value is encrypted or a chunk: stored and passed on, never opened."""
        return any(each is not None and each.extras.envelope is not None for each in self.records)

    def part(self, start: int, stop: int) -> "RecordSet":
        """The records from start up to stop, as a new set."""
        sequence = None if self.sequence is None else self.sequence + start
        return replace(self, records=self.records[start:stop], sequence=sequence)


class InvalidBatch(Exception):
    """A stored batch is damaged: it does not hold what its header says."""


def unreadable(payload: Payload, record_count: int, timestamp: int, writer: str) -> RecordSet:
    """What stands for a batch that cannot be opened: its bytes as the value of one record, with a
    header that says whose they are, and nothing at the other offsets."""
    record = Record(None, bytes(payload), ((_UNREADABLE, writer.encode()),))
    return RecordSet((record, *[None] * (record_count - 1)), timestamp)


def is_text(key: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- fields in headers ---


class _Field(NamedTuple):
    """encode: the header's value, None if the record has no such field. decode: the record with
    the field, or None if the bytes are not what `encode` writes."""

    name: str
    encode: Callable[[Record], bytes | None]
    decode: Callable[[Record, bytes], Record | None]


def _extra(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> _Field:
    """A field of `Extras`."""

    def encoded(record: Record) -> bytes | None:
        value = getattr(record.extras, name)
        return None if value is None else encode(value)

    def decoded(record: Record, data: bytes) -> Record | None:
        value = decode(data)
        if value is None or encode(value) != data:
            return None
        return replace(record, extras=replace(record.extras, **{name: value}))

    return _Field(RESERVED_PREFIX + name, encoded, decoded)


_INT64: Final = struct.Struct(">q")
_CHUNK: Final = struct.Struct(">iii")


def _int64(data: bytes) -> int | None:
    return _INT64.unpack(data)[0] if len(data) == _INT64.size else None


def _text(data: bytes) -> str | None:
    return data.decode() if is_text(data) else None


def _encode_chunk(chunk: Chunk) -> bytes:
    return _CHUNK.pack(chunk.chunk_id, chunk.chunk_count, chunk.total_size) + chunk.uuid.encode()


def _decode_chunk(data: bytes) -> Chunk | None:
    uuid = _text(data[_CHUNK.size :])
    if len(data) < _CHUNK.size or uuid is None:
        return None
    return Chunk(uuid, *_CHUNK.unpack_from(data))


def _same(value: bytes) -> bytes:
    return value


def _with_bytes_key(record: Record, data: bytes) -> Record | None:
    if data or not record.key_is_text:
        return None
    return replace(record, key_is_text=False)


# Fields of a whole entry come first: if they differ from record to record, Pulsar's front-end
# leaves them among the properties, and they keep their places when they come back.
_FIELDS: Final = (
    _extra("schema_version", _same, _same),
    _extra("deliver_at", _INT64.pack, _int64),
    _extra("replicated_from", str.encode, _text),
    _extra("chunk", _encode_chunk, _decode_chunk),
    _extra("envelope", _same, _same),
    _Field(
        RESERVED_PREFIX + "ordering_key",
        lambda record: record.ordering_key,
        lambda record, data: replace(record, ordering_key=data),
    ),
    _Field(
        RESERVED_PREFIX + "bytes_key",  # its writer meant bytes, though they are UTF-8
        lambda record: b"" if _is_text_as_bytes(record) else None,
        _with_bytes_key,
    ),
)
_PLACES: Final = {field.name: place for place, field in enumerate(_FIELDS)}
_OF_EXTRAS: Final = len(fields(Extras))


def _is_text_as_bytes(record: Record) -> bool:
    return record.key is not None and not record.key_is_text and is_text(record.key)


def extras_as_headers(record: Record) -> Record:
    """The record with its `extras` moved behind its headers."""
    if record.extras is NO_EXTRAS:
        return record
    return replace(record, headers=_with_fields(record, _FIELDS[:_OF_EXTRAS]), extras=NO_EXTRAS)


def fields_as_headers(record: Record) -> tuple[Header, ...]:
    """All headers of the record, for a protocol that cannot carry its fields otherwise."""
    if record.extras is NO_EXTRAS and record.ordering_key is None and not _is_text_as_bytes(record):
        return record.headers
    return _with_fields(record, _FIELDS)


def _with_fields(record: Record, chosen: tuple[_Field, ...]) -> tuple[Header, ...]:
    encoded = ((field.name, field.encode(record)) for field in chosen)
    return record.headers + tuple((name, data) for name, data in encoded if data is not None)


def with_fields_of_headers(record: Record) -> Record:
    """The record with its fields moved from the headers back to their places.

    The inverse of `fields_as_headers`: takes the last headers that have reserved names, in order,
    and values as this module writes them.
    """
    if not record.headers or not record.headers[-1][0].startswith(RESERVED_PREFIX):
        return record
    read, count, place = record, len(record.headers), len(_FIELDS)
    while count:
        name, data = record.headers[count - 1]
        found = _PLACES.get(name)
        if found is None or found >= place or data is None:
            break
        changed = _FIELDS[found].decode(read, data)
        if changed is None:
            break
        read, count, place = changed, count - 1, found
    return replace(read, headers=record.headers[:count])
