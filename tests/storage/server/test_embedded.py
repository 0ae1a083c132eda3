"""storage.server.embedded: what starts, what it guards, and what is left when somebody dies."""

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from storage.server import embedded
from storage.server.embedded import EmbeddedPostgres, EmbeddedPostgresError
from tests.conftest import SMALL_POSTGRES, open_directory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a server of another user")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")

GATEWAY = """
import sys, time
from pathlib import Path
from storage.server.embedded import EmbeddedPostgres
server = EmbeddedPostgres(sys.argv[1], settings={"shared_buffers": "16MB"})
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


# Prints the ids of the user that each of four processes found or made.
START_TOGETHER = """
import os
from storage.server.embedded import _unprivileged_user
for start in range(4):
    if os.fork() == 0:
        user = _unprivileged_user()
        os.write(1, f"{user.uid} {user.gid}\\n".encode())
        os._exit(0)
for start in range(4):
    os.wait()
"""


@pytest.fixture(scope="session")
def made_cluster() -> Iterator[Path]:
    """A cluster made once, its server stopped."""
    with open_directory() as path:
        with server_in(path / "data"):
            pass
        yield path / "data"


@pytest.fixture
def cluster(made_cluster: Path, data_dir: Path) -> Path:
    """A data directory with a cluster of the test's own, without waiting for initdb."""
    subprocess.run(["cp", "--archive", made_cluster, data_dir], check=True)
    return data_dir


def server_in(path: Path, **options: object) -> EmbeddedPostgres:
    return EmbeddedPostgres(path, settings=SMALL_POSTGRES, **options)  # type: ignore[arg-type]  # few and literal


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie waits only for its parent


