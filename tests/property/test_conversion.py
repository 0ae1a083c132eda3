"""Kafka to Pulsar to Kafka, and Pulsar to Kafka to Pulsar: every codec, field by field.

The one place where the two front-ends meet; they do not import each other.
"""

import base64
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from core.log.records import Compression, Record, RecordSet, is_text
from core.types import TimestampType
from gateway.kafka import conversion as kafka
from gateway.pulsar import conversion as pulsar
from gateway.pulsar import entries
from gateway.pulsar.commands import CompressionType, encode_varint
from gateway.pulsar.commands_pb2 import (
    EncryptionKeys,
    MessageMetadata,
    Property,
    SingleMessageMetadata,
)
from gateway.pulsar.entries import Entry, InvalidEntry

T0 = 1_700_000_000_000
int64 = st.one_of(st.integers(T0, T0 + 1000), st.just(-1), st.integers(-(2**63), 2**63 - 1))
data = st.one_of(st.none(), st.binary(max_size=30), st.text(max_size=10).map(str.encode))
text = st.text(max_size=10).map(str.encode)

# Names that collide, are no text, and are the bridge's own.
names = st.one_of(
    st.sampled_from(["a", "b", ""]),
    st.binary(max_size=4).map(lambda name: name.decode(errors="surrogateescape")),
    st.text(max_size=5),
    st.sampled_from(
        [
            *("penstock.header.0.text.a", "penstock.header.1.null.b", "penstock.header.x"),
            *("penstock.header.0.base64@base64./w==", "penstock.schema_version"),
            *("penstock.deliver_at", "penstock.chunk", "penstock.envelope"),
            *("penstock.ordering_key", "penstock.bytes_key", "penstock.replicated_from"),
        ]
    ),
)
header_values = st.one_of(data, st.sampled_from([bytes(8), bytes(12) + b"uuid", b""]))
headers = st.lists(st.tuples(names, header_values), max_size=5).map(tuple)


@st.composite
def kafka_records(draw: st.DrawFn) -> Record:
    key = draw(data)
    return Record(
        key=key,
        value=draw(data),
        headers=draw(headers),
        event_time=draw(int64),
        key_is_text=key is not None and is_text(key),
    )


kafka_sets = st.builds(
    RecordSet,
    records=st.lists(kafka_records() | st.none(), min_size=1, max_size=5).map(tuple),
    timestamp=st.integers(0, 2**63 - 1),
    compression=st.sampled_from(Compression),
)


def stored(block: bytes) -> Entry:
    return entries.open_stored(block)


@given(kafka_sets, st.integers(0, 2**62))
def test_kafka_to_pulsar_to_kafka(records: RecordSet, base_offset: int) -> None:
    batch = kafka.write_batch(records, base_offset)
    entry = pulsar.write_entry(kafka.read_batch(batch), base_offset)
    view = stored(entry)
    assert view.message_count == len(records.records)
    if any(records.records):
        assert view.metadata.compression == pulsar._CODECS[records.compression]
        again = kafka.write_batch(pulsar.read_entry(view), base_offset)
        assert kafka.read_batch(again) == replace(kafka.read_batch(batch))
        assert again == batch
    assert pulsar.write_entry(kafka.read_batch(batch), base_offset) == entry


