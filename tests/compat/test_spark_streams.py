"""Spark's stock source and sink, in streams: triggers, restarts from a checkpoint, state, loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.conftest import MakeTopic
from tests.compat.spark import (
    Batches,
    as_json,
    batch,
    end_offsets,
    produce,
    run_to_end,
    running,
    stream,
    transactional,
    wait_for,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
EARLIEST = {"startingOffsets": "earliest"}
COMMITTED = {"kafka.isolation.level": "read_committed"}


def span(start: int, end: int) -> list[int]:
    return list(range(start, end))


def test_available_now_goes_on_from_its_checkpoint_in_batches_as_large_as_allowed(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, checkpoint: str
) -> None:
    topic = make_topic(partitions=2)
    options = {
        "subscribe": topic,
        **EARLIEST,
        "maxOffsetsPerTrigger": 60,
        "minPartitions": 4,
    }

    def sent(count: int) -> None:
        for partition in range(2):
            produce(bootstrap, topic, ["x"] * count, partition=partition)

    seen = Batches()
    sent(75)
    run_to_end(seen.writer(stream(spark, bootstrap, options)), checkpoint)
    assert seen.sizes == [60, 60, 30]
    assert seen.offsets() == {(topic, 0): span(0, 75), (topic, 1): span(0, 75)}

    # Nothing new: no batch. Then what has come since, and nothing twice.
    before = len(seen.rows)
    run_to_end(seen.writer(stream(spark, bootstrap, options)), checkpoint)
    assert len(seen.rows) == before
    sent(10)
    query = run_to_end(seen.writer(stream(spark, bootstrap, options)), checkpoint)
    assert seen.sizes == [60, 60, 30, 20]
    assert seen.offsets() == {(topic, 0): span(0, 85), (topic, 1): span(0, 85)}
    assert end_offsets(query) == {topic: {"0": 85, "1": 85}}


def test_streams_begin_where_they_are_told(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=2)
    for partition in range(2):
        times = [T0 + 1000 * number for number in range(10)]
        produce(bootstrap, topic, ["x"] * 10, partition=partition, timestamps=times)
    each_its_time = {topic: {"0": T0 + 8000, "1": T0 + 2500}}
    begins: dict[str, tuple[dict[str, object], dict[tuple[str, int], list[int]]]] = {
        "assign": (
            {
                "assign": as_json({topic: [1]}),
                "startingOffsets": as_json({topic: {"1": 7}}),
            },
            {(topic, 1): span(7, 10)},
        ),
        "time": (
            {"subscribe": topic, "startingTimestamp": T0 + 6000},
            {(topic, 0): span(6, 10), (topic, 1): span(6, 10)},
        ),
        "times": (
            {"subscribe": topic, "startingOffsetsByTimestamp": as_json(each_its_time)},
            {(topic, 0): span(8, 10), (topic, 1): span(3, 10)},
        ),
        "latest": ({"subscribe": topic, "startingOffsets": "latest"}, {}),
    }

    def run(name: str) -> dict[tuple[str, int], list[int]]:
        seen = Batches()
        writer = seen.writer(stream(spark, bootstrap, begins[name][0]))
        run_to_end(writer, str(tmp_path / name))
        return seen.offsets()

    assert {name: run(name) for name in begins} == {name: end for name, (_, end) in begins.items()}
    # The latest were those when it ran first.
    produce(bootstrap, topic, ["x"] * 2)
    assert run("latest") == {(topic, 0): [10, 11]}


def test_a_pattern_finds_topics_that_come_while_it_runs(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, topic_name: str, checkpoint: str
) -> None:
    first = make_topic()
    produce(bootstrap, first, ["x"] * 3)
    seen = Batches()
    frame = stream(spark, bootstrap, {"subscribePattern": f"{topic_name}-.*", **EARLIEST})
    writer = seen.writer(frame).option("checkpointLocation", checkpoint)
    with running(writer.trigger(processingTime="100 milliseconds").start()) as query:
        wait_for(query, lambda: seen.offsets() == {(first, 0): [0, 1, 2]}, "the first topic")
        second = make_topic(partitions=2)
        produce(bootstrap, second, ["x"] * 2, partition=1)
        expected = {(first, 0): [0, 1, 2], (second, 1): [0, 1]}
        wait_for(query, lambda: seen.offsets() == expected, "the second topic")


def test_continuous_processing_copies_a_topic_as_it_grows(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, checkpoint: str
) -> None:
    source, target = make_topic(), make_topic()
    frame = stream(spark, bootstrap, {"subscribe": source, **EARLIEST})
    writer = (
        frame.selectExpr("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(continuous="200 milliseconds")
    )

    def copied(numbers: list[int]) -> bool:
        # The only core but one is the query's own: this is read without Spark.
        return read_values(bootstrap, target) == [f"record {number}" for number in numbers]

    with running(writer.start()) as query:
        for start in (0, 50):
            produce(bootstrap, source, [f"record {each}" for each in span(start, start + 50)])
            wait_for(query, lambda end=start + 50: copied(span(0, end)), "copied")


def read_values(bootstrap: str, topic: str) -> list[str]:
    """All of partition 0."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        while len(values) < end:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def test_windows_and_deduplication_keep_their_state_over_restarts(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, checkpoint: str
) -> None:
    source, target = make_topic(partitions=2), make_topic()

    def sent(numbers: list[int]) -> None:
        # A record a second: four users in turn, windows of ten seconds.
        for partition in range(2):
            mine = [number for number in numbers if number % 2 == partition]
            times = [T0 + 1000 * number for number in mine]
            values = [json.dumps({"id": number, "user": f"u{number % 4}"}) for number in mine]
            produce(bootstrap, source, values, partition=partition, timestamps=times)

    def run() -> None:
        from pyspark.sql import functions as f

        rows = stream(spark, bootstrap, {"subscribe": source, **EARLIEST}).select(
            "timestamp",
            f.from_json(f.col("value").cast("string"), "id long, user string").alias("r"),
        )
        counted = (
            rows.select("timestamp", "r.*")
            .withWatermark("timestamp", "30 seconds")
            .dropDuplicatesWithinWatermark(["id"])
            .groupBy(f.window("timestamp", "10 seconds"), "user")
            .count()
        )
        out = counted.selectExpr(
            "CONCAT(CAST(unix_seconds(window.start) AS STRING), ' ', user) AS key",
            "CAST(count AS STRING) AS value",
        )
        sink = out.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        run_to_end(sink.option("topic", target).outputMode("append"), checkpoint)

    sent(span(0, 60))
    sent(span(40, 60))  # again, in the same run
    run()
    sent(span(50, 100))  # again, remembered from the run before
    run()
    sent([1000, 1001])  # closes all windows
    run()
    found = batch(spark, bootstrap, {"subscribe": target})
    rows = found.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    expected: dict[str, int] = {}
    for number in range(100):
        key = f"{T0 // 1000 + number // 10 * 10} u{number % 4}"
        expected[key] = expected.get(key, 0) + 1
    assert sorted((key, int(value)) for key, value in rows) == sorted(expected.items())


