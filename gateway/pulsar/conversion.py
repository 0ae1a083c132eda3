"""Pulsar's entries from and to the records that both front-ends know.

Pulsar's clients read a batch that another front-end has stored as `write_entry` makes it, which for
the same records gives the same bytes, always. An entry stored by Pulsar's clients never comes
through here on its way to Pulsar's clients. `core/log/records.py` has the table; besides:

| a header that … | becomes the property |
| --- | --- |
| is text, and the last of its name | of its name, with its text |
| is text, and another of its name follows | `penstock.header.<n>.text.<name>`, with its text |
| is not text | `penstock.header.<n>.base64.<name>`, in Base64 |
| is null | `penstock.header.<n>.null.<name>`, empty |
| has a name that is not text | one of these with `@base64` behind the word, the name in Base64 |

where n is its place among the record's headers, so that they come back in order; a client keeps
properties in a map, where names may not repeat. Headers whose own names begin so are written as if
another followed.

From Pulsar to Kafka and back these are lost: publish_time where there is an event time, and the
other way round an event time that is absent comes back as the publish_time; producer name and
sequence ids; replicate_to, schema_id, null_partition_key. Knows no topic and no store.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from core.log.records import (
    NO_EXTRAS,
    RESERVED_PREFIX,
    Chunk,
    Compression,
    Extras,
    Header,
    Record,
    RecordSet,
    extras_as_headers,
    is_text,
    unreadable,
)
from core.ports.log import StoredBatch
from core.types import NO_PRODUCER_ID
from gateway.pulsar.commands import CompressionType, signed
from gateway.pulsar.commands_pb2 import MessageMetadata, Property, SingleMessageMetadata
from gateway.pulsar.entries import (
    MAX_MESSAGES,
    Entry,
    InvalidEntry,
    Message,
    encode_batch,
    encode_entry,
    messages,
    open_stored,
)
from gateway.pulsar.keys import key_of

DEFAULT_PRODUCER: Final = "penstock"
"""Who is said to have written what has no producer; Pulsar's metadata cannot do without one."""

_ESCAPED: Final = RESERVED_PREFIX + "header."
_ESCAPED_NAME: Final = re.compile(
    re.escape(_ESCAPED) + r"(0|[1-9][0-9]{0,8})\.(text|base64|null)(@base64)?\.(.*)", re.DOTALL
)
_MASK: Final = 2**64 - 1
# Fields that only an entry of several has, or has for all; those that each of several has.
_OF_A_BATCH: Final = (
    "num_messages_in_batch",
    "highest_sequence_id",
    "compression",
    "uncompressed_size",
    "properties",
)
_OF_ONE_MESSAGE: Final = (
    "sequence_id",
    "partition_key",
    "partition_key_b64_encoded",
    "null_partition_key",
    "ordering_key",
    "event_time",
    "null_value",
)

_CODECS: Final[dict[Compression, CompressionType]] = {
    Compression.NONE: CompressionType.NONE,
    Compression.DEFLATE: CompressionType.ZLIB,
    Compression.SNAPPY: CompressionType.SNAPPY,
    Compression.LZ4: CompressionType.LZ4,
    Compression.ZSTD: CompressionType.ZSTD,
}
_KINDS: Final = {int(codec): kind for kind, codec in _CODECS.items()}


# --- reading ---


def read_entry(entry: Entry) -> RecordSet:
    """The records of an entry. Raises InvalidEntry where it is not what its metadata says.

    An encrypted one, and a chunk, is one record, whose value is the payload as it is; if it has
    more offsets than one, nothing is at the others.
    """
    metadata = entry.metadata
    if entry.is_opaque:
        found: tuple[Record | None, ...] = _opaque(entry)
        compression = Compression.NONE
    else:
        extras = _extras(metadata)
        found = tuple(_record(each, extras) for each in messages(entry))
        compression = _KINDS[metadata.compression]
    return RecordSet(
        records=found,
        timestamp=signed(metadata.publish_time),
        compression=compression,
        producer=metadata.producer_name,
        sequence=metadata.sequence_id,
    )


def read_stored(batch: StoredBatch) -> RecordSet:
    """The records of a stored entry, one or None for each offset, whatever its bytes are: SEND does
    not look into payloads, so one that cannot be opened may be stored."""
    timestamp = 0
    try:
        entry = open_stored(batch.payload)
        timestamp = signed(entry.metadata.publish_time)
        records = read_entry(entry)
    except InvalidEntry:
        records = None
    if records is None or len(records.records) != batch.record_count:
        return unreadable(batch.payload, batch.record_count, timestamp, "pulsar")
    if batch.producer_id != NO_PRODUCER_ID:  # only what is in a transaction has one
        return replace(records, is_transactional=True)
    return records


