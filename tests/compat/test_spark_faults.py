"""Spark's stock source and sink while something dies: the driver, and the gateway under it.

More of them where `PENSTOCK_SPARK_FAULT_SECONDS` is set, as by `make faults`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.compat.conftest import MakeTopic, create
from tests.compat.groups import eventually
from tests.compat.spark import (
    WITHIN_S,
    Batches,
    batch,
    produce,
    run_to_end,
    running,
    stream,
    wait_for,
)
from tests.compat.spark_driver import counting
from tests.conftest import StartGateway, open_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
USERS = 10
# After how many of ten batches a driver is killed, and after how many of 2,000 records a gateway.
IS_LONG = "PENSTOCK_SPARK_FAULT_SECONDS" in os.environ
DRIVERS_KILLED = (1, 2, 4, 6, 8) if IS_LONG else (2, 6)
GATEWAYS_KILLED = range(200, 1800, 200) if IS_LONG else (300, 1000)


@contextmanager
def driver(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The application of spark_driver.py: its Python and its JVM are one process group."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.spark_driver", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WITHIN_S)


def records_of(spark: SparkSession, bootstrap: str, topic: str) -> list[tuple[str, str]]:
    """Keys and values of a topic of one partition, in order."""
    frame = batch(spark, bootstrap, {"subscribe": topic}).sort("offset")
    rows = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    return [(row[0], row[1]) for row in rows]


@pytest.mark.fault
def test_a_driver_that_is_killed_goes_on_where_its_checkpoint_is(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    source, target = make_topic(partitions=2), make_topic()
    for partition in range(2):
        users = [f"user {number % USERS}" for number in range(1000)]
        produce(bootstrap, source, ["x"] * 1000, keys=users, partition=partition)
    with open_directory() as directory:
        arguments = (bootstrap, source, target, str(directory))
        for number, batches in enumerate(DRIVERS_KILLED):
            log = directory / f"driver-{number}.log"
            with driver(log, *arguments) as process:

                def written(log: Path = log, least: int = batches * USERS) -> bool:
                    assert process.poll() is None, log.read_text()[-4000:]
                    return end_of(bootstrap, target) >= least

                eventually(written, f"{batches} batches", within=WITHIN_S)
                os.killpg(process.pid, signal.SIGKILL)
        # The last is this process.
        run_to_end(counting(spark, bootstrap, source, target), f"{directory}/checkpoint")
    found = records_of(spark, bootstrap, target)
    assert dict(found) == {f"user {number}": "200" for number in range(USERS)}
    # A batch may have been written twice; none may have been counted twice.
    assert max(int(count) for _, count in found) == 200


def end_of(bootstrap: str, topic: str) -> int:
    """Where partition 0 ends."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    [found] = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}).values()
    return int(found.result(20).offset)


@pytest.mark.fault
def test_a_stream_outlives_gateways_that_are_killed_under_it(
    spark: SparkSession,
    start_gateway: StartGateway,
    database_url: str,
    topic_name: str,
    checkpoint: str,
) -> None:
    gateway = start_gateway(database_url=database_url)
    bootstrap, port = gateway.bootstrap, gateway.port
    admin = AdminClient({"bootstrap.servers": bootstrap})
    source, target = f"{topic_name}-source", f"{topic_name}-target"
    create(admin, source, 2)
    create(admin, target)

    def send() -> None:
        for start in range(0, 1000, 100):
            values = [str(number) for number in range(start, start + 100)]
            for partition in range(2):
                produce(bootstrap, source, values, partition=partition)

    seen = Batches()

    def copy(frame: DataFrame, batch_id: int) -> None:
        sink = frame.select("value").write.format("kafka").option("topic", target)
        sink.option("kafka.bootstrap.servers", bootstrap).save()
        seen.take(frame, batch_id)

    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}
    writer = stream(spark, bootstrap, options).writeStream.foreachBatch(copy)
    writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    sender = threading.Thread(target=send)
    sender.start()
    with running(writer.start()) as query:
        for least in GATEWAYS_KILLED:
            wait_for(query, lambda least=least: sum(seen.sizes) >= least, f"{least} records")
            gateway.kill()
            gateway = start_gateway(database_url=database_url, port=port)
        wait_for(query, lambda: sum(seen.sizes) >= 2000, "all records")
        sender.join(WITHIN_S)
    assert seen.offsets() == {(source, each): list(range(1000)) for each in range(2)}
    # The sink is at least once.
    copied = [int(value) for _, value in records_of(spark, bootstrap, target)]
    assert sorted(set(copied)) == list(range(1000))
    assert len(copied) >= 2000
