"""What tests of Spark's stock source and sink share: records with known offsets, and reading them.

Knows confluent-kafka (it writes what Spark reads), Spark's readers and queries; must not know what
a test expects.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Options = Mapping[str, object]
Offsets = dict[tuple[str, int], list[int]]  # what was read, by topic and partition, sorted
Row = tuple[str, int, int]  # topic, partition, offset

WITHIN_S = 120.0  # what a query may take before it is taken for stuck

# A task's last poll has fetched on at the end of the log; its next request waits behind that fetch,
# for 500 ms by default.
QUICK: Options = {"kafka.fetch.max.wait.ms": 20}


def as_json(value: object) -> str:
    """An option's value: Spark takes no spaces amiss, but logs are easier to read without."""
    return json.dumps(value, separators=(",", ":"))


# --- writing, without Spark ---


def produce(
    bootstrap: str,
    topic: str,
    values: Sequence[str],
    *,
    partition: int = 0,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[str] | None = None,
) -> None:
    """Writes records in order and waits until they are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    _send(producer, topic, values, partition, timestamps, keys)
    assert producer.flush(WITHIN_S) == 0


def _send(
    producer: Producer,
    topic: str,
    values: Sequence[str],
    partition: int,
    timestamps: Sequence[int] | None = None,
    keys: Sequence[str] | None = None,
) -> None:
    def refused(error: object, _: object) -> None:
        assert error is None, error

    for number, value in enumerate(values):
        further: dict[str, Any] = {}
        if timestamps is not None:
            further["timestamp"] = timestamps[number]
        if keys is not None:
            further["key"] = keys[number]
        producer.produce(topic, value, partition=partition, on_delivery=refused, **further)
        producer.poll(0)


@contextmanager
def transactional(bootstrap: str, transactional_id: str) -> Iterator[Transactional]:
    """A transactional producer; what it leaves open is aborted."""
    made = Transactional(bootstrap, transactional_id)
    try:
        yield made
    finally:
        made.close()


class Transactional:
    """Transactions one after the other; each takes one offset more a partition, its marker."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        )
        self._producer.init_transactions(WITHIN_S)
        self._open = False

    def write(self, topic: str, count: int, partition: int = 0) -> None:
        """`count` records in the open transaction, which this begins where there is none."""
        if not self._open:
            self._producer.begin_transaction()
            self._open = True
        _send(self._producer, topic, [f"record {each}" for each in range(count)], partition)
        assert self._producer.flush(WITHIN_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WITHIN_S)
        self._open = False

    def abort(self) -> None:
        self._producer.abort_transaction(WITHIN_S)
        self._open = False

    def close(self) -> None:
        if self._open:
            self.abort()


# --- batch reads ---


def batch(spark: SparkSession, bootstrap: str, options: Options) -> DataFrame:
    """A batch read of the stock source."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for name, value in {**QUICK, **options}.items():
        reader = reader.option(name, str(value))
    return reader.load()


def offsets_of(
    spark: SparkSession, bootstrap: str, reads: Mapping[str, Options]
) -> dict[str, Offsets]:
    """What each of many reads finds, in one job. Records of one partition must come in order."""
    from pyspark.sql.functions import lit

    union: DataFrame | None = None
    for label, options in reads.items():
        frame = batch(spark, bootstrap, options)
        frame = frame.select(lit(label).alias("label"), "topic", "partition", "offset")
        union = frame if union is None else union.union(frame)
    assert union is not None
    found: dict[str, Offsets] = {label: defaultdict(list) for label in reads}
    for label, topic, partition, offset in union.collect():
        found[label][topic, partition].append(offset)
    return {label: sorted_offsets(offsets) for label, offsets in found.items()}


def sorted_offsets(offsets: Offsets) -> Offsets:
    return {place: sorted(found) for place, found in sorted(offsets.items())}


# --- streams ---


def stream(spark: SparkSession, bootstrap: str, options: Options) -> DataFrame:
    """A streaming read of the stock source."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for name, value in {**QUICK, **options}.items():
        reader = reader.option(name, str(value))
    return reader.load()


class Batches:
    """A sink that remembers each batch by its id: what is replayed takes its first place."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(self.take)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        found = frame.select("topic", "partition", "offset").collect()
        self.rows[batch_id] = [(row[0], row[1], row[2]) for row in found]

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.rows.items()) if rows]

    def offsets(self) -> Offsets:
        """All that has come, twice what came twice."""
        found: Offsets = defaultdict(list)
        for rows in self.rows.values():
            for topic, partition, offset in rows:
                found[topic, partition].append(offset)
        return sorted_offsets(found)


def run_to_end(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    """Everything that is there now, from the checkpoint on; then the query has ended."""
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    return finished(query)


def finished(query: StreamingQuery) -> StreamingQuery:
    """The query after its end; raises what it failed of."""
    try:
        assert query.awaitTermination(int(WITHIN_S)), f"stuck: {query.status} {query.lastProgress}"
    finally:
        query.stop()
    return query


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stops a query that runs until it is told."""
    try:
        yield query
    finally:
        query.stop()


def wait_for(query: StreamingQuery, condition: Callable[[], object], what: str) -> None:
    """Waits while a query runs; if it fails, so does the test, at once."""
    from tests.compat.groups import eventually

    def held() -> object:
        if (failed := query.exception()) is not None:
            raise AssertionError(f"the query failed: {failed}")
        return condition()

    eventually(held, what, within=WITHIN_S)


def end_offsets(query: StreamingQuery) -> dict[str, dict[str, int]]:
    """Where the source of a query's last batch ended, by topic and partition."""
    progress = query.lastProgress
    assert progress is not None
    ended: dict[str, dict[str, int]] = json.loads(progress["sources"][0]["endOffset"])
    return ended
