"""A stream into the sink while drivers, Python workers, gateways and the database are killed.

Every row must be there once, and whoever looked at all partitions at one moment must have seen
whole micro-batches only. `PENSTOCK_SPARK_FAULT_SECONDS` is how long it goes on,
`PENSTOCK_FAULT_SEED` repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway, free_port, open_directory
from tests.spark.topics import Record, read_topic

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

ROWS = 6_000
PARTITIONS = 4
TOPIC = "numbers"
PROGRESS_WITHIN_S = 240.0

Offsets = tuple[int, ...]


def duration_s() -> float:
    return float(os.environ.get("PENSTOCK_SPARK_FAULT_SECONDS", "15"))


@pytest.fixture
def directory() -> Iterator[Path]:
    with open_directory() as path:
        yield path


class Driver:
    """The driver's process, and its JVM and Python workers."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.directory = directory
        self._command = [sys.executable, "-m", "tests.spark.driver"]
        self._command += [bootstrap, TOPIC, str(directory), str(ROWS)]
        self._log = directory / "driver.log"
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_and_start(self) -> None:
        """The JVM and all; workers see that it has gone, and go some time after it."""
        self._kill()
        self._start()

    def kill_a_worker(self, chance: random.Random) -> None:
        """One of the Python processes that Spark has forked for tasks and commits."""
        deadline = time.monotonic() + PROGRESS_WITHIN_S
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                workers = [
                    process
                    for process in psutil.Process(self._process.pid).children(recursive=True)
                    if "python" in process.name() and "pyspark" in " ".join(process.cmdline())
                ]
                if workers:
                    chance.choice(workers).kill()
                    return
            assert time.monotonic() < deadline, f"Spark has no Python:\n{self.log()[-8000:]}"
            time.sleep(0.05)

    def stop(self) -> None:
        (self.directory / "stop").touch()
        assert self._process.wait(PROGRESS_WITHIN_S) == 0, self.log()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Leaves nothing running, daemons of a process group of their own neither."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._kill()

    def log(self) -> str:
        return self._log.read_text(errors="replace")


