"""A disk without a free byte: PostgreSQL's tables are on it, or its log as well."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, StartGateway, open_directory
from tests.faults.conftest import create_topic, query
from tests.faults.test_sql_accounts import wait_until_published
from tests.faults.test_sql_backlog import INSERT, PARTITIONS, TOPIC, is_published, verify
from tests.faults.test_sql_takeover import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.variant]

DISK_BYTES = 300 * 2**20
LEFT_BYTES = 24 * 2**20
AT_ONCE = 1_000


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of its own."""
    with open_directory() as path:
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", path]
        if subprocess.run(mounting, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a file system")
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)


def is_up(server: EmbeddedPostgres) -> bool:
    try:
        return query(server.url, "SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_log", [False, True], ids=["tables", "tables and log"])
def test_a_statement_fails_and_no_broker_does(
    migrated_dir: Path, disk: Path, start_gateway: StartGateway, *, has_log: bool
) -> None:
    """What was committed before is published once there is room, and nothing else."""
    data_dir = disk / "cluster"
    subprocess.run(["cp", "-a", migrated_dir, data_dir], check=True)
    if not has_log:
        log, elsewhere = data_dir / "pgdata" / "pg_wal", migrated_dir / "log"
        subprocess.run(["cp", "-a", log, elsewhere], check=True)
        shutil.rmtree(log)
        log.symlink_to(elsewhere)
    with EmbeddedPostgres(data_dir, settings=SMALL_POSTGRES) as server:
        gateway = start_gateway(database_url=server.url)
        create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
        gateway.pause()
        other = disk / "other"
        other.write_bytes(b"x" * (shutil.disk_usage(disk).free - LEFT_BYTES))
        count = 0
        with (
            psycopg.connect(server.url, autocommit=True) as session,
            # Where its log cannot be written, PostgreSQL may end itself instead.
            pytest.raises(psycopg.OperationalError if has_log else psycopg.errors.DiskFull),
        ):
            while True:
                last = count + AT_ONCE - 1
                session.execute(INSERT.format(topic=TOPIC, first=count, last=last).encode())
                count += AT_ONCE
        gateway.resume()
        time.sleep(3)
        assert gateway.process.poll() is None
        assert not is_up(server) or not is_published(server.url, count)()
        other.unlink()
        # PostgreSQL ends itself where it cannot write its log. It is started as by its service.
        wait_until(lambda: server.pid is None or is_up(server))
        server.start()
        wait_until_published(server.url)
        if has_log and is_published(server.url, count + 1)():
            count += AT_ONCE  # that COMMIT was in the log, and nobody was told
        verify(gateway, count)
        assert gateway.process.poll() is None
