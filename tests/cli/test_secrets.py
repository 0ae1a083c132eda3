"""A database's password is in nothing that a broker writes, however it fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import (
    READY_WITHIN_S,
    SMALL_POSTGRES,
    Gateway,
    StartGateway,
    free_port,
    open_directory,
)
from tests.loaded import run

PASSWORD = "Marked4711Password"
WRONG = "Marked4712Password"
MARK = "Marked471"
ROLE = "someone"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that asks its role for a password."""
    with (
        open_directory() as path,
        EmbeddedPostgres(path / "data", settings=SMALL_POSTGRES) as server,
    ):
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
            rules = server.pgdata / "pg_hba.conf"
            rules.write_text(f"local all {ROLE} scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[str]:
    """Name of an empty database of the role's."""
    name = f"of_{time.monotonic_ns()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER {ROLE}".encode())
        yield name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def url_of(server: EmbeddedPostgres, database: str, password: str = PASSWORD) -> str:
    host = server.url.rpartition("host=")[2]
    return f"postgresql://{ROLE}:{password}@/{database}?host={host}"


@pytest.fixture
def log_format() -> str:
    return "console"


def wait_for(what: Callable[[], bool], gateway: Gateway, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, gateway.log()[-4000:]
        time.sleep(0.05)


@pytest.fixture
def start(start_gateway: StartGateway, log_format: str) -> Callable[..., Gateway]:
    """Starts a broker that writes all that it can, and is given its URL where `ps` is not told."""

    def start(url: str, *, wait: bool = True) -> Gateway:
        options = ("--log-format", log_format, "--log-level", "debug")
        environment = {"PENSTOCK_DATABASE_URL": url, "PYTHONASYNCIODEBUG": "1"}
        return start_gateway(*options, environment=environment, wait=wait, loaded=False)

    return start


def answers_of(gateway: Gateway) -> str:
    """What it wrote until it ended by itself."""
    gateway.process.wait(READY_WITHIN_S)
    return gateway.log()


# --- it does not start ---


@pytest.mark.parametrize(
    "wrong",
    ["password", "database", "server", "unreadable", "cut by a slash", "not PostgreSQL's"],
)
def test_a_broker_that_cannot_start_keeps_the_password(
    server: EmbeddedPostgres, start: Callable[..., Gateway], wrong: str
) -> None:
    url = {
        "password": url_of(server, "penstock", WRONG),
        "database": url_of(server, "nowhere"),
        "server": f"postgresql://{ROLE}:{PASSWORD}@127.0.0.1:{free_port()}/penstock",
        "unreadable": url_of(server, "penstock", f"{PASSWORD}%zz"),
        "cut by a slash": f"postgresql://{ROLE}:{PASSWORD}/{MARK}@127.0.0.1/penstock",
        "not PostgreSQL's": f"mysql://{ROLE}:{PASSWORD}@localhost/penstock",
    }[wrong]
    gateway = start(url, wait=False)
    assert MARK not in answers_of(gateway)
    assert gateway.process.returncode == 2
    assert "Traceback" not in gateway.log()


def test_a_schema_that_is_refused_keeps_the_password(
    server: EmbeddedPostgres, database: str, start: Callable[..., Gateway]
) -> None:
    with psycopg.connect(url_of(server, database), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA penstock")
        connection.execute("CREATE TABLE penstock.cluster (name text)")
    gateway = start(url_of(server, database), wait=False)
    assert MARK not in answers_of(gateway)
    assert gateway.process.returncode == 2


@pytest.mark.parametrize("password", [WRONG, f"{PASSWORD}%zz", f"{PASSWORD}/{MARK}", f"x@{MARK}"])
@pytest.mark.parametrize("command", ["migrate", "psql"])
def test_a_command_keeps_the_password(
    server: EmbeddedPostgres, command: str, password: str
) -> None:
    variables = {"PENSTOCK_DATABASE_URL": url_of(server, "penstock", password)}
    done = run(command, environment={**os.environ, **variables})
    assert done.returncode == 2
    assert MARK not in done.stdout + done.stderr


# --- it runs ---


def test_a_broker_whose_database_goes_away_keeps_the_password(
    server: EmbeddedPostgres, database: str, start: Callable[..., Gateway]
) -> None:
    gateway = start(url_of(server, database))
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database]
        )
        time.sleep(1.5)
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true".encode())
    assert gateway.stop() == 0
    assert MARK not in gateway.log()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_bug_in_the_background_keeps_the_password(
    server: EmbeddedPostgres, database: str, start: Callable[..., Gateway], log_format: str
) -> None:
    gateway = start(url_of(server, database))
    with psycopg.connect(url_of(server, database), autocommit=True) as connection:
        connection.execute("ALTER TABLE broker RENAME TO elsewhere")
    wait_for(lambda: gateway.process.poll() is not None, gateway)
    log = gateway.log()
    assert "background_work_failed" in log
    assert ("Traceback" if log_format == "console" else '"frames"') in log
    assert MARK not in log