class Watcher(threading.Thread):
    """Looks at the ends of all partitions at one moment, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.seen: set[Offsets] = set()
        self.latest: Offsets = ()
        self.looks = 0
        self._url = url
        self._stopping = threading.Event()

    def run(self) -> None:
        statement = (
            "SELECT next_offset FROM topic_partition JOIN topic USING (topic_id)"
            " WHERE name = %s ORDER BY partition"
        )
        while not self._stopping.is_set():
            # The database is away at times.
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._url, autocommit=True) as connection,
            ):
                while not self._stopping.is_set():
                    rows = connection.execute(statement, (TOPIC,)).fetchall()
                    self.latest = tuple(row[0] for row in rows)
                    self.seen.add(self.latest)
                    self.looks += 1
                    time.sleep(0.01)
            time.sleep(0.05)

    def stop(self) -> None:
        self._stopping.set()
        self.join(10)

    def wait_for_progress(self, driver: Driver) -> None:
        before = sum(self.latest)
        deadline = time.monotonic() + PROGRESS_WITHIN_S
        while sum(self.latest) <= before:
            assert time.monotonic() < deadline, f"nothing goes on:\n{driver.log()[-8000:]}"
            time.sleep(0.02)


def test_every_row_once_and_no_torn_batch(
    server: EmbeddedPostgres, start_gateway: StartGateway, directory: Path, seed: int
) -> None:
    chance = random.Random(seed)
    ports = [free_port(), free_port()]
    gateways = [start_gateway(database_url=server.url, port=port) for port in ports]
    bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    admin.create_topics([new])[TOPIC].result(20)
    del admin
    driver, watcher = Driver(bootstrap, directory), Watcher(server.url)
    watcher.start()
    done: Counter[str] = Counter()
    try:
        watcher.wait_for_progress(driver)
        started = time.monotonic()
        faults = make_faults(driver, server, gateways, ports, start_gateway, chance)
        while time.monotonic() - started < duration_s() or len(done) < len(faults):
            # All kinds in turn, in an order of each round's own.
            left = [name for name in faults if done[name] == min(done[each] for each in faults)]
            name = chance.choice(left)
            time.sleep(chance.uniform(0, 1.0))
            faults[name]()
            done[name] += 1
            watcher.wait_for_progress(driver)
            print(f"{time.monotonic() - started:.1f} s: {name}")  # noqa: T201 - shown if it fails
        watcher.wait_for_progress(driver)
        driver.stop()
    finally:
        driver.close()
        watcher.stop()
    records = read_topic(bootstrap, TOPIC)
    print(dict(done), len(records) // ROWS, "batches", watcher.looks, "looks")  # noqa: T201 - shown
    assert_once(records)
    assert_whole(records, watcher.seen)


def make_faults(
    driver: Driver,
    server: EmbeddedPostgres,
    gateways: list[Gateway],
    ports: list[int],
    start_gateway: StartGateway,
    chance: random.Random,
) -> dict[str, Callable[[], None]]:
    """What may happen, by name."""

    def restart_gateways(*numbers: int) -> None:
        for number in numbers:
            gateways[number].kill()
        time.sleep(chance.uniform(0, 1.5))
        for number in numbers:
            gateways[number] = start_gateway(database_url=server.url, port=ports[number])

    def pause_gateway() -> None:
        gateway = chance.choice(gateways)
        gateway.pause()
        time.sleep(chance.uniform(0.5, 3.0))
        gateway.resume()

    def restart_database() -> None:
        server.kill()
        time.sleep(chance.uniform(0, 1.0))
        server.start()

    def kill_workers() -> None:
        for _ in range(3):
            driver.kill_a_worker(chance)
            time.sleep(chance.uniform(0, 0.7))

    return {
        "driver": driver.kill_and_start,
        "workers": kill_workers,
        "gateway": lambda: restart_gateways(chance.randrange(2)),
        "all gateways": lambda: restart_gateways(0, 1),
        "gateway stands still": pause_gateway,
        "database": restart_database,
    }


def number_of(record: Record) -> int:
    return int(record.value or b"-1")


def assert_once(records: list[Record]) -> None:
    """Every number from 0 to the end of a batch, once."""
    counts = Counter(map(number_of, records))
    twice = sorted(number for number, count in counts.items() if count > 1)
    assert not twice, f"{len(twice)} rows twice: {twice[:5]}… of batch {twice[0] // ROWS}"
    missing = sorted(set(range(max(counts) + 1)) - counts.keys())
    assert not missing, f"{len(missing)} rows lost: {missing[:5]}… of batch {missing[0] // ROWS}"
    assert len(counts) % ROWS == 0


def assert_whole(records: list[Record], seen: set[Offsets]) -> None:
    """Whatever was seen at one moment is a number of whole batches."""
    batches: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for record in records:
        batches[record.partition].append(number_of(record) // ROWS)
    for offsets in seen:
        visible: Counter[int] = Counter()
        for partition, end in enumerate(offsets):
            visible.update(batches[partition][:end])
        torn = {batch: count for batch, count in visible.items() if count != ROWS}
        assert not torn, f"at {offsets}: {torn}"
        assert len(visible) == max(visible, default=-1) + 1


def test_the_check_finds_what_it_looks_for() -> None:
    whole = [
        Record(number % PARTITIONS, number // PARTITIONS, None, str(number).encode(), 0)
        for number in range(2 * ROWS)
    ]
    ends = tuple([2 * ROWS // PARTITIONS] * PARTITIONS)
    half = tuple([ROWS // PARTITIONS] * PARTITIONS)
    assert_once(whole)
    assert_whole(whole, {(0,) * PARTITIONS, half, ends})

    with pytest.raises(AssertionError, match="rows twice"):
        assert_once([*whole, whole[7]])
    with pytest.raises(AssertionError, match="rows lost"):
        assert_once(whole[:7] + whole[8:])
    with pytest.raises(AssertionError, match="at "):
        assert_whole(whole, {(half[0] + 1, *half[1:])})
