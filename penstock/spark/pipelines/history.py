"""What happened in topics, read out of the log itself with Spark, at both isolation levels.

A record that readers of uncommitted data see, and readers of committed data do not, was aborted if
it lies before the last stable offset, and is undecided after it. An offset without any record is
taken by a transaction's marker (or by a record that compaction removed: Kafka does that, Penstock
does not). Knows Spark; must not know the database nor how the report looks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.broker import PartitionEnds
from penstock.spark.pipelines.options import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITTED, ABORTED, UNDECIDED = "committed", "aborted", "undecided"
STATUSES: Final = (COMMITTED, ABORTED, UNDECIDED)
_PLACE: Final = ["topic", "partition"]
_BUCKETS: Final = 60  # of the throughput, at most
_WIDTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 14, 30, 91, 365)),
)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition: how its offsets from `start` to `end` are used."""

    ends: PartitionEnds
    committed: int
    aborted: int
    undecided: int
    bytes: int
    first: datetime | None
    last: datetime | None

    @property
    def offsets(self) -> int:
        return self.ends.end - self.ends.start

    @property
    def empty(self) -> int:
        """Offsets without a record: markers."""
        return self.offsets - self.committed - self.aborted - self.undecided


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of time, by the records' timestamps."""

    start: datetime
    topic: str
    status: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that a reader of committed data passes over at once. first, last: inclusive."""

    topic: str
    partition: int
    first: int
    last: int
    aborted: int

    @property
    def offsets(self) -> int:
        return self.last - self.first + 1

    @property
    def empty(self) -> int:
        return self.offsets - self.aborted


@dataclass(frozen=True, slots=True)
class GapKind:
    """How many gaps there are of a kind, and how many offsets are in them."""

    topic: str
    has_aborted: bool
    gaps: int
    aborted: int
    empty: int


@dataclass(frozen=True, slots=True)
class Keys:
    """A topic's keys, as committed. repeated: with more than one record. again: records whose key
    and value are those of an earlier one. without: records that have no key."""

    topic: str
    keys: int
    repeated: int
    again: int
    without: int


@dataclass(frozen=True, slots=True)
class Key:
    """One of the keys with the most records."""

    topic: str
    key: bytes
    records: int
    values: int

    @property
    def again(self) -> int:
        return self.records - self.values


@dataclass(frozen=True, slots=True)
class History:
    """All of it."""

    partitions: tuple[PartitionFacts, ...]
    bucket_s: int
    buckets: tuple[Bucket, ...]
    gap_kinds: tuple[GapKind, ...]
    longest_gaps: tuple[Gap, ...]
    keys: tuple[Keys, ...]
    most_repeated: tuple[Key, ...]

    def records(self, status: str) -> int:
        return sum(int(getattr(each, status)) for each in self.partitions)


def read_history(
    spark: SparkSession,
    broker: Broker,
    ends: Sequence[PartitionEnds],
    *,
    top: int,
    doing: Callable[[str], Any],
) -> History:
    """Reads everything there is. top: how many gaps and keys to name. doing: a context manager for
    each step."""
    from pyspark import StorageLevel

    if all(each.start == each.end for each in ends):
        return History(_partition_facts({}, ends), width_of(()), (), (), (), (), ())
    records = with_status(spark, broker, ends).persist(StorageLevel.DISK_ONLY)
    try:
        with doing("Reading the log"):
            partitions = _partitions(records, ends)
        with doing("Throughput"):
            bucket_s = width_of(partitions)
            buckets = _buckets(records, bucket_s)
        with doing("Gaps"):
            kinds, longest = _gaps(records, ends, top)
        with doing("Keys"):
            keys, most = _keys(records, top)
    finally:
        records.unpersist()
    return History(partitions, bucket_s, buckets, kinds, longest, keys, most)


# --- records ---


def with_status(spark: SparkSession, broker: Broker, ends: Sequence[PartitionEnds]) -> DataFrame:
    """Every record: place, timestamp, bytes, key, what its value is, and what became of it."""
    from pyspark.sql import functions as f

    size = sum(
        (f.coalesce(f.octet_length(name), f.lit(0)) for name in ("key", "value")), start=f.lit(0)
    )
    everything = _log(spark, broker, ends, "read_uncommitted").select(
        *_PLACE, "offset", "timestamp", size.alias("bytes"), "key", f.md5("value").alias("value")
    )
    visible = _log(spark, broker, ends, "read_committed").select(
        *_PLACE, "offset", f.lit(True).alias("is_visible")
    )
    status = (
        f.when(f.col("offset") >= f.col("stable"), UNDECIDED)
        .when(f.col("is_visible"), COMMITTED)
        .otherwise(ABORTED)
    )
    return (
        everything.join(visible, [*_PLACE, "offset"], "left")
        .join(f.broadcast(_ends_frame(spark, ends)), _PLACE)
        .select(*everything.columns, status.alias("status"))
    )


def _log(
    spark: SparkSession, broker: Broker, ends: Sequence[PartitionEnds], isolation_level: str
) -> DataFrame:
    """The log from start to end; of committed data to where it is stable."""
    is_committed = isolation_level == "read_committed"
    first = _offsets((each, each.start) for each in ends)
    last = _offsets((each, each.stable if is_committed else each.end) for each in ends)
    return (
        spark.read.format("kafka")
        .options(**broker.source_options())
        .option("kafka.isolation.level", isolation_level)
        .option("subscribe", ",".join(sorted({each.topic for each in ends})))
        .option("startingOffsets", first)
        .option("endingOffsets", last)
        .load()
    )


def _offsets(found: Iterable[tuple[PartitionEnds, int]]) -> str:
    offsets: dict[str, dict[str, int]] = {}
    for each, offset in found:
        offsets.setdefault(each.topic, {})[str(each.partition)] = offset
    return json.dumps(offsets)


def _ends_frame(spark: SparkSession, ends: Sequence[PartitionEnds]) -> DataFrame:
    """As constants of the plan: no job is needed for them. Names of topics hold no quotes."""
    rows = ", ".join(
        f"('{each.topic}', {each.partition}, {each.start}L, {each.stable}L)" for each in ends
    )
    return spark.sql(f"SELECT * FROM VALUES {rows} AS ends (topic, partition, start, stable)")


# --- questions ---


def _partitions(records: DataFrame, ends: Sequence[PartitionEnds]) -> tuple[PartitionFacts, ...]:
    from pyspark.sql import functions as f

    counts = [f.count_if(f.col("status") == status).alias(status) for status in STATUSES]
    found = records.groupBy(*_PLACE).agg(
        *counts,
        f.sum("bytes").alias("bytes"),
        f.unix_millis(f.min("timestamp")).alias("first"),
        f.unix_millis(f.max("timestamp")).alias("last"),
    )
    return _partition_facts(
        {(row["topic"], row["partition"]): row for row in found.collect()}, ends
    )


def _partition_facts(
    rows: Mapping[tuple[str, int], Any], ends: Sequence[PartitionEnds]
) -> tuple[PartitionFacts, ...]:
    facts = []
    for each in sorted(ends, key=lambda each: (each.topic, each.partition)):
        row = rows.get((each.topic, each.partition))
        if row is None:
            facts.append(PartitionFacts(each, 0, 0, 0, 0, None, None))
        else:
            numbers = (row[COMMITTED], row[ABORTED], row[UNDECIDED], row["bytes"])
            facts.append(PartitionFacts(each, *numbers, _time(row["first"]), _time(row["last"])))
    return tuple(facts)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def width_of(partitions: Sequence[PartitionFacts]) -> int:
    """Seconds of a bucket, so that there are about 60."""
    firsts = [each.first for each in partitions if each.first]
    lasts = [each.last for each in partitions if each.last]
    span_s = (max(lasts) - min(firsts)).total_seconds() if firsts and lasts else 0
    return next((width for width in _WIDTHS_S if span_s <= width * _BUCKETS), _WIDTHS_S[-1])


def _buckets(records: DataFrame, width_s: int) -> tuple[Bucket, ...]:
    from pyspark.sql import functions as f

    start = f.floor(f.unix_millis("timestamp") / (width_s * 1000)) * width_s
    found = (
        records.groupBy(start.alias("start"), "topic", "status")
        .agg(f.count("*").alias("records"), f.sum("bytes").alias("bytes"))
        .orderBy("start", "topic", "status")
    )
    return tuple(
        Bucket(
            _time(int(row["start"]) * 1000),
            row["topic"],
            row["status"],
            row["records"],
            row["bytes"],
        )
        for row in found.collect()
    )


def _gaps(
    records: DataFrame, ends: Sequence[PartitionEnds], top: int
) -> tuple[tuple[GapKind, ...], tuple[Gap, ...]]:
    """Before each committed record, and before the stable end, as if one were there."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ends_frame = _ends_frame(records.sparkSession, ends)
    stops = ends_frame.select(*_PLACE, f.col("stable").alias("offset"), f.lit(True).alias("stops"))
    seen = (
        records.where(f.col("status") != UNDECIDED)
        .select(*_PLACE, "offset", (f.col("status") == COMMITTED).alias("stops"))
        .unionByName(stops)
    )
    before = (
        Window.partitionBy(*_PLACE).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    aborted = f.count_if(~f.col("stops")).over(before)
    found = (
        seen.withColumn("aborted_before", f.coalesce(aborted, f.lit(0)))
        .where("stops")
        .join(f.broadcast(ends_frame.select(*_PLACE, "start")), _PLACE)
    )
    previous = Window.partitionBy(*_PLACE).orderBy("offset")
    first = f.coalesce(f.lag("offset").over(previous) + 1, f.col("start"))
    aborted = f.col("aborted_before") - f.lag("aborted_before", 1, 0).over(previous)
    gaps = found.select(
        *_PLACE,
        first.alias("first"),
        (f.col("offset") - 1).alias("last"),
        aborted.alias("aborted"),
    ).where("last >= first")
    gaps.persist()
    has_aborted = f.col("aborted") > 0
    kinds = (
        gaps.groupBy("topic", has_aborted.alias("has_aborted"))
        .agg(
            f.count("*").alias("gaps"),
            f.sum("aborted").alias("aborted"),
            f.sum(f.expr("last - first + 1 - aborted")).alias("empty"),
        )
        .orderBy("topic", "has_aborted")
    )
    longest = gaps.orderBy(f.expr("first - last"), *_PLACE, "first").limit(top)
    try:
        return (
            tuple(GapKind(**row.asDict()) for row in kinds.collect()),
            tuple(Gap(**row.asDict()) for row in longest.collect()),
        )
    finally:
        gaps.unpersist()


def _keys(records: DataFrame, top: int) -> tuple[tuple[Keys, ...], tuple[Key, ...]]:
    from pyspark.sql import functions as f

    by_key = (
        records.where(f.col("status") == COMMITTED)
        .groupBy("topic", "key", "value")
        .agg(f.count("*").alias("records"))
        .groupBy("topic", "key")
        .agg(f.sum("records").alias("records"), f.count("*").alias("values"))
        .persist()
    )
    has_key = f.col("key").isNotNull()
    by_topic = by_key.groupBy("topic").agg(
        f.count_if(has_key).alias("keys"),
        f.count_if(has_key & (f.col("records") > 1)).alias("repeated"),
        f.coalesce(f.sum(f.when(has_key, f.expr("records - values"))), f.lit(0)).alias("again"),
        f.coalesce(f.sum(f.when(~has_key, f.col("records"))), f.lit(0)).alias("without"),
    )
    most = (
        by_key.where(has_key & (f.col("records") > 1))
        .orderBy(f.expr("values - records"), f.desc("records"), "topic", "key")
        .limit(top)
    )
    try:
        return (
            tuple(Keys(**row.asDict()) for row in by_topic.orderBy("topic").collect()),
            tuple(
                Key(row["topic"], bytes(row["key"]), row["records"], row["values"])
                for row in most.collect()
            ),
        )
    finally:
        by_key.unpersist()
