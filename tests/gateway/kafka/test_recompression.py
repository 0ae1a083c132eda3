"""Batches in their topic's codec: the same records, and a header that says so.

kafka-python reads what was made: its codecs are other libraries than the server's.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from core.config.values import TopicConfig, topic_config
from core.errors import Error
from gateway.kafka import codec as messages
from gateway.kafka.codec import ProduceRequest
from gateway.kafka.compression import Codec, InvalidRecords, TooLarge, compress
from gateway.kafka.conversion import read_batch
from gateway.kafka.recompression import in_codec_of_topic
from gateway.kafka.records import (
    MAX_DECOMPRESSED,
    KafkaBatch,
    codec_of,
    parse_produce_batch,
    with_log_append_time,
    with_records,
)
from gateway.kafka.validation import Accepted, Rejected, accept, accept_at_once
from tests.batches import T0, kafka_batch, with_body
from tests.captures import record

CODECS = list(Codec)
TYPES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
MOST, FAR = str(2**31 - 1), str(2**62)

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ROWS: list[Row] = [
    (T0, b"key", b"value" * 500, [("trace", b"\0\1"), ("trace", b""), ("none", None)]),
    (T0 + 700, b"", b"", []),
    (T0 - 300, None, None, [("ünïcode", b"\xff")]),
]


def config_of(kind: str = "producer", **others: str) -> TopicConfig:
    overrides = {name.replace("_", "."): value for name, value in others.items()}
    return topic_config({"compression.type": kind} | overrides, {})


def batch_of(rows: list[Row], codec: Codec = Codec.NONE, **options: Any) -> bytes:
    """As a producer sends it; kafka-python compresses."""
    builder = MemoryRecordsBuilder(2, int(codec), 1 << 30, **options)
    for timestamp, key, value, headers in rows:
        assert builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


def read(payload: bytes) -> list[tuple[Any, ...]]:
    """The records, by another implementation; checks the checksum."""
    batches = MemoryRecords(bytes(payload))
    batch = batches.next_batch()
    assert batches.next_batch() is None
    assert batch.validate_crc()
    return [
        (each.offset, each.timestamp, each.timestamp_type, each.key, each.value, each.headers)
        for each in batch
    ]


def check_header(before: bytes, after: bytes, codec: Codec) -> None:
    """All is as it was but for the length, the checksum and the codec's bits."""
    assert codec_of(after) is codec
    assert after[:8] + after[12:17] == before[:8] + before[12:17]
    assert int.from_bytes(after[8:12], "big") == len(after) - 12
    assert int.from_bytes(after[17:21], "big") == crc32c(after[21:])
    assert after[21] == before[21]
    assert after[22] & ~7 == before[22] & ~7
    assert after[23:61] == before[23:61]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_becomes_every_codec(codec: Codec, kind: str) -> None:
    before = batch_of(ROWS, codec)
    after = bytes(in_codec_of_topic(before, config_of(kind)))
    check_header(before, after, TYPES[kind])
    assert read(after) == read(before)
    assert read_batch(after).records == read_batch(before).records  # for Pulsar's clients
    if codec is TYPES[kind]:
        assert after == before


@pytest.mark.parametrize("codec", CODECS)
def test_producer_keeps_what_the_producer_chose(codec: Codec) -> None:
    before = batch_of(ROWS, codec)
    assert in_codec_of_topic(before, config_of("producer")) is before
    accepted = accepted_by(before, config_of("producer"))
    assert accepted.payload == before


@pytest.mark.parametrize("kind", TYPES)
def test_an_idempotent_and_transactional_batch_stays_one(kind: str) -> None:
    before = batch_of(
        ROWS,
        Codec.LZ4 if kind != "lz4" else Codec.NONE,
        producer_id=77,
        producer_epoch=4,
        base_sequence=9,
        transactional=True,
    )
    accepted = accepted_by(before, config_of(kind))
    after = bytes(accepted.payload)
    check_header(before, after, TYPES[kind])
    assert after[22] & 0x10
    assert accepted.batch == parsed(after).batch
    assert (accepted.batch.producer_id, accepted.batch.producer_epoch) == (77, 4)
    assert accepted.batch.base_sequence == 9
    assert accepted.batch.is_transactional


@pytest.mark.parametrize("kind", TYPES)
def test_the_logs_stamp_comes_on_top(kind: str) -> None:
    before = batch_of(ROWS, Codec.GZIP if kind != "gzip" else Codec.ZSTD)
    accepted = accepted_by(before, config_of(kind, message_timestamp_type="LogAppendTime"))
    after = bytes(accepted.payload)
    assert codec_of(after) is TYPES[kind]
    assert [found[1:3] for found in read(after)] == [(NOW, 1)] * 3
    assert (accepted.append_time, accepted.batch.max_timestamp) == (NOW, NOW)
    assert accepted.batch.size == len(after)
    kept = with_log_append_time(before, NOW)
    assert [found[3:] for found in read(after)] == [found[3:] for found in read(kept)]


