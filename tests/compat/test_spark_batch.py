"""Spark's stock source and sink, in batches: what is read from where, what is written."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.conftest import MakeTopic
from tests.compat.groups import eventually
from tests.compat.spark import as_json, batch, offsets_of, produce, transactional

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
EARLIEST, LATEST = -2, -1

# Where no record is late enough; without it Spark refuses.
AT_THE_END = {"startingOffsetsByTimestampStrategy": "latest"}


def seconds(*numbers: int) -> list[int]:
    return [T0 + 1000 * number for number in numbers]


def span(start: int, end: int) -> list[int]:
    return list(range(start, end))


def test_topics_partitions_and_offsets_are_chosen_in_every_way(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    first, second = make_topic(partitions=2), make_topic()
    # Partition 0 has a record a second; partition 1 has its latest in the middle.
    produce(bootstrap, first, ["x"] * 10, timestamps=seconds(*range(10)))
    produce(bootstrap, first, ["x"] * 5, partition=1, timestamps=seconds(0, 3, 9, 1, 2))
    produce(bootstrap, second, ["x"] * 3, timestamps=seconds(0, 1, 2))
    whole = {(first, 0): span(0, 10), (first, 1): span(0, 5)}
    pattern = re.escape(first[:-1]) + "[01]"
    reads_and_expected = {
        "subscribe": ({"subscribe": first}, whole),
        "two": ({"subscribe": f"{first},{second}"}, {**whole, (second, 0): span(0, 3)}),
        "pattern": ({"subscribePattern": pattern}, {**whole, (second, 0): span(0, 3)}),
        "assign": ({"assign": as_json({first: [1]})}, {(first, 1): span(0, 5)}),
        "named": (
            {"subscribe": first, "startingOffsets": "earliest", "endingOffsets": "latest"},
            whole,
        ),
        "json": (
            {
                "subscribe": first,
                "startingOffsets": as_json({first: {"0": 3, "1": EARLIEST}}),
                "endingOffsets": as_json({first: {"0": 7, "1": LATEST}}),
            },
            {(first, 0): span(3, 7), (first, 1): span(0, 5)},
        ),
        "empty": (
            {"subscribe": second, "startingOffsets": as_json({second: {"0": 3}})},
            {},
        ),
        # The first record that is late enough, not the nearest batch; later ones may be older.
        "since": (
            {"subscribe": first, "startingTimestamp": seconds(3)[0]},
            {(first, 0): span(3, 10), (first, 1): span(1, 5)},
        ),
        "between records": (
            {"subscribe": first, "startingTimestamp": seconds(3)[0] + 1},
            {(first, 0): span(4, 10), (first, 1): span(2, 5)},
        ),
        "until": (
            {"subscribe": first, "endingTimestamp": seconds(3)[0]},
            {(first, 0): span(0, 3), (first, 1): span(0, 1)},
        ),
        "until after the end": (
            {"subscribe": first, "endingTimestamp": seconds(99)[0]},
            whole,
        ),
        "each its time": (
            {
                "subscribe": first,
                "startingOffsetsByTimestamp": as_json(
                    {first: {"0": seconds(8)[0], "1": seconds(9)[0]}}
                ),
                "endingOffsetsByTimestamp": as_json(
                    {first: {"0": seconds(9)[0], "1": seconds(99)[0]}}
                ),
            },
            {(first, 0): [8], (first, 1): [2, 3, 4]},
        ),
        "none so late": (
            {"subscribe": first, "startingTimestamp": seconds(99)[0], **AT_THE_END},
            {},
        ),
    }
    reads = {label: options for label, (options, _) in reads_and_expected.items()}
    expected = {label: offsets for label, (_, offsets) in reads_and_expected.items()}
    assert offsets_of(spark, bootstrap, reads) == expected


def test_a_time_that_nothing_is_so_late_as_is_an_error_where_that_is_wanted(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, ["x"], timestamps=seconds(0))
    late = {
        "subscribe": topic,
        "startingTimestamp": seconds(1)[0],
        "fetchOffset.retryIntervalMs": 10,
    }
    with pytest.raises(Exception, match=r"(?i)no offset matched"):
        batch(spark, bootstrap, late).collect()


def test_min_partitions_divides_a_partition_and_loses_nothing(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    from pyspark.sql.functions import spark_partition_id

    topic = make_topic(partitions=2)
    produce(bootstrap, topic, ["x"] * 900)
    produce(bootstrap, topic, ["x"] * 100, partition=1)
    frame = batch(spark, bootstrap, {"subscribe": topic, "minPartitions": 6})
    rows = frame.select(spark_partition_id(), "partition", "offset").collect()
    tasks = defaultdict(list)
    for task, partition, offset in rows:
        tasks[task, partition].append(offset)
    assert len(tasks) >= 6
    assert all(found == span(found[0], found[-1] + 1) for found in tasks.values())
    together = sorted((partition, offset) for _, partition, offset in rows)
    assert together == [(0, each) for each in range(900)] + [(1, each) for each in range(100)]


def test_what_spark_writes_it_reads_back_whole(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    first, second = make_topic(partitions=3), make_topic(partitions=2)
    schema = (
        "topic string, partition int, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    )
    header = [("trace", b"\x00\xff"), ("trace", b""), ("nothing", None)]
    rows = [
        *((first, number % 3, f"k{number}".encode(), b"v" * number, None) for number in range(300)),
        (second, 1, None, b"no key", header),
        (second, 1, b"deleted", None, []),
        (second, 0, b"", b"", None),
        (second, 0, "ключ".encode(), bytes(range(256)) * 400, header[:1]),
    ]
    frame = spark.createDataFrame(
        [
            (*row[:4], row[4] and [{"key": key, "value": value} for key, value in row[4]])
            for row in rows
        ],
        schema,
    )
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    sink.option("includeHeaders", "true").save()
    both = {"subscribe": f"{first},{second}", "includeHeaders": "true"}
    read = batch(spark, bootstrap, both).collect()
    assert {row.timestampType for row in read} == {0}  # CreateTime

    def plain(row: object) -> tuple[object, ...]:
        topic, partition, key, value, headers = row  # type: ignore[misc]
        shown = [(key, value and bytes(value)) for key, value in headers or []]
        return topic, partition, key and bytes(key), value and bytes(value), shown

    columns = [(row.topic, row.partition, row.key, row.value, row.headers) for row in read]
    assert sorted(map(plain, columns), key=repr) == sorted(map(plain, rows), key=repr)


def test_a_topic_option_sends_all_rows_to_one_topic(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    frame = spark.range(500).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key"
    )
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    sink.option("topic", topic).option("kafka.compression.type", "zstd").save()
    read = batch(spark, bootstrap, {"subscribe": topic})
    rows = read.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition").collect()
    assert sorted(int(value) for _, value, _ in rows) == span(0, 500)
    assert len({(key, partition) for key, _, partition in rows}) == 7  # a key has one partition


def test_markers_and_aborted_records_take_offsets_and_stop_nobody(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, transactional_id: str
) -> None:
    topic = make_topic(partitions=5)
    with (
        transactional(bootstrap, transactional_id) as producer,
        transactional(bootstrap, f"{transactional_id}-open") as unfinished,
    ):
        # 0: committed 0-2, marker 3, aborted 4-5, marker 6, committed 7-8, 9, aborted 10, 11
        for count, end in ((3, producer.commit), (2, producer.abort), (2, producer.commit)):
            producer.write(topic, count)
            end()
        producer.write(topic, 1)
        producer.abort()
        # 1: nothing but aborted records, more than a poll takes; 2: nothing but an empty tail
        producer.write(topic, 1200, partition=1)
        producer.abort()
        produce(bootstrap, topic, ["x"] * 2, partition=2)
        unfinished.write(topic, 2, partition=2)
        # 3: a marker last of all; 4: nothing at all
        producer.write(topic, 700, partition=3)
        producer.commit()
        committed = {
            (topic, 0): [0, 1, 2, 7, 8],
            (topic, 2): [0, 1],
            (topic, 3): span(0, 700),
        }
        everything = {
            (topic, 0): [0, 1, 2, 4, 5, 7, 8, 10],
            (topic, 1): span(0, 1200),
            (topic, 2): [0, 1, 2, 3],
            (topic, 3): span(0, 700),
        }
        level = "kafka.isolation.level"
        tail = {str(each): number for each, number in enumerate([9, 1200, 2, 700, 0])}
        reads = {
            "committed": {"subscribe": topic, level: "read_committed"},
            "uncommitted": {"subscribe": topic, level: "read_uncommitted"},
            "by default": {"subscribe": topic},
            "small polls": {
                "subscribe": topic,
                level: "read_committed",
                "kafka.max.poll.records": 2,
                "kafka.max.partition.fetch.bytes": 1,
                "minPartitions": 9,
            },
            # From a marker on, where no record is left to be read.
            "from a marker on": {
                "subscribe": topic,
                level: "read_committed",
                "startingOffsets": as_json({topic: tail}),
            },
            "a time": {
                "subscribe": topic,
                level: "read_committed",
                "startingTimestamp": T0,
                **AT_THE_END,
            },
        }
        found = offsets_of(spark, bootstrap, reads)
    assert found == {
        "committed": committed,
        "uncommitted": everything,
        "by default": everything,
        "small polls": committed,
        "from a marker on": {},
        "a time": committed,
    }


def test_lost_records_are_told_or_passed_over(
    spark: SparkSession, session_admin: AdminClient, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, ["x"] * 20)
    session_admin.delete_records([TopicPartition(topic, 0, 12)])
    start = {"subscribe": topic, "startingOffsets": as_json({topic: {"0": 5}})}

    def left() -> object:
        passed_over = offsets_of(spark, bootstrap, {"": {**start, "failOnDataLoss": "false"}})
        return passed_over == {"": {(topic, 0): span(12, 20)}}

    eventually(left, "the records are gone")
    with pytest.raises(Exception, match=r"(?i)data.?loss|may have been lost|out of range"):
        batch(spark, bootstrap, {**start, "failOnDataLoss": "true"}).collect()
