"""Transactional producers, one transaction after the other; runs inside a client process.

Must not know brokers, cases or what the figures are compared with (`bench.worker`).
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from bench.worker import Result, librdkafka, payloads, ready, refused, summary

PATIENCE_S = 60.0
WARM_UP = 5  # transactions that do not count


def transactions_confluent(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    seconds: float,
    producers: int = 1,
    offsets: bool = False,
) -> Result:
    """`producers` of librdkafka, each in a thread; a transaction has `records` over `partitions`.

    The latency is from its beginning to the answer to its commit. offsets: each commits one of a
    group of its own as well (that call keeps Python's lock: one producer a process, then).
    """
    made = [_Transactor(bootstrap, topic, partitions, records, offsets) for _ in range(producers)]
    for each in made:
        each.run(WARM_UP)
    ready()
    begun = time.monotonic()
    threads = [threading.Thread(target=each.run_until, args=(begun + seconds,)) for each in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = time.monotonic()
    for each in made:
        if each.failed is not None:
            raise each.failed
    latencies = [latency for each in made for latency in each.latencies]
    return summary(latencies) | {"records": len(latencies), "begun": begun, "ended": ended}


class _Transactor:
    """A producer with an id, and perhaps a group, of its own."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, records: int, offsets: bool
    ) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        name = f"bench-{uuid.uuid4().hex}"
        settings = {"transactional_id": name, "linger_ms": 0}
        self._producer = Producer(librdkafka(bootstrap, **settings))
        self._producer.init_transactions(PATIENCE_S)
        self._member: Any = None
        if offsets:
            consumer = Consumer(librdkafka(bootstrap, group_id=name))
            self._member = consumer.consumer_group_metadata()
            consumer.close()
        self._topic = topic
        self._places = [number % partitions for number in range(records)]
        self._values = payloads(100)
        self._partition = TopicPartition
        self._count = 0
        self.latencies: list[float] = []
        self.failed: Exception | None = None

    def run(self, count: int) -> None:
        for _ in range(count):
            self._once()

    def run_until(self, deadline: float) -> None:
        try:
            while time.monotonic() < deadline:
                begun = time.perf_counter()
                self._once()
                self.latencies.append(time.perf_counter() - begun)
        except Exception as failed:  # noqa: BLE001 - raised again by the one who waits for it
            self.failed = failed

    def _once(self) -> None:
        self._count += 1
        self._producer.begin_transaction()
        for number, place in enumerate(self._places):
            self._producer.produce(
                self._topic, self._values[number & 63], partition=place, on_delivery=refused
            )
        if self._member is not None:
            offset = self._partition(self._topic, 0, self._count)
            self._producer.send_offsets_to_transaction([offset], self._member, PATIENCE_S)
        self._producer.commit_transaction(PATIENCE_S)
