"""What applications have produced, when the database comes from a dump, a backup or a standby: what
waited is published, and what was published is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from storage.server.embedded import EmbeddedPostgres, installed_psql
from tests.conftest import SMALL_POSTGRES, StartGateway, open_directory
from tests.faults.conftest import create_topic, query
from tests.faults.reading import read_tables
from tests.faults.replicas import copy_of
from tests.faults.test_restore import restore
from tests.faults.test_sql_accounts import wait_until_published
from tests.faults.test_sql_takeover import wait_until
from tests.variants import variants

pytestmark = pytest.mark.fault

TOPIC = "kept"
PROGRAMS = installed_psql().parent
PUBLISHED, WAITING, NEW = range(20), range(20, 50), range(50, 60)
MANY = range(20, 4_020)
"""More than one look puts in order."""


def produce(url: str, numbers: Sequence[int]) -> None:
    """A transaction for each."""
    with psycopg.connect(url, autocommit=True) as session:
        for each in numbers:
            session.execute("SELECT penstock.produce(%s, 'k'::text, %s::text)", [TOPIC, str(each)])


def use_up_ids(url: str, up_to: int) -> None:
    """Begins transactions until the next one has this id, or a larger one."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(
            f"""
            DO $$ BEGIN
                LOOP
                    EXIT WHEN pg_current_xact_id()::text::bigint >= {up_to - 1:d};
                    COMMIT;
                END LOOP;
            END $$
            """.encode()
        )


def stored(url: str) -> list[int]:
    """The topic's records, in order."""
    return [int(each.value) for each in read_tables(url, TOPIC)[0].records]


def published_and_waiting(
    server: EmbeddedPostgres, start_gateway: StartGateway, waiting: Sequence[int] = WAITING
) -> None:
    """Some of both, and no broker."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, 1)
    produce(server.url, PUBLISHED)
    wait_until_published(server.url)
    gateway.kill()
    produce(server.url, waiting)


def wait_until_promoted(server: EmbeddedPostgres) -> None:
    """Its recovery has ended."""
    wait_until(lambda: query(server.url, "SELECT pg_is_in_recovery()") == [(False,)])


def stop_in_a_backlog(server: EmbeddedPostgres, start_gateway: StartGateway) -> None:
    """A broker that has published some of what waits, but not all that it has seen."""
    target = "SELECT target FROM penstock.inbox_position ORDER BY version DESC LIMIT 1"
    # Each step is held up for a moment: else a quick broker is done between two looks.
    slowed = "penstock.inbox_position"
    with psycopg.connect(server.url, autocommit=True) as psql:
        psql.execute(
            "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql"
            " AS $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$"
        )
        psql.execute(
            f"CREATE TRIGGER slow BEFORE INSERT ON {slowed} FOR EACH ROW EXECUTE FUNCTION hold_up()"
        )
        gateway = start_gateway(database_url=server.url, wait=False)
        wait_until(lambda: query(server.url, target) not in ([(None,)], []))
        gateway.kill()
        psql.execute(f"DROP TRIGGER slow ON {slowed}")  # waits for what was under way
        psql.execute("DROP FUNCTION hold_up")
    assert query(server.url, target) != [(None,)]


def load_dump(old: EmbeddedPostgres, new: EmbeddedPostgres) -> None:
    """Into a cluster that has the roles."""
    with psycopg.connect(new.url_of("postgres"), autocommit=True) as session:
        for role in ("producer", "consumer", "reader"):
            session.execute(f"CREATE ROLE penstock_{role}".encode())
    dumped = subprocess.run(
        [str(PROGRAMS / "pg_dump"), old.url], check=True, capture_output=True
    ).stdout
    subprocess.run(
        [str(PROGRAMS / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", new.url],
        input=dumped, check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize("ids", variants("smaller", "the same"))
@pytest.mark.parametrize("state", ["waiting", "in a backlog"])
def test_a_dump_in_another_cluster(
    server: EmbeddedPostgres, start_gateway: StartGateway, ids: str, state: str
) -> None:
    """Transactions have other ids there; some produce before the first broker comes."""
    if ids == "smaller":
        use_up_ids(server.url, 5_000)
    waiting = WAITING if state == "waiting" else MANY
    published_and_waiting(server, start_gateway, waiting)
    ((first,),) = query(server.url, "SELECT min(xid::text::bigint) FROM penstock.inbox_commit_0")
    if state != "waiting":
        stop_in_a_backlog(server, start_gateway)
    new = [each + max(waiting) for each in range(1, 11)]
    with (
        open_directory(Path("/dev/shm")) as directory,
        EmbeddedPostgres(directory / "data", settings=SMALL_POSTGRES) as other,
    ):
        load_dump(server, other)
        if ids == "the same":
            use_up_ids(other.url, int(str(first)))
        produce(other.url, new[:5])
        start_gateway(database_url=other.url)
        wait_until_published(other.url)
        produce(other.url, new[5:])
        wait_until_published(other.url)
        assert stored(other.url) == [*PUBLISHED, *waiting, *new]
        assert query(other.url, "SELECT era FROM penstock.sql_door") == [(1,)]


@pytest.mark.parametrize("state", ["waiting", "in a backlog"])
def test_a_backup_of_files(
    server: EmbeddedPostgres, start_gateway: StartGateway, state: str, tmp_path: Path
) -> None:
    """On a timeline of its own; what came later is lost, and its ids come again."""
    waiting = WAITING if state == "waiting" else MANY
    published_and_waiting(server, start_gateway, waiting)
    if state != "waiting":
        stop_in_a_backlog(server, start_gateway)
    server.stop()
    backup = tmp_path / "backup"
    shutil.copytree(server.pgdata, backup, symlinks=True)
    owner = server.pgdata.stat()
    shutil.chown(backup, owner.st_uid, owner.st_gid)
    server.start()
    start_gateway(database_url=server.url)
    produce(server.url, range(90_000, 90_100))
    wait_until_published(server.url)
    restore(server, backup)  # under the broker
    wait_until_promoted(server)
    new = [each + max(waiting) for each in range(1, 11)]
    produce(server.url, new)
    wait_until_published(server.url)
    assert stored(server.url) == [*PUBLISHED, *waiting, *new]


def test_a_promoted_standby(migrated_dir: Path, start_gateway: StartGateway) -> None:
    """It takes over in the middle of a backlog."""
    with (
        EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as primary,
        open_directory(Path("/dev/shm")) as directory,
    ):
        published_and_waiting(primary, start_gateway, MANY)
        data = directory / "data"
        copy_of(primary, data)
        with EmbeddedPostgres(data, settings=SMALL_POSTGRES) as standby:
            stop_in_a_backlog(primary, start_gateway)
            ((end,),) = query(primary.url, "SELECT pg_current_wal_insert_lsn()")
            reached = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
            wait_until(lambda: query(standby.url, reached) == [(True,)])
            primary.stop("immediate")
            query(standby.url, "SELECT pg_promote()")
            wait_until_promoted(standby)
            new = [each + max(MANY) for each in range(1, 11)]
            produce(standby.url, new)
            start_gateway(database_url=standby.url)
            wait_until_published(standby.url)
            assert stored(standby.url) == [*PUBLISHED, *MANY, *new]
