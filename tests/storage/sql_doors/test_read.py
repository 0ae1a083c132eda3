"""Topics read in SQL: what comes back, where it begins and ends, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from core.log.records import Compression
from core.types import BatchFormat, RecordBatch
from gateway.pulsar.commands import CompressionType
from gateway.pulsar.commands_pb2 import MessageMetadata, Property, SingleMessageMetadata
from gateway.pulsar.entries import encode_batch, encode_entry
from tests.batches import kafka_batch, with_body
from tests.storage.conftest import Log
from tests.storage.sql_doors.storing import T0, put, put_as, put_entry, record, records
from tests.storage.transacting import LEASES, Broker

READ = "SELECT * FROM penstock.read('flights', 0{})"
VALUES = "SELECT \"offset\", convert_from(value, 'UTF8') FROM penstock.read('flights', 0{})"


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def values(log: Log, *arguments: str) -> list[tuple[int, str]]:
    """(offset, value) of topic flights, partition 0."""
    return log.rows(VALUES.format("".join(", " + each for each in arguments)))


def refusal(log: Log, query: str) -> tuple[str | None, str]:
    """SQLSTATE and message."""
    with pytest.raises(psycopg.Error) as caught:
        log.rows(query)
    return caught.value.sqlstate, caught.value.diag.message_primary or ""


async def test_a_record_as_it_was_written(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    first = record(b"v1", b"k1", T0 + 5, [("type", b"json"), ("empty", b""), ("none", None)])
    await put(log, p, records(first, record(None, b"k1"), record(b"", b"", T0 + 7)))
    assert log.rows(READ.format("")) == [
        (0, at(T0 + 5), b"k1", b"v1", {"type": "json", "empty": "", "none": None}),
        (1, at(T0), b"k1", None, {}),
        (2, at(T0 + 7), b"", b"", {}),
    ]
    assert log.rows(READ.replace("read", "read_text").format(", 0, 1")) == [
        (0, at(T0 + 5), "k1", "v1", {"type": "json", "empty": "", "none": None})
    ]


async def test_headers_whose_names_repeat_and_that_are_no_text(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    headers = [
        *(("a", b"1"), ("b", b"\xff\x00"), ("a", None), ("a", b"\0"), ("é", b"\xc3\xa9")),
        ("long", bytes(range(256))),
    ]
    await put(log, p, records(record(headers=headers)))
    found = log.value("SELECT headers FROM penstock.read('flights', 0)")
    assert found.pop("long")["base64"].startswith("AAECAwQF")
    assert found == {"a": ["1", None, {"base64": "AA=="}], "b": {"base64": "/wA="}, "é": "é"}
    decoded = (
        "SELECT decode(headers #>> '{long,base64}', 'base64') FROM penstock.read('flights', 0)"
    )
    assert log.value(decoded) == bytes(range(256))


async def test_what_is_no_text_is_shown_in_hex(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(record(b"\xff\0", b"a\0b")))
    log.rows("SET standard_conforming_strings = off")
    log.rows("SET bytea_output = 'escape'")
    found = log.rows("SELECT key, value FROM penstock.read_text('flights', 0)")
    assert found == [(r"\x610062", r"\xff00")]


async def test_batches_of_a_stock_producer_and_large_values(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    large = [bytes([n]) * size for n, size in enumerate((1, 63, 64, 8_191, 8_192, 1_048_576))]
    stamps = [T0 + 86_400_000 * n for n in range(6)]
    await put(log, p, kafka_batch(large, keys=[None, *large[:5]], timestamps=stamps))
    await put(log, p, kafka_batch(large[:2]))
    found = log.rows(READ.format(""))
    assert [(value, key) for _, _, key, value, _ in found[:6]] == [
        (value, large[n - 1] if n else None) for n, value in enumerate(large)
    ]
    assert [stamp for _, stamp, *_ in found[:6]] == [at(each) for each in stamps]
    assert [(offset, value) for offset, _, _, value, _ in found[6:]] == [(6, b"\0"), (7, large[1])]


async def test_stamped_by_the_log(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(record(at=1), record(at=2), stamped=T0 + 9))
    assert log.rows("SELECT \"timestamp\" FROM penstock.read('flights', 0)") == [(at(T0 + 9),)] * 2


async def test_where_it_begins_and_ends(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    for n in range(4):
        await put(log, p, records(*(record(b"%d" % (3 * n + i)) for i in range(3))))
    everything = [(n, str(n)) for n in range(12)]
    assert values(log) == everything
    assert values(log, "4", "3") == everything[4:7]
    assert values(log, "11") == everything[11:]
    assert values(log, "12") == values(log, "9223372036854775807") == values(log, "0", "0") == []
    assert values(log, "0", "2147483647") == everything
    await log.store.advance_log_start(p, 5)
    assert values(log) == values(log, "3") == everything[5:]


async def test_more_batches_than_are_looked_up_at_once(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    batch = records(record(b"v"))
    for n in range(40):
        await put(log, p, batch, segment=("day", "week")[n % 7 == 0])
    assert [offset for offset, _ in values(log)] == list(range(40))
    assert [offset for offset, _ in values(log, "3", "17")] == list(range(3, 20))


async def test_offsets_that_compaction_has_emptied(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(None, record(b"1"), None, record(b"3"), None))
    await put(log, p, records(None, None, codec=Compression.LZ4))
    await put(log, p, records(record(b"7")))
    assert values(log) == [(1, "1"), (3, "3"), (7, "7")]
    assert values(log, "2", "1") == [(3, "3")]
    assert values(log, "4", "1") == [(7, "7")]


async def test_committed_and_all(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    log.rows(LEASES)
    broker = Broker(log.url)
    try:
        await put(log, p, records(record(b"plain")))
        for producer, name, commits in ((7, "c", True), (8, "a", False), (9, "open", None)):
            await broker.begin(name, producer, (p,))
            await put(log, p, records(record(name.encode()), record(b"2")), producer=producer)
            await put(log, p, records(record(b"between")))
            if commits is not None:
                await broker.end(name, commit=commits)
        await put(log, p, records(record(b"late")))
        # 0 plain, 1-2 c, 3 between, 4 marker, 5-6 a, 7 between, 8 marker, 9-10 open, 11, 12
        assert values(log) == [(0, "plain"), (1, "c"), (2, "2"), (3, "between"), (7, "between")]
        everything = [0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12]
        assert [offset for offset, _ in values(log, "0", "1000", "false")] == everything
        assert values(log, "5", "1") == [(7, "between")]
        await broker.end("open", commit=False)
        assert [offset for offset, _ in values(log)] == [0, 1, 2, 3, 7, 11, 12]
        # The same producer again, whose aborted stretch is before.
        await broker.reopen(await broker.load("a"), (p,))
        await put(log, p, records(record(b"again")), producer=8)
        await broker.end("a")
        assert values(log, "13") == [(14, "again")]
        await log.store.advance_log_start(p, 6)
        assert values(log, "0", "1") == [(7, "between")]
    finally:
        await broker.close()


async def test_what_is_compressed_is_refused_in_one_sentence(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(record(b"0"), record(b"1")))
    for codec in (Compression.DEFLATE, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        await put(log, p, records(record(), record(), codec=codec))
    await put(log, p, records(record(b"10")))
    assert values(log, "0", "2") == [(0, "0"), (1, "1")]
    assert values(log, "10") == [(10, "10")]
    for first, name in ((2, "gzip"), (4, "snappy"), (6, "lz4"), (8, "zstd")):
        with pytest.raises(psycopg.Error) as caught:
            values(log, str(first))
        assert caught.value.sqlstate == "PS110"
        assert caught.value.diag.message_primary == (
            f"UNSUPPORTED_COMPRESSION_TYPE: the records at offsets {first} to {first + 1} of"
            f' partition 0 of topic "flights" are compressed with {name}, which SQL cannot open'
        )
        hint = caught.value.diag.message_hint or ""
        assert "compression.type=uncompressed" in hint
        assert f"from offset {first + 2} on" in hint


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("read('taxis', 0)", 'UNKNOWN_TOPIC_OR_PARTITION: there is no topic "taxis"'),
        ("read('flights', 1)", 'UNKNOWN_TOPIC_OR_PARTITION: topic "flights" has no partition 1'),
        ("read('flights', -1)", 'UNKNOWN_TOPIC_OR_PARTITION: topic "flights" has no partition -1'),
        ("read('flights', NULL)", "INVALID_REQUEST: "),
        ("read_between('taxis', '-infinity')", "UNKNOWN_TOPIC_OR_PARTITION: there is no topic"),
        ("read(NULL, 0)", "INVALID_REQUEST: "),
        ("read('flights', 0, NULL)", "INVALID_REQUEST: "),
        ("read('flights', 0, 0, NULL)", "INVALID_REQUEST: "),
        ("read_text('flights', 0, 0, 1, NULL)", "INVALID_REQUEST: "),
        ("read('flights', 0, 0, -1)", "INVALID_REQUEST: max_records must not be negative"),
        ("read('flights', 0, -1)", "OFFSET_OUT_OF_RANGE: offsets begin at 0"),
        ("read_between('flights', '-infinity', late => '-1 s')", "INVALID_REQUEST: "),
    ],
)
async def test_what_cannot_be_is_refused(log18: Log, query: str, message: str) -> None:
    log18.new_partitions(1, "flights")
    state, found = refusal(log18, f"SELECT * FROM penstock.{query}")
    assert state == "PS101"
    assert found.startswith(message)


async def test_names_with_quotes(log18: Log) -> None:
    name = """o'"%s";--\\""" + "x" * 230
    (p,) = log18.new_partitions(1, name)
    await put(log18, p, records(record(b"v")))
    assert log18.rows("SELECT value FROM penstock.read(%s, 0)", name) == [(b"v",)]
    with pytest.raises(psycopg.Error, match="no partition 1"):
        log18.rows("SELECT * FROM penstock.read(%s, 1)", name)


