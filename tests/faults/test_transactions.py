"""Transactions while brokers, database and producers die; every value is accounted for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from core.errors import Error
from gateway.kafka import codec
from gateway.kafka.errors import kafka_code
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway, free_port, wait_until_ready
from tests.faults.conftest import PARTITIONS, create_topic, embedded_url, kill_postmaster, query
from tests.faults.coordination import Wire
from tests.faults.reading import read_by_offset
from tests.faults.txn_history import TxnAnomaly, TxnFlaw, check_transactions
from tests.faults.txn_load import TIMEOUT_MS, JavaTxnLoad, LibrdkafkaTxnLoad, TxnLoad
from tests.variants import variants

pytestmark = pytest.mark.fault

LIBRDKAFKA = pytest.param(LibrdkafkaTxnLoad, id="librdkafka")
JAVA = pytest.param(JavaTxnLoad, id="java", marks=pytest.mark.java)
MakeLoad = type[TxnLoad]

BROKERS_FORGOTTEN_FAST = ("--override", "penstock.broker.session.timeout.ms=2000")


def until(seconds: float) -> Callable[[], bool]:
    """Says whether time is left."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def verify_transactions(load: TxnLoad, gateway: Gateway, url: str) -> None:
    """Waits until nothing is open, reads everything both ways, and fails on any anomaly."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000 + 30
    hanging = "SELECT transactional_id, state FROM transaction_state WHERE started_at >= 0"
    held = "SELECT partition_id, producer_id FROM producer_state WHERE txn_first_offset >= 0"
    while (left := query(url, hanging) + query(url, held)) and time.monotonic() < deadline:
        time.sleep(0.2)
    anomalies = [TxnAnomaly(TxnFlaw.HANGING, str(each)) for each in left]
    committed = read(gateway.bootstrap, load.topic, "read_committed")
    everything = read(gateway.bootstrap, load.topic, "read_uncommitted")
    offsets = {name: committed_offset(gateway.bootstrap, load, name) for name in load.names}
    anomalies += check_transactions(load.history, committed, everything, offsets)
    listed = "\n".join(f"{each.flaw.value}: {each.where}" for each in anomalies[:20])
    if anomalies:
        print(gateway.log()[-20_000:])  # noqa: T201 - for the report
    assert not anomalies, f"{len(anomalies)} anomalies\n{listed}\nsaid: {load.said}"


def read(bootstrap: str, topic: str, isolation: str) -> dict[int, list[bytes]]:
    """What such a reader has by now, in order."""
    found = read_by_offset(bootstrap, topic, PARTITIONS, isolation)
    return {partition: list(values.values()) for partition, values in found.items()}


def committed_offset(bootstrap: str, load: TxnLoad, name: str) -> int:
    """Where the producer's group is; 0 where it has committed nothing."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": load.group_of(name)})
    (found,) = consumer.committed([TopicPartition(load.topic, 0)], timeout=20)
    consumer.close()
    return max(found.offset, 0)


@pytest.mark.parametrize("make_load", variants(JAVA, LIBRDKAFKA))
def test_transactions_survive_a_killed_gateway(
    migrated_dir: Path,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
    make_load: MakeLoad,
) -> None:
    chance = random.Random(seed)
    port = free_port()
    with EmbeddedPostgres(migrated_dir) as server:
        gateway = start_gateway(database_url=server.url, port=port)
        create_topic(gateway.bootstrap, "load")
        load = make_load(gateway.bootstrap, "load", PARTITIONS, seed)
        with load.running():
            load.wait_for_progress()
            time_left = until(seconds)
            kills = 0
            while time_left() or kills < 3:
                time.sleep(chance.uniform(0.1, 1.0))
                gateway.kill()
                kills += 1
                gateway = start_gateway(database_url=server.url, port=port)
                wait_until_ready(gateway)
                if chance.random() < 0.5:
                    load.wait_for_progress(1)
            load.wait_for_progress()
        verify_transactions(load, gateway, server.url)


@pytest.mark.parametrize("make_load", variants(LIBRDKAFKA, JAVA))
def test_transactions_survive_a_killed_database(
    migrated_dir: Path,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
    make_load: MakeLoad,
) -> None:
    """Also right behind joins that were answered and had not reached the disk."""
    chance = random.Random(seed)
    gateway = start_gateway(data=migrated_dir)
    url = embedded_url(migrated_dir)
    create_topic(gateway.bootstrap, "load")
    load = make_load(gateway.bootstrap, "load", PARTITIONS, seed)
    with load.running():
        load.wait_for_progress()
        time_left = until(seconds)
        kills = 0
        while time_left() or kills < 3:
            time.sleep(chance.uniform(0.1, 1.0))
            kill_postmaster(migrated_dir)
            kills += 1
            load.wait_for_progress(1)
        load.wait_for_progress()
    verify_transactions(load, gateway, url)