@pytest.mark.parametrize(
    "capture",
    sorted(record.CAPTURES.glob("00_produce/v*_request.bin")),
    ids=lambda path: path.stem,
)
@pytest.mark.parametrize("kind", TYPES)
def test_batches_of_real_clients(capture: Any, kind: str) -> None:
    frame = memoryview(capture.read_bytes())
    header = messages.decode_header(frame)
    request: ProduceRequest = messages.decode_body(header, frame)
    before = bytes(request.topic_data[0].partition_data[0].records)
    config = config_of(kind, message_timestamp_after_max_ms=FAR)
    after = bytes(accepted_by(before, config).payload)
    check_header(before, after, TYPES[kind])
    assert read(after) == read(before)


def test_levels_are_taken() -> None:
    words = [b"%d" % (n * n * 7919 % 104_729) for n in range(40_000)]
    body = b" ".join(words)

    def size(kind: str, **levels: str) -> int:
        config = config_of(kind, **levels)
        return len(in_codec_of_topic(kafka_batch([body]), config))

    assert size("gzip", compression_gzip_level="9") < size("gzip", compression_gzip_level="1")
    assert size("gzip", compression_gzip_level="6") == size("gzip")
    assert (
        size("zstd", compression_zstd_level="15")
        < size("zstd")
        < size("zstd", compression_zstd_level="-50")
    )
    assert size("zstd", compression_zstd_level="3") == size("zstd")
    fast = size("lz4")
    assert size("lz4", compression_lz4_level="9") == fast
    assert size("lz4", compression_lz4_level="17") <= size("lz4", compression_lz4_level="8") < fast


# What a topic makes of a batch.

NOW = T0 + 1_000_000


def parsed(payload: bytes) -> KafkaBatch:
    batch = parse_produce_batch(memoryview(payload), 13)
    assert isinstance(batch, KafkaBatch), batch
    return batch


def accepted_by(payload: bytes, config: TopicConfig) -> Accepted:
    accepted = accept(parsed(payload), config, NOW)
    assert isinstance(accepted, Accepted), accepted
    return accepted


def rejected_by(payload: bytes, config: TopicConfig) -> Rejected:
    rejected = accept(parsed(payload), config, NOW)
    assert isinstance(rejected, Rejected), rejected
    return rejected


def test_a_header_that_lies_about_the_greatest_timestamp_is_made_right() -> None:
    before = bytearray(batch_of(ROWS))
    struct.pack_into(">q", before, 35, T0 + 9_999)
    lying = with_body(bytes(before), bytes(before[61:]))
    assert accepted_by(lying, config_of()).batch.max_timestamp == T0 + 9_999
    accepted = accepted_by(lying, config_of("zstd"))
    assert accepted.batch.max_timestamp == T0 + 700
    assert parsed(bytes(accepted.payload)).batch == accepted.batch


def test_a_header_that_does_not_tell_of_a_late_record_does_not_hide_it() -> None:
    rows: list[Row] = [(T0, b"k", b"", []), (NOW + 9_000, b"k", b"", [])]
    before = bytearray(batch_of(rows))
    struct.pack_into(">q", before, 35, T0)
    lying = with_body(bytes(before), bytes(before[61:]))
    limit = {"message_timestamp_after_max_ms": "1000"}
    for config in (config_of("gzip", **limit), config_of(cleanup_policy="compact", **limit)):
        rejected = rejected_by(lying, config)
        assert rejected.refusal.error is Error.INVALID_TIMESTAMP
        assert [index for index, _ in rejected.record_errors] == [1]


def test_the_size_counts_as_it_came_and_as_it_is_stored() -> None:
    rows: list[Row] = [(T0, None, bytes(5_000), [])]
    large, small = batch_of(rows), batch_of(rows, Codec.ZSTD)
    limited = {"max_message_bytes": "1000"}
    assert len(small) < 1000 < len(large)
    assert rejected_by(large, config_of("zstd", **limited)).refusal.error is Error.MESSAGE_TOO_LARGE
    rejected = rejected_by(small, config_of("uncompressed", **limited))
    assert rejected.refusal.error is Error.MESSAGE_TOO_LARGE
    assert str(len(large)) in (rejected.refusal.message or "")
    accepted_by(small, config_of("gzip", **limited))
    accepted_by(small, config_of("uncompressed", max_message_bytes=str(len(large))))


def broken_bodies() -> dict[str, bytes]:
    """Records of a batch of one, each with something wrong inside."""
    return {
        "cut short": bytes([40, 0, 0, 0, 1, 1, 0]),
        "negative size": bytes([1, 0, 0, 0, 1, 1, 0]),
        "wrong offset": bytes([12, 0, 0, 2, 1, 1, 0]),
        "long value": bytes([12, 0, 0, 0, 1, 8, 0]),
        "bytes behind the headers": bytes([14, 0, 0, 0, 1, 1, 0, 0]),
        "no room for headers": bytes([10, 0, 0, 0, 1, 1, 0]),
        "headers missing": bytes([12, 0, 0, 0, 1, 1, 2]),
        "headers less than none": bytes([12, 0, 0, 0, 1, 1, 1]),
        "header without a name": bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]),
        "header longer than the record": bytes([16, 0, 0, 0, 1, 1, 2, 0, 8]),
        "bytes behind the last": bytes([12, 0, 0, 0, 1, 1, 0, 0]),
    }