async def test_a_cursor_goes_on_in_later_statements(log: Log) -> None:
    for p in log.new_partitions(3, "flights"):
        await put(log, p, records(record(b"v"), record(b"w")))
    with psycopg.connect(log.url) as reader:
        reader.execute(
            "DECLARE each CURSOR FOR SELECT p, r.value"
            " FROM generate_series(0, 2) AS p, LATERAL penstock.read('flights', p) AS r"
        )
        found = [reader.execute("FETCH each").fetchone() for _ in range(6)]
    assert found == [(p, value) for p in range(3) for value in (b"v", b"w")]


# --- by time ---


def between(log: Log, arguments: str) -> list[Any]:
    """(partition, offset) by `read_between` of topic flights."""
    query = f"SELECT partition, \"offset\" FROM penstock.read_between('flights', {arguments})"
    return log.rows(query)


def sql(ms: int) -> str:
    return f"'{at(T0 + ms).isoformat()}'"


async def test_a_range_of_time_over_all_partitions(log: Log) -> None:
    p, q = log.new_partitions(2, "flights")
    for n in range(20):
        await put(log, p, records(record(at=T0 + 1000 * n), record(at=T0 + 1000 * n + 500)))
    await put(log, q, records(record(at=T0 + 3_250), record(at=T0 + 4_250), record(at=-1)))
    everything = between(log, "NULL")
    assert len(everything) == 42
    assert everything[:8] == [(0, n) for n in range(7)] + [(1, 0)]
    assert between(log, f"{sql(3_000)}, {sql(4_500)}") == [(0, 6), (1, 0), (0, 7), (0, 8), (1, 1)]
    assert between(log, f"{sql(3_000)}, {sql(4_500)}, 2") == [(0, 6), (1, 0)]
    assert between(log, f"{sql(19_500)}") == [(0, 39)]
    assert between(log, f"{sql(19_501)}") == between(log, "'infinity'") == []
    assert between(log, f"'-infinity', {sql(0)}") == []
    assert between(log, f"{sql(5)}, {sql(0)}") == []
    text = f"SELECT key, value FROM penstock.read_between_text('flights', {sql(19_500)})"
    assert log.rows(text) == [(None, "v")]


