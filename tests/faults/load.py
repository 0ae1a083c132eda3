"""Continuous load: librdkafka with and without idempotence, and aiokafka, each in its own thread.

Every record and what its producer was told of it goes into a History. Rates are modest: faults
count here, not throughput. Must not know what is being broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.faults.history import NO_OFFSET, History, Outcome, RecordId
from tests.faults.workers import Workers

FINISH_WITHIN_S = 60.0
SETTLED_WITHIN_S = 30.0
IN_FLIGHT_MAX = 300
"""Records a producer has waiting before it pauses: enough to fill flushes, few enough to finish."""

LARGE_BYTES = 100_000
"""Many chunks."""

# A broker that answers one of these has not stored the record; any other error leaves it open.
_REFUSALS = {
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


# librdkafka reports every lost connection; here they are the point.
_SILENT = logging.Logger("librdkafka under fault", level=logging.CRITICAL + 1)


class Load(Workers):
    """Producers that write to the same partitions until told to stop."""

    finish_within_s = FINISH_WITHIN_S + 10
    progress = 20  # records
    progress_s = 30.0

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        seed: int,
        *,
        history: History | None = None,
        kinds: Sequence[str] = ("idempotent", "idempotent-lz4", "plain", "aiokafka"),
        large_share: float = 0.02,
        connections_break: bool = False,
    ) -> None:
        """kinds: `idempotent…` and `plain…` are librdkafka, `aiokafka…` aiokafka's idempotent.

        connections_break: clients lose connections with requests on their way. librdkafka then
        sends again what it believes was not sent, also where it may not retry (batches come a
        second time, put together anew, with `message.send.max.retries` 0).
        """
        super().__init__()
        self.topic = topic
        self.partitions = partitions
        self.history = history or History()
        self._bootstrap = bootstrap
        self._large_share = large_share
        self.producers = list(kinds)
        if connections_break:
            self.history.may_repeat.update(name for name in kinds if name.startswith("plain"))
        for number, name in enumerate(kinds):
            run = self._run_aiokafka if name.startswith("aiokafka") else self._run_librdkafka
            self._add(name, partial(run, name, random.Random(seed * 1_000 + number)))

    def done(self) -> dict[str, int]:
        """Records acknowledged, by producer."""
        acknowledged = Outcome.ACKNOWLEDGED
        return {name: self.history.count(acknowledged, name) for name in self.producers}

    def told(self) -> object:
        return self.history.errors()

    def settled(self) -> int:
        """How many records are acknowledged, once no more have been for a second: producers may
        hear late of what was answered before a fault."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        count, since = self.history.count(Outcome.ACKNOWLEDGED), time.monotonic()
        while time.monotonic() < since + 1:
            time.sleep(0.02)
            now = self.history.count(Outcome.ACKNOWLEDGED)
            if now != count:
                count, since = now, time.monotonic()
            assert time.monotonic() < deadline, "records are acknowledged all the same"
        return count

    def _burst(
        self, name: str, sequences: list[int], random_numbers: random.Random
    ) -> Iterator[tuple[RecordId, bytes]]:
        """The next few records: mostly small, some larger than a flush takes as parameters."""
        partition = random_numbers.randrange(self.partitions)
        for _ in range(random_numbers.randint(1, 20)):
            if random_numbers.random() < 0.3:
                partition = random_numbers.randrange(self.partitions)
            large = random_numbers.random() < self._large_share
            size = LARGE_BYTES if large else random_numbers.randint(40, 250)
            record = RecordId(name, partition, sequences[partition])
            sequences[partition] += 1
            yield record, self.history.begin(record, size)

    # librdkafka

    def _run_librdkafka(self, name: str, random_numbers: random.Random) -> None:
        is_idempotent = name.startswith("idempotent")
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "client.id": name,
            "enable.idempotence": is_idempotent,
            "acks": "all",
            "linger.ms": random_numbers.choice([0, 1, 5]),
            "batch.num.messages": 50,
            "message.timeout.ms": int(FINISH_WITHIN_S * 1000),
            "socket.timeout.ms": 4_000,
            "request.timeout.ms": 3_000,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "compression.type": "lz4" if name.endswith("lz4") else "none",
            "logger": _SILENT,
            "error_cb": lambda error: self._on_error(name, error),
        }
        if is_idempotent:
            settings["enable.gapless.guarantee"] = False
        else:
            # It sends each record once and one after the other: nothing may show twice.
            self.history.unsequenced.add(name)
            settings |= {"message.send.max.retries": 0, "max.in.flight": 1}
        producer = Producer(settings)
        sequences = [0] * self.partitions
        while not self._stop.is_set():
            for record, value in self._burst(name, sequences, random_numbers):
                self._produce(producer, record, value)
            producer.poll(0)
            paused = time.monotonic()
            while len(producer) > IN_FLIGHT_MAX and time.monotonic() - paused < 1:
                producer.poll(0.05)
            if len(producer) > 10 * IN_FLIGHT_MAX:
                self._stop.wait(0.2)
            time.sleep(random_numbers.uniform(0.005, 0.03))
        producer.flush(FINISH_WITHIN_S)
        producer.purge()
        producer.flush(5)

    def _on_error(self, name: str, error: KafkaError) -> None:
        """An idempotent producer gives up for good only where the log broke its promise."""
        if error.fatal():
            self._failures.append(AssertionError(f"{name}: librdkafka gave up: {error}"))
            self._stop.set()

    def _produce(self, producer: Producer, record: RecordId, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                self.history.end(
                    record,
                    Outcome.ACKNOWLEDGED,
                    offset=NO_OFFSET if offset is None else offset,
                )
            elif error.code() in _REFUSALS:
                self.history.end(record, Outcome.REFUSED, error=error.name())
            else:
                self.history.end(record, Outcome.UNKNOWN, error=error.name())

        while True:
            try:
                producer.produce(
                    self.topic, value, partition=record.partition, on_delivery=delivered
                )
            except BufferError:
                producer.poll(0.1)
            except KafkaException:
                producer.poll(1)  # brings the reason to _on_error first
                raise
            else:
                return

    # aiokafka

    def _run_aiokafka(self, name: str, random_numbers: random.Random) -> None:
        asyncio.run(self._produce_with_aiokafka(name, random_numbers))

    async def _produce_with_aiokafka(self, name: str, random_numbers: random.Random) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=name,
            enable_idempotence=True,
            linger_ms=2,
            request_timeout_ms=int(FINISH_WITHIN_S * 1000),
            retry_backoff_ms=50,
            metadata_max_age_ms=1_000,
            max_batch_size=2 * LARGE_BYTES,
        )
        await self._start(producer)
        sequences = [0] * self.partitions
        waiting: set[asyncio.Task[None]] = set()
        try:
            while not self._stop.is_set():
                for record, value in self._burst(name, sequences, random_numbers):
                    sent = await producer.send(self.topic, value, partition=record.partition)
                    waiting.add(asyncio.create_task(self._await_answer(record, sent)))
                waiting = {task for task in waiting if not task.done()}
                while len(waiting) > IN_FLIGHT_MAX and not self._stop.is_set():
                    await asyncio.wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
                    waiting = {task for task in waiting if not task.done()}
                await asyncio.sleep(random_numbers.uniform(0.01, 0.04))
            if waiting:
                await asyncio.wait(waiting, timeout=FINISH_WITHIN_S)
        finally:
            with contextlib.suppress(TimeoutError, AioKafkaError):
                async with asyncio.timeout(10):
                    await producer.stop()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _start(self, producer: AIOKafkaProducer) -> None:
        """aiokafka wants a broker when it starts; there may be none just now."""
        deadline = time.monotonic() + FINISH_WITHIN_S
        while True:
            try:
                await producer.start()
                return
            except AioKafkaError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _await_answer(self, record: RecordId, sent: Any) -> None:
        try:
            answer = await sent
        except AioKafkaError as error:
            self.history.end(record, Outcome.UNKNOWN, error=f"aiokafka {type(error).__name__}")
        else:
            self.history.end(record, Outcome.ACKNOWLEDGED, offset=answer.offset)
