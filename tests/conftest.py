"""What every room's tests share: a PostgreSQL for the session, a database a test, real gateways.

No imitations: the server is the embedded one, a gateway is `penstock serve` in a process of its
own. Must not know what any test is about.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

from storage.server.embedded import EmbeddedPostgres
from tests.databases import Copies
from tests.jvm import SHORT_LIVED, use_class_archive
from tests.loaded import Process, loader
from tests.schedule import place_of, scheduler
from tests.variants import leave_out

# The clusters of tests are small; everything that makes a commit true stays as it is shipped.
SMALL_POSTGRES = {
    "shared_buffers": "64MB",
    "min_wal_size": "80MB",
    "max_wal_size": "512MB",
    "max_connections": "200",
    # A broker finds its tables wherever a role's search_path leads to.
    "search_path": "nowhere",
}
# Tests look as people do with psql. Brokers' connections say all of their options themselves.
os.environ["PGOPTIONS"] = "-c search_path=penstock,public"
# A session's servers have taken 0.3 GiB; several workers' lie side by side.
ROOM_FOR_POSTGRES = 2**30 * (1 + int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
READY_WITHIN_S = 60.0
# Below those that the system gives to clients: none of them takes a port between choice and use.
PORTS = range(10_000, 32_000)
RESERVED = 200  # ports; more than one test asks for
STOPPED_WITHIN_S = 60.0

# How fast the machine is decides no test.
settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("tests")
# Of one mutant among hundreds it is enough to know that it fails; tests/mutants.py.
settings.register_profile(
    "mutants",
    settings.get_profile("tests"),
    derandomize=True,
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How the workers share the tests; `tests/schedule.py`."""
    return scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs Java where there is none, and says so; allows for fetching the jars."""
    leave_out(config, items)
    items.sort(key=lambda item: place_of(item.nodeid))
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    reason = f"needs {' and '.join(missing)} on the PATH"
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(pytest.mark.timeout(900))
            if missing:
                item.add_marker(pytest.mark.skip(reason=reason))


# Ten thousand tests are a million objects, which stay: looked through again and again while they
# are collected, and with every full collection later.


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """pytest's summary is the last word: librdkafka's clients that tests have left behind go on
    telling of brokers that are gone, until the process ends."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# --- processes ---

# What tests start lives for seconds; so should no process compile modules anew.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") and not any(item.iter_markers("skip")):
        use_class_archive()


# --- chance ---


@pytest.fixture
def seed() -> int:
    """Of every random choice of the test; shown when it fails, and set by PENSTOCK_FAULT_SEED."""
    chosen = int(os.environ.get("PENSTOCK_FAULT_SEED") or secrets.randbelow(2**31))
    print(f"PENSTOCK_FAULT_SEED={chosen}")  # noqa: T201 - pytest shows it with the failure
    return chosen


# --- directories ---


@contextlib.contextmanager
def open_directory(parent: Path | None = None) -> Iterator[Path]:
    """A temporary directory that other users may pass through: PostgreSQL does not run as root.

    (pytest's own `tmp_path` lies under a directory closed to everybody else.)
    """
    path = Path(tempfile.mkdtemp(prefix=f"penstock-test-{os.getpid()}-", dir=parent))
    path.chmod(0o755)
    try:
        yield path.resolve()
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A place for a cluster of the test's own; nothing is in it yet."""
    with open_directory(memory()) as path:
        yield path / "data"


# --- databases ---


def memory() -> Path | None:
    """A directory in memory, where there is one with room."""
    shared = Path("/dev/shm")
    room = shutil.disk_usage(shared).free if os.access(shared, os.W_OK) else 0
    return shared if room > ROOM_FOR_POSTGRES else None


