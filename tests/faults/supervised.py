"""Brokers that are the workers of one supervisor, `serve --workers`, and what may happen to them.

Clients are the workers' own: no proxy stands between. Must not know what load there is.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pulsar

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway, free_ports_in_a_row
from tests.faults.conftest import kill_postmaster
from tests.faults.pulsar_load import SILENT
from tests.faults.test_pulsar import FORGOTTEN_FAST

WITHIN_S = 60.0
_SERVES = re.compile(r"worker_serves +pid=(\d+) worker=(\d+)")


@dataclass(frozen=True, slots=True)
class Broker:
    """A worker, with the whole command's process and log."""

    gateway: Gateway
    port: int


class SupervisedCluster:
    """The command with so many workers, on an embedded database in `data`."""

    def __init__(self, count: int, data: Path, start: StartGateway, seed: int) -> None:
        self.server = EmbeddedPostgres(data)
        self.chance = random.Random(seed)
        kafka, self.pulsar_ports = free_ports_in_a_row(count), free_ports_in_a_row(count)
        self.gateway = start(
            *FORGOTTEN_FAST,
            *("--override", "group.initial.rebalance.delay.ms=0"),
            *("--workers", str(count), "--pulsar-listen", f"127.0.0.1:{self.pulsar_ports[0]}"),
            data=data,
            port=kafka[0],
        )
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in kafka)
        self.brokers = [Broker(self.gateway, port) for port in self.pulsar_ports]
        self.wait_for("is ready.", 1)

    def client(self) -> pulsar.Client:
        url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in self.pulsar_ports)
        return pulsar.Client(url, logger=SILENT)

    def wait_for(self, text: str, times: int) -> None:
        """Until its log says so, so often."""
        deadline = time.monotonic() + WITHIN_S
        while self.gateway.log().count(text) < times:
            assert time.monotonic() < deadline, f"no {text}:\n{self.gateway.log()[-4000:]}"
            time.sleep(0.02)

    def pids(self) -> dict[int, int]:
        """Of the workers, by number, as they were told last."""
        return {int(number): int(pid) for pid, number in _SERVES.findall(self.gateway.log())}

    def replaced(self) -> list[str]:
        """Each worker's number, as often as another process took its place by order."""
        return re.findall(r"worker_is_replaced +worker=(\d+)", self.gateway.log())

    def happen(self, fault: str) -> None:
        """One fault; what it takes down is up again at the end."""
        getattr(self, f"_{fault}")()

    def _kill(self) -> None:
        self._end(signal.SIGKILL)

    def _stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        served = self.gateway.log().count("worker_serves")
        os.kill(self.chance.choice(list(self.pids().values())), number)
        self.wait_for("worker_serves", served + 1)

    def _replace(self) -> None:
        """New processes for all of them, one after the other."""
        replaced = self.gateway.log().count("workers_replaced")
        self.gateway.process.send_signal(signal.SIGHUP)
        self.wait_for("workers_replaced", replaced + 1)

    def _database(self) -> None:
        restarted = self.gateway.log().count("embedded_postgres_restarted")
        kill_postmaster(self.server.data_dir)
        self.wait_for("embedded_postgres_restarted", restarted + 1)
