"""A campaign of failures with a marked password: it is in nothing that anybody writes or serves.

What single failures write is in tests/cli/test_secrets.py; here they come under load, in a row.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway, free_port
from tests.faults.conftest import PARTITIONS, create_topic
from tests.faults.load import Load
from tests.faults.txn_load import LibrdkafkaTxnLoad
from tests.loaded import run

pytestmark = pytest.mark.fault

MARK = "Marked471"
PASSWORD = f"{MARK}1Password"
ROLE = "someone"
ENDS_WITHIN_S = 60.0

# All at once, in the moment when the database goes away.
COMMANDS = [
    ["check", "--ready"],
    ["topics", "list"],
    ["groups", "why", "g"],
    ["topics", "describe", "load", "--records"],
    ["migrate"],
    ["psql", "-c", "SELECT 1"],
]
# With each of the URLs below.
REFUSED = [["psql", "-c", "SELECT 1"], ["serve", "--listen", "127.0.0.1:0"]]
WRONG = [
    f"postgresql://{ROLE}:{MARK}2Password@/penstock?host=HOST",
    f"postgresql://{ROLE}:{PASSWORD}%zz@/penstock?host=HOST",
]


@pytest.fixture
def url(server: EmbeddedPostgres) -> str:
    """Of a role that is asked for its password."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        rules = server.pgdata / "pg_hba.conf"
        rules.write_text(f"local all {ROLE} scram-sha-256\n{rules.read_text()}")
        connection.execute("SELECT pg_reload_conf()")
    return f"postgresql://{ROLE}:{PASSWORD}@/penstock?host={host_of(server)}"


def host_of(server: EmbeddedPostgres) -> str:
    return server.url.rpartition("host=")[2]


class Output:
    """What commands wrote, and what brokers served; their logs are files."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.texts: list[tuple[str, str]] = []

    def run_all(self, url: str, commands: Iterable[Sequence[str]]) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda command: self._run(url, *command), commands))

    def _run(self, url: str, *command: str) -> None:
        where = [] if command[0] in {"migrate", "psql", "serve"} else ["--bootstrap-server"]
        done = run(
            *(*command, *where, *([self._bootstrap] * len(where))),
            environment={**os.environ, "PENSTOCK_DATABASE_URL": url},
            timeout_s=ENDS_WITHIN_S,
        )
        written = f"{done.returncode}\n{done.stdout}{done.stderr}"
        self.texts.append((" ".join(command), written))

    def serves(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            self.texts.append(("metrics", answer.read().decode()))


@contextlib.contextmanager
def under_load(bootstrap: str, seed: int) -> Iterator[None]:
    """Plain, idempotent and transactional producers, which bear with whatever happens."""
    kinds = ("idempotent", "aiokafka")
    load = Load(bootstrap, "load", PARTITIONS, seed, kinds=kinds, connections_break=True)
    transactions = LibrdkafkaTxnLoad(bootstrap, "transactions", PARTITIONS, seed, producers=1)
    with load.running(), transactions.running():
        load.wait_for_progress()
        yield
        load.wait_for_progress()


def test_a_campaign_of_failures_keeps_the_password(
    server: EmbeddedPostgres, url: str, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    ports = [free_port(), free_port()]
    gateways: list[Gateway] = []

    def start(log_format: str, *, port: int | None = None) -> Gateway:
        options = ["--log-format", log_format, "--log-level", "debug"]
        options += ["--metrics-listen", f"127.0.0.1:{ports[len(gateways)]}"] if not port else []
        environment = {"PENSTOCK_DATABASE_URL": url, "PYTHONFAULTHANDLER": "1"}
        environment |= {"PYTHONASYNCIODEBUG": "1"} if log_format == "json" else {}
        # Python itself reads some of the variables.
        started = start_gateway(*options, environment=environment, port=port, loaded=False)
        gateways.append(started)
        return started

    first, second = start("console"), start("json")
    output = Output(first.bootstrap)
    create_topic(first.bootstrap, "load")
    create_topic(first.bootstrap, "transactions")
    with under_load(f"{first.bootstrap},{second.bootstrap}", seed):
        end = time.monotonic() + seconds
        kills = 0
        while time.monotonic() < end or kills < 2:
            time.sleep(chance.uniform(0, 0.3))
            with ThreadPoolExecutor(1) as beside:
                asked = beside.submit(output.run_all, url, COMMANDS)
                time.sleep(chance.uniform(0, 1.5))
                server.kill()
                time.sleep(chance.uniform(0.2, 1.5))
                server.start()
                asked.result(ENDS_WITHIN_S)
            kills += 1
        for port in ports:
            output.serves(port)
        # One crashes as a whole, the other by a table that is missing.
        first.process.send_signal(signal.SIGABRT)
        first.process.wait(ENDS_WITHIN_S)
        start("console", port=first.port)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE broker RENAME TO elsewhere")
    second.process.wait(ENDS_WITHIN_S)
    for wrong in WRONG:
        output.run_all(wrong.replace("HOST", host_of(server)), REFUSED)

    output.texts += [(each.log_path.name, each.log()) for each in gateways]
    output.texts.append(("postgres.log", server.log_path.read_text(errors="replace")))
    assert [name for name, text in output.texts if MARK in text] == []
    assert "heartbeat_failed" in first.log()
    assert "Fatal Python error: Aborted" in first.log()
    assert '"frames"' in second.log(), "a traceback"
    assert sum(text.startswith("2\n") for _, text in output.texts) >= len(REFUSED) * len(WRONG)
