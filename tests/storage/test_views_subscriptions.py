"""What psql shows of subscriptions: where each is, and what it still has to acknowledge."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from core.ports.leases import Lease
from core.ports.subscriptions import CursorWrite, GuardedWrites, NewSubscription
from core.shard import SHARDS, shard_of_partition
from core.subscription.cursor import Cursor
from core.subscription.values import SubscriptionType
from storage.subscriptions.store import SubscriptionStore
from tests.batches import batch
from tests.storage.conftest import Log


@pytest.fixture
def held(log: Log) -> Log:
    log.psql.execute(
        "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
        " SELECT n, 1, %s, 1 FROM generate_series(0, %s) AS n",
        (uuid4(), 2 * SHARDS - 1),
    )
    return log


async def test_backlog_is_what_a_consumer_can_be_given(held: Log) -> None:
    (partition,) = held.new_partitions(name="flights")
    lease = Lease(shard_of_partition(partition), 1)
    for _ in range(4):
        await held.append(partition, batch(5))
    # Of the twenty, 5..9 become a marker (as far as a view can tell), 10..14 are aborted.
    held.rows("UPDATE record_batch SET is_control = true WHERE base_offset = 5")
    held.rows(
        "UPDATE record_batch SET is_transactional = true, producer_id = 7 WHERE base_offset = 10"
    )
    held.rows(
        "INSERT INTO aborted_transaction (partition_id, last_offset, producer_id, first_offset)"
        " VALUES (%s, 15, 7, 10)",
        partition,
    )
    store = SubscriptionStore(held.database)
    new = NewSubscription(partition, "s", 0, SubscriptionType.KEY_SHARED, {"a": "b"})
    made = await store.create(lease, new)
    assert made is not None
    assert _row(held, "v_subscription_backlog")["backlog"] == 10
    cursor = Cursor()
    for start, end in ((0, 2), (3, 4), (4, 6), (17, 18)):
        cursor.acknowledge(start, end)
    effects = cursor.take_effects()
    assert effects is not None
    flush = store.open_flush()
    await flush.commit([GuardedWrites(lease, (CursorWrite(made, effects),))])
    await flush.close()
    found = _row(held, "v_subscription_backlog")
    assert (found["topic"], found["partition"], found["subscription"]) == ("flights", 0, "s")
    assert (found["mark_delete"], found["high_watermark"]) == (2, 20)
    assert found["backlog"] == 1 + 4  # 2; 15, 16, 18, 19
    shown = _row(held, "v_subscription")
    assert (shown["type"], shown["mark_delete"], shown["ranges"]) == ("Key_Shared", 2, 2)
    assert (shown["owner"], shown["properties"]) == (None, {"a": "b"})


def _row(log: Log, view: str) -> dict[str, object]:
    with psycopg.connect(log.url, row_factory=dict_row) as connection:
        (row,) = connection.execute(f"SELECT * FROM {view}").fetchall()  # type: ignore[call-overload]
        return dict(row)
