"""Workers of one supervisor that die, and that are replaced, under clients of both protocols.

Where workers die, every message and acknowledgement is accounted for. Where they are replaced
(SIGHUP), no client sees more than an error that its library retries by itself.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pulsar
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic
from tests.faults.pulsar_txn_load import PulsarTxnLoad
from tests.faults.reading import read_by_offset
from tests.faults.supervised import SupervisedCluster
from tests.faults.test_transactions_of_both import verify
from tests.faults.txn_load import LibrdkafkaTxnLoad
from tests.faults.workers import Workers
from tests.variants import variants

pytestmark = pytest.mark.fault

TOPIC = "load"
EACH = ("kill", "replace", "database", "stop")


@pytest.mark.parametrize(
    "faults",
    variants(
        pytest.param(EACH[:2], id="some"),
        pytest.param(EACH, id="each"),
        *(pytest.param((each,), id=each) for each in EACH),
    ),
)
def test_both_protocols_see_one_truth_while_workers_die(
    faults: Sequence[str],
    migrated_dir: Path,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
) -> None:
    cluster = SupervisedCluster(2, migrated_dir, start_gateway, seed)
    create_topic(cluster.bootstrap, TOPIC)
    kafka = LibrdkafkaTxnLoad(cluster.bootstrap, TOPIC, PARTITIONS, seed, producers=1)
    pulsars = PulsarTxnLoad(cluster.pulsar_ports, TOPIC, PARTITIONS, seed)
    with kafka.running(), pulsars.running():
        pulsars.wait_for_progress()
        end = time.monotonic() + seconds
        for fault in itertools.cycle(faults):
            cluster.happen(fault)
            pulsars.wait_for_progress()
            kafka.wait_for_progress(1)
            if fault == faults[-1] and time.monotonic() > end:
                break
    verify(cluster, kafka, pulsars)  # type: ignore[arg-type]


class StockLoad(Workers):
    """Stock clients as applications have them: none of them expects an error.

    Transactions that read, write and commit offsets; a group of two that reads what is committed;
    a Pulsar producer, and a consumer that acknowledges. Each error that a client passes on fails.
    """

    progress_s = 60.0

    def __init__(self, cluster: SupervisedCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._done: Counter[str] = Counter()
        self.committed: list[bytes] = []
        self.read: Counter[bytes] = Counter()
        self.sent: list[bytes] = []
        self.received: set[bytes] = set()
        self._all_committed = threading.Event()
        self._all_sent = threading.Event()
        self._add("transactions", self._transact)
        for number in range(2):
            self._add(f"reader {number}", partial(self._read, f"reader {number}"))
        self._add("pulsar's producer", self._send)
        self._add("pulsar's consumer", self._receive)

    def done(self) -> Mapping[str, int]:
        # One of the two readers may have all partitions with something new in them.
        readers = self._done["reader 0"] + self._done["reader 1"]
        return (
            {**dict.fromkeys(("transactions", "pulsar's producer", "pulsar's consumer"), 0)}
            | {name: count for name, count in self._done.items() if not name.startswith("reader")}
            | {"readers": readers}
        )

    def told(self) -> object:
        return dict(self._done)

    def _transact(self) -> None:
        """Raises what librdkafka does not retry by itself."""
        servers = {"bootstrap.servers": self._cluster.bootstrap}
        source = Consumer({**servers, "group.id": "of transactions"})
        producer = Producer({**servers, "transactional.id": "stock", "linger.ms": 1})
        producer.init_transactions(30)
        number = 0
        while not self._stop.is_set():
            values = [f"{number}|{n}".encode() for n in range(8)]
            producer.begin_transaction()
            for n, value in enumerate(values):
                producer.produce(TOPIC, value, partition=n % PARTITIONS)
            offsets = [TopicPartition("source", 0, number + 1)]
            again_while_retriable(
                lambda offsets=offsets: producer.send_offsets_to_transaction(
                    offsets, source.consumer_group_metadata(), 30
                )
            )
            again_while_retriable(lambda: producer.commit_transaction(30))
            self.committed += values
            self._done["transactions"] += 1
            number += 1
        self._all_committed.set()
        source.close()

    def _read(self, name: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._all_committed.is_set() or not self._has_read_all():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                raise KafkaException(error)
            self.read[bytes(message.value() or b"")] += 1
            self._done[name] += 1
        consumer.close()

    def _has_read_all(self) -> bool:
        return all(self.read[value] for value in self.committed)

    def _send(self) -> None:
        client = self._cluster.client()
        producer = client.create_producer(f"{TOPIC}-of-pulsar", send_timeout_millis=30_000)
        number = 0
        while not self._stop.is_set():
            value = str(number).encode()
            producer.send(value)  # raises what the client does not retry by itself
            self.sent.append(value)
            self._done["pulsar's producer"] += 1
            number += 1
            time.sleep(0.002)
        self._all_sent.set()
        client.close()

    def _receive(self) -> None:
        client = self._cluster.client()
        consumer = client.subscribe(
            f"{TOPIC}-of-pulsar",
            "stock",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        while not self._all_sent.is_set() or self.received < set(self.sent):
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            self.received.add(message.data())
            consumer.acknowledge(message)
            self._done["pulsar's consumer"] += 1
        client.close()


def again_while_retriable(call: object) -> None:
    """As librdkafka asks of applications: a call that has not ended in time is made again."""
    while True:
        try:
            call()  # type: ignore[operator]
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not reason.retriable():
                raise
        else:
            return


def test_workers_are_replaced_and_no_client_sees_an_error(
    migrated_dir: Path, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    cluster = SupervisedCluster(2, migrated_dir, start_gateway, seed)
    create_topic(cluster.bootstrap, TOPIC)
    create_topic(cluster.bootstrap, "source", 1)
    before = cluster.pids()
    with StockLoad(cluster).running() as load:
        load.wait_for_progress(10)
        end = time.monotonic() + seconds
        while True:
            cluster.happen("replace")
            load.wait_for_progress(10)
            if time.monotonic() > end:
                break
    after = cluster.pids()
    assert not set(before.values()) & set(after.values()), "each is another process"
    replaced = len(cluster.replaced())
    assert replaced >= 2
    assert len(re.findall(r"worker=\d .* stopping", cluster.gateway.log())) == replaced, "in order"
    assert "worker_ended" not in cluster.gateway.log()
    assert "worker_killed" not in cluster.gateway.log()
    stored = read_by_offset(cluster.bootstrap, TOPIC, PARTITIONS, "read_committed")
    values = [value for partition in stored.values() for value in partition.values()]
    assert sorted(values) == sorted(load.committed), "once, and all of it"
    assert set(load.read) == set(load.committed)  # a group may read again what it has not committed
    assert load.received == set(load.sent)
