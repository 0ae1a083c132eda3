"""PostgreSQL as the store meets it: the embedded 18, and the system's 15 where there is one.

A database a test, with what tests ask of it beside the store. Must not know what a test is about.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest

from core.log.effects import IncomingBatch, LogEffects
from core.log.partition_log import LogDraft, PartitionLog, PartitionState
from core.types import RecordBatch
from storage.connection.pool import Database
from storage.flush.segments import Segments
from storage.log.store import PostgresLogStore
from storage.migrate import upgrade
from tests.batches import payload_of
from tests.conftest import memory, open_directory
from tests.databases import Copies

SYSTEM_VERSION = "15"


@dataclass(frozen=True, slots=True)
class SystemPostgres:
    """A server made of the system's own binaries."""

    socket_dir: Path

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.socket_dir))}"


def _system_binaries() -> Path:
    if shutil.which("pg_config") is None:
        pytest.skip("no pg_config on the PATH: the system has no PostgreSQL to test against")
    bindir = subprocess.check_output(["pg_config", "--bindir"], text=True).strip()
    version = subprocess.check_output(["pg_config", "--version"], text=True).split()[1]
    if not version.startswith(f"{SYSTEM_VERSION}."):
        pytest.skip(f"the system's PostgreSQL is {version}, not {SYSTEM_VERSION}")
    if not (Path(bindir) / "initdb").exists():
        pytest.skip(f"pg_config names {bindir}, but there is no initdb in it")
    return Path(bindir)


@pytest.fixture(scope="session")
def system_postgres() -> Iterator[SystemPostgres]:
    """The system's PostgreSQL 15, in a cluster of the session's own."""
    binaries = _system_binaries()
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        names = {each.pw_name for each in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    as_user: dict[str, Any] = {}
    with open_directory(memory()) as path:
        if user is not None:
            os.chown(path, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        options = ["-U", "postgres", "-A", "trust", "-N", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            [binaries / "initdb", "-D", path / "pgdata", *options],
            check=True,
            capture_output=True,
            cwd=path,
            **as_user,
        )
        command = [binaries / "postgres", "-D", path / "pgdata", "-k", path]
        for setting in ("listen_addresses=", "max_connections=100", "shared_buffers=32MB"):
            command += ["-c", setting]
        with (path / "postgres.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=path, **as_user
            )
        server = SystemPostgres(path)
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    psycopg.connect(server.url).close()
                    break
                except psycopg.OperationalError:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise
                    time.sleep(0.05)
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("CREATE DATABASE template_penstock")
            upgrade(server.url_of("template_penstock"))
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture(scope="session")
def system_copies(system_postgres: SystemPostgres) -> Copies:
    return Copies(system_postgres)


@pytest.fixture(params=["postgres 18", "postgres 15"])
def any_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own, on each version of PostgreSQL."""
    if request.param == "postgres 18":
        yield request.getfixturevalue("database_url")
    else:
        system_copies = request.getfixturevalue("system_copies")
        with system_copies.taken("template_penstock") as url:
            yield url


@dataclass
class Log:
    """A database's log store, and a person with psql beside it."""

    url: str
    database: Database
    psql: psycopg.Connection[Any]
    segments: Segments = field(init=False)
    store: PostgresLogStore = field(init=False)
    marks: int = 0

    def __post_init__(self) -> None:
        self.segments = Segments(self.database)
        self.store = PostgresLogStore(self.database, self.segments)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What a statement of that person gives, at once committed."""
        cursor = self.psql.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters: Any) -> Any:
        """The one value it gives."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def new_partitions(self, count: int = 1, name: str | None = None) -> list[int]:
        """Partitions of a new topic."""
        topic_id = uuid4()
        name = name or f"t-{topic_id.hex[:8]}"
        self.rows("INSERT INTO topic (topic_id, name) VALUES (%s, %s)", topic_id, name)
        ids = [
            self.value(
                "INSERT INTO topic_partition (topic_id, partition) VALUES (%s, %s)"
                " RETURNING partition_id",
                topic_id,
                number,
            )
            for number in range(count)
        ]
        for partition_id in ids:
            self.rows("INSERT INTO leader_epoch VALUES (%s, 0, 0)", partition_id)
        return ids

    async def drafted(
        self, partition_id: int, *batches: RecordBatch, segment: str = "week"
    ) -> tuple[LogEffects, list[bytes]]:
        """Decides on the partition as it is; gives the effects, and the payload they carry."""
        producers = sorted({(partition_id, each.producer_id) for each in batches})
        states, known, _ = await self.store.load([partition_id], producers)
        log = PartitionLog(states[partition_id])
        log.load(
            states[partition_id], {producer: known.get((p, producer)) for p, producer in producers}
        )
        return self.draft(log.draft(), *batches, segment=segment)

    def draft(
        self, draft: LogDraft, *batches: RecordBatch, segment: str = "week"
    ) -> tuple[LogEffects, list[bytes]]:
        """Decides on a draft; gives the effects, and the payload they carry."""
        payload: list[bytes] = []
        for each in batches:
            self.marks += 1
            payload.append(payload_of(each, self.marks))
            draft.prepare_append(IncomingBatch(each, payload[-1], segment))
        effects = draft.effects()
        assert effects is not None
        return effects, payload

    async def append(
        self, partition_id: int, *batches: RecordBatch, segment: str = "week"
    ) -> Sequence[bytes]:
        """Appends in one flush of its own; gives the payload written."""
        effects, payload = await self.drafted(partition_id, *batches, segment=segment)
        flush = self.store.open_flush()
        try:
            await flush.commit([effects])
        finally:
            await flush.close()
        return payload

    async def segment(self, retention_class: str = "week") -> int:
        """The segment open for a class, made if there is none."""
        await self.segments.prepare([retention_class])
        return self.segments.current(retention_class)

    async def state(self, partition_id: int) -> PartitionState:
        """The partition's row."""
        return (await self.store.load([partition_id]))[0][partition_id]

    def backends(self, condition: str = "true") -> list[int]:
        """Process ids of the store's sessions for which a condition holds in pg_stat_activity."""
        found = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            f" AND application_name = 'penstock' AND ({condition}) ORDER BY backend_start"
        )
        return [pid for (pid,) in found]


async def open_log(url: str) -> AsyncIterator[Log]:
    database = Database(url)
    with psycopg.connect(url, autocommit=True) as psql:
        yield Log(url, database, psql)
    await database.close()


@pytest.fixture
async def log(any_url: str) -> AsyncIterator[Log]:
    """The log store on each version of PostgreSQL."""
    async for each in open_log(any_url):
        yield each


@pytest.fixture
async def log18(database_url: str) -> AsyncIterator[Log]:
    """The log store on the embedded PostgreSQL only."""
    async for each in open_log(database_url):
        yield each