def _record(message: Message, extras: Extras) -> Record | None:
    metadata, payload = message
    if isinstance(metadata, SingleMessageMetadata) and metadata.compacted_out:
        return None
    key = key_of(metadata)
    return Record(
        key=key,
        value=None if metadata.null_value else bytes(payload),
        headers=_headers(metadata.properties),
        event_time=signed(metadata.event_time) if metadata.HasField("event_time") else None,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
        key_is_text=(key is not None and not metadata.partition_key_b64_encoded and is_text(key)),
        extras=extras,
    )


def _extras(metadata: MessageMetadata) -> Extras:
    extras = Extras(
        schema_version=metadata.schema_version if metadata.HasField("schema_version") else None,
        deliver_at=metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        replicated_from=metadata.replicated_from if metadata.HasField("replicated_from") else None,
    )
    return NO_EXTRAS if extras == NO_EXTRAS else extras


def _opaque(entry: Entry) -> tuple[Record | None, ...]:
    metadata = entry.metadata
    if not 0 < entry.message_count <= MAX_MESSAGES:
        raise InvalidEntry(f"an entry of {entry.message_count} messages")
    chunk = None
    if entry.is_chunk:
        count, total = metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
        chunk = Chunk(metadata.uuid, metadata.chunk_id, count, total)
    envelope = Extras(chunk=chunk, envelope=metadata.SerializeToString())
    return _record(Message(metadata, entry.payload), envelope), *[None] * (entry.message_count - 1)


# --- writing ---


def write_entry(records: RecordSet, base_offset: int) -> bytes:
    """The entry of these records, of which the first is at `base_offset`; from 0x0e01 on.

    A batch, also of one, for only so has every offset its index; but for what was encrypted or a
    chunk, which is as it was. Offsets without a record are `compacted_out`, and have to be told as
    acknowledged with it: clients made of the C++ one do not look at that.
    """
    if entry := _as_it_was(records):
        return entry
    records = _with_common_extras(records)
    sequence = base_offset if records.sequence is None else records.sequence
    metadata = MessageMetadata(
        producer_name=records.producer or DEFAULT_PRODUCER,
        sequence_id=sequence,
        publish_time=max(records.timestamp, 0),
        highest_sequence_id=sequence + len(records.records) - 1 & _MASK,
    )
    first = next((each for each in records.records if each is not None), None)
    if first is not None:
        _put_extras(metadata, first.extras)
        _put_keys(metadata, first)  # by which Key_Shared shares out the entry
    singles = []
    for index, record in enumerate(records.records):
        single = SingleMessageMetadata(sequence_id=sequence + index & _MASK)
        if record is None:
            single.compacted_out = True
            singles.append((single, b""))
        else:
            _put_record(single, record)
            singles.append((single, record.value or b""))
    return encode_batch(metadata, singles, _CODECS[records.compression])


def write_stored(batch: StoredBatch, records: RecordSet) -> bytes:
    """The same of a batch that another front-end has stored."""
    return write_entry(records, batch.base_offset)


def split_entry(batch: StoredBatch) -> list[StoredBatch]:
    """The messages of a batch in Pulsar's format, each an entry of its own at its own offset; those
    that compaction has taken out are left out. Raises InvalidEntry."""
    entry = open_stored(batch.payload)
    if not entry.is_batch:
        return [batch]
    found = []
    for index, message in enumerate(messages(entry)):
        single = message.metadata
        assert isinstance(single, SingleMessageMetadata), "it is a batch"
        if single.compacted_out:
            continue
        metadata = MessageMetadata()
        metadata.CopyFrom(entry.metadata)
        for name in (*_OF_A_BATCH, *_OF_ONE_MESSAGE):  # a batch bears its first message's key, too
            metadata.ClearField(name)
        metadata.sequence_id = entry.metadata.sequence_id + index
        metadata.properties.extend(single.properties)
        for name in _OF_ONE_MESSAGE:
            if single.HasField(name):
                setattr(metadata, name, getattr(single, name))
        payload = encode_entry(metadata, message.payload)
        offset = batch.base_offset + index
        found.append(replace(batch, base_offset=offset, last_offset=offset, payload=payload))
    return found