@pytest.mark.parametrize("make_load", variants(LIBRDKAFKA, JAVA))
def test_brokers_come_and_go_and_stand_still(
    migrated_dir: Path,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
    make_load: MakeLoad,
) -> None:
    """Coordinator, leaders and the group's coordinator are any of three; one at a time is killed,
    or stopped inside whatever it was doing and resumed when others have gone on."""
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir) as server:
        where = {"database_url": server.url}
        ports = [free_port() for _ in range(3)]
        brokers = [start_gateway(*BROKERS_FORGOTTEN_FAST, **where, port=port) for port in ports]
        bootstrap = ",".join(each.bootstrap for each in brokers)
        create_topic(bootstrap, "load")
        load = make_load(bootstrap, "load", PARTITIONS, seed)
        with load.running():
            load.wait_for_progress()
            time_left = until(seconds)
            rounds = 0
            while time_left() or rounds < 2:
                rounds += 1
                victim = chance.randrange(len(brokers))
                time.sleep(chance.uniform(0.1, 0.6))
                if chance.random() < 0.5:
                    brokers[victim].kill()
                    load.wait_for_progress(1)
                    brokers[victim] = start_gateway(
                        *BROKERS_FORGOTTEN_FAST, **where, port=ports[victim]
                    )
                else:
                    brokers[victim].pause()
                    load.wait_for_progress(1)
                    brokers[victim].resume()
            load.wait_for_progress()
        verify_transactions(load, brokers[0], server.url)


@pytest.mark.java
def test_producers_killed(
    migrated_dir: Path, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    """With what they have open, at any step; others take their names, and end it."""
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir) as server:
        gateway = start_gateway(database_url=server.url)
        create_topic(gateway.bootstrap, "load")
        load = JavaTxnLoad(gateway.bootstrap, "load", PARTITIONS, seed)
        with load.running():
            time_left = until(seconds)
            kills = 0
            while time_left() or kills < 2:
                load.wait_for_progress(1)
                time.sleep(chance.uniform(0.0, 0.5))
                load.kill()
                kills += 1
            load.wait_for_progress()
        verify_transactions(load, gateway, server.url)


def test_an_end_that_lay_in_a_stopped_broker_ends_no_later_transaction(
    migrated_dir: Path, start_gateway: StartGateway
) -> None:
    """V1 keeps the epoch, so it looks like the end of the transaction that has begun since."""
    with EmbeddedPostgres(migrated_dir) as server:
        first = start_gateway(*BROKERS_FORGOTTEN_FAST, database_url=server.url)
        # That one is not to be forgotten where it stands still for a moment.
        second = start_gateway(database_url=server.url)
        create_topic(first.bootstrap, "load")
        here, there = Wire(first), Wire(second)
        made = here.ask(
            codec.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000),
            1,
            codec.InitProducerIdResponse,
        )
        who = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}

        def join(wire: Wire) -> None:
            kind = codec.AddPartitionsToTxnRequest
            request = kind(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=made.producer_epoch,
                v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="load", partitions=[0])],
            )
            answer = wire.ask(request, 2, codec.AddPartitionsToTxnResponse)
            ((part,),) = [
                each.results_by_partition for each in answer.results_by_topic_v3_and_below
            ]
            assert part.partition_error_code == 0

        def end(*, commit: bool) -> codec.EndTxnRequest:
            return codec.EndTxnRequest(transactional_id="t", committed=commit, **who)

        join(here)
        first.pause()
        here.send(end(commit=True), 2, codec.EndTxnResponse)
        asked = [there.ask(end(commit=True), 2, codec.EndTxnResponse).error_code for _ in range(2)]
        assert asked == [kafka_code(Error.COORDINATOR_LOAD_IN_PROGRESS), 0]  # it began elsewhere
        join(there)
        time.sleep(2.5)  # its session is over: now its clients are told to go to others
        first.resume()
        late = here.receive()
        assert late.error_code == kafka_code(Error.COORDINATOR_NOT_AVAILABLE)
        assert there.ask(end(commit=False), 2, codec.EndTxnResponse).error_code == 0
        here.close()
        there.close()
