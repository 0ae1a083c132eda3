"""Topic epochs on real PostgreSQL: they rise under the lease alone, and flushes heed them."""

from __future__ import annotations

from uuid import uuid4

import pytest

from core.log.effects import IncomingBatch
from core.log.partition_log import FENCED, Appended, PartitionLog
from core.ports.leases import Lease
from core.ports.log import VersionMismatch
from tests.batches import batch
from tests.storage.conftest import Log


@pytest.fixture
def lease(log: Log) -> Lease:
    """Of some shard: which one the caller has to know."""
    log.rows(
        "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
        f" VALUES (7, 1, '{uuid4()}', 3) RETURNING shard"
    )
    return Lease(7, 3)


async def epoch(log: Log, partition_id: int) -> int:
    return (await log.state(partition_id)).topic_epoch


async def test_it_rises_under_the_lease_alone(log: Log, lease: Lease) -> None:
    p, other = log.new_partitions(2)
    assert await epoch(log, p) == -1
    for raised, now in [(0, 0), (5, 5), (4, 5)]:
        await log.store.raise_topic_epoch(lease, p, raised)
        assert await epoch(log, p) == now
    for former in (Lease(7, 2), Lease(7, 4), Lease(8, 3)):
        with pytest.raises(VersionMismatch):
            await log.store.raise_topic_epoch(former, p, 9)
    assert (await epoch(log, p), await epoch(log, other)) == (5, -1)
    await log.store.raise_topic_epoch(lease, 999_999, 1)  # it is gone: nothing to be done


async def test_a_flush_that_was_decided_before_is_refused(log: Log, lease: Lease) -> None:
    (p,) = log.new_partitions()
    await log.append(p, batch(3))
    before = await log.state(p)
    early, _ = log.draft(PartitionLog(before).draft(), batch(2))
    await log.store.raise_topic_epoch(lease, p, 0)
    flush = log.store.open_flush()
    with pytest.raises(VersionMismatch):
        await flush.commit([early])
    now = await log.state(p)
    assert (now.next_offset, now.topic_epoch) == (3, 0)
    # Decided again: who was told the earlier epoch is out, and who asks nobody is not.
    draft = PartitionLog(now).draft()
    incoming = IncomingBatch(batch(2), bytes(batch(2).size), "week")
    assert draft.prepare_append(incoming, topic_epoch=-1) == FENCED
    assert draft.prepare_append(incoming, topic_epoch=0) == Appended(3)
    assert draft.prepare_append(incoming) == Appended(5)
    effects = draft.effects()
    assert effects is not None
    await flush.commit([effects])
    assert (await log.state(p)).next_offset == 7
    await flush.close()
