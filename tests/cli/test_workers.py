"""`penstock serve --workers`: real processes, from their start to their end, however that comes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cli.check import Presence, presence
from storage.server.embedded import EmbeddedPostgres
from tests.cli.test_main import ENVIRONMENT, refused, wait_for
from tests.conftest import Gateway, StartGateway, free_port, free_ports_in_a_row
from tests.faults.conftest import kill_postmaster
from tests.loaded import ROOT

WITHIN_S = 60.0
LABELLED = re.compile(r"worker=(\d+) ")
SERVES = re.compile(r"worker_serves +pid=(\d+) worker=(\d+)")


def eventually(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(gateway: Gateway) -> dict[int, int]:
    """Their process ids, by number, as the log tells last."""
    return {int(number): int(pid) for pid, number in SERVES.findall(gateway.log())}


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def handovers_of(pid: int) -> list[Path]:
    """The directories through which a process hands payload over."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            target = entry.readlink()
            if target.name.startswith("penstock-handover-"):
                found.append(target)
    return found


def brokers_at(bootstrap: str) -> dict[int, int]:
    """Ports of the brokers that Metadata names, by id."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {id_: each.port for id_, each in admin.list_topics(timeout=20).brokers.items()}


@contextlib.contextmanager
def serving(*arguments: str | Path, **given: object) -> Iterator[subprocess.Popen[bytes]]:
    """As a program would start it: in a session of its own, a pipe as its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *map(str, arguments)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env=ENVIRONMENT,
        **given,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# --- what clients see ---


def test_each_worker_is_a_broker_and_work_is_spread_over_them(
    start_gateway: StartGateway, database_url: str
) -> None:
    inside, outside = free_ports_in_a_row(3), free_ports_in_a_row(3)
    pulsar, http, metrics = free_ports_in_a_row(3), free_ports_in_a_row(3), free_port()
    gateway = start_gateway(
        *("--workers", "3", "--broker-id", "40", "--metrics-listen", f"127.0.0.1:{metrics}"),
        f"--override=listeners=IN://127.0.0.1:{inside[0]},OUT://127.0.0.1:{outside[0]}",
        f"--override=advertised.listeners=OUT://localhost:{outside[0]}",
        "--override=listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT",
        *("--pulsar-listen", f"127.0.0.1:{pulsar[0]}", "--http-listen", f"127.0.0.1:{http[0]}"),
        port=inside[0],
        database_url=database_url,
    )
    for ports in (inside, outside):
        brokers = dict(zip((40, 41, 42), ports, strict=True))
        eventually(lambda of=brokers: brokers_at(f"127.0.0.1:{of[40]}") == of)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    admin.create_topics([NewTopic("spread", 12)])["spread"].result(20)

    # A worker that stood still for a moment is missing until the others hear of it again.
    def leaders() -> set[int]:
        partitions = admin.list_topics("spread", timeout=20).topics["spread"].partitions
        return {each.leader for each in partitions.values()}

    def coordinators() -> set[int]:
        described = admin.describe_consumer_groups([f"group-{n}" for n in range(12)])
        return {each.result(20).coordinator.id for each in described.values()}

    eventually(lambda: leaders() == set(brokers))
    eventually(lambda: coordinators() == set(brokers))
    with psycopg.connect(database_url) as connection:
        endpoints = connection.execute("SELECT broker_id, listener, port FROM broker_endpoint")
    listeners = {"kafka": inside, "kafka:IN": inside, "kafka:OUT": outside}
    listeners |= {"pulsar": pulsar, "http": http}
    assert set(endpoints.fetchall()) == {
        (40 + n, name, ports[n]) for n in range(3) for name, ports in listeners.items()
    }
    look_at_metrics(metrics, http)


def look_at_metrics(gathered: int, of_each: Sequence[int]) -> None:
    """Those of all workers at one port, and each worker's own at its port for HTTP."""
    every = scraped(gathered)
    for number, port in enumerate(of_each):
        assert every[f'penstock_worker_up{{worker="{number}"}}'] == 1
        assert every[f'penstock_worker_restarts_total{{worker="{number}"}}'] == 0
        assert f'kafka_server_connection_count{{worker="{number}"}}' in every
        assert not any("worker" in name for name in scraped(port))
    counted = r'kafka_network_requestmetrics_requests_total{.*request="Metadata".*worker="0"}'
    assert sum(value for name, value in every.items() if re.match(counted, name)) >= 1


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    described = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(described) == len(set(described)), "each once, with all of its samples"
    pairs = (each.rsplit(" ", 1) for each in text.splitlines() if not each.startswith("#"))
    return {name: float(value) for name, value in pairs}


def write(bootstrap: str) -> None:
    """A record, told to be stored."""
    producer = Producer({"bootstrap.servers": bootstrap})
    told: list[object] = []
    producer.produce("written", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WITHIN_S) == 0
    assert told == [None]


