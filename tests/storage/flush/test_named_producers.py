"""What is stored of producers by name: claims, the guard of a flush, and what is forgotten."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from core.log.effects import LogEffects
from core.log.named_sequences import NamedSequence, SequencedBatch
from core.log.partition_log import PartitionLog
from core.ports.log import StoreUnavailable, ToLock, VersionMismatch
from storage.log import retention
from storage.log.retention import PostgresRetentionStore
from tests.batches import batch, incoming
from tests.storage.conftest import Log

U64 = 2**64 - 1
ROWS = (
    "SELECT name, claim, highest_sequence_id::text, chunked_sequence_id::text, chunk_id"
    " FROM named_producer ORDER BY name"
)


async def drafted(log: Log, partition_id: int, *sequenced: SequencedBatch) -> LogEffects:
    """A batch for each, decided on the partition as it is."""
    names = sorted({(partition_id, each.name) for each in sequenced})
    loaded = await log.store.load([partition_id], (), names)
    known = PartitionLog(loaded.partitions[partition_id])
    known.load(known.state, {}, {name: loaded.names.get((p, name)) for p, name in names})
    draft = known.draft()
    for each in sequenced:
        draft.prepare_append(incoming(batch()), sequenced=each)
    effects = draft.effects()
    assert effects is not None
    return effects


async def commit(log: Log, *effects: LogEffects) -> None:
    flush = log.store.open_flush()
    try:
        await flush.prepare(["week"])
        await flush.commit(effects)
    finally:
        await flush.close()


async def test_a_claim_tells_what_is_stored_and_loading_does_too(log: Log) -> None:
    p, q = log.new_partitions(2)
    names = ["p", "nul\0 and ␀", "x" * 1_000]
    for number, name in enumerate(names, 1):
        assert await log.store.claim_name(p, name, number) == NamedSequence(name, claim=number)
    last = [
        NamedSequence(names[0], U64, claim=1),
        NamedSequence(names[1], 2**63, claim=2),
        NamedSequence(names[2], 4, 5, 1, claim=3),
    ]
    effects = await drafted(
        log,
        p,
        SequencedBatch(names[0], 7, U64, claim=1),
        SequencedBatch(names[1], 2**63, claim=2),
        SequencedBatch(names[2], 4, claim=3),
        SequencedBatch(names[2], 5, -1, 0, 3, claim=3),
        SequencedBatch(names[2], 5, -1, 1, 3, claim=3),
    )
    assert effects.names == tuple(last)
    await commit(log, effects)
    wanted = [(p, each) for each in names] + [(q, names[0]), (p, "unknown")]
    loaded = await log.store.load([p, q], [(p, 5)], wanted)
    assert loaded.names == {(p, each.name): each for each in last}
    assert {i: state.next_offset for i, state in loaded.partitions.items()} == {p: 5, q: 0}
    flush = log.store.open_flush()
    locked = await flush.lock(ToLock([p, q], names=wanted))
    assert locked.names == loaded.names
    assert not (await flush.lock(ToLock([q]))).names
    await flush.close()
    for each in last:
        claimed = await log.store.claim_name(p, each.name, 99)
        assert claimed is not None
        assert (claimed.highest_sequence_id, claimed.claim) == (each.highest_sequence_id, 99)
        assert claimed.chunk_id == each.chunk_id
    assert await log.store.claim_name(-1, "p", 1) is None
    assert log.rows(
        "SELECT partition, producer_name, last_sequence_id::text, chunks FROM v_named_producer"
        " WHERE producer_name IN ('p', %s)",
        names[2],
    ) == [(0, "p", str(U64), None), (0, names[2], "4", 2)]


async def test_what_was_decided_before_a_claim_is_not_stored(log: Log) -> None:
    (p,) = log.new_partitions()
    for name in ("a", "b"):
        await log.store.claim_name(p, name, 1)
    late = await drafted(log, p, SequencedBatch("a", 0, claim=1), SequencedBatch("b", 0, claim=1))
    await log.store.claim_name(p, "b", 2)
    with pytest.raises(VersionMismatch):
        await commit(log, late)
    assert log.value("SELECT count(*) FROM record_batch") == 0
    assert log.rows(ROWS) == [("a", 1, "-1", "-1", -1), ("b", 2, "-1", "-1", -1)]
    await commit(log, await drafted(log, p, SequencedBatch("b", 0, claim=2)))
    with pytest.raises(VersionMismatch):  # the partition has moved: its names with it
        await commit(log, late)


@pytest.mark.usefixtures("patient_sessions")
async def test_a_claim_waits_for_a_flush_and_tells_what_it_stored(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.store.claim_name(p, "a", 1)
    effects = await drafted(log, p, SequencedBatch("a", 8, claim=1))
    flush = log.store.open_flush()
    await flush.prepare(["week"])
    await flush.lock(ToLock([p], names=[(p, "a")]))
    claiming = asyncio.create_task(log.store.claim_name(p, "a", 2))
    await asyncio.sleep(0.2)
    assert not claiming.done()
    await flush.commit([effects])
    assert await claiming == NamedSequence("a", 8, claim=2)
    await flush.close()


async def test_a_claim_does_not_wait_for_ever(log18: Log) -> None:
    (p,) = log18.new_partitions()
    with psycopg.connect(log18.url) as other:
        other.execute("SELECT 1 FROM topic_partition WHERE partition_id = %s FOR UPDATE", [p])
        with pytest.raises(StoreUnavailable):
            await log18.store.claim_name(p, "a", 2)
    assert log18.rows(ROWS) == []
    assert await log18.store.claim_name(p, "a", 3) is not None


async def test_a_forgotten_name_comes_back_with_what_is_written(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.store.claim_name(p, "a", 1)
    effects = await drafted(log, p, SequencedBatch("a", 8, claim=1))
    log.rows("DELETE FROM named_producer")
    await commit(log, effects)
    assert log.rows(ROWS) == [("a", 1, "8", "-1", -1)]


async def test_names_are_forgotten_when_nobody_uses_them(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_DELETE", 2)
    p, q = log.new_partitions(2)
    names = ["old", "older", "oldest", "used", "young"]
    for partition_id in (p, q):
        for name in names:
            await log.store.claim_name(partition_id, name, 1)
    log.rows(
        "UPDATE named_producer SET updated_at = now() - '2 hours'::interval WHERE name <> 'young'"
    )
    store = PostgresRetentionStore(log.database, log.segments)
    await store.touch_names([(p, "used"), (p, "gone"), (q, "used")])
    assert await store.expire_names(3600, [p, q]) == 6
    left = "SELECT name FROM named_producer WHERE partition_id = %s ORDER BY name"
    assert log.rows(left, p) == log.rows(left, q) == [("used",), ("young",)]
    # q is not deduplicated any more.
    log.rows("UPDATE named_producer SET updated_at = now() - '2 minutes'::interval")
    await store.touch_names([(q, "young")])
    assert await store.expire_names(3600, [p]) == 1
    assert (log.rows(left, p), log.rows(left, q)) == ([("used",), ("young",)], [("young",)])
    log.rows("INSERT INTO deleted_partition VALUES (%s)", p)
    log.rows("DELETE FROM topic_partition WHERE partition_id = %s", p)
    assert await store.clean_deleted_partitions() == 1
    assert (log.rows(left, p), log.rows(left, q)) == ([], [("young",)])


async def test_housekeeping_waits_for_no_flush(log: Log) -> None:
    (p,) = log.new_partitions()
    await log.store.claim_name(p, "a", 1)
    log.rows("UPDATE named_producer SET updated_at = now() - '2 hours'::interval")
    store = PostgresRetentionStore(log.database, log.segments)
    with psycopg.connect(log.url) as other:
        other.execute("SELECT 1 FROM named_producer FOR UPDATE")
        async with asyncio.timeout(20):
            await store.touch_names([(p, "a")])
            assert await store.expire_names(3600, [p]) == 0
    assert await store.expire_names(3600, [p]) == 1
