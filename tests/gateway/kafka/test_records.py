"""Record batches: what Kafka takes and refuses, and looking into records of every codec."""

import random
import struct
import time
import zlib
from collections.abc import Callable

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from core.errors import Error, Refusal
from core.types import BatchFormat, RecordBatch, TimestampType
from gateway.kafka import records
from gateway.kafka.compression import Codec, InvalidRecords
from gateway.kafka.records import KafkaBatch

T0 = 1_700_000_000_000
CODECS = list(Codec)


def snappy_xerial(body: bytes) -> bytes:
    """The Java client's framing: a header, then blocks of up to 32 KiB."""
    blocks = [
        bytes(cramjam.snappy.compress_raw(body[i : i + 32_768]))
        for i in range(0, len(body), 32_768)
    ]
    header = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def gzip(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(body) + stream.flush()


COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.NONE: lambda body: body,
    Codec.GZIP: gzip,
    Codec.SNAPPY: snappy_xerial,
    Codec.LZ4: lambda body: bytes(cramjam.lz4.compress(body)),
    Codec.ZSTD: lambda body: bytes(cramjam.zstd.compress(body)),
}


def sealed(payload: bytes | bytearray) -> bytes:
    """The batch with its length and checksum made right again."""
    batch = bytearray(payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def built(
    rows: list[tuple[int, bytes | None, bytes | None]],
    codec: Codec = Codec.NONE,
    compress: Callable[[bytes], bytes] | None = None,
    **options: int,
) -> bytes:
    """A batch of (timestamp, key, value) from kafka-python's builder; compression by us."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 30, **options)
    for timestamp, key, value in rows:
        assert builder.append(timestamp=timestamp, key=key, value=value, headers=[("h", b"x")])
    builder.close()
    plain = bytearray(builder.buffer())
    plain[22] |= codec
    return sealed(bytes(plain[:61]) + (compress or COMPRESS[codec])(bytes(plain[61:])))


ROWS = [(T0, b"a", b"1"), (T0 + 500, b"b", None), (T0 + 200, b"", b"3" * 300)]


def parsed(payload: bytes, api_version: int = 9) -> KafkaBatch:
    batch = records.parse_produce_batch(memoryview(payload), api_version)
    assert isinstance(batch, KafkaBatch), batch
    return batch


def refused(payload: bytes, api_version: int = 9) -> Error:
    refusal = records.parse_produce_batch(memoryview(payload), api_version)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.message
    return refusal.error


def with_field(layout: str, at: int, value: int, payload: bytes | None = None) -> bytes:
    """A good batch with one field of its header changed, and the checksum right."""
    batch = bytearray(payload or built(ROWS))
    struct.pack_into(layout, batch, at, value)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


# Validation.


@pytest.mark.parametrize("codec", CODECS)
def test_valid_batch_is_parsed(codec: Codec) -> None:
    payload = built(ROWS, codec)
    batch = parsed(payload)
    assert batch.batch == RecordBatch(3, T0 + 500, len(payload), BatchFormat.KAFKA_V2)
    assert batch.timestamp_type is TimestampType.CREATE_TIME
    assert batch.payload.obj is payload


def test_fields_of_a_transactional_producer() -> None:
    payload = built(ROWS, transactional=True, producer_id=77, producer_epoch=4, base_sequence=9)
    batch = parsed(payload).batch
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 4, 9)
    assert batch.is_transactional


@pytest.mark.parametrize("length", [0, 1, 11, 12, 40, 60])
def test_a_batch_cut_short_is_an_invalid_record(length: int) -> None:
    assert refused(built(ROWS)[:length]) is Error.INVALID_RECORD


def test_no_records_at_all_is_an_invalid_record() -> None:
    refusal = records.parse_produce_batch(None, 9)
    assert isinstance(refusal, Refusal)
    assert refusal.error is Error.INVALID_RECORD


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 13, 14, 48])
def test_an_impossible_length_is_corrupt(length: int) -> None:
    assert refused(with_field(">i", 8, length)) is Error.CORRUPT_MESSAGE


def test_a_length_beyond_the_bytes_is_an_invalid_record() -> None:
    payload = built(ROWS)
    for length in (len(payload) - 11, 2**31 - 1):
        assert refused(with_field(">i", 8, length)) is Error.INVALID_RECORD


@pytest.mark.parametrize("behind", [built(ROWS), b"x"], ids=["another batch", "a byte"])
def test_bytes_after_the_batch_are_an_invalid_record(behind: bytes) -> None:
    assert refused(built(ROWS) + behind) is Error.INVALID_RECORD


@pytest.mark.parametrize(
    ("magic", "error"),
    [
        (0, Error.INVALID_RECORD),
        (1, Error.INVALID_RECORD),
        (3, Error.CORRUPT_MESSAGE),
        (255, Error.CORRUPT_MESSAGE),
    ],
)
def test_other_magics(magic: int, error: Error) -> None:
    assert refused(with_field(">B", 16, magic)) is error


def test_a_batch_of_the_old_format_is_an_invalid_record() -> None:
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=10_000)
    builder.append(timestamp=T0, key=b"k", value=b"v" * 50, headers=[])
    builder.close()
    assert refused(bytes(builder.buffer())) is Error.INVALID_RECORD


@settings(deadline=None)
@given(st.integers(17, 200), st.integers(1, 255))
def test_any_flipped_bit_after_the_checksum_is_noticed(at: int, flip: int) -> None:
    payload = bytearray(built(ROWS))
    payload[at] ^= flip
    error = refused(bytes(payload))
    assert error in (Error.CORRUPT_MESSAGE, Error.UNSUPPORTED_COMPRESSION_TYPE)
    if at > 22:
        assert error is Error.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("layout", "at", "value"),
    [
        (">q", 0, 1),  # base offset
        (">i", 57, 0),  # no records
        (">i", 57, -1),
        (">i", 57, 4),  # more than the offsets say
        (">i", 23, -1),  # last offset delta
        (">i", 23, 2**31 - 1),
        (">h", 21, 0x20),  # control
    ],
)
def test_inconsistent_headers_are_invalid_records(layout: str, at: int, value: int) -> None:
    assert refused(with_field(layout, at, value)) is Error.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_more_records_than_there_is_room_for(codec: Codec) -> None:
    """How many a compressed batch holds is seen only by opening it."""
    payload = with_field(">i", 57, 500, with_field(">i", 23, 499, built(ROWS, codec)))
    if codec is Codec.NONE:
        assert refused(payload) is Error.INVALID_RECORD
    else:
        assert parsed(payload).batch.record_count == 500


def test_the_smallest_records_have_room() -> None:
    payload = built([(T0, None, None)] * 100)
    assert parsed(payload).batch.record_count == 100


def test_producer_without_sequence_is_an_invalid_record() -> None:
    payload = built(ROWS, producer_id=77, producer_epoch=4, base_sequence=9)
    assert refused(with_field(">i", 53, -1, payload)) is Error.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_compression(codec: int) -> None:
    assert refused(with_field(">h", 21, codec)) is Error.UNSUPPORTED_COMPRESSION_TYPE


def test_zstandard_needs_produce_7() -> None:
    payload = built(ROWS, Codec.ZSTD)
    assert refused(payload, 6) is Error.UNSUPPORTED_COMPRESSION_TYPE
    parsed(payload, 7)
    parsed(built(ROWS, Codec.LZ4), 3)


def test_log_append_time_set_by_a_client_is_seen() -> None:
    assert parsed(with_field(">h", 21, 0x08)).timestamp_type is TimestampType.LOG_APPEND_TIME


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    assert isinstance(records.parse_produce_batch(memoryview(noise), 9), Refusal)


# Changing a stored batch.


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(codec: Codec) -> None:
    stamped = records.with_log_append_time(memoryview(built(ROWS, codec)), T0 + 9_999)
    batch = parsed(stamped)
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch.batch.max_timestamp == T0 + 9_999
    assert stamped[61:] == built(ROWS, codec)[61:]
    assert [r.timestamp for r in records.iterate_records(stamped)] == [T0 + 9_999] * 3


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("announced", [-1, 0, T0 - 1])
def test_a_greatest_timestamp_that_cannot_be_is_made_right(codec: Codec, announced: int) -> None:
    good = built(ROWS, codec)
    lying = with_field(">q", 35, announced, good)
    batch = parsed(lying)
    assert batch.batch.max_timestamp == T0 + 500
    assert bytes(batch.payload) == good


def test_records_without_timestamps_stay_as_they_are() -> None:
    payload = built([(-1, None, b"1"), (-1, None, b"2")])
    assert parsed(payload).batch.max_timestamp == -1
    assert bytes(parsed(payload).payload) == payload


def test_where_records_cannot_be_read_the_first_ones_timestamp_has_to_do() -> None:
    broken = sealed(with_field(">q", 35, -1)[:61] + bytes(40))
    assert parsed(broken).batch.max_timestamp == T0


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_small_batch_does_not_make_much_work(codec: Codec) -> None:
    """It says that it has no greatest timestamp, so it would be looked into on any topic."""
    large = with_field(
        ">q", 35, -1, built([(T0, None, bytes(8 << 20)), (T0 + 9, None, b"")], codec)
    )
    is_opened = codec is Codec.SNAPPY  # which makes nothing that much smaller
    assert parsed(large).batch.max_timestamp == (T0 + 9 if is_opened else T0)
    many = with_field(">q", 35, -1, built([(T0 + n, None, b"") for n in range(50_000)], codec))
    assert parsed(many).batch.max_timestamp == T0


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (1, 2**64), (-(2**63), -1)])
def test_timestamps_beyond_64_bits_are_invalid(base: int, delta: int) -> None:
    payload = bytearray(built([(T0, None, b""), (T0 + 5, None, b"")]))
    struct.pack_into(">q", payload, 27, base)
    body = bytes(payload[61:])
    first = body[: len(body) // 2]
    second = bytearray(body[len(first) :])
    zigzag, encoded = (delta << 1) ^ (delta >> 127), bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    second[2:3] = encoded
    second[0] = (len(second) - 1) << 1
    lying = sealed(bytes(payload[:61]) + first + bytes(second))
    with pytest.raises(InvalidRecords, match="record 1 has"):
        list(records.iterate_records(lying))


def test_offsets_that_are_not_in_order_are_invalid() -> None:
    payload = bytearray(built([(T0, None, b""), (T0, None, b"")]))
    at = 61 + (len(payload) - 61) // 2 + 3
    assert payload[at] == 2
    payload[at] = 8
    with pytest.raises(InvalidRecords, match="record 1 has offset 4"):
        list(records.iterate_records(sealed(payload)))


def test_offset_and_leader_epoch_are_patched_outside_the_checksum() -> None:
    original = built(ROWS)
    patched = b"".join(records.patched(original, 1_000_000_007, 12))
    (batch,) = iter_batches(patched)
    assert batch.base_offset == 1_000_000_007
    assert batch.leader_epoch == 12
    assert batch.validate_crc()
    assert [record.offset for record in batch] == [1_000_000_007 + i for i in range(3)]


def iter_batches(payload: bytes) -> list:  # type: ignore[type-arg]  # kafka-python has no types
    batches, found = MemoryRecords(payload), []
    while (batch := batches.next_batch()) is not None:
        found.append(batch)
    return found


# Looking into records.


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec(codec: Codec) -> None:
    seen = [
        (r.offset_delta, r.timestamp, r.key_is_null, r.key_size, r.value_size)
        for r in records.iterate_records(memoryview(built(ROWS, codec)))
    ]
    assert seen == [
        (0, T0, False, 1, 1),
        (1, T0 + 500, False, 1, -1),
        (2, T0 + 200, False, 0, 300),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_large_batches_of_every_codec(codec: Codec) -> None:
    rows = [(T0 + i, b"key", random.Random(i).randbytes(50) * 40) for i in range(500)]
    seen = list(records.iterate_records(built(rows, codec)))
    assert [r.timestamp for r in seen] == [T0 + i for i in range(500)]
    assert {r.value_size for r in seen} == {2_000}


def test_raw_snappy_of_librdkafka() -> None:
    payload = built(ROWS, Codec.SNAPPY, lambda b: bytes(cramjam.snappy.compress_raw(b)))
    assert len(list(records.iterate_records(payload))) == 3


@pytest.mark.parametrize("codec", CODECS)
def test_fewer_records_than_announced_are_invalid(codec: Codec) -> None:
    payload = bytearray(built(ROWS, codec))
    struct.pack_into(">i", payload, 57, 4)
    with pytest.raises(InvalidRecords):
        list(records.iterate_records(payload))
    struct.pack_into(">i", payload, 57, 2)
    with pytest.raises(InvalidRecords, match="after the last"):
        list(records.iterate_records(payload))


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=150)
@given(noise=st.binary(max_size=300), keep=st.integers(0, 100))
def test_noise_inside_a_batch_is_invalid(codec: Codec, noise: bytes, keep: int) -> None:
    good = built(ROWS, codec)
    payload = sealed(good[: 61 + keep] + noise)
    if payload[61:] == good[61:]:
        return
    try:
        seen = list(records.iterate_records(payload))
    except InvalidRecords:
        return
    assert len(seen) == 3


BOMBS = {
    Codec.GZIP: gzip,
    Codec.LZ4: COMPRESS[Codec.LZ4],
    Codec.ZSTD: COMPRESS[Codec.ZSTD],
    Codec.SNAPPY: COMPRESS[Codec.SNAPPY],
}


@pytest.mark.parametrize("codec", BOMBS, ids=lambda codec: codec.name)
def test_decompression_bombs_are_bounded(codec: Codec) -> None:
    bomb = BOMBS[codec](bytes(records.MAX_DECOMPRESSED + 1))
    payload = built(ROWS, codec, lambda _: bomb)
    began = time.process_time()
    with pytest.raises(InvalidRecords, match="decompress to more"):
        list(records.iterate_records(payload))
    assert time.process_time() - began < 5


def test_a_lying_snappy_length_allocates_nothing() -> None:
    lie = b"\xff\xff\xff\x1f" + b"\0" * 20  # 67 MB in 24 bytes
    with pytest.raises(InvalidRecords, match="more than"):
        list(records.iterate_records(built(ROWS, Codec.SNAPPY, lambda _: lie)))


def test_more_records_than_we_look_at() -> None:
    payload = bytearray(built(ROWS))
    struct.pack_into(">i", payload, 57, records.MAX_RECORDS + 1)
    with pytest.raises(InvalidRecords, match="too many"):
        list(records.iterate_records(payload))


def test_endless_varint_is_invalid() -> None:
    payload = sealed(built(ROWS)[:61] + b"\xff" * 1_000)
    with pytest.raises(InvalidRecords, match="varint"):
        list(records.iterate_records(payload))
