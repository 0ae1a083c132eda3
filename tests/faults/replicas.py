"""A primary and its standby, each the embedded server in a directory of its own, changing places.

The script that an operator, or a cluster manager, has for them: build a standby from the primary,
require it for commits, promote it, end the one that was primary. Knows PostgreSQL's replication;
must not know brokers nor what is in the database.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg

from storage.server.embedded import EmbeddedPostgres, installed_psql
from tests.conftest import SMALL_POSTGRES

PROGRAMS = installed_psql().parent
STANDBY = "standby"
"""By which the primary knows it."""
WITHIN_S = 60.0
IPC_RMID = 0  # of Linux, as of any Unix
# What is in memory goes with the directory.
SETTINGS = {**SMALL_POSTGRES, "dynamic_shared_memory_type": "mmap"}


def copy_of(primary: EmbeddedPostgres, data: Path) -> None:
    """Makes the files of a standby in the directory, in place of those that are there."""
    data.mkdir(mode=0o755, exist_ok=True)
    shutil.rmtree(data / "pgdata", ignore_errors=True)
    source = f"{primary.url_of('postgres')}&application_name={STANDBY}"
    options = ["-D", str(data / "pgdata"), "-R", "-c", "fast", "-d", source]
    subprocess.run([str(PROGRAMS / "pg_basebackup"), *options], check=True, capture_output=True)
    owner = primary.pgdata.stat()
    for path in (data, data / "pgdata", *(data / "pgdata").rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


class Replicas:
    """Two servers. `primary` is the one that takes writes, `standby` the one that follows it."""

    def __init__(self, primary: Path, standby: Path, *, is_synchronous: bool = True) -> None:
        """primary: with a cluster in it. is_synchronous: commits wait for the standby."""
        self.primary = EmbeddedPostgres(primary, settings=SETTINGS)
        self.standby = EmbeddedPostgres(standby, settings=SETTINGS)
        self.is_synchronous = is_synchronous

    @property
    def url(self) -> str:
        """Of both, first the one that is primary now."""
        servers = (self.primary, self.standby)
        sockets = ",".join(quote(str(each.data_dir / "run")) for each in servers)
        return f"postgresql://postgres@/penstock?host={sockets}&target_session_attrs=read-write"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Both, and nothing of them afterwards."""
        with contextlib.ExitStack() as stack:
            for each in (self.primary, self.standby):
                stack.callback(self._end, each)
            self.primary.start()
            self.follow()
            yield

    def follow(self) -> None:
        """Builds the standby anew, and returns once no commit is acknowledged without it."""
        self._end(self.standby)
        copy_of(self.primary, self.standby.data_dir)
        self.standby.start()
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            if self.is_synchronous:
                # Not before: the copy must not wait for a standby of its own once it is promoted.
                name = f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'"
                connection.execute(name.encode())
                connection.execute("SELECT pg_reload_conf()")
                self._wait_until(self.primary, "SHOW synchronous_standby_names", STANDBY)
                # By its end the checkpointer, which tells all sessions, has read the setting.
                connection.execute("CHECKPOINT")
            ((end,),) = connection.execute("SELECT pg_current_wal_insert_lsn()")
        state = "sync" if self.is_synchronous else "async"
        follows = (
            f"SELECT sync_state FROM pg_stat_replication WHERE application_name = '{STANDBY}'"
            f" AND flush_lsn >= '{end}'"
        )
        self._wait_until(self.primary, follows, state)

    def promote(self) -> None:
        """Makes the standby a primary, and returns once it takes writes. The other one does not
        know of it: end it, or see that it is ended."""
        self.primary, self.standby = self.standby, self.primary
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        self._wait_until(self.primary, "SELECT pg_is_in_recovery()", False)

    def pause(self) -> None:
        """SIGSTOP to all of the primary, as where its machine stands still."""
        self._signal(self.primary, signal.SIGSTOP)

    def resume(self, server: EmbeddedPostgres) -> None:
        """SIGCONT."""
        self._signal(server, signal.SIGCONT)

    def _end(self, server: EmbeddedPostgres) -> None:
        """Also where it is paused; its files are of no further use."""
        server.kill()
        server.stop()
        # A killed server leaves a segment of shared memory, which its next start would remove.
        with contextlib.suppress(FileNotFoundError):
            lines = (server.pgdata / "postmaster.pid").read_text().splitlines()
            _, segment = lines[6].split()
            ctypes.CDLL(None).shmctl(int(segment), IPC_RMID, None)

    def _signal(self, server: EmbeddedPostgres, number: signal.Signals) -> None:
        postmaster = server.pid
        assert postmaster is not None
        os.kill(postmaster, number)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
        for child in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    def _wait_until(self, server: EmbeddedPostgres, question: str, answer: object) -> None:
        """Each time on a new connection, which has the server's settings as they are now."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            with psycopg.connect(server.url, autocommit=True) as connection:
                found = connection.execute(question.encode()).fetchone()
            if found == (answer,):
                return
            assert time.monotonic() < deadline, f"{question}: {found}, not {answer}"
            time.sleep(0.02)
