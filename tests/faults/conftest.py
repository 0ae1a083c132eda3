"""Fixtures of the fault tests: a seed that is printed, a duration, a database server of one's own.

`PENSTOCK_FAULT_SEED` repeats a run's choices; `PENSTOCK_FAULT_SECONDS` is how long each campaign
goes on (`make faults` runs long ones). Must not know what is broken.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from storage.server.embedded import PORT, EmbeddedPostgres
from tests.conftest import Gateway, free_port, open_directory
from tests.faults.history import Anomaly, History, check, compare, summary
from tests.faults.proxies import CommitProxy, running
from tests.faults.reading import Log, read_all_ways

PARTITIONS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long run may last longer than a test's usual limit, and Java's jars have to be fetched."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            fetching_s = 420 if item.get_closest_marker("java") else 0
            item.add_marker(pytest.mark.timeout(180 + fetching_s + 4 * duration_s()))


def duration_s() -> float:
    """Seconds a campaign goes on."""
    return float(os.environ.get("PENSTOCK_FAULT_SECONDS", "2"))


@pytest.fixture(autouse=True)
def quiet_aiokafka(caplog: pytest.LogCaptureFixture) -> None:
    """aiokafka tells of every retry; here they are the point."""
    caplog.set_level(logging.CRITICAL + 1, "aiokafka")


@pytest.fixture
def seconds() -> float:
    """Seconds the campaign goes on."""
    return duration_s()


def kill_postmaster(data_dir: Path) -> None:
    """SIGKILL to the embedded server; waits for one, where the one before was only just killed."""
    deadline = time.monotonic() + 60
    while True:
        try:
            lines = (data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()
            os.kill(int(lines[0]), signal.SIGKILL)
        except (OSError, IndexError):
            assert time.monotonic() < deadline, "PostgreSQL was not started again"
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def commit_proxy(server: EmbeddedPostgres, seed: int) -> Iterator[CommitProxy]:
    """A proxy before the server's socket; it cuts nothing until its `share` is set."""
    with open_directory() as directory:
        socket = server.data_dir / "run" / f".s.PGSQL.{PORT}"
        proxy = CommitProxy(directory, socket, seed)
        with running(proxy):
            yield proxy


def url_through(proxy: CommitProxy) -> str:
    """The server's URL, through the proxy."""
    return f"postgresql://postgres@/penstock?host={quote(str(proxy.directory))}"


@pytest.fixture
def ports() -> Callable[[int], list[int]]:
    """Free ports, all different: `ports(3)`."""

    def choose(count: int) -> list[int]:
        chosen: set[int] = set()
        while len(chosen) < count:
            chosen.add(free_port())
        return sorted(chosen)

    return choose


def create_topic(
    bootstrap: str, name: str, partitions: int = PARTITIONS, config: dict[str, str] | None = None
) -> None:
    """Creates a topic, again if the broker was not there."""
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    deadline = time.monotonic() + 30
    while True:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            admin.create_topics([new], request_timeout=5)[name].result(10)
        except KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def embedded_url(data: Path) -> str:
    """URL of the server that a gateway runs under its data directory."""
    return EmbeddedPostgres(data).url


def verify(history: History, gateway: Gateway, database_url: str, topic: str) -> dict[str, Log]:
    """Reads the topic all ways and fails on any anomaly."""
    assert gateway.process.poll() is None, f"the gateway ended:\n{gateway.log()[-4000:]}"
    readers = read_all_ways(gateway.bootstrap, database_url, topic, PARTITIONS)
    anomalies = compare(readers)
    for log in readers.values():
        anomalies += [each for each in check(history, log) if each not in anomalies]
    if anomalies:
        print(*batches_around(anomalies, database_url, topic), sep="\n")  # noqa: T201 - for the report
        print(gateway.log()[-20_000:])  # noqa: T201 - for the report
    assert not anomalies, f"{summary(anomalies)}\nsaid: {history.errors()}"
    return readers


def batches_around(
    anomalies: list[Anomaly], database_url: str, topic: str
) -> list[tuple[object, ...]]:
    """Index rows near the first offsets that an anomaly names: who wrote what, in which payload."""
    numbers = re.search(r"partition[ =](\d+).*?\[(\d+)", anomalies[0].where)
    if numbers is None:
        return []
    rows = (
        "SELECT * FROM v_record_batch WHERE topic = '{}' AND partition = {} AND last_offset >= {}"
    )
    near = rows.format(topic, numbers[1], int(numbers[2]) - 60)
    return query(database_url, f"{near} ORDER BY last_offset LIMIT 60")


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    """Rows of one statement, on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
