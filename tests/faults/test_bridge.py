"""What Pulsar's consumers read and Kafka's producers write, in one transaction of Kafka's, while
brokers and the database die, stand still or are cut off: every message once, none lost.

Stock clients: pulsar-client on a Shared subscription, librdkafka's producers.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pulsar
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from demo.bridge import ranges
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway
from tests.faults.conftest import create_topic, query
from tests.faults.pulsar_load import SILENT
from tests.faults.reading import read_by_offset
from tests.faults.test_pulsar import CAMPAIGNS, Cluster
from tests.faults.test_transactions_of_both import PausingCluster
from tests.faults.workers import Workers

pytestmark = pytest.mark.fault

SOURCE, SINK, SUBSCRIPTION = "source", "sink", "workers"
PARTITIONS = 2
WORKERS = 3
AT_ONCE = 8  # fewer than are in a batch, so that one batch is in several transactions
AHEAD = 400
PACE_S = 0.02
DRAINED_WITHIN_S = 90.0
TIMEOUT_MS = 8_000
WAIT_S = 20.0
SILENT_S = 8.0
FIRST_WORD_S = 60.0
"""A process has to start, too."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process that copies is given."""

    bootstrap: str
    service_url: str
    transactional_id: str
    seed: int


class BridgeLoad(Workers):
    """One producer of the source; processes that copy what they get into the sink, each with a
    transactional id. They are killed now and then, and where they say nothing any more."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.sent = 0
        self.is_paused = False
        self.counts: Counter[str] = Counter()
        self._done = {f"worker-{n}": 0 for n in range(WORKERS)}
        self._add("source", self._fill)
        for name in self._done:
            self._add(name, lambda name=name: self._copy(name))

    def done(self) -> dict[str, int]:
        return dict(self._done)

    def told(self) -> Counter[str]:
        return self.counts

    def _fill(self) -> None:
        """Batches of some messages, numbered."""
        settings = {"bootstrap.servers": self._cluster.bootstrap, "enable.idempotence": True}
        producer = Producer({**settings, "linger.ms": 50, "message.timeout.ms": 0})
        while not self._stop.is_set():
            if self.is_paused or self.sent > AHEAD + AT_ONCE * self.counts["committed"]:
                time.sleep(0.02)
                producer.poll(0)
                continue
            for _ in range(AT_ONCE * 2):
                producer.produce(SOURCE, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                self.sent += 1
            producer.poll(PACE_S)
        assert producer.flush(60) == 0

    def _copy(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        while not self._stop.is_set():
            url = "pulsar://" + ",".join(f"127.0.0.1:{e.port}" for e in self._cluster.brokers)
            job = Job(self._cluster.bootstrap, url, name, self._chance.randrange(2**31))
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=copy, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            try:
                self._listen(name, ours)
            finally:
                process.kill()
                process.join()
                ours.close()

    def _listen(self, name: str, pipe: Connection) -> None:
        """Until the process is to be killed, or is silent: librdkafka waits for a group's
        coordinator that is gone for longer than it was told to (its issues 5456 and 5511)."""
        for number in range(self._chance.randrange(20, 60)):
            silent_since = time.monotonic()
            while not pipe.poll(0.5):
                if self._stop.is_set():
                    return
                if time.monotonic() - silent_since > (SILENT_S if number else FIRST_WORD_S):
                    self.counts["silent"] += 1
                    return
            if self._stop.is_set():
                return
            try:
                what = pipe.recv()
            except EOFError:
                self.counts["ended"] += 1
                return
            self.counts[what] += 1
            self._done[name] += what == "committed"
        self.counts["killed"] += 1


# --- the process ---


def copy(job: Job, pipe: Connection) -> None:
    """Copies until it is killed; tells when it begins, and of each transaction how it ended."""
    logging.disable(logging.CRITICAL)
    chance = random.Random(job.seed)
    with contextlib.suppress(pulsar.PulsarException, KafkaException):
        producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        consumer = pulsar.Client(job.service_url, logger=SILENT).subscribe(
            SOURCE,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=50,
        )
        pipe.send("begun")
        while True:
            found = list(_some(consumer))
            pipe.send(_copy_some(job, producer, consumer, found, chance) if found else "idle")


def _copy_some(
    job: Job,
    producer: Producer,
    consumer: Any,
    found: Sequence[pulsar.Message],
    chance: random.Random,
) -> str:
    """In a transaction; how it ended."""
    try:
        producer.begin_transaction()
        for each in found:
            producer.produce(SINK, each.data(), partition=0)
        _acknowledge(job.bootstrap, producer, found)
        producer.flush(WAIT_S)  # serves what is told of records, or a commit waits for that
        if chance.random() < 0.1:
            producer.abort_transaction(WAIT_S)  # all of them come again unasked
            return "aborted"
        _commit(producer)
    except KafkaException as failed:
        error = failed.args[0]
        if not error.txn_requires_abort():
            raise
        producer.abort_transaction(WAIT_S)
        consumer.redeliver_unacknowledged_messages()
        return str(error.name())
    return "committed"


def _some(consumer: Any) -> Iterator[pulsar.Message]:
    for _ in range(AT_ONCE):
        try:
            yield consumer.receive(100)
        except pulsar.Timeout:
            return


def _acknowledge(bootstrap: str, producer: Producer, found: Sequence[pulsar.Message]) -> None:
    taken: dict[int, list[int]] = defaultdict(list)
    for each in found:
        place = each.message_id()
        taken[max(place.partition(), 0)].append(place.entry_id() + max(place.batch_index(), 0))
    for partition, offsets in taken.items():
        group = f"pulsar-subscription:{SOURCE}:{partition}:{SUBSCRIPTION}"
        named = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        with contextlib.closing(named):
            where = TopicPartition(SOURCE, partition, max(offsets) + 1, ranges(offsets))
            producer.send_offsets_to_transaction([where], named.consumer_group_metadata(), WAIT_S)


def _commit(producer: Producer) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return producer.commit_transaction(5)
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


@pytest.mark.parametrize("faults", CAMPAIGNS)
def test_each_message_is_copied_once(
    faults: Sequence[str],
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    copy_through(PausingCluster(2, server, start_gateway, ports, seed), faults, seconds)


def test_each_is_copied_once_by_a_broker_that_is_alone(
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    """It loads what it had in memory, and its consumers come back with what they had been given."""
    copy_through(PausingCluster(1, server, start_gateway, ports, seed), ("pause", "kill"), seconds)


def copy_through(cluster: PausingCluster, faults: Sequence[str], seconds: float) -> None:
    """Has all be copied while faults happen, one after the other, and fails on any anomaly."""
    create_topic(cluster.bootstrap, SOURCE, PARTITIONS)
    create_topic(cluster.bootstrap, SINK, 1)
    load = BridgeLoad(cluster, cluster.chance.randrange(2**31))
    with cluster.reachable(), load.running():
        load.wait_for_progress()
        end = time.monotonic() + seconds
        for fault in itertools.cycle(faults):
            cluster.happen(fault, load)  # type: ignore[arg-type]
            load.wait_for_progress(1)
            if fault == faults[-1] and time.monotonic() > end:
                break
        load.is_paused = True
        left = "SELECT sum(backlog) FROM v_subscription_backlog WHERE topic = 'source'"
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while query(cluster.server.url, left) != [(0,)] and time.monotonic() < deadline:
            time.sleep(0.2)
        backlog = query(cluster.server.url, left)
    copied = read_by_offset(cluster.bootstrap, SINK, 1, "read_committed")[0]
    times = Counter(int(value) for value in copied.values())
    twice = sorted(each for each, count in times.items() if count > 1)
    lost = sorted(set(range(load.sent)) - times.keys())
    print(f"{load.sent} sent, {len(times)} copied; {dict(load.told())}")  # noqa: T201
    assert not twice, f"{len(twice)} of {load.sent} copied more than once: {twice[:20]}"
    assert (backlog, lost) == ([(0,)], []), f"{len(lost)} of {load.sent} lost: {lost[:20]}"