async def test_the_beginning_is_found_without_a_scan(log18: Log) -> None:
    (p,) = log18.new_partitions(1, "flights")
    for n in range(60):
        await put(log18, p, records(record(at=T0 + 1000 * n)), segment=f"class-{n // 20}")
    # Nothing can be read of what lies before, so nothing was.
    log18.rows("DROP TABLE record_chunk_1")
    assert between(log18, f"{sql(20_000)}, {sql(22_000)}") == [(0, 20), (0, 21)]
    assert (
        refusal(log18, "SELECT * FROM penstock.read_between('flights', '-infinity')")[0] == "40001"
    )


async def test_records_that_come_late_are_found_or_not_looked_for(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    for time in (0, 1_000, 5_000, 500, 60_000, 700):
        await put(log, p, records(record(at=T0 + time)))
    window = f"{sql(400)}, {sql(1_001)}"
    assert between(log, window) == [(0, 3), (0, 5), (0, 1)]
    assert between(log, f"{window}, late => '10 s'") == [(0, 3), (0, 1)]
    assert between(log, f"{window}, late => '0'") == [(0, 1)]


# --- Pulsar's entries ---


async def test_messages_of_pulsar(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    metadata = {"producer_name": "p", "sequence_id": 2**64 - 1, "publish_time": T0}
    properties = [Property(key=b"a", value=b"1"), Property(key=b"a", value=b"2"), Property()]
    single = MessageMetadata(
        **metadata,
        properties=properties,
        partition_key=b"AQI=",
        partition_key_b64_encoded=True,
        event_time=T0 + 5,
        deliver_at_time=-1,
    )
    await put_entry(log, p, encode_entry(single, b"alone"))
    singles = [
        (SingleMessageMetadata(partition_key=b"k", properties=properties[:1]), b"v" * 300),
        (SingleMessageMetadata(compacted_out=True), b""),
        (SingleMessageMetadata(null_value=True, event_time=T0 + 9), b""),
        (SingleMessageMetadata(partition_key=b"no Base64", partition_key_b64_encoded=True), b""),
    ]
    batched = MessageMetadata(**metadata, partition_key=b"k", properties=properties)
    await put_entry(log, p, encode_batch(batched, singles, CompressionType.NONE))
    found = log.rows(READ.format(""))
    assert found == [
        (0, at(T0 + 5), b"\1\2", b"alone", {"a": ["1", "2"], "": ""}),
        (1, at(T0), b"k", b"v" * 300, {"a": "1"}),
        (3, at(T0 + 9), None, None, {}),
        (4, at(T0), b"no Base64", b"", {}),
    ]
    assert log.rows(READ.format(", 2, 1")) == found[2:3]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"compression": 3, "uncompressed_size": 1}, "compressed with ZSTD"),
        ({"encryption_keys": [{"key": "k", "value": b"v"}]}, "encrypted by their producer"),
        ({"num_chunks_from_msg": 2, "uuid": "u"}, "a part of a message"),
    ],
)
async def test_messages_that_only_pulsar_can_open(
    log18: Log, fields: dict[str, Any], why: str
) -> None:
    (p,) = log18.new_partitions(1, "flights")
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=T0, **fields)
    await put_entry(log18, p, encode_entry(metadata, b"x"))
    state, message = refusal(log18, READ.format(""))
    assert state == "PS110"
    assert why in message