# --- what its starter sees ---


def test_it_says_where_all_of_them_are_and_leaves_nothing(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    log = (tmp_path / "log").open("wb")
    with (
        log,
        serving(
            *("--workers", "2", "--ephemeral", "--ready-file", ready, "--stop-with-stdin"),
            stdout=log,
            stderr=log,
        ) as process,
    ):
        eventually(ready.exists)
        lines = dict(each.split("=", 1) for each in ready.read_text().splitlines())
        brokers = lines["bootstrap.servers"].split(",")
        assert len(brokers) == 2
        assert all(presence(each, timeout_s=10) is Presence.ANSWERS for each in brokers)
        with psycopg.connect(lines["# database_url"]) as connection:
            (room,) = connection.execute("SHOW max_connections").fetchone() or ()
        assert int(room) > 100, "there is room for each broker's connections"
        said = (tmp_path / "log").read_text()
        workers = [int(pid) for pid, _ in SERVES.findall(said)]
        handovers = [each for pid in workers for each in handovers_of(pid)]
        assert len(set(handovers)) == 2, "each hands payload over by itself"
        assert said.count("is ready.") == 1
        assert f"bootstrap.servers={lines['bootstrap.servers']}\n" in said
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WITHIN_S) == 0
    assert not ready.exists()
    assert not any(map(is_there, workers))
    assert not any(each.exists() for each in handovers)


def test_a_database_that_dies_is_started_again_and_ctrl_c_ends_all_in_order(
    start_gateway: StartGateway, migrated_dir: Path
) -> None:
    gateway = start_gateway(
        "--workers", "2", data=migrated_dir, port=free_ports_in_a_row(2)[0], loaded=False
    )
    wait_for("is ready.", gateway)
    workers = workers_of(gateway)
    kill_postmaster(migrated_dir)
    wait_for("embedded_postgres_restarted", gateway)
    write(gateway.bootstrap)
    assert workers_of(gateway) == workers
    os.killpg(gateway.process.pid, signal.SIGINT)  # as a terminal does
    assert gateway.process.wait(WITHIN_S) == 0, gateway.log()
    assert not any(map(is_there, workers.values()))
    stopping = [each for each in gateway.log().splitlines() if "stopping" in each]
    assert [LABELLED.match(each) is None for each in stopping] == [True, False, False]
    # The database was there until they had said good-bye.
    assert "left_without_notice" not in gateway.log()
    assert not (migrated_dir / "pgdata" / "postmaster.pid").exists()


