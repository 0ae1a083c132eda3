"""What is measured: our broker, Kafka peers, brokers somebody else started; one `Broker` each.

Starts, finds and stops processes; must not know any case.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.processes import ProcessGroup, free_ports_in_a_row, stop_process

_topic_numbers = itertools.count(1)

ROOT = Path(__file__).parents[1]

MADE_AT_ONCE = 5_000
"""Partitions; Kafka's controller writes 10,000 records for a request, and not one more."""

# Metadata v1, correlation id 7, no client id, no topics: answered once the broker knows itself.
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)


def new_topic_name() -> str:
    """One that no other turn has."""
    return f"bench-{os.getpid()}-{next(_topic_numbers)}"


def _partitions(admin: AdminClient, topic: str) -> Mapping[int, object]:
    return admin.list_topics(topic, timeout=30).topics[topic].partitions


Starter = Callable[[Path], AbstractContextManager[tuple["Broker", float]]]


@dataclass(frozen=True, slots=True)
class Broker:
    """One thing to measure.

    `processes`: the groups whose CPU and memory are told apart ("gateway", "postgres", "server").
    `topic_config`: what every topic of this broker is created with. `database_url`: where its
    records lie, if that is a PostgreSQL. `serves`: patterns of the cases it can take part in (a
    shell's). `another` starts one more of its kind, with its data
    under a path of its own, and yields it with its start-up time in seconds; None if somebody
    else started this one. `pulsar_url`: where Pulsar's clients find it, if they do.
    """

    name: str
    bootstrap: str
    processes: Mapping[str, ProcessGroup] = field(default_factory=dict)
    topic_config: Mapping[str, str] = field(default_factory=dict)
    database_url: str | None = None
    serves: tuple[str, ...] = ("*",)
    another: Starter | None = None
    pulsar_url: str | None = None
    http_url: str | None = None

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """A new topic of its own, deleted afterwards."""
        name = new_topic_name()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        first = min(partitions, MADE_AT_ONCE)
        new = NewTopic(name, first, replication_factor=1, config=dict(self.topic_config))
        admin.create_topics([new])[name].result(timeout=120)
        try:
            for count in range(first + MADE_AT_ONCE, partitions + MADE_AT_ONCE, MADE_AT_ONCE):
                more = NewPartitions(name, min(count, partitions))
                admin.create_partitions([more])[name].result(timeout=120)
            while partitions > first and len(_partitions(admin, name)) < partitions:
                time.sleep(0.1)  # Kafka's brokers hear of them later
            yield name
        finally:
            admin.delete_topics([name])[name].result(timeout=60)

    def can_run(self, case: str) -> bool:
        """Whether it serves what this case does."""
        return any(fnmatch(case, pattern) for pattern in self.serves)

    def write_out(self) -> None:
        """Has what is dirty written: in its database, where it has one, then in the kernel.

        After a CHECKPOINT a database also uses its WAL files again, as one does that has run for a
        while; a new one fills each of them with zeros first. Raises psycopg.Error.
        """
        if self.database_url is not None:
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                connection.execute("CHECKPOINT")
        os.sync()

    def cpu_seconds(self) -> dict[str, float]:
        return {name: group.cpu_seconds() for name, group in self.processes.items()}


def wait_until_ready(bootstrap: str, process: subprocess.Popen[str], patience_s: float) -> float:
    """Ask for Metadata until it names a broker; returns the seconds it took from the call on."""
    host, port = bootstrap.rsplit(":", 1)
    begun = time.monotonic()
    while time.monotonic() - begun < patience_s:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} while starting")
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=5) as connection,
        ):
            connection.sendall(_METADATA_REQUEST)
            answer = connection.recv(12, socket.MSG_WAITALL)
            if len(answer) == 12 and struct.unpack(">iii", answer)[2] > 0:
                return time.monotonic() - begun
        time.sleep(0.005)
    raise TimeoutError(f"{bootstrap} named no broker within {patience_s} s")


@contextlib.contextmanager
def started_penstock(
    data: Path,
    checkout: Path = ROOT,
    name: str = "penstock",
    port: int | None = None,
    further: Sequence[str | Path] = (),
    workers: int = 1,
) -> Iterator[tuple[Broker, float]]:
    """`penstock serve` with its embedded database under `data`.

    checkout: whose code it runs. further: options beside those about addresses and data. port: of
    loopback, where `listeners` among them names one that asks nobody; else a free one. workers: how
    many brokers it runs, all of them one to measure. Yields the broker and its start-up time in
    seconds; stops it (SIGTERM) afterwards.
    """
    bootstrap = f"127.0.0.1:{port or free_ports_in_a_row(workers)[0]}"
    pulsar = f"127.0.0.1:{free_ports_in_a_row(workers)[0]}"
    program = [sys.executable, "-m", "penstock", "serve"]
    listen = ["--pulsar-listen", pulsar]
    if port is None:
        listen += ["--listen", bootstrap]
    http = None
    if (checkout / "gateway" / "console").exists():
        http = f"127.0.0.1:{free_ports_in_a_row(workers)[0]}"
    if workers > 1:
        listen += ["--workers", str(workers)]
    if "http_listen" in (checkout / "gateway" / "config.py").read_text():  # older code has none
        listen += ["--http-listen", http or "none"]
    output = data.with_suffix(".log")
    with output.open("w") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            [*program, *listen, "--data", data, *further],
            cwd=checkout,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        try:
            wait_until_ready(bootstrap, process, patience_s=60)
        except (RuntimeError, TimeoutError) as failed:
            raise RuntimeError(f"{failed}; it said:\n{output.read_text()[-3000:]}") from None
        start_up_s = time.monotonic() - begun
        printed = re.search(r"postgres(?:ql)?://[^\s'\"]+", output.read_text())
        url = printed.group() if printed else None
        postmaster = postmaster_of(data)
        processes = {"gateway": ProcessGroup(process.pid, tuple(filter(None, [postmaster])))}
        if postmaster:
            processes["postgres"] = ProcessGroup(postmaster)
        broker = Broker(
            name,
            bootstrap,
            processes,
            database_url=url,
            another=partial(started_penstock, checkout=checkout, name=name, workers=workers),
            pulsar_url=f"pulsar://{pulsar}",
            http_url=http and f"http://{http}",
        )
        yield broker, start_up_s
    finally:
        stop_process(process)


def postmaster_of(data: Path) -> int | None:
    """Process id of the PostgreSQL whose cluster lies somewhere under `data`."""
    for lock_file in data.rglob("postmaster.pid"):
        return int(lock_file.read_text().split("\n", 1)[0])
    return None


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on a real disk for data, removed afterwards (TMPDIR chooses where).

    World-accessible: PostgreSQL may have to run as another user than ours.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)
