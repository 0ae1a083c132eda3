"""Arrow's columns as the sink takes them: whatever type of Arrow Spark chose for a string."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.spark.batches import record_batches
from penstock.spark.columns import Rows, rows_of
from penstock.spark.compression import compression_of
from penstock.spark.schema import ColumnError, check_schema
from penstock.spark.task import gathered
from tests.penstock.spark.test_batches import HEADERS, Row, decoded


def rows(**columns: Any) -> Rows:
    return rows_of(pa.record_batch(columns), "t", include_headers=True)


def read_back(found: Rows) -> list[Row]:
    groups = np.zeros(len(found.records), np.int64)
    (batch,) = record_batches(found.records, groups, 1 << 20, compression_of("none"))
    return decoded(batch)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_text_and_bytes(kind: pa.DataType) -> None:
    values = ["é".encode(), None, b""]
    column = pa.array(["é", None, ""], pa.string()).cast(kind)

    found = read_back(rows(value=column, key=column))

    assert [row.value for row in found] == [row.key for row in found] == values


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Paris")])
def test_timestamps_are_cut_to_milliseconds(kind: pa.DataType) -> None:
    stamps = pa.array([1_700_000_000_123_999, 0, None], pa.timestamp("us", "UTC")).cast(kind)

    first, second, third = rows(value=["a", "b", "c"], timestamp=stamps).records.timestamps

    assert (first, second) == (1_700_000_000_123, 0)
    assert third > 1_700_000_000_123


def test_headers() -> None:
    lists = pa.array([[{"key": "a", "value": b"1"}], None, []], HEADERS)

    found = read_back(rows(value=["x", "y", "z"], headers=lists))

    assert [row.headers for row in found] == [(("a", b"1"),), (), ()]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_key_is_refused(header: dict[str, Any] | None) -> None:
    with pytest.raises(ColumnError, match="header without a key"):
        rows(value=["x"], headers=pa.array([[header]], HEADERS))


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ({"topic": pa.array(["t", None])}, "A row's topic is null"),
        ({"partition": pa.array([1, -2], pa.int32())}, "A row's partition is -2"),
        ({"timestamp": pa.array([0, -1], pa.timestamp("us", "UTC"))}, "timestamp is before 1970"),
    ],
)
def test_rows_that_are_refused(column: dict[str, pa.Array], sentence: str) -> None:
    batch = pa.record_batch({"topic": ["t", "t"], "value": ["x", "y"]} | column)

    with pytest.raises(ColumnError, match=sentence):
        rows_of(batch, None, include_headers=True)


def test_topics_and_partitions() -> None:
    batch = pa.record_batch(
        {
            "topic": ["b", "a", "b"],
            "value": ["x", "y", "z"],
            "partition": pa.array([1, None, 0], pa.int32()),
        }
    )

    found = rows_of(batch, None, include_headers=True)

    assert [found.names[each] for each in found.topics] == ["b", "a", "b"]
    assert found.partitions is not None
    assert found.partitions.tolist() == [1, -1, 0]


def test_a_column_of_nulls_is_none() -> None:
    nothing = pa.array([None, None], pa.string())

    found = rows(value=["x", "y"], key=nothing, partition=pa.array([None, None], pa.int32()))

    assert (found.records.key, found.partitions) == (None, None)


def test_small_pieces_are_gathered_and_large_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.task.GATHERED_BYTES", 1_000)
    monkeypatch.setattr("penstock.spark.task._MOST_BYTES", 5_000)
    small = [pa.record_batch({"value": ["x" * 100] * 3, "else": [1, 2, 3]}) for _ in range(10)]
    large = pa.record_batch({"value": [str(each).ljust(500) for each in range(100)]})

    found = list(gathered([*small, pa.record_batch({"value": pa.array([], pa.string())}), large]))

    assert sum(batch.num_rows for batch in found) == 130
    assert {tuple(batch.schema.names) for batch in found} == {("value",)}
    assert all(batch.nbytes <= 5_000 for batch in found)
    assert found[0].num_rows > 3
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    assert values[30:] == large.column("value").to_pylist()


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ({"key": "string"}, "There is no column 'value'"),
        ({"value": "string"}, "neither an option 'topic' nor a column 'topic'"),
        ({"value": "string", "topic": "binary"}, "'topic' is of type string, not binary"),
        ({"value": "int", "topic": "string"}, "'value' is of type string or binary, not int"),
        (
            {"value": "string", "topic": "string", "timestamp": "timestamp_ntz"},
            "'timestamp' is of type timestamp, not timestamp_ntz",
        ),
    ],
)
def test_frames_that_are_refused(types: dict[str, str], sentence: str) -> None:
    with pytest.raises(ColumnError, match=sentence):
        check_schema(types, has_topic=False)


def test_other_columns_are_left_alone() -> None:
    check_schema({"value": "binary", "offset": "bigint"}, has_topic=True)
