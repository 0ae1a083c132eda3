"""Payload that the embedded server copies from a file: what is read back, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from core.log.effects import IncomingBatch
from core.ports.log import (
    CommitUnknown,
    Payload,
    ReadRange,
    SegmentGone,
    StoreUnavailable,
    ToLock,
    VersionMismatch,
)
from core.staging.values import TokenBatch, TokenEffects
from storage.connection.pool import Database
from storage.flush.handover import MEMORY, Handover, HandoverFile
from storage.flush.log import FlushSession
from storage.flush.payload import COPIED_BYTES, PayloadWriter
from storage.schema import CHUNK_BYTES
from storage.server.embedded import EmbeddedPostgres
from storage.staging import PostgresStagingStore
from tests.batches import batch, payload_of
from tests.storage.conftest import Log

EVERYTHING = 2**40
LARGE = 3 * COPIED_BYTES[0]
ME = (os.geteuid(), os.getegid())

pytestmark = pytest.mark.skipif(not MEMORY.exists(), reason="no /dev/shm on this machine")


@pytest.fixture
def handover(server: EmbeddedPostgres) -> Iterator[Handover]:
    """The gateway's directory for this server."""
    made = Handover.make(server.user)
    assert made is not None
    yield made
    made.remove()


@pytest.fixture
async def log(server: EmbeddedPostgres, handover: Handover) -> AsyncIterator[Log]:
    """A log store that hands payload over, as the gateway does."""
    database = Database(server.url, handover=handover)
    with psycopg.connect(server.url, autocommit=True) as psql:
        yield Log(server.url, database, psql)
    await database.close()


def files(handover: Handover) -> list[Path]:
    return sorted(handover.directory.iterdir())


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was handed over; a handover that fails, fails the test."""
    sizes: list[int] = []
    write = HandoverFile.write

    def noted(
        self: HandoverFile, payload_id: int, parts: Sequence[Payload], chunk_bytes: int
    ) -> None:
        write(self, payload_id, parts, chunk_bytes)
        sizes.append(sum(map(len, parts)))

    def failed(self: PayloadWriter, reason: str) -> None:
        raise AssertionError(reason)

    monkeypatch.setattr(HandoverFile, "write", noted)
    monkeypatch.setattr(PayloadWriter, "_give_up", failed)
    return sizes


async def one_handed_over(log: Log, partition_id: int) -> FlushSession:
    """A flush's session that has handed something over, and has its file still."""
    effects, _ = await log.drafted(partition_id, batch(size=LARGE))
    flush = log.store.open_flush()
    await flush.commit([effects])
    return flush


async def opened(log: Log, partition_id: int) -> FlushSession:
    """A flush whose session is open, and has a file, and has written nothing yet."""
    flush = log.store.open_flush()
    await flush.lock(ToLock([partition_id]))
    await flush.rollback()
    return flush


async def payloads(log: Log, partition_id: int) -> list[bytes]:
    (found,) = await log.store.read([ReadRange(partition_id, 0, EVERYTHING, EVERYTHING)], 2**40)
    return [bytes(each.payload) for each in found]


