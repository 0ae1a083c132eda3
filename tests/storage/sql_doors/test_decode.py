"""Records written are records read, in SQL as in Python: each format, whatever is in it."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.log.records import Compression, Header, Record, RecordSet, is_text
from core.types import TimestampType
from gateway.kafka.conversion import read_batch, write_batch
from gateway.pulsar.commands import CompressionType
from gateway.pulsar.commands_pb2 import MessageMetadata, Property, SingleMessageMetadata
from gateway.pulsar.conversion import read_entry
from gateway.pulsar.entries import encode_batch, encode_entry, open_stored
from tests.storage.conftest import open_log
from tests.storage.sql_doors.storing import T0, put

Row = tuple[int, int | None, bytes | None, bytes | None, dict[str, Any]]

YEAR_10000_MS = 253_402_300_800_000

data = st.none() | st.binary(max_size=300) | st.text(max_size=10).map(str.encode)
times = st.integers(T0, T0 + 10**9) | st.just(-1) | st.integers(-(2**63), 2**63 - 1)
names = st.sampled_from(["a", "b", ""]) | st.text(max_size=5).filter(lambda name: "\0" not in name)
kafka_records = st.builds(
    lambda key, value, headers, at: Record(
        key, value, headers, at, key_is_text=key is not None and is_text(key)
    ),
    data,
    data,
    st.lists(st.tuples(names, data), max_size=4).map(tuple),
    times,
)
kafka_sets = st.builds(
    RecordSet,
    st.lists(kafka_records | st.none(), min_size=1, max_size=5).map(tuple),
    st.integers(0, 2**63 - 1),
    st.sampled_from(TimestampType),
    st.just(Compression.NONE),
)

pulsar_properties = st.lists(
    st.builds(Property, key=names.map(str.encode), value=st.text(max_size=5).map(str.encode)),
    max_size=3,
)


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"properties": draw(pulsar_properties)}
    kind = draw(st.sampled_from(["none", "text", "bytes"]))
    if kind == "text":
        found["partition_key"] = draw(st.text(max_size=9)).encode()
    elif kind == "bytes":
        found["partition_key"] = base64.b64encode(draw(st.binary(max_size=9)))
        found["partition_key_b64_encoded"] = True
    for name, values in {
        "event_time": st.integers(0, 2**64 - 1),
        "null_value": st.booleans(),
        "ordering_key": st.binary(max_size=300),
    }.items():
        if draw(st.booleans()):
            found[name] = draw(values)
    return found


of_entries: dict[str, Any] = {
    "producer_name": "p",
    "sequence_id": 2**64 - 1,
    "replicate_to": ["a", "b"],
}


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    common = {**of_entries, "publish_time": draw(st.integers(0, 2**64 - 1))}
    if draw(st.booleans()):
        metadata = MessageMetadata(**common, **draw(fields()), deliver_at_time=-1)
        return encode_entry(metadata, draw(st.binary(max_size=300)))
    singles = [
        (
            SingleMessageMetadata(**draw(fields()), compacted_out=draw(st.booleans())),
            draw(st.binary(max_size=300)),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]
    return encode_batch(MessageMetadata(**common), singles, CompressionType.NONE)


def _header(value: bytes | None) -> Any:
    if value is None:
        return None
    if b"\0" in value or not is_text(value):
        return {"base64": base64.b64encode(value).decode()}
    return value.decode()


def _headers(headers: tuple[Header, ...]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(_header(value))
    return {name: each if len(each) > 1 else each[0] for name, each in found.items()}


def _rows(read: RecordSet) -> list[Row]:
    """What SQL should give for these."""
    return [
        (
            n,
            read.timestamp if each.event_time is None else each.event_time,
            each.key,
            each.value,
            _headers(each.headers),
        )
        for n, each in enumerate(read.records)
        if each is not None
    ]


def _decoded(url: str, function: str, payload: bytes, first: int, most: int | None) -> list[Row]:
    with psycopg.connect(url) as connection:
        query = f"SELECT * FROM penstock.{function}(%s, %s, %s)"
        return connection.execute(query.encode(), [payload, first, most]).fetchall()


shares_a_database = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@shares_a_database
@given(kafka_sets, st.integers(0, 5), st.none() | st.integers(1, 5))
def test_kafka_batches(database_url: str, written: RecordSet, first: int, most: int | None) -> None:
    payload = write_batch(written)
    # Fields of Pulsar's that its reader would take out again are headers here, too.
    rows = [row for row in _rows(read_batch(payload)) if row[0] >= first]
    found = _decoded(database_url, "kafka_records", payload, first, most)
    for row in found:
        row[4].pop("penstock.bytes_key", None)
    assert found == (rows if most is None else rows[:most])


@shares_a_database
@given(entries(), st.integers(0, 5), st.none() | st.integers(1, 5))
def test_pulsar_entries(database_url: str, payload: bytes, first: int, most: int | None) -> None:
    rows = [row for row in _rows(read_entry(open_stored(payload))) if row[0] >= first]
    found = _decoded(database_url, "pulsar_messages", payload, first, most)
    assert found == (rows if most is None else rows[:most])


@pytest.mark.parametrize(
    "number", [2**n + d for n in (0, 6, 7, 13, 14, 20, 21, 31, 62) for d in (-1, 0)]
)
def test_every_length_of_a_number(database_url: str, number: int) -> None:
    for at in {number, -number}:
        written = RecordSet((Record(None, b"", (), 0), Record(None, b"", (), at)), 0)
        found = _decoded(database_url, "kafka_records", write_batch(written), 0, None)
        assert [row[1] for row in found] == [0, at]


@pytest.mark.parametrize("count", [50, 51, 20_000])
def test_many_headers(database_url: str, count: int) -> None:
    contents = (b"text", None, b"\xff", b"", b"\0")
    headers = tuple((f"name {n % (count // 2)}", contents[n % 5]) for n in range(count))
    payload = write_batch(RecordSet((Record(None, b"", headers, T0),), T0))
    found = _decoded(database_url, "kafka_records", payload, 0, None)
    assert found == _rows(read_batch(payload))


@settings(shares_a_database, max_examples=20)
@given(st.lists(kafka_sets, min_size=1, max_size=5), st.integers(0, 12), st.integers(0, 12))
def test_through_the_log(
    database_url: str, sets: list[RecordSet], from_offset: int, most: int
) -> None:
    written: list[Row] = []

    async def write() -> list[Row]:
        async with asynccontextmanager(open_log)(database_url) as log:
            (partition,) = log.new_partitions()
            end = 0
            for each in sets:
                payload = write_batch(each)
                for n, ms, *rest in _rows(read_batch(payload)):
                    stamp = ms if 0 <= ms < YEAR_10000_MS else None
                    written.append((end + n, stamp, *rest))
                end += len(each.records)
                await put(log, partition, payload)
            topic = log.value(
                "SELECT name FROM topic JOIN topic_partition USING (topic_id)"
                " WHERE partition_id = %s",
                partition,
            )
            return log.rows(
                'SELECT "offset", (extract(epoch FROM "timestamp") * 1000)::bigint, key, value,'
                " headers - 'penstock.bytes_key'"
                " FROM penstock.read(%s, 0, %s, %s)",
                topic,
                from_offset,
                most,
            )

    found = asyncio.run(write())
    assert found == [row for row in written if row[0] >= from_offset][:most]