def test_a_stream_of_committed_records_waits_for_nothing_at_markers_and_aborts(
    spark: SparkSession,
    bootstrap: str,
    make_topic: MakeTopic,
    transactional_id: str,
    checkpoint: str,
) -> None:
    topic = make_topic(partitions=2)
    options = {"subscribe": topic, **EARLIEST, **COMMITTED}
    seen = Batches()
    writer = seen.writer(stream(spark, bootstrap, options))
    writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    with (
        transactional(bootstrap, transactional_id) as producer,
        running(writer.start()) as query,
    ):

        def caught_up(end: int) -> None:
            def ended() -> bool:
                progress = query.lastProgress
                return progress is not None and end_offsets(query)[topic]["0"] == end

            wait_for(query, ended, f"offset {end} of {query.lastProgress}")

        producer.write(topic, 3)
        producer.commit()
        caught_up(4)
        assert seen.offsets() == {(topic, 0): [0, 1, 2]}
        producer.write(topic, 800)
        producer.abort()  # offsets 4 to 803, marker 804: a batch without a record
        caught_up(805)
        assert seen.offsets() == {(topic, 0): [0, 1, 2]}
        producer.write(topic, 2)  # 805, 806: open
        produce(bootstrap, topic, ["behind it"])  # 807
        produce(bootstrap, topic, ["elsewhere"], partition=1)
        expected = {(topic, 0): [0, 1, 2], (topic, 1): [0]}
        wait_for(query, lambda: seen.offsets() == expected, "the other partition")
        caught_up(805)
        producer.commit()
        caught_up(809)
        assert seen.offsets() == {(topic, 0): [0, 1, 2, 805, 806, 807], (topic, 1): [0]}


def test_records_lost_between_two_runs_end_a_stream_or_are_passed_over(
    spark: SparkSession, session_admin: AdminClient, bootstrap: str, topic: str, checkpoint: str
) -> None:
    from pyspark.errors import StreamingQueryException

    options = {"subscribe": topic, **EARLIEST}
    seen = Batches()
    produce(bootstrap, topic, ["x"] * 10)
    run_to_end(seen.writer(stream(spark, bootstrap, options)), checkpoint)
    produce(bootstrap, topic, ["x"] * 20)
    [deleted] = session_admin.delete_records([TopicPartition(topic, 0, 25)]).values()
    deleted.result(20)
    strict = stream(spark, bootstrap, {**options, "failOnDataLoss": "true"})
    with pytest.raises(StreamingQueryException, match=r"(?i)data.?loss|may have been lost"):
        run_to_end(seen.writer(strict), checkpoint)
    lenient = stream(spark, bootstrap, {**options, "failOnDataLoss": "false"})
    run_to_end(seen.writer(lenient), checkpoint)
    assert seen.offsets() == {(topic, 0): [*span(0, 10), *span(25, 30)]}