@pytest.mark.parametrize("what", broken_bodies())
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_broken_records_are_refused_where_they_are_looked_into(what: str, codec: Codec) -> None:
    plain = with_body(kafka_batch([None]), broken_bodies()[what])
    broken = with_records(plain, compress(plain[61:], codec), codec)
    assert rejected_by(broken, config_of("zstd")).refusal.error is Error.INVALID_RECORD
    accepted_by(broken, config_of("producer"))


def test_what_cannot_be_decompressed_is_an_invalid_record() -> None:
    for codec in CODECS[1:]:
        noise = with_body(kafka_batch([b"v"]), b"\x01noise" * 9, codec=codec)
        for kind in TYPES:
            if TYPES[kind] is not codec:
                refusal = rejected_by(noise, config_of(kind)).refusal
                assert refusal.error is Error.INVALID_RECORD
        with pytest.raises(InvalidRecords):
            in_codec_of_topic(noise, config_of("gzip" if codec is not Codec.GZIP else "lz4"))


def test_records_that_a_rule_is_about_are_named_as_ever() -> None:
    rows: list[Row] = [(T0, b"k", b"", []), (T0, None, b"", []), (T0, b"k", b"", [])]
    config = config_of("gzip", cleanup_policy="compact")
    rejected = rejected_by(batch_of(rows), config)
    assert rejected.refusal.error is Error.INVALID_RECORD
    assert [index for index, _ in rejected.record_errors] == [1]
    stamps: list[Row] = [(NOW, None, b"", []), (NOW + 9_000, None, b"", [])]
    config = config_of("gzip", message_timestamp_after_max_ms="1000")
    rejected = rejected_by(batch_of(stamps), config)
    assert rejected.refusal.error is Error.INVALID_TIMESTAMP
    assert [index for index, _ in rejected.record_errors] == [1]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda each: each.name)
def test_what_is_small_and_becomes_large_is_not_opened_at_once(codec: Codec) -> None:
    config = config_of("snappy", max_message_bytes=MOST)
    packed = batch_of([(T0, None, bytes(100_000), [])], codec)
    assert len(packed) < 1_000
    assert accept_at_once(parsed(packed), config, NOW, lambda _: True) is None
    bomb = compress(bytes(MAX_DECOMPRESSED + 1), codec)
    bomb = with_body(kafka_batch([b"v"]), bytes(bomb), codec=codec)
    assert rejected_by(bomb, config).refusal.error is Error.INVALID_RECORD
    with pytest.raises(TooLarge):
        in_codec_of_topic(bomb, config)


def test_what_is_done_at_once_is_the_same() -> None:
    config = config_of("gzip", max_message_bytes=MOST)
    few, large = kafka_batch([b"v"] * 100), kafka_batch([b"v" * 1000] * 100)
    many, packed = kafka_batch([b""] * 1000), batch_of(ROWS, Codec.ZSTD)
    asked: list[int] = []

    def at_once(payload: bytes, config: TopicConfig, answer: bool = True) -> Any:
        return accept_at_once(
            parsed(payload), config, NOW, lambda size: asked.append(size) or answer
        )

    for each in (few, packed):
        assert at_once(each, config) == accept(parsed(each), config, NOW)
        assert at_once(each, config, answer=False) is None
    assert asked == [100 * 64] * 2 + [32 * 1024] * 2
    assert at_once(large, config) is None
    assert at_once(many, config) is None
    for other in (config_of(), config_of("uncompressed")):
        for each in (few, large, many):
            assert at_once(each, other, answer=False) == accept(parsed(each), other, NOW)


stamps = st.integers(0, 2**41)
data = st.none() | st.binary(max_size=200)
rows_of = st.lists(
    st.tuples(stamps, data, data, st.lists(st.tuples(st.text(max_size=10), data), max_size=3)),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(
    rows=rows_of,
    codec=st.sampled_from(CODECS),
    kinds=st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3),
    transactional=st.booleans(),
)
def test_records_are_the_same_before_and_after(
    rows: list[Row], codec: Codec, kinds: list[str], transactional: bool
) -> None:
    """Through any codecs, and back to the very bytes that they were."""
    producer = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 3}
    plain = batch_of(rows, transactional=transactional, **(producer if transactional else {}))
    came = bytes(with_records(plain, compress(plain[61:], codec), codec))
    config = {"message_timestamp_after_max_ms": FAR}
    for kind in kinds:
        before = came
        came = bytes(accepted_by(came, config_of(kind, **config)).payload)
        check_header(before, came, TYPES[kind])
        assert read(came) == read(plain)
    assert in_codec_of_topic(came, config_of("uncompressed")) == plain
