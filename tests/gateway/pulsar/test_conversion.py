"""Pulsar's entries from and to neutral records: the rows of the tables in both modules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.log.records import Chunk, Compression, Extras, Header, Record, RecordSet
from core.types import TimestampType
from gateway.pulsar import entries
from gateway.pulsar.commands import CompressionType
from gateway.pulsar.commands_pb2 import (
    EncryptionKeys,
    MessageMetadata,
    Property,
    SingleMessageMetadata,
)
from gateway.pulsar.conversion import read_entry, write_entry
from gateway.pulsar.entries import Entry, InvalidEntry
from gateway.pulsar.keys import sticky_key

T0 = 1_700_000_000_000


def lone(payload: bytes = b"v", **fields: Any) -> Entry:
    fields = {"producer_name": "p", "sequence_id": 7, "publish_time": T0, **fields}
    return entries.open_stored(entries.encode_entry(MessageMetadata(**fields), payload))


def written(*records: Record | None, **fields: Any) -> Entry:
    return entries.open_stored(write_entry(RecordSet(records, T0, **fields), 500))


def single(entry: Entry, at: int = 0) -> Any:
    return entries.messages(entry)[at].metadata


def read_one(entry: Entry) -> Record:
    (record,) = read_entry(entry).records
    assert record is not None
    return record


# Reading.


def test_a_message_without_anything() -> None:
    assert read_entry(lone()) == RecordSet(
        (Record(None, b"v"),), T0, TimestampType.CREATE_TIME, producer="p", sequence=7
    )


@pytest.mark.parametrize(
    ("fields", "key", "key_is_text"),
    [
        ({}, None, False),
        ({"null_partition_key": True}, None, False),
        ({"partition_key": b""}, b"", True),
        ({"partition_key": "ß".encode()}, "ß".encode(), True),
        ({"partition_key": b"\xff"}, b"\xff", False),
        ({"partition_key": b"/w==", "partition_key_b64_encoded": True}, b"\xff", False),
        ({"partition_key": b"YQ==", "partition_key_b64_encoded": True}, b"a", False),
        ({"partition_key": b"not it", "partition_key_b64_encoded": True}, b"not it", False),
    ],
)
def test_keys(fields: dict[str, Any], key: bytes | None, key_is_text: bool) -> None:
    record = read_one(lone(**fields))
    assert (record.key, record.key_is_text) == (key, key_is_text)


def test_empty_is_not_null() -> None:
    assert read_one(lone(b"")).value == b""
    assert read_one(lone(b"", null_value=True)).value is None


def test_times() -> None:
    assert read_one(lone()).event_time is None
    assert read_one(lone(event_time=5)).event_time == 5
    assert read_one(lone(event_time=2**64 - 1)).event_time == -1


def test_properties_are_headers() -> None:
    properties = [
        Property(key=b"b", value=b"1"),
        Property(key=b"a", value=b"\xff"),
        Property(key=b"b", value=b"2"),
    ]
    expected = (("b", b"1"), ("a", b"\xff"), ("b", b"2"))
    assert read_one(lone(properties=properties)).headers == expected


def test_what_a_whole_entry_has() -> None:
    entry = lone(schema_version=b"\x01", deliver_at_time=9, replicated_from="eu")
    assert read_one(entry).extras == Extras(b"\x01", 9, "eu")


def test_a_chunk_is_a_record_with_its_place() -> None:
    entry = lone(
        uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=20, compression=1
    )
    records = read_entry(entry)
    assert records.is_opaque and records.compression is Compression.NONE
    record = read_one(entry)
    assert record.value == b"v"
    assert record.extras.chunk == Chunk("u", 0, 2, 20)


def test_an_encrypted_batch_is_one_record_at_its_first_offset() -> None:
    entry = lone(b"?" * 40, encryption_keys=[EncryptionKeys(key="k")], num_messages_in_batch=3)
    first, *others = read_entry(entry).records
    assert others == [None, None]
    assert first is not None and first.value == b"?" * 40


def test_messages_compacted_out_leave_their_places() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=T0)
    singles = [
        (SingleMessageMetadata(compacted_out=True), b""),
        (SingleMessageMetadata(event_time=3), b"x"),
    ]
    block = entries.encode_batch(metadata, singles, CompressionType.NONE)
    assert read_entry(entries.open_stored(block)).records == (
        None,
        Record(None, b"x", event_time=3),
    )


def test_a_broken_entry_is_told() -> None:
    with pytest.raises(InvalidEntry):
        read_entry(lone(num_messages_in_batch=5))
    with pytest.raises(InvalidEntry):
        read_entry(lone(encryption_keys=[EncryptionKeys(key="k")], num_messages_in_batch=-5))


# Writing.


def test_what_every_entry_has() -> None:
    entry = written(Record(None, b"1"), Record(None, b"2"))
    metadata = entry.metadata
    assert (metadata.producer_name, metadata.sequence_id) == ("penstock", 500)
    assert metadata.publish_time == T0
    assert entry.sequence_ids == (500, 501)
    assert entry.is_batch and entry.message_count == 2
    assert [single(entry, at).sequence_id for at in (0, 1)] == [500, 501]


def test_a_producers_name_and_sequence_are_kept() -> None:
    entry = written(Record(None, b"1"), producer="kafka-3-0", sequence=70)
    assert (entry.metadata.producer_name, entry.metadata.sequence_id) == ("kafka-3-0", 70)


def test_a_batch_of_one_is_written_as_one() -> None:
    assert written(Record(None, b"1")).is_batch


@pytest.mark.parametrize(
    ("record", "field", "is_coded"),
    [
        (Record(b"a", b"", key_is_text=True), b"a", False),
        (Record(b"", b"", key_is_text=True), b"", False),
        (Record(b"a", b""), b"YQ==", True),
        (Record(b"\xff", b""), b"/w==", True),
    ],
)
def test_keys_are_text_or_base64(record: Record, field: bytes, is_coded: bool) -> None:
    entry = written(record)
    for metadata in (single(entry), entry.metadata):
        assert metadata.partition_key == field
        assert metadata.partition_key_b64_encoded == is_coded
    assert sticky_key(entry.metadata) == record.key


def test_no_key_is_no_field() -> None:
    entry = written(Record(None, None))
    assert not single(entry).HasField("partition_key")
    assert not entry.metadata.HasField("partition_key")
    assert single(entry).null_value


def test_an_entry_goes_by_the_key_of_its_first_message() -> None:
    records = (
        None,
        Record(b"a", b"", key_is_text=True, ordering_key=b"o"),
        Record(b"b", b"", key_is_text=True),
    )
    entry = written(*records)
    assert entry.metadata.ordering_key == b"o"
    assert entry.metadata.partition_key == b"a"
    assert single(entry).compacted_out
    assert read_entry(entry).records == records


def test_negative_times_are_as_java_has_them() -> None:
    assert single(written(Record(None, b"", event_time=-1))).event_time == 2**64 - 1
    entry = entries.open_stored(write_entry(RecordSet((Record(None, b""),), -1), 0))
    assert entry.metadata.publish_time == 0


HEADERS: tuple[Header, ...] = (
    ("trace", b"1"),
    ("trace", b"2"),
    ("raw", b"\xff\x00"),
    ("nothing", None),
    ("\udcff", b"x"),
    ("penstock.header.0.text.a", b"mine"),
    ("größe", "ß".encode()),
)


def test_headers_as_properties() -> None:
    entry = written(Record(None, b"", HEADERS))
    assert {each.key.decode(): each.value for each in single(entry).properties} == {
        "penstock.header.0.text.trace": b"1",
        "trace": b"2",
        "penstock.header.2.base64.raw": b"/wA=",
        "penstock.header.3.null.nothing": b"",
        "penstock.header.4.text@base64./w==": b"x",
        "penstock.header.5.text.penstock.header.0.text.a": b"mine",
        "größe": "ß".encode(),
    }
    assert read_one(entry).headers == HEADERS


@pytest.mark.parametrize(
    "names",
    [
        ["penstock.header.0.text.a"],  # nothing of that name follows
        ["penstock.header.7.null.a", "a"],
        ["a", "penstock.header.0.text.a"],
        ["penstock.header.0.base64.a", "a"],
        ["penstock.header.0.null@base64.??", "a"],
        ["penstock.header.0.null@base64.ß", "a"],
        ["penstock.header.0.null.a", "penstock.header.0.null.b"],
        ["penstock.header.", "penstock.header.x.text.a"],
    ],
)
def test_properties_that_only_look_like_ours_stay(names: list[str]) -> None:
    properties = [Property(key=name.encode(), value=b"?") for name in names]
    record = read_one(lone(properties=properties))
    assert record.headers == tuple((name, b"?") for name in names)


def test_what_all_records_have_is_the_entrys() -> None:
    extras = Extras(b"\x01", 9, "eu")
    entry = written(Record(None, b"1", extras=extras), None, Record(None, b"2", extras=extras))
    metadata = entry.metadata
    assert metadata.schema_version == b"\x01"
    assert metadata.deliver_at_time == 9
    assert metadata.replicated_from == "eu"


def test_what_only_some_have_goes_into_properties() -> None:
    entry = written(
        Record(None, b"1", (("a", b""),), extras=Extras(schema_version=b"\xff")),
        Record(None, b"2", extras=Extras(schema_version=b"1")),
    )
    assert not entry.metadata.HasField("schema_version")
    assert [each.key for each in single(entry).properties] == [
        b"a",
        b"penstock.header.1.base64.penstock.schema_version",
    ]
    assert [each.key for each in single(entry, 1).properties] == [b"penstock.schema_version"]


def test_an_envelope_that_anybody_wrote_is_not_believed() -> None:
    honest = lone(b"?", encryption_keys=[EncryptionKeys(key="k")])
    record = read_one(honest)
    assert bytes(written(record).block) == honest.block

    def with_envelope(**fields: Any) -> Record:
        fields = {"producer_name": "p", "sequence_id": 7, "publish_time": T0, **fields}
        envelope = MessageMetadata(**fields).SerializeToString()
        return Record(None, b"?", extras=Extras(envelope=envelope))

    keys = [EncryptionKeys(key="k")]
    for forged in (
        with_envelope(),  # not encrypted
        with_envelope(encryption_keys=keys, marker_type=21),
        with_envelope(encryption_keys=keys, num_messages_in_batch=50),
        with_envelope(encryption_keys=keys, partition_key=b"other"),
        with_envelope(encryption_keys=keys, event_time=5),
        Record(None, b"?", extras=Extras(envelope=b"\xff")),
        Record(None, b"?", extras=Extras(envelope=b"")),
    ):
        entry = written(forged)
        assert not entry.is_opaque
        assert entry.message_count == 1
        (named,) = single(entry).properties
        assert b"penstock.envelope" in named.key


@given(st.sampled_from(Compression))
def test_the_codec_stays_the_same_kind(kind: Compression) -> None:
    records = RecordSet((Record(None, b"x" * 1000),), T0, compression=kind)
    entry = entries.open_stored(write_entry(records, 0))
    assert read_entry(entry).compression is kind
    assert read_entry(entry).records == records.records