# Breaks a broker where its log tells of it, and where nobody catches it: in a forgotten task, in a
# callback of the event loop, and out of the program itself.
CRASHES = """
import asyncio, sys
import gateway.app
from gateway.config import load_settings
from storage.connection.pool import Database

async def serve(settings, server, reader, on_ready):
    url = settings.database_url
    database = Database(url)
    loop = asyncio.get_running_loop()
    async def forgotten(database, settings, url):
        try:
            await database.connect()
            raise RuntimeError(f"a bug: {settings!r} {database!r}")
        finally:
            await database.close()
    def breaks(database, settings):
        raise RuntimeError("a bug")
    await asyncio.wait([asyncio.create_task(forgotten(database, settings, url))])
    loop.call_soon(breaks, database, settings)
    try:
        breaks(database, settings)
    except RuntimeError as error:
        gateway.app.log.error("logged", exc_info=error)
    await asyncio.sleep(0.1)
    raise RuntimeError(f"a bug at last: {settings} {database}")

gateway.app._serve = serve
from cli.main import app
app(["serve", "--log-format", sys.argv[1]])
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_crash_keeps_the_password(
    server: EmbeddedPostgres, log_format: str, tmp_path: Path
) -> None:
    script = tmp_path / "crashes.py"
    script.write_text(CRASHES)
    done = subprocess.run(
        [sys.executable, script, log_format],
        env={
            **os.environ,
            "PENSTOCK_DATABASE_URL": url_of(server, "penstock"),
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONPATH": Path.cwd(),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    for said in ("logged", "never retrieved", "Exception in callback", "a bug at last: "):
        assert said in done.stderr
    assert MARK not in done.stdout + done.stderr


# --- what others may look at ---


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_no_process_that_it_starts_is_told_the_password(
    start_gateway: StartGateway, data_dir: Path
) -> None:
    gateway = start_gateway(data=data_dir, environment={"PGPASSWORD": PASSWORD}, loaded=False)
    pid = gateway.process.pid
    children = [int(child) for child in _children(pid)]
    looked_at = 0
    for child in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            for file in ("cmdline", "environ"):
                assert MARK.encode() not in Path(f"/proc/{child}/{file}").read_bytes()
            looked_at += 1
    assert looked_at
    assert gateway.stop() == 0
    assert MARK not in gateway.log()


def _children(pid: int) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield child
                yield from _children(int(child))


def test_the_url_is_shown_with_stars_for_the_password(
    server: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    password = f"{PASSWORD}@/%"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE \"p@i/d\" SUPERUSER LOGIN PASSWORD '{password}'".encode())
    host = server.url.rpartition("host=")[2]
    who = f"p%40i%2Fd:{quote(password, safe='')}"
    gateway = start_gateway(database_url=f"postgresql://{who}@/penstock?host={host}")
    assert gateway.stop() == 0
    assert f"psql 'postgresql://p%40i%2Fd:***@/penstock?host={host}'" in gateway.log()
    assert MARK not in gateway.log()