def wait_until_gone(pid: int, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def show(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


@contextlib.contextmanager
def gateway_with(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that started a server and lives on; gives it and the server's process id."""
    with subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(data_dir)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the gateway ended before its server ran"
        try:
            yield process, int(line)
        finally:
            process.kill()


def test_a_first_start_makes_a_durable_private_cluster(data_dir: Path) -> None:
    with server_in(data_dir) as server:
        wanted = {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "wal_level": "replica",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "jit": "off",
        }
        assert {name: show(server.url, name) for name in wanted} == wanted
        assert server.url.startswith("postgresql://postgres@/penstock?host=")
        run = data_dir / "run"
        assert stat.S_IMODE(run.stat().st_mode) == 0o700
        assert stat.S_IMODE((data_dir / "pgdata").stat().st_mode) == 0o700
        with psycopg.connect(server.url) as connection:
            row = connection.execute(
                "SELECT datlocprovider::text, datlocale FROM pg_database"
                " WHERE datname = current_database()"
            ).fetchone()
        assert row == ("b", "C.UTF-8")


def test_checksums_can_be_left_out(data_dir: Path) -> None:
    with server_in(data_dir, checksums=False) as server:
        assert show(server.url, "data_checksums") == "off"


def test_a_later_start_finds_what_was_written(cluster: Path) -> None:
    server = server_in(cluster)
    with psycopg.connect(server.start()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pid = server.pid
    assert pid is not None
    server.stop()
    assert server.pid is None
    wait_until_gone(pid)
    with server_in(cluster) as again, psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_given_settings_win_but_not_over_durability(cluster: Path) -> None:
    settings = {"work_mem": "7MB", "fsync": "off"}
    with EmbeddedPostgres(cluster, settings=settings) as server:
        assert show(server.url, "work_mem") == "7MB"
        assert show(server.url, "fsync") == "on"


@pytest.mark.parametrize(
    ("memory", "expected"), [(24 * 2**30, "1024MB"), (2**32, "512MB"), (2**28, "128MB")]
)
def test_shared_buffers_are_a_share_of_what_may_be_taken(
    memory: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "available_memory", lambda: memory)
    assert embedded.shared_buffers(brokers=1) == expected


def test_a_server_keeps_its_memory_and_reads_for_itself(cluster: Path) -> None:
    with EmbeddedPostgres(cluster) as server, psycopg.connect(server.url) as connection:
        assert show(server.url, "io_method") == "sync"
        connection.execute("CREATE TEMPORARY TABLE environment (line text)")
        connection.execute("COPY environment FROM PROGRAM 'env'")
        lines = connection.execute("SELECT line FROM environment").fetchall()
        assert ("MALLOC_TRIM_THRESHOLD_=67108864",) in lines


def test_alter_system_wins_over_tuned_settings(cluster: Path) -> None:
    with EmbeddedPostgres(cluster) as server, psycopg.connect(server.url) as connection:
        connection.autocommit = True
        connection.execute("ALTER SYSTEM SET checkpoint_timeout = '7min'")
    with EmbeddedPostgres(cluster) as server:
        assert show(server.url, "checkpoint_timeout") == "7min"


def test_pg_environment_variables_do_not_reach_the_server(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    server = server_in(cluster)
    monkeypatch.delenv("PGPORT")  # our own client in this test would read it, too
    with server:
        assert show(server.url, "port") == "5432"


def test_psql_command_works(cluster: Path) -> None:
    with server_in(cluster) as server:
        answer = subprocess.run(
            f"{server.psql_command} -Atc 'SELECT current_database()'",
            shell=True,
            check=True,
            capture_output=True,
            text=True,
        )
    assert answer.stdout.strip() == "penstock"


def test_a_directory_in_use_is_refused_in_one_sentence(cluster: Path) -> None:
    with server_in(cluster) as server:
        with pytest.raises(EmbeddedPostgresError, match=rf"in use by process {os.getpid()}: stop"):
            server_in(cluster).start()
        assert show(server.url, "fsync") == "on"


def test_a_long_path_gets_a_socket_in_a_short_one(data_dir: Path) -> None:
    deep = data_dir / ("d" * 100) / "data"
    server = server_in(deep)
    with server:
        assert show(server.url, "fsync") == "on"
        socket_dir = Path(server.url.rpartition("host=")[2])
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    assert not socket_dir.exists()


def test_a_path_with_odd_characters_works(data_dir: Path) -> None:
    with server_in(data_dir / "a b,c'd%") as server:
        assert show(server.url, "fsync") == "on"


@pytest.mark.fault
@on_linux
def test_killing_the_gateway_stops_the_server_and_keeps_the_data(cluster: Path) -> None:
    with gateway_with(cluster) as (process, server_pid):
        url = EmbeddedPostgres(cluster).url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until_gone(server_pid)
    with server_in(cluster) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.fault
@on_linux
def test_a_start_right_after_a_kill_waits_for_the_old_server(cluster: Path) -> None:
    with gateway_with(cluster) as (process, server_pid):
        process.send_signal(signal.SIGKILL)
        process.wait()
        with server_in(cluster) as server:
            assert not is_alive(server_pid)
            assert show(server.url, "fsync") == "on"


@pytest.mark.fault
@on_linux
def test_interrupting_the_terminal_does_not_reach_the_server(cluster: Path) -> None:
    with gateway_with(cluster) as (process, server_pid):
        assert os.getpgid(server_pid) != os.getpgid(process.pid)


@pytest.mark.fault
@on_linux
def test_a_server_left_behind_is_stopped_and_replaced(cluster: Path) -> None:
    server = server_in(cluster)
    server.start()
    pid = server.pid
    assert pid is not None
    # As if the gateway had died and nobody had told the server: only the lock is let go of.
    server._unlock()
    with server_in(cluster) as second:
        assert second.pid != pid
        assert not is_alive(pid)
        assert show(second.url, "fsync") == "on"


@pytest.mark.fault
@on_linux
def test_sessions_that_outlived_their_server_are_ended(cluster: Path) -> None:
    server = server_in(cluster)
    server.start()
    with contextlib.closing(psycopg.connect(server.url)) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGSTOP)  # it cannot notice that its server dies
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server._unlock()
        with server_in(cluster) as second:
            assert not is_alive(row[0])
            assert show(second.url, "fsync") == "on"


@pytest.mark.fault
def test_a_killed_server_starts_again_with_what_was_committed(cluster: Path) -> None:
    server = server_in(cluster)
    with psycopg.connect(server.start()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    server.kill()
    assert server.pid is None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url).close()
    with server, psycopg.connect(server.start()) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.fault
@on_linux
def test_a_stale_lock_file_naming_a_foreign_process_does_not_stop_a_start(cluster: Path) -> None:
    server = server_in(cluster)
    server.start()
    server.kill()
    server.stop()
    owner = (cluster / "pgdata").stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner) as foreign:
        try:
            lock_file = cluster / "pgdata" / "postmaster.pid"
            _, *rest = lock_file.read_text().splitlines(keepends=True)
            lock_file.write_text(f"{foreign.pid}\n{''.join(rest)}")
            with server_in(cluster) as second:
                assert show(second.url, "fsync") == "on"
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_an_interrupted_initdb_leaves_nothing_in_the_way(data_dir: Path) -> None:
    half = data_dir / "pgdata.new-interrupted"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with server_in(data_dir) as server:
        assert show(server.url, "fsync") == "on"
    assert not half.exists()


def test_a_directory_of_something_else_is_refused(data_dir: Path) -> None:
    (data_dir / "pgdata").mkdir(parents=True)
    (data_dir / "pgdata" / "letter.txt").write_text("dear all")
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(data_dir / "pgdata", nobody.pw_uid, nobody.pw_gid)
    with pytest.raises(EmbeddedPostgresError, match=r"holds files but no PostgreSQL cluster: move"):
        server_in(data_dir).start()
    assert [path.name for path in (data_dir / "pgdata").iterdir()] == ["letter.txt"]


def test_another_versions_cluster_is_refused(data_dir: Path) -> None:
    (data_dir / "pgdata").mkdir(parents=True)
    (data_dir / "pgdata" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 16, not 18: upgrade"):
        server_in(data_dir).start()


def test_a_failing_start_tells_the_servers_reason_and_leaves_nothing(cluster: Path) -> None:
    server = EmbeddedPostgres(cluster, settings={"shared_buffers": "all of it"})
    with pytest.raises(EmbeddedPostgresError, match=r"invalid value for parameter"):
        server.start()
    assert server.pid is None
    with server_in(cluster) as good:
        assert show(good.url, "fsync") == "on"


def test_a_place_that_cannot_be_written_is_refused(data_dir: Path) -> None:
    data_dir.write_text("a file, not a directory")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot be made .*: choose another one"):
        server_in(data_dir / "below").start()


@as_root
def test_root_runs_the_server_as_somebody_else_and_touches_no_parent(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o711)
    before = data_dir.parent.stat()
    with server_in(data_dir) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    after = data_dir.parent.stat()
    assert (before.st_mode, before.st_uid) == (after.st_mode, after.st_uid)
    assert (data_dir.stat().st_mode & 0o777, data_dir.stat().st_uid) == (0o711, 0)


@as_root
@on_linux
def test_the_user_is_made_once_where_several_start_at_the_same_moment(data_dir: Path) -> None:
    if shutil.which("useradd") is None:
        pytest.skip("there is no useradd")
    # With an /etc of its own, which leaves the machine's as it is.
    script = f"""
    cp -a /etc {data_dir} && touch {data_dir}/copied && mount --bind {data_dir} /etc || exit 77
    test -e /etc/copied || exit 77
    cd {Path.cwd()}
    for round in 1 2 3 4 5 6 7 8; do
        sed -i /^penstock:/d /etc/passwd /etc/shadow /etc/group /etc/gshadow
        {sys.executable} -c '{START_TOGETHER}'
        getent passwd penstock | cut -d: -f3,4 --output-delimiter=" "
    done
    """
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ran.returncode != 0:
        pytest.skip(f"may not mount: {ran.stderr.strip()}")
    ids = ran.stdout.splitlines()
    rounds = [ids[start : start + 5] for start in range(0, len(ids), 5)]
    assert [len(set(found)) for found in rounds] == [1] * 8, rounds


@as_root
def test_a_closed_parent_is_named_with_what_to_do(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=rf"{data_dir} is closed to its user .* --data"):
        server_in(data_dir / "below").start()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


@as_root
def test_binaries_in_a_closed_directory_are_copied_once(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = embedded._installed_binaries()
    package = installed.parent.parent
    with open_directory() as home:
        shutil.copytree(
            installed.parent,
            home / package.name / installed.parent.name,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.a", "include"),
        )
        shutil.copytree(f"{package}.libs", home / f"{package.name}.libs", symlinks=True)
        home.chmod(0o700)
        moved = home / package.name / installed.parent.name / "bin"
        monkeypatch.setattr(embedded, "_installed_binaries", lambda: moved)
        with server_in(data_dir) as server:
            assert show(server.url, "fsync") == "on"
            assert str(data_dir) in server.psql_command
        copies = [path for path in data_dir.iterdir() if path.name.startswith("postgresql-")]
        assert len(copies) == 1
        made_at = copies[0].stat().st_mtime_ns
        with server_in(data_dir) as server:
            assert show(server.url, "fsync") == "on"
        assert copies[0].stat().st_mtime_ns == made_at
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