@given(kafka_sets)
def test_stamped_by_the_log_the_times_stay(records: RecordSet) -> None:
    stamped = replace(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    read = kafka.read_batch(kafka.write_batch(stamped))
    assert {each.event_time for each in read.records if each} <= {None}
    again = pulsar.read_entry(stored(pulsar.write_entry(read, 0)))
    assert again.timestamp == records.timestamp
    batch = kafka.read_batch(kafka.write_batch(again))
    assert {each.event_time for each in batch.records if each} <= {records.timestamp}


# Pulsar's side: entries as its clients write them.

properties = st.lists(
    st.builds(Property, key=st.text(max_size=6).map(str.encode), value=text),
    max_size=4,
    unique_by=lambda each: each.key,
)


@st.composite
def message_fields(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {"properties": draw(properties)}
    kind = draw(st.sampled_from(["none", "text", "bytes"]))
    if kind == "text":
        fields["partition_key"] = draw(text)
    elif kind == "bytes":
        fields["partition_key"] = base64.b64encode(draw(st.binary(max_size=10)))
        fields["partition_key_b64_encoded"] = True
    if draw(st.booleans()):
        fields["ordering_key"] = draw(st.binary(max_size=10))
    if draw(st.booleans()):
        fields["null_value"] = True
    # Of a message without one the publish time comes back as its event time.
    fields["event_time"] = draw(st.integers(0, 2**63 - 1))
    return fields


@st.composite
def entry_fields(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "producer_name": draw(st.text(min_size=1, max_size=5)),
        "sequence_id": draw(st.integers(0, 2**64 - 1)),
        "publish_time": T0,
    }
    if draw(st.booleans()):
        fields["schema_version"] = draw(st.binary(max_size=8))
    if draw(st.booleans()):
        fields["deliver_at_time"] = draw(st.integers(-(2**63), 2**63 - 1))
    if draw(st.booleans()):
        fields["replicated_from"] = draw(st.text(max_size=4))
    return fields


payloads = st.binary(max_size=40)
codecs = st.sampled_from(CompressionType)
MESSAGE = ("partition_key", "partition_key_b64_encoded", "ordering_key", "null_value", "event_time")
ENTRY = ("schema_version", "deliver_at_time", "replicated_from", "compression")


def said(metadata: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in names if metadata.HasField(name)}


def assert_same(before: Entry, after: Entry) -> None:
    """All but who published it, when, and in which way; a key only as the same key."""
    assert said(before.metadata, ENTRY) == said(after.metadata, ENTRY)
    pairs = zip(entries.messages(before), entries.messages(after), strict=True)
    for (old, payload), (new, other) in pairs:
        assert said(old, MESSAGE) == said(new, MESSAGE)
        assert list(old.properties) == list(new.properties)
        assert payload == other


def through_kafka(entry: Entry) -> Entry:
    batch = kafka.write_batch(pulsar.read_entry(entry))
    return stored(pulsar.write_entry(kafka.read_batch(batch), 0))


@given(entry_fields(), st.lists(st.tuples(message_fields(), payloads), min_size=1), codecs)
def test_pulsar_batches_to_kafka_to_pulsar(
    fields: dict[str, Any], messages: list[tuple[dict[str, Any], bytes]], codec: CompressionType
) -> None:
    singles = [
        (SingleMessageMetadata(**each), b"" if "null_value" in each else payload)
        for each, payload in messages
    ]
    before = stored(entries.encode_batch(MessageMetadata(**fields), singles, codec))
    after = through_kafka(before)
    assert_same(before, after)
    assert_same(before, through_kafka(after))


@given(entry_fields(), message_fields(), payloads, codecs)
def test_a_pulsar_message_to_kafka_to_pulsar(
    fields: dict[str, Any], message: dict[str, Any], payload: bytes, codec: CompressionType
) -> None:
    body = b"" if "null_value" in message else payload
    metadata = MessageMetadata(**fields, **message)
    before = stored(entries.encode_compressed(metadata, body, codec))
    after = through_kafka(before)
    assert after.is_batch and after.message_count == 1
    assert_same(before, after)


@given(entry_fields(), message_fields(), st.binary(min_size=60, max_size=60), codecs, st.booleans())
@example({"producer_name": "p", "sequence_id": 1, "publish_time": T0}, {}, bytes(60), 1, True)
def test_what_cannot_be_opened_comes_back_byte_for_byte(
    fields: dict[str, Any],
    message: dict[str, Any],
    payload: bytes,
    codec: CompressionType,
    is_chunk: bool,
) -> None:
    metadata = MessageMetadata(**fields, **message)
    metadata.null_value = False
    metadata.compression = codec
    metadata.uncompressed_size = 2**31
    if is_chunk:
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = "u", 1, 3
        metadata.total_chunk_msg_size = 2**30
    else:
        metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
        metadata.num_messages_in_batch = 10
    before = stored(entries.encode_entry(metadata, payload))
    records = pulsar.read_entry(before)
    assert records.is_opaque
    assert len(records.records) == before.message_count
    assert bytes(through_kafka(before).block) == before.block


noisy_metadata = st.builds(
    lambda start, noise: MessageMetadata(**start).SerializeToString() + noise,
    entry_fields(),
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            # A field of MessageMetadata, as a number or as bytes: the last one counts.
            st.builds(
                lambda number, value: encode_varint(number << 3) + encode_varint(value),
                st.integers(1, 32),
                st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)),
            ),
            st.builds(
                lambda number, value: encode_varint(number << 3 | 2) + bytes([len(value)]) + value,
                st.integers(1, 32),
                st.binary(max_size=20),
            ),
        ),
        max_size=6,
    ).map(b"".join),
)


@given(noisy_metadata, st.binary(max_size=60))
def test_any_entry_is_translated_or_invalid(metadata: bytes, payload: bytes) -> None:
    rest = len(metadata).to_bytes(4, "big") + metadata + payload
    entry = entries.parse_entry(memoryview(rest))  # without magic and checksum
    if not isinstance(entry, Entry):
        return
    try:
        records = pulsar.read_entry(entry)
    except InvalidEntry as invalid:
        assert str(invalid)
        return
    batch = kafka.read_batch(kafka.write_batch(records))
    assert len(batch.records) == len(records.records) == entry.message_count
    written = stored(pulsar.write_entry(batch, 0))
    assert written.message_count == entry.message_count
    assert kafka.read_batch(kafka.write_batch(pulsar.read_entry(written))).records == batch.records
