"""An embedded PostgreSQL for tests: its data is thrown away. In memory if there is room.

Knows directories and the cluster it copies; nothing of what the broker stores. A cluster with the
schema is made once per user and version and kept in the user's cache, since initdb and the
migrations take most of a start; each start takes a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg

from core.version import VERSION
from storage import views
from storage.migrate import HEAD, upgrade
from storage.server.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    one_at_a_time,
    package_version,
)
from storage.server.memory import available_memory

PREFIX = "penstock-ephemeral-"
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30  # with so much free memory, the data is in memory
_OWNER = "owner.lock"
_BEING_MADE_S = 60.0  # a younger directory may not have its lock yet
_UNUSED_S = 30 * 24 * 3600.0

# There may be one beside each worker of pytest-xdist.
_SMALL = {"shared_buffers": "64MB", "min_wal_size": "80MB", "max_wal_size": "256MB"}


class EphemeralPostgres(EmbeddedPostgres):
    """A server in its own directory, which `discard` removes.

    The next server removes what a killed process left behind.
    """

    def __init__(self, cache: Path | None = None, *, brokers: int = 1) -> None:
        """cache: where the cluster to copy is kept; by default, the user's cache. brokers: how many
        will use it."""
        self._cache = cache or user_cache()
        directory, self._owner = _new_directory()
        super().__init__(
            directory, settings=_SMALL, checksums=False, durable=False, brokers=brokers
        )

    def start(self) -> str:
        """As `EmbeddedPostgres.start`; its database has the schema."""
        if not self.pgdata.exists():
            self._make_cluster()
        return super().start()

    def stop(
        self, mode: Literal["smart", "fast", "immediate"] = "immediate", *, timeout_s: float = 60.0
    ) -> None:
        """Stops the server and waits until it is gone; it need not write anything."""
        super().stop(mode, timeout_s=timeout_s)

    def discard(self) -> None:
        """Stops the server and removes its data."""
        self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        os.close(self._owner)

    def _make_cluster(self) -> None:
        """Copies the cached cluster, after making it if needed; without a cache, makes one."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            self._migrate()
            return
        template = self._cache / _template_name()
        with one_at_a_time(self._cache / "lock"):
            if not template.exists():
                self._migrate()
                with contextlib.suppress(OSError, subprocess.CalledProcessError):
                    _store(self.pgdata, template)
                return
        os.utime(template)
        _copy(template, self.pgdata)
        self._name_cluster()

    def _migrate(self) -> None:
        super().start()
        upgrade(self.url)
        super().stop("fast")

    def _name_cluster(self) -> None:
        """Gives the copy its own cluster id, so that clients tell copies apart."""
        super().start()
        with psycopg.connect(self.url, autocommit=True) as connection:
            name = "UPDATE penstock.cluster SET cluster_id = %s"
            connection.execute(name, [secrets.token_urlsafe(16)])


def user_cache() -> Path:
    """Where this user's cluster to copy is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock" / "clusters"


def _template_name() -> str:
    """Named after all that decides the cluster's contents; root's belongs to PostgreSQL's user."""
    parts = (VERSION, HEAD, views.digest(), package_version(), str(os.geteuid()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _store(pgdata: Path, template: Path) -> None:
    """Puts a stopped cluster into the cache, whole; removes clusters unused for long."""
    for earlier in template.parent.iterdir():
        if earlier.is_dir() and time.time() - earlier.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(earlier, ignore_errors=True)
    new = Path(tempfile.mkdtemp(dir=template.parent, prefix="new-"))
    _copy(pgdata, new / "pgdata")
    (new / "pgdata").rename(template)
    new.rmdir()


def _copy(source: Path, target: Path) -> None:
    """Uses cp: it keeps owners, and takes half the time of shutil."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, capture_output=True)


# --- directories ---


def _new_directory() -> tuple[Path, int]:
    """A directory that PostgreSQL's user may pass through, and the lock that says it is in use."""
    places = list(_places())
    for place in places:
        _remove_abandoned(place)
    for place in places:
        with contextlib.suppress(OSError):
            path = Path(tempfile.mkdtemp(dir=place, prefix=PREFIX))
            path.chmod(0o755 if os.geteuid() == 0 else 0o700)
            owner = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return path, owner
    raise EmbeddedPostgresError(
        "No temporary directory can be made for the data: set TMPDIR to a directory that can be "
        "written."
    )


def _places() -> Iterator[Path]:
    """Memory if there is room, then the disk; for root, only directories others may enter."""
    with contextlib.suppress(OSError):
        if min(shutil.disk_usage(MEMORY).free, available_memory()) >= ROOM:
            yield MEMORY
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        path = Path(place).resolve()
        is_open = all(each.stat().st_mode & 0o001 for each in (path, *path.parents))
        if is_open or os.geteuid() != 0:
            yield path


def _remove_abandoned(place: Path) -> None:
    """Removes directories of killed processes: no process holds their lock any more."""
    for path in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid != os.geteuid():
                continue
            if time.time() - path.stat().st_mtime < _BEING_MADE_S:
                continue
            lock = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