def _with_common_extras(records: RecordSet) -> RecordSet:
    """The records with what belongs to a whole entry only where all have the same; else it goes
    into their properties. So does a chunk that is not as it was: no client could put it together.
    """
    of_all = {each.extras for each in records.records if each is not None}
    if of_all <= {NO_EXTRAS}:
        return records
    common = next(iter(of_all))
    if len(of_all) == 1 and common.chunk is None and common.envelope is None:
        return records
    written = (each and extras_as_headers(each) for each in records.records)
    return replace(records, records=tuple(written))


def _as_it_was(records: RecordSet) -> bytes | None:
    """The entry of a record that has its own metadata with it, if that may be believed: anybody can
    write such a header, and it must say what the record does."""
    first, *others = records.records
    if first is None or first.extras.envelope is None or any(others):
        return None
    try:
        metadata = MessageMetadata.FromString(first.extras.envelope)
    except DecodeError:
        return None
    written = encode_entry(metadata, first.value or b"")
    entry = open_stored(written)
    if not entry.is_opaque or entry.message_count != len(records.records):
        return None
    said, *_ = _opaque(entry)
    # Of what has no event time, Kafka's timestamp is the time of publication.
    published = said and replace(said, event_time=signed(metadata.publish_time))
    if metadata.HasField("marker_type") or first not in (said, published):
        return None
    return written if said == first or not metadata.HasField("event_time") else None


def _put_extras(metadata: MessageMetadata, extras: Extras) -> None:
    if extras.schema_version is not None:
        metadata.schema_version = extras.schema_version
    if extras.deliver_at is not None:
        metadata.deliver_at_time = extras.deliver_at
    if extras.replicated_from is not None:
        metadata.replicated_from = extras.replicated_from


def _put_record(single: SingleMessageMetadata, record: Record) -> None:
    _put_keys(single, record)
    if record.headers:
        single.properties.extend(_properties(record.headers))
    if record.event_time is not None:
        single.event_time = record.event_time & _MASK
    if record.value is None:
        single.null_value = True


def _put_keys(metadata: MessageMetadata | SingleMessageMetadata, record: Record) -> None:
    if record.key is not None:
        if record.key_is_text:
            metadata.partition_key = record.key
        else:
            metadata.partition_key = base64.b64encode(record.key)
            metadata.partition_key_b64_encoded = True
    if record.ordering_key is not None:
        metadata.ordering_key = record.ordering_key


# --- headers as properties ---


def _properties(headers: Sequence[Header]) -> list[Property]:
    last = {name: place for place, (name, _) in enumerate(headers)}
    return [
        Property(key=name.encode(), value=value)
        if (
            value is not None
            and last[name] == place
            and not name.startswith(_ESCAPED)
            and is_text(value)
            and _is_text_name(name)
        )
        else _escaped(place, name, value)
        for place, (name, value) in enumerate(headers)
    ]


def _escaped(place: int, name: str, value: bytes | None) -> Property:
    form, data = "null", b""
    if value is not None:
        form, data = ("text", value) if is_text(value) else ("base64", base64.b64encode(value))
    if not _is_text_name(name):
        form += "@base64"
        name = base64.b64encode(name.encode(errors="surrogateescape")).decode()
    return Property(key=f"{_ESCAPED}{place}.{form}.{name}".encode(), value=data)


def _is_text_name(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _headers(properties: Iterable[Property]) -> tuple[Header, ...]:
    plain: list[Header] = []
    placed: dict[int, Header] = {}
    count = 0
    for each in properties:
        name = each.key.decode(errors="surrogateescape")
        count += 1
        found = _unescaped(name, each.value) if name.startswith(_ESCAPED) else None
        if found is None:
            plain.append((name, each.value))
        else:
            placed[found[0]] = found[1]
    if not placed:
        return tuple(plain)
    rest = iter(plain)
    headers = tuple(placed[at] if at in placed else next(rest, None) for at in range(count))
    whole = [each for each in headers if each is not None]
    # Whoever writes such names himself gets them as they are.
    if len(whole) == count and _properties(whole) == list(properties):
        return tuple(whole)
    return tuple((each.key.decode(errors="surrogateescape"), each.value) for each in properties)


def _unescaped(name: str, data: bytes) -> tuple[int, Header] | None:
    """A header and its place; None where the property is not one that `_escaped` writes."""
    found = _ESCAPED_NAME.fullmatch(name)
    if found is None:
        return None
    place, form, is_coded, name = found.groups()
    value: bytes | None = data
    try:
        if is_coded:
            name = base64.b64decode(name, validate=True).decode(errors="surrogateescape")
        if form == "base64":
            value = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):  # ValueError: a name in Base64 that is not ASCII
        return None
    return int(place), (name, None if form == "null" else value)