def forget_the_killed(parent: Path) -> None:
    """Removes what sessions that were killed, an hour ago or more, have left in memory."""
    for path in parent.glob("penstock-test-*-*"):
        with contextlib.suppress(OSError):
            is_alive = Path("/proc", path.name.split("-")[2]).exists()
            if not is_alive and path.stat().st_mtime < time.time() - 3600:
                shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The session's PostgreSQL. Do not stop it: faults need a server of their own (`data_dir`).

    In memory where that can be: thousands of databases are made in it, and no disk fails in a test.
    """
    if (parent := memory()) is not None:
        forget_the_killed(parent)
    with (
        open_directory(parent) as path,
        EmbeddedPostgres(path / "postgres", settings=SMALL_POSTGRES) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def template_database(postgres: EmbeddedPostgres) -> str:
    """Name of a database with the whole schema and nothing in it, to be copied."""
    from storage.migrate import upgrade

    name = "template_penstock"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    upgrade(postgres.url_of(name))
    return name


@pytest.fixture(scope="session")
def copies(postgres: EmbeddedPostgres) -> Copies:
    """Copies of the session's databases: `copies.taken(template_database)`."""
    return Copies(postgres)


@pytest.fixture
def database_url(copies: Copies, template_database: str) -> Iterator[str]:
    """A database of the test's own with the whole schema."""
    with copies.taken(template_database) as url:
        yield url


@pytest.fixture
def empty_database_url(copies: Copies) -> Iterator[str]:
    """A database of the test's own without any table."""
    with copies.taken("template1") as url:
        yield url


@pytest.fixture(scope="session")
def migrated_cluster() -> Iterator[Path]:
    """A stopped cluster with the schema in it: to make one takes most of a server's start."""
    from storage.migrate import upgrade

    with open_directory(memory()) as directory:
        with EmbeddedPostgres(directory, settings=SMALL_POSTGRES) as made:
            upgrade(made.url)
        yield made.pgdata


@pytest.fixture
def migrated_dir(data_dir: Path, migrated_cluster: Path) -> Path:
    """A place for a server of the test's own, with a copy of that cluster in it."""
    data_dir.mkdir()
    data_dir.chmod(0o755)
    subprocess.run(["cp", "-a", migrated_cluster, data_dir / "pgdata"], check=True)
    return data_dir


@pytest.fixture
def server(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL with the schema, that the test may kill."""
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as running:
        yield running


@pytest.fixture
def patient_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions for the hot path, made from here on, wait longer for a lock, and hold it longer.

    For tests that hold one on purpose, or want each other's all the time: a machine that stalls for
    a second is not to decide them. A deadlock is found all the same.
    """
    from storage.connection import pool

    options = pool.HOT_SESSION["options"]
    for name, usual in (("lock_timeout", "1s"), ("idle_in_transaction_session_timeout", "2s")):
        assert f"{name}={usual}" in options
        options = options.replace(f"{name}={usual}", f"{name}=10s")
    monkeypatch.setitem(pool.HOT_SESSION, "options", options)


# --- gateways ---


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of `localhost` with its certificate, signed by itself; that alone beside it, `.crt`."""
    path = tmp_path_factory.mktemp("tls") / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    subprocess.run([*command.split(), *files], capture_output=True, check=True)
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


_reserved: deque[int] = deque()  # file descriptors


def free_port() -> int:
    """A loopback port that nobody listens on, and that no other worker is given meanwhile."""
    return free_ports_in_a_row(1)[0]


def free_ports_in_a_row(count: int) -> range:
    """Such ports, each the next of the one before: those of `serve --workers`."""
    while True:
        first = secrets.choice(PORTS)
        if all(_is_reserved(port) for port in range(first, first + count)):
            return range(first, first + count)


def _is_reserved(port: int) -> bool:
    """Reserves a port, if it is free. Linux's abstract names do: a name that is bound is taken
    until its process ends."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            reservation.bind(f"\0penstock-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        reservation.close()
        return False
    _reserved.append(reservation.detach())
    if len(_reserved) > RESERVED:
        os.close(_reserved.popleft())
    return True


@dataclass(frozen=True, slots=True)
class Gateway:
    """A `penstock serve` in a process of its own. log_path: everything it wrote."""

    bootstrap: str
    process: subprocess.Popen[bytes] | Process
    log_path: Path
    database_url: str | None

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(STOPPED_WITHIN_S)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.terminate()

    def stop(self) -> int:
        """SIGTERM, wait until it is gone, and give its exit code. Killed if it does not stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a stopped process cannot hear SIGTERM
            self.process.terminate()
        try:
            return self.process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"the gateway did not stop within {STOPPED_WITHIN_S} s:\n{self.log()[-4000:]}"
            ) from None

    def pause(self) -> None:
        """SIGSTOP: it holds what it holds and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)


