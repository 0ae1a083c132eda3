"""Consume, transform, produce, while brokers and the database die: every record is copied once."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from compat.java import tools
from storage.server.embedded import EmbeddedPostgres
from tests.compat import confluent
from tests.compat.clients import Confluent, Java, KafkaPython
from tests.compat.copier import transformed
from tests.compat.copying import Copier, copies
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, query
from tests.variants import variants

pytestmark = pytest.mark.fault

SETTINGS = (
    *("--override", "penstock.broker.session.timeout.ms=2000"),
    *("--override", "group.min.session.timeout.ms=1000"),
    *("--override", "group.initial.rebalance.delay.ms=100"),
)
GROUP = "copiers"
COPIERS = 2
BURST = 10
PAUSE_S = 0.05
COPIED_WITHIN_S = 90.0
TRANSACTIONS_END_WITHIN_S = 30.0


@pytest.mark.parametrize(
    "name",
    variants(Confluent.name, KafkaPython.name, pytest.param(Java.name, marks=pytest.mark.java)),
)
def test_copied_exactly_once_whatever_dies(
    migrated_dir: Path,
    start_gateway: StartGateway,
    tmp_path: Path,
    seed: int,
    seconds: float,
    name: str,
) -> None:
    """One of two brokers, killed or stopped for a while; the database; one of two copiers of a
    group. A copier ends with the first error it meets and is started again, as applications are."""
    if name == Java.name and (reason := tools.unavailable()):
        pytest.skip(reason)
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir) as server:
        brokers = [start_gateway(*SETTINGS, database_url=server.url) for _ in "ab"]
        bootstrap = ",".join(each.bootstrap for each in brokers)
        for topic in ("source", "target"):
            create_topic(bootstrap, topic)
        what = [name, bootstrap, "source", "target", GROUP]
        copiers = [
            Copier(
                [sys.executable, "-m", "tests.compat.copier", *what, f"copier-{number}"],
                tmp_path / f"copier-{number}.log",
            )
            for number in range(COPIERS)
        ]

        def kill_broker() -> None:
            victim = chance.randrange(len(brokers))
            port = brokers[victim].port
            brokers[victim].kill()
            write_for(chance.uniform(0, 2))
            brokers[victim] = start_gateway(*SETTINGS, database_url=server.url, port=port)

        def stop_broker() -> None:
            victim = chance.choice(brokers)
            victim.pause()
            write_for(chance.uniform(0.5, 4))
            victim.resume()

        def kill_database() -> None:
            server.kill()
            write_for(chance.uniform(0, 1))
            server.start()

        def kill_copier() -> None:
            chance.choice(copiers).kill()

        sent: list[list[str]] = [[] for _ in range(PARTITIONS)]
        numbers = itertools.count()
        producer = confluent.producer(bootstrap, enable_idempotence=True)

        lost: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                lost.append(str(error))

        def write_for(duration_s: float) -> None:
            end = time.monotonic() + duration_s
            while time.monotonic() < end:
                for number in itertools.islice(numbers, BURST):
                    value = b"%d" % number
                    producer.produce(
                        "source", value, partition=number % PARTITIONS, on_delivery=delivered
                    )
                    sent[number % PARTITIONS].append(transformed(value))
                producer.poll(0)
                for copier in copiers:
                    copier.start_if_it_has_ended()
                time.sleep(PAUSE_S)

        faults: list[Callable[[], None]] = [kill_broker, stop_broker, kill_database, kill_copier]
        chance.shuffle(faults)
        try:
            write_for(2)
            begun = time.monotonic()
            for round_number, fault in enumerate(itertools.cycle(faults)):
                if round_number >= len(faults) and time.monotonic() - begun > seconds:
                    break
                fault()
                write_for(chance.uniform(0.5, 4))
            deadline = time.monotonic() + COPIED_WITHIN_S
            assert producer.flush(COPIED_WITHIN_S) == 0
            assert not lost
            count = sum(map(len, sent))
            wait_until_copied(bootstrap, copiers, count, deadline)
        finally:
            for copier in copiers:
                copier.kill()
        # What they left open, and were about to write once more, comes to its end.
        deadline = time.monotonic() + TRANSACTIONS_END_WITHIN_S
        while query(server.url, "SELECT 1 FROM transaction_state WHERE started_at >= 0"):
            assert time.monotonic() < deadline, "a transaction does not end"
            time.sleep(0.1)
        assert copies(bootstrap, "target", PARTITIONS, count) == sent


def wait_until_copied(
    bootstrap: str, copiers: Sequence[Copier], count: int, deadline: float
) -> None:
    """Until there is so much of the copy, or more."""
    while True:
        for copier in copiers:
            copier.start_if_it_has_ended()
        try:
            copies(bootstrap, "target", PARTITIONS, count, within_s=5.0)
        except AssertionError as missing:
            if time.monotonic() > deadline:
                said = "\n".join(copier.said() for copier in copiers)
                raise AssertionError(f"{missing}\n{said}") from None
        else:
            return
