"""A pipeline on a cluster: a master, two workers on two addresses, and attempts that lose.

Spark's own programs, as `pip install pyspark` brings them, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Gateway, StartGateway, free_port
from tests.spark.records import Written, read, write

pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 300.0
# A second attempt runs on another host only; on Linux all of 127.0.0.0/8 is this machine.
HOSTS = ("127.0.0.1", "127.0.0.2")
PARTITIONS = 4
RECORDS = 2_000

# The first attempt at one partition falls asleep, in the middle of what it stages.
LATE = """
import time

from pyspark import TaskContext


def late(frame):
    def rows(batches):
        task = TaskContext.get()
        for batch in batches:
            if task.partitionId() == 0 and task.attemptNumber() == 0:
                half = len(batch) // 2
                yield batch[:half]
                time.sleep(200)
                batch = batch[half:]
            batch["key"] = str(task.attemptNumber()).encode()
            yield batch

    return frame.select("key", "value").mapInPandas(rows, "key binary, value binary")
"""
SETTINGS = {
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.locality.wait": "0",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


def spark_class(*words: str | int) -> list[str]:
    import pyspark

    return [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *map(str, words)]


@contextlib.contextmanager
def started(log: Path, *words: str | int) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            spark_class(*words), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_for(said: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while said not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a cluster with an executor's room on each host."""
    with socket.socket() as probe:
        try:
            probe.bind((HOSTS[1], 0))
        except OSError:
            pytest.skip(f"{HOSTS[1]} is not an address of this machine")
    monkeypatch.setenv("SPARK_DAEMON_MEMORY", "256m")
    # All six JVMs: the driver has them already.
    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", os.environ["SPARK_SUBMIT_OPTS"])
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    deploy, port = "org.apache.spark.deploy", free_port()
    url = f"spark://{HOSTS[0]}:{port}"
    options = ["--port", port, "--webui-port", 0]
    with contextlib.ExitStack() as stack:
        log = tmp_path / "master.log"
        stack.enter_context(started(log, f"{deploy}.master.Master", "--host", HOSTS[0], *options))
        wait_for("I have been elected leader", log)
        for host in HOSTS:
            room = ["--cores", 2, "--memory", "600m", "--webui-port", 0]
            log = tmp_path / f"{host}.log"
            stack.enter_context(started(log, f"{deploy}.worker.Worker", "--host", host, *room, url))
            wait_for("Successfully registered with master", log)
        yield url


@pytest.fixture
def broker(start_gateway: StartGateway, database_url: str) -> Gateway:
    gateway = start_gateway(database_url=database_url)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    new = [NewTopic(name, num_partitions=PARTITIONS) for name in ("in", "out")]
    for made in admin.create_topics(new).values():
        made.result(20)
    return gateway


def test_an_attempt_that_is_late_writes_nothing(
    master: str, broker: Gateway, tmp_path: Path
) -> None:
    records = [Written(b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]
    write(broker.bootstrap, "in", records)
    (tmp_path / "lateness.py").write_text(LATE)
    python, was_run = tmp_path / "python", tmp_path / "python-was-run"
    python.write_text(f'#!/bin/sh\n: > {was_run}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    settings = {
        **SETTINGS,
        "spark.pyspark.python": str(python),
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    }
    words = ["pipeline", "transform", "--master", master, "--bootstrap-server", broker.bootstrap]
    words += ["--from", "in", "--to", "out", "--python", "lateness:late", "--available-now"]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    words += [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert was_run.exists(), "the workers ran another Python than they were told to"
    found = read(broker.bootstrap, "out")
    assert sorted(int(record.value) for record in found) == list(range(RECORDS))
    assert {record.key for record in found} >= {b"0", b"1"}, "no attempt was overtaken"
    winners: dict[int, set[bytes | None]] = {}
    for record in found:
        winners.setdefault(int(record.value) % PARTITIONS, set()).add(record.key)
    assert all(len(attempts) == 1 for attempts in winners.values()), winners