@pytest.mark.parametrize(
    "sizes",
    [
        [COPIED_BYTES[0]],
        [COPIED_BYTES[0] - 1],  # a parameter
        [COPIED_BYTES[-1], 1],  # another
        [CHUNK_BYTES * 9],
        [CHUNK_BYTES * 9 + 1],
        [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 61, 100_000],
        [900] * 950,  # more pieces than one `pwritev` takes
        [9_000_000, 70],
    ],
    ids=lambda sizes: f"{len(sizes)}-{sum(sizes)}",
)
async def test_what_was_handed_over_is_read_back(
    log: Log, copied: list[int], sizes: list[int]
) -> None:
    (p,) = log.new_partitions()
    written = await log.append(p, *[batch(size=size) for size in sizes])
    assert copied == [each for each in [sum(sizes)] if each in COPIED_BYTES]
    assert await payloads(log, p) == written
    (rows,) = log.rows(
        "SELECT count(*), max(octet_length(data)), sum(octet_length(data)) FROM record_chunk_1"
    )
    assert rows == (-(-sum(sizes) // CHUNK_BYTES), min(CHUNK_BYTES, sum(sizes)), sum(sizes))


async def test_a_file_serves_one_flush_after_the_other(
    log: Log, handover: Handover, copied: list[int]
) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    written: list[bytes] = []
    for size in (LARGE, 100_000, 10, 4_000_000, 80_000):  # it shrinks, too
        effects, payload = await log.drafted(p, batch(size=size), batch(size=70))
        await flush.commit([effects])
        written += payload
        (file,) = files(handover)
    assert await payloads(log, p) == written
    assert copied == [LARGE + 70, 100_070, 4_000_070, 80_070]
    assert 80_070 < file.stat().st_size < 81_000
    await flush.close()
    assert files(handover) == []


async def test_segments_of_one_flush(log: Log, copied: list[int]) -> None:
    """One of them is handed over."""
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    week, payload = await log.drafted(p, batch(size=LARGE), segment="week")
    (q,) = log.new_partitions()
    day, more = await log.drafted(q, batch(size=LARGE), segment="day")
    await flush.commit([week, day])
    await flush.close()
    assert copied == [LARGE]
    assert await payloads(log, p) == payload
    assert await payloads(log, q) == more


async def test_what_is_decided_anew_is_handed_over_again(log: Log, copied: list[int]) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, payload = await log.drafted(p, batch(size=LARGE))
    overtaking = await log.append(p, batch())
    with pytest.raises(VersionMismatch):
        await flush.commit([effects])
    await flush.lock(ToLock([p]))
    effects, payload = await log.drafted(p, batch(size=LARGE + 1))
    await flush.commit([effects])
    await flush.close()
    assert copied == [LARGE, LARGE + 1]
    assert await payloads(log, p) == [*overtaking, *payload]


async def test_a_segment_that_is_gone(log: Log, copied: list[int]) -> None:
    p, q = log.new_partitions(2)
    flush = await one_handed_over(log, q)
    effects, _ = await log.drafted(p, batch(size=LARGE))
    log.rows(f"DROP TABLE record_chunk_{await log.segment()}")
    with pytest.raises(SegmentGone):
        await flush.commit([effects])
    assert copied == [LARGE, LARGE]
    await flush.close()


async def test_what_is_staged_is_handed_over_too(log: Log, copied: list[int]) -> None:
    (p,) = log.new_partitions()
    store = PostgresStagingStore(log.database, log.segments)
    large = batch(size=LARGE)
    payload = payload_of(large)
    added = TokenBatch("t", 0, p, IncomingBatch(large, payload, "week"))
    await store.stage([TokenEffects(uuid4(), 0, (added,))], 60.0)
    assert copied == [LARGE]
    assert log.value("SELECT string_agg(data, '' ORDER BY seq) FROM record_chunk_1") == payload


async def test_nobody_else_may_look(server: EmbeddedPostgres, log: Log, handover: Handover) -> None:
    (p,) = log.new_partitions()
    flush = await one_handed_over(log, p)
    (file,) = files(handover)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.stat().st_uid == server.pgdata.stat().st_uid
    await flush.close()


async def test_a_file_that_was_removed_costs_one_flush(log: Log, handover: Handover) -> None:
    """As systemd's RemoveIPC does when a user has logged out."""
    (p,) = log.new_partitions()
    flush = await opened(log, p)
    effects, payload = await log.drafted(p, batch(size=LARGE))
    shutil.rmtree(handover.directory)
    with pytest.raises(StoreUnavailable):
        await flush.commit([effects])
    assert await payloads(log, p) == []
    await flush.commit([effects])  # as a parameter
    assert await payloads(log, p) == payload
    await flush.close()
    written = await log.append(p, batch(size=LARGE))  # a new session, which can have no file
    assert (await payloads(log, p))[1:] == written


@pytest.mark.usefixtures("patient_sessions")
async def test_a_file_is_not_written_while_the_server_may_read_it(
    server: EmbeddedPostgres, log: Log
) -> None:
    """A flush whose task is cancelled may be about to be run: what comes next goes another way."""
    p, q = log.new_partitions(2)
    flush = await one_handed_over(log, log.new_partitions()[0])  # the statements are prepared
    first, payload = await log.drafted(p, batch(size=LARGE))
    second, more = await log.drafted(q, batch(size=LARGE))
    with psycopg.connect(server.url) as holder:
        holder.execute("LOCK TABLE record_chunk_1 IN ACCESS EXCLUSIVE MODE")
        cancelled = asyncio.create_task(flush.commit([first]))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        behind = asyncio.create_task(flush.commit([second]))
        await asyncio.sleep(0.1)
        assert not behind.done()
    await behind
    assert await payloads(log, p) == payload
    assert await payloads(log, q) == more
    await flush.close()


async def test_a_new_session_has_a_new_file(log: Log, handover: Handover) -> None:
    """The server may still be about to read the one of a session that was lost."""
    (p,) = log.new_partitions()
    flush = await one_handed_over(log, p)
    (file,) = files(handover)
    (backend,) = log.backends("query LIKE '%%locked%%'")
    log.rows("SELECT pg_terminate_backend(%s)", backend)
    effects, _ = await log.drafted(p, batch(size=LARGE))
    with pytest.raises(CommitUnknown):
        await flush.commit([effects])
    await flush.commit([effects])
    (other,) = files(handover)
    assert other != file
    assert len(await payloads(log, p)) == 2
    await flush.close()


async def test_what_cannot_be_read_as_it_should_costs_one_flush(
    log: Log, handover: Handover, monkeypatch: pytest.MonkeyPatch
) -> None:
    (p,) = log.new_partitions()
    flush = log.store.open_flush()
    effects, payload = await log.drafted(p, batch(size=LARGE))
    monkeypatch.setattr("storage.flush.handover._FIELDS", 4)
    with pytest.raises(StoreUnavailable):
        await flush.commit([effects])
    await flush.commit([effects])
    await flush.close()
    assert await payloads(log, p) == payload


MAKE_AND_WAIT = """
import os, time
from storage.flush.handover import Handover
handover = Handover.make((os.geteuid(), os.getegid()))
handover.open()
print(handover.directory, flush=True)
time.sleep(60)
"""


def test_what_a_killed_gateway_left_is_removed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        directory = Path(other.stdout.readline().strip())
        beside = Handover.make(ME)
        assert beside is not None
        assert list(directory.iterdir()), "it is in use"
        other.kill()
        other.wait()
    after = Handover.make(ME)
    assert after is not None
    assert not directory.exists()
    assert beside.directory.exists()
    beside.remove()
    after.remove()


def test_a_directory_that_was_removed_has_no_successor() -> None:
    """In /dev/shm anybody may make one of its name."""
    handover = Handover.make(ME)
    assert handover is not None
    handover.directory.rmdir()
    handover.directory.mkdir(mode=0o777)
    with pytest.raises(OSError, match="No such file"):
        handover.open()
    assert not list(handover.directory.iterdir())
    handover.remove()


async def test_it_outlives_a_server_that_was_killed(
    server: EmbeddedPostgres, log: Log, handover: Handover
) -> None:
    (p,) = log.new_partitions()
    server.kill()
    server.start()
    flush = await one_handed_over(log, p)
    assert len(files(handover)) == 1
    await flush.close()


def test_a_disk_is_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        monkeypatch.setattr("storage.flush.handover.MEMORY", place)
        assert Handover.make(ME) is None


async def test_a_full_memory_costs_nothing(
    log: Log, handover: Handover, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    (p,) = log.new_partitions()
    flush = await opened(log, p)
    effects, payload = await log.drafted(p, batch(size=LARGE))
    assert len(files(handover)) == 1
    monkeypatch.setattr(os, "pwritev", full)
    await flush.commit([effects])
    assert files(handover) == []
    assert await payloads(log, p) == payload
    await flush.close()