def test_a_supervisor_that_is_killed_leaves_nothing_behind(
    start_gateway: StartGateway, migrated_dir: Path
) -> None:
    gateway = start_gateway("--workers", "2", data=migrated_dir, port=free_ports_in_a_row(2)[0])
    wait_for("is ready.", gateway)
    workers = workers_of(gateway)
    handovers = [each for pid in workers.values() for each in handovers_of(pid)]
    postmaster = int((migrated_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
    assert len(handovers) == 2
    gateway.kill()
    eventually(lambda: not any(map(is_there, [*workers.values(), postmaster])))
    assert not any(each.exists() for each in handovers)
    assert "Traceback" not in gateway.log()


# --- what is refused ---


def test_ports_that_meet_are_refused() -> None:
    sentence = refused(
        *("serve", "--workers", "4"),
        *("--listen", "127.0.0.1:9092", "--pulsar-listen", "127.0.0.1:9094"),
    )
    assert sentence == (
        "penstock: 4 workers count their ports up, and those from --listen 127.0.0.1:9092 on meet "
        "--pulsar-listen 127.0.0.1:9094; set addresses further apart."
    )


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    ports = free_ports_in_a_row(2)
    with socket.create_server(("127.0.0.1", ports[1])):
        sentence = refused(
            *("serve", "--workers", "2", "--listen", f"127.0.0.1:{ports[0]}"),
            *("--data", tmp_path / "data"),
        )
    assert sentence == (
        f"penstock: Cannot listen on 127.0.0.1:{ports[1]}, worker 1's, counted up from --listen "
        f"127.0.0.1:{ports[0]} (Address already in use): stop what listens there, or choose "
        "another address with --listen."
    )
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_meanwhile_ends_the_command(
    start_gateway: StartGateway, migrated_dir: Path
) -> None:
    ports = free_ports_in_a_row(2)
    with contextlib.ExitStack() as taken:

        def take() -> bool:
            with contextlib.suppress(OSError):  # it is looked at just now
                taken.enter_context(socket.create_server(("127.0.0.1", ports[1])))
                return True
            return False

        gateway = start_gateway("--workers", "2", data=migrated_dir, port=ports[0], wait=False)
        eventually((migrated_dir / "pgdata" / "postmaster.pid").exists)
        eventually(take)
        assert gateway.process.wait(WITHIN_S) == 2, gateway.log()
    assert gateway.log().splitlines()[-1] == (
        "penstock: Worker 1, whose ports are counted up: Cannot listen on "
        f"127.0.0.1:{ports[1]} (Address already in use): "
        "stop what listens there, or choose another address with --listen."
    )
    assert "Traceback" not in gateway.log()
    assert not (migrated_dir / "pgdata" / "postmaster.pid").exists()


# --- what ends is started again ---


def test_a_worker_that_is_killed_is_back_with_its_id(
    start_gateway: StartGateway, migrated_dir: Path
) -> None:
    ports = free_ports_in_a_row(2)
    gateway = start_gateway(
        *("--workers", "2", "--log-format", "json", "--log-level", "debug"),
        data=migrated_dir,
        port=ports[0],
    )
    wait_for("is ready.", gateway)
    eventually(lambda: len(brokers_at(gateway.bootstrap)) == 2)
    before = brokers_at(gateway.bootstrap)
    url = EmbeddedPostgres(migrated_dir).url
    pids = dict(re.findall(r'"worker": (\d), "pid": (\d+)', gateway.log()))
    (handover,) = handovers_of(int(pids["1"]))
    os.kill(int(pids["1"]), signal.SIGKILL)
    eventually(lambda: gateway.log().count('"event": "worker_serves"') == 3)
    eventually(lambda: brokers_at(gateway.bootstrap) == before)
    assert not handover.exists()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM broker").fetchone() == (2,)
    told = [json.loads(each) for each in gateway.log().splitlines() if each.startswith("{")]
    ended = [each for each in told if each["event"] == "worker_ended"]
    assert [(each["worker"], each["how"]) for each in ended] == [(1, "killed by SIGKILL")]
    # Of each worker, and each line by itself.
    banner = [each for each in gateway.log().splitlines() if not each.startswith("{")]
    assert not any("event" in each for each in banner)
    assert {each.get("worker") for each in told if each["event"] == "live_brokers"} == {0, 1}


# --- what is replaced ---


def test_a_consumer_always_knows_a_worker_that_is_there(
    start_gateway: StartGateway, database_url: str
) -> None:
    """librdkafka forgets what Metadata does not name, and asks again where it is refused."""
    ports = free_ports_in_a_row(2)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
    gateway = start_gateway("--workers", "2", port=ports[0], database_url=database_url)
    eventually(lambda: len(brokers_at(bootstrap)) == 2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 4)])["t"].result(20)
    told: list[str] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "none",
        # Else one that was refused in a bad moment may know no worker for ten seconds.
        "reconnect.backoff.max.ms": 200,
        "error_cb": lambda error: told.append(error.name()),
    }
    consumers = [Consumer(settings) for _ in range(8)]
    for each in consumers:
        each.assign([TopicPartition("t", number, 0) for number in range(4)])

    def are_polled(until: Callable[[], bool]) -> bool:
        for each in consumers:
            each.poll(0.01)
        return until()

    settled = time.monotonic() + 1
    eventually(lambda: are_polled(lambda: time.monotonic() > settled))
    gateway.process.send_signal(signal.SIGHUP)
    eventually(lambda: are_polled(lambda: "workers_replaced" in gateway.log()))
    for each in consumers:
        each.close()
    assert "_ALL_BROKERS_DOWN" not in told


def test_code_that_cannot_be_loaded_replaces_nothing(tmp_path: Path, database_url: str) -> None:
    for room in ("cli", "core", "gateway", "migrations", "penstock", "storage"):
        shutil.copytree(ROOT / room, tmp_path / room)
    log_path, port = tmp_path / "log", free_ports_in_a_row(2)[0]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", tmp_path / "penstock" / "__main__.py", "serve"),
                *("--workers", "2", "--listen", f"127.0.0.1:{port}"),
                *("--database-url", database_url),
            ],
            stdout=log,
            stderr=log,
            env=ENVIRONMENT,
        )
    gateway = Gateway(f"127.0.0.1:{port}", process, log_path, database_url)
    try:
        wait_for("is ready.", gateway, WITHIN_S)
        workers = workers_of(gateway)
        code = tmp_path / "gateway" / "app.py"
        text = code.read_text()
        code.write_text("it is not all there")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: gateway.log().count("worker_not_replaced") >= 2)
        assert re.search(r"^worker=0 SyntaxError", gateway.log(), re.MULTILINE)
        assert workers_of(gateway) == workers
        assert len(brokers_at(gateway.bootstrap)) == 2
        code.write_text(text)
        wait_for("workers_replaced", gateway, WITHIN_S)
        assert not set(workers.values()) & set(workers_of(gateway).values())
        assert not any(map(is_there, workers.values()))
        assert gateway.stop() == 0
    finally:
        gateway.kill()
