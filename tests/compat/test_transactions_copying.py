"""Consume, transform, produce: exactly once, through killed processes and rebalances.

Expectations: Apache Kafka 4.1's own.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from compat.java import tools
from tests.compat import confluent
from tests.compat.clients import AIOKafka, Confluent, KafkaPython
from tests.compat.conftest import MakeTopic
from tests.compat.copier import transformed
from tests.compat.copying import Copier, copies
from tests.compat.groups import WAIT

PARTITIONS = 3
RECORDS = 600
SECONDS = 6.0  # over which the records come
KILL_EVERY_S = 1.5


@pytest.fixture
def make_copier(tmp_path: Path) -> Iterator[Callable[[Sequence[str]], Copier]]:
    made: list[Copier] = []

    def make(command: Sequence[str]) -> Copier:
        made.append(Copier(command, tmp_path / f"copier-{len(made)}.log"))
        return made[-1]

    yield make
    for copier in made:
        copier.kill()


# aiokafka does not say which member offsets come from, and does not wait for stable ones: only one
# instance at a time is exactly once.
@pytest.mark.parametrize(
    ("name", "instances"),
    [(Confluent.name, 2), (KafkaPython.name, 2), (AIOKafka.name, 1)],
    ids=["confluent", "kafka-python", "aiokafka"],
)
def test_copied_exactly_once_by_processes_that_are_killed(
    bootstrap: str,
    make_topic: MakeTopic,
    make_copier: Callable[[Sequence[str]], Copier],
    group_id: str,
    name: str,
    instances: int,
) -> None:
    source, target = make_topic(PARTITIONS), make_topic(PARTITIONS)
    what = [name, bootstrap, source, target, group_id]
    copiers = [
        make_copier([sys.executable, "-m", "tests.compat.copier", *what, f"{group_id}-{number}"])
        for number in range(instances)
    ]
    for copier in copiers:
        copier.start()
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    producer = confluent.producer(bootstrap, enable_idempotence=True)
    begun = time.monotonic()
    next_kill = begun + 2 * KILL_EVERY_S
    for number in range(RECORDS):
        value = b"%d" % number
        producer.produce(source, value, partition=number % PARTITIONS)
        sent[number % PARTITIONS].append(value)
        producer.poll(0)
        time.sleep(max(0.0, begun + number * SECONDS / RECORDS - time.monotonic()))
        if time.monotonic() > next_kill:
            next_kill += KILL_EVERY_S
            victim = random.choice(copiers)
            victim.kill()
            victim.start()
    assert producer.flush(WAIT) == 0
    try:
        found = copies(bootstrap, target, PARTITIONS, RECORDS, copiers=copiers)
    except AssertionError as missing:
        raise AssertionError(f"{missing}\n" + "\n".join(c.said() for c in copiers)) from None
    assert found == [[transformed(value) for value in values] for values in sent]
    assert sum(copier.starts for copier in copiers) > instances


@pytest.mark.java
def test_kafkas_own_copier(
    bootstrap: str,
    make_topic: MakeTopic,
    make_copier: Callable[[Sequence[str]], Copier],
    group_id: str,
) -> None:
    """TransactionalMessageCopier, as Kafka's system tests use it: two in a group, random aborts."""
    if reason := tools.unavailable():
        pytest.skip(reason)
    source, target = make_topic(PARTITIONS), make_topic(PARTITIONS)
    values = [b"%d" % number for number in range(3000)]
    confluent.send_all(
        confluent.producer(bootstrap, linger_ms=5),
        (
            {"topic": source, "value": value, "partition": number % PARTITIONS}
            for number, value in enumerate(values)
        ),
    )
    copiers = [
        make_copier(
            tools.java_command(
                "org.apache.kafka.tools.TransactionalMessageCopier",
                *("--broker-list", bootstrap, "--consumer-group", group_id),
                *("--input-topic", source, "--input-partition", -1, "--output-topic", target),
                *("--transactional-id", f"{group_id}-{number}", "--transaction-size", 50),
                *("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
                log_level="error",
                jvm=("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            )
        )
        for number in range(2)
    ]
    for copier in copiers:
        copier.start()
    deadline = time.monotonic() + WAIT
    while '"consumed":50' not in copiers[0].said() and time.monotonic() < deadline:
        time.sleep(0.05)
    copiers[0].kill()
    copiers[0].start()
    found = copies(bootstrap, target, PARTITIONS, len(values), within_s=90.0)
    assert found == [
        [value.decode() for value in values[number::PARTITIONS]] for number in range(PARTITIONS)
    ]
