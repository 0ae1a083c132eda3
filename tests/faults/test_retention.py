"""Deleting at high frequency beside producing and consuming: retention, DeleteRecords, topics."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from storage.server.embedded import EmbeddedPostgres
from tests.compat.groups import eventually
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, query, verify
from tests.faults.history import StoredRecord, check_seen, summary
from tests.faults.load import Load

pytestmark = pytest.mark.fault

RETENTION_AT_ONCE = (
    *("--override", "auto.create.topics.enable=false"),  # a deleted topic stays so
    *("--override", "log.retention.check.interval.ms=30"),
    *("--override", f"log.segment.bytes={2**20}"),
    *("--override", "penstock.tail.cache.bytes=100000"),  # so that readers meet the tables
)


class Follower:
    """A consumer that goes to the beginning again and again, and falls out of range on its way."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.seen: list[StoredRecord] = []
        self.out_of_range = 0
        self.resets = 0
        self._chance = random.Random(seed)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # to be told, and go on from the beginning oneself
                "fetch.message.max.bytes": 50_000,
                "queued.min.messages": 1,
            }
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[Follower]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(20)
            self._consumer.close()

    def _run(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, n, 0) for n in range(PARTITIONS)])
        while not self._stop.is_set():
            for message in self._consumer.consume(200, timeout=0.1):
                if message.error() is None:
                    self.seen.append(
                        StoredRecord(message.partition(), message.offset(), message.value())
                    )
                elif message.error().code() in (
                    KafkaError._AUTO_OFFSET_RESET,
                    KafkaError.OFFSET_OUT_OF_RANGE,
                ):
                    self.out_of_range += 1
                    self._go_to(message.partition())
            if self._chance.random() < 0.1:
                self._go_to(self._chance.randrange(PARTITIONS))

    def _go_to(self, partition: int) -> None:
        """The beginning, or an offset that was it a while ago."""
        with contextlib.suppress(KafkaException):
            start, _ = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=5
            )
            stale = self._chance.random() < 0.3
            offset = max(0, start - 5) if stale else start
            self._consumer.seek(TopicPartition(self._topic, partition, offset))
            self.resets += 1


def test_retention_deletion_and_consumers_at_once(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    gateway = start_gateway(*RETENTION_AT_ONCE, database_url=server.url)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
    config = {"retention.bytes": "300000", "segment.bytes": str(2**20)}
    create_topic(gateway.bootstrap, "load", config=config)
    churn = Producer(
        {"bootstrap.servers": gateway.bootstrap, "message.timeout.ms": 3000, "log_level": 0}
    )
    load = Load(gateway.bootstrap, "load", PARTITIONS, seed, large_share=0.2)
    follower = Follower(gateway.bootstrap, "load", seed)
    deleted_topics = moved = 0
    with follower.running():
        with load.running():
            load.wait_for_progress()
            end = time.monotonic() + max(seconds, 4)
            while time.monotonic() < end:
                partition = chance.randrange(PARTITIONS)
                if not moved or chance.random() < 0.5:
                    whole = TopicPartition("load", partition, -1)  # up to the high watermark
                    admin.delete_records([whole])[whole].result(10)
                    moved += 1
                name = f"churn-{deleted_topics}"
                create_topic(gateway.bootstrap, name, 2, {"retention.ms": "100"})
                for _ in range(20):
                    churn.produce(name, b"c" * 5_000, partition=chance.randrange(2))
                churn.flush(0.05)  # some are on their way when the topic goes
                admin.delete_topics([name])[name].result(10)
                deleted_topics += 1
            load.wait_for_progress()
        # Not before: under load the log may go faster than it can be followed.
        eventually(
            lambda: follower.seen and follower.out_of_range,
            "the follower sees something, falls out of range and goes on",
        )
    churn.purge()
    churn.flush(5)
    eventually(lambda: "segments_dropped" in gateway.log(), "whole tables are dropped")
    assert gateway.stop() == 0
    gateway = start_gateway(database_url=server.url)  # retention comes round each five minutes now
    verify(load.history, gateway, server.url, "load")
    anomalies = check_seen(load.history, follower.seen)
    assert not anomalies, summary(anomalies)
    assert moved
    assert deleted_topics
    assert query(server.url, "SELECT topic FROM v_topic") == [("load",)]