StartGateway = Callable[..., Gateway]

_RUNNING: list[Gateway] = []
"""The gateways of this process that have not been stopped; a failed test shows their logs."""
_SHOWN_LOGS = 3
_SHOWN_CHARACTERS = 3000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for gateway in _RUNNING[-_SHOWN_LOGS:]:
            title = f"log of the broker at {gateway.bootstrap}"
            with contextlib.suppress(OSError):  # its directory may be gone
                report.sections.append((title, gateway.log()[-_SHOWN_CHARACTERS:]))
    return report


@contextlib.contextmanager
def gateways(directory: Path) -> Iterator[StartGateway]:
    """A factory of gateways, all stopped afterwards; their logs go to `directory`."""
    started: list[Gateway] = []

    def start_gateway(
        *arguments: str | Path,
        database_url: str | None = None,
        data: Path | None = None,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
        loaded: bool = True,
    ) -> Gateway:
        """Starts `penstock serve`, on a free port unless one is given, or listeners are named: then
        the port says which of them counts.

        database_url or data: which database it uses. arguments: further ones of `serve`.
        wait: return once it answers; without it the process may be anywhere in its start.
        loaded: begin with the program imported (`tests/loaded.py`); with False, as people start it.
        """
        bootstrap = f"127.0.0.1:{port or free_port()}"
        command = ["serve", *map(str, arguments)]
        if not any(
            str(each).startswith(("listeners=", "--override=listeners=")) for each in arguments
        ):
            command += ["--listen", bootstrap]
        for other in ("--pulsar-listen", "--http-listen"):
            command += [] if other in arguments else [other, "none"]
        if database_url is not None:
            command += ["--database-url", database_url]
        if data is not None:
            command += ["--data", str(data)]
        variables = {**_without_settings(os.environ), **(environment or {})}
        log_path = directory / f"gateway-{len(started)}.log"
        process: subprocess.Popen[bytes] | Process
        with log_path.open("wb") as log:
            if loaded:
                process = loader().start(command, environment=variables, stdout=log, stderr=log)
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", "penstock", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    start_new_session=True,
                )
        gateway = Gateway(bootstrap, process, log_path, database_url)
        started.append(gateway)
        _RUNNING.append(gateway)
        if wait:
            wait_until_ready(gateway)
        return gateway

    try:
        yield start_gateway
    finally:
        for gateway in reversed(started):
            _RUNNING.remove(gateway)
            gateway.stop()


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Only a test's own settings count; those of tests (PENSTOCK_FAULT_SEED) are no broker's."""
    return {name: each for name, each in environment.items() if not name.startswith("PENSTOCK_")}


def wait_until_ready(gateway: Gateway, within_s: float = READY_WITHIN_S) -> None:
    """Returns once the gateway answers Metadata with a broker in it; fails with its log."""
    from cli.check import Presence, presence

    deadline = time.monotonic() + within_s
    while presence(gateway.bootstrap, timeout_s=5.0) is not Presence.ANSWERS:
        exit_code = gateway.process.poll()
        if exit_code is not None or time.monotonic() > deadline:
            state = f"ended with {exit_code}" if exit_code is not None else "does not answer"
            raise AssertionError(f"the gateway {state}:\n{gateway.log()[-4000:]}")
        time.sleep(0.02)


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Starts gateways for one test: `start_gateway(database_url=database_url)`."""
    with gateways(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def gateway(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The session's gateway, for tests that only need topics of their own."""
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        yield start(database_url=url)
