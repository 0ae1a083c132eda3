"""A broker for a test: `with penstock.testing.broker() as broker: broker.bootstrap_servers`.

The fixtures are in `plugin.py`. Starts the `penstock` program and speaks to it by its port; knows
no room of the server and no client library, so that it costs nothing to import.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from penstock.testing.wire import Connection

__all__ = ["Broker", "BrokerFailed", "broker"]

START_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 30.0
_LOG_SHOWN: Final = 4000
_TOPIC_LENGTH_MAX: Final = 249

_numbers = count(1)


class BrokerFailed(Exception):
    """The broker did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs. database_url: of its PostgreSQL, to look at what was stored.

    pulsar_service_url, http_url: for Pulsar's clients, where they were asked for.
    """

    bootstrap_servers: str
    database_url: str
    log_path: Path
    pulsar_service_url: str | None = None
    http_url: str | None = None

    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def create_topic(
        self, name: str = "topic", *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Makes a topic that no other call made, and gives its name. It begins with `name`."""
        allowed = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
        suffix = f"-{next(_numbers)}"
        topic = allowed[: _TOPIC_LENGTH_MAX - len(suffix)] + suffix
        with self._connected() as connection:
            connection.create_topic(topic, partitions, config or {})
        return topic

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Deletes in the end the topics and groups that came in between.

        A group whose consumer was left open stays: it has members.
        """
        with self._connected() as connection:
            topics, groups = connection.topics(), connection.groups()
        try:
            yield
        finally:
            with self._connected() as connection:
                connection.delete_topics(connection.topics() - topics)
                connection.delete_groups(connection.groups() - groups)

    def _connected(self) -> Connection:
        return Connection(self.bootstrap_servers)


@contextmanager
def broker(
    *,
    keep: Path | str | None = None,
    properties: Mapping[str, str] | None = None,
    pulsar: bool = False,
) -> Iterator[Broker]:
    """Starts a broker on a free port of 127.0.0.1 and stops it in the end.

    It ends with this process, however this process ends. keep: a directory for the data, which
    stays, for `penstock serve --data DIR`; without it the data is gone. properties: Kafka's broker
    properties. pulsar: serve Pulsar's clients too, and HTTP. Raises BrokerFailed.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-testing-") as directory:
        ready, log_path = Path(directory, "ready"), Path(directory, "log")
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                _command(ready, keep, properties or {}, pulsar=pulsar),
                stdin=subprocess.PIPE,  # held open while this process lives
                stdout=log,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")},
                start_new_session=True,  # Ctrl-C is the test run's to handle
            )
        try:
            _wait_until_ready(process, ready, log_path)
            said = dict(line.split("=", 1) for line in ready.read_text("utf-8").splitlines())
            yield Broker(
                said["bootstrap.servers"],
                said["# database_url"],
                log_path,
                said.get("# pulsar_service_url"),
                said.get("# http_url"),
            )
        finally:
            _stop(process)


def _command(
    ready: Path, keep: Path | str | None, properties: Mapping[str, str], *, pulsar: bool
) -> list[str]:
    command = [sys.executable, "-P", "-m", "penstock", "serve", "--stop-with-stdin"]
    command += ["--ready-file", str(ready), "--listen", "127.0.0.1:0"]
    command += ["--ephemeral"] if keep is None else ["--data", str(keep)]
    others = "127.0.0.1:0" if pulsar else "none"
    command += ["--pulsar-listen", others, "--http-listen", others]
    for name, value in properties.items():
        command += ["--override", f"{name}={value}"]
    return command


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log_path: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not ready.exists():
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = f"ended with {process.returncode}" if ended else "was not ready in time"
            log = log_path.read_text(errors="replace")[-_LOG_SHOWN:]
            raise BrokerFailed(f"The broker {what}. Its log:\n{log}")
        time.sleep(0.01)


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