# --- what is damaged, and what is gone ---


@pytest.mark.parametrize(
    "body",
    [
        b"\x10\0\0\0\x01\x02v\0" * 2,  # offset 0 twice
        b"\x10\0\0\0\x01\x04v\0",  # a value longer than its record
        b"\x7e\0\0\0\x01\x02v\0",  # a record longer than the batch
        b"\xfe\xff\x7f\0\0\0\x01\x02v\0",  # by far
        b"\x0e\0\0\x02\x01\x02v\0",  # an offset that the batch does not have
        b"\x0e\0\0\0\x01\x02v\x01",  # fewer headers than none
        b"\x0e\0\0\0\x01\x02v\x7e",  # more headers than bytes
        b"\x12\0\0\0\x01\x02v\x02\x01\0",  # a header without a name
        b"\x0f\0\0\0\x01\x02v\0",  # a length below 0
        b"\xff" * 12,  # a number without an end
        b"",
    ],
)
async def test_a_batch_that_lies_shows_nothing_of_its_neighbours(log18: Log, body: bytes) -> None:
    p, q = log18.new_partitions(2, "flights")
    lie = with_body(kafka_batch([b"v"]), body)
    if len(body) == 16:
        lie = lie[:57] + (2).to_bytes(4, "big") + lie[61:]
    of_lie = RecordBatch(1, T0, len(lie), BatchFormat.KAFKA_V2)
    await put_as(log18, p, of_lie, lie)
    await put(log18, q, records(record(b"secret" * 100)))
    await put(log18, p, records(record(b"after")))
    state, message = refusal(log18, READ.format(""))
    assert state == "PS111"
    assert message == (
        'CORRUPT_MESSAGE: the batch at offset 0 of partition 0 of topic "flights" does not hold'
        " what its header says"
    )
    assert values(log18, "1") == [(1, "after")]


@pytest.mark.parametrize(
    ("count", "body"), [(1, b"\0\0\0\x7f"), (2, b"\0\0\0\0"), (1, b"\0\0\0\2\x18\x7f"), (-1, b"")]
)
async def test_an_entry_that_lies(log18: Log, count: int, body: bytes) -> None:
    (p,) = log18.new_partitions(1, "flights")
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=T0, num_messages_in_batch=count
    )
    payload = encode_entry(metadata, body)
    await put_as(log18, p, RecordBatch(1, T0, len(payload), BatchFormat.PULSAR), payload)
    assert refusal(log18, READ.format(""))[0] == "PS111"


async def test_what_retention_dropped_meanwhile_can_be_tried_again(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(record(b"old")), segment="day")
    await put(log, p, records(record(b"new")), segment="week")
    with psycopg.connect(log.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        await log.store.advance_log_start(p, 1)
        log.rows("DELETE FROM record_batch WHERE last_offset < 1")
        log.rows("DROP TABLE record_chunk_1")
        with pytest.raises(errors.SerializationFailure, match=r"offset 0 .* was deleted meanwhile"):
            reader.execute("SELECT * FROM penstock.read('flights', 0)")
        reader.rollback()
        found = reader.execute("SELECT value FROM penstock.read('flights', 0)").fetchall()
    assert found == [(b"new",)]


async def test_a_transaction_sees_one_snapshot(log: Log) -> None:
    (p,) = log.new_partitions(1, "flights")
    await put(log, p, records(record(b"0")))
    with psycopg.connect(log.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        before = reader.execute(READ.format("").encode()).fetchall()
        await put(log, p, records(record(b"1")))
        assert reader.execute(READ.format("").encode()).fetchall() == before
    assert len(values(log)) == 2
