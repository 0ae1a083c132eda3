"""What psql shows of groups: readable assignments, who coordinates, and lag as a reader has it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.rows import dict_row

from core.group.expressions import Viewer, seen_by
from core.group.records import (
    CommittedOffset,
    GroupEffects,
    GroupRow,
    MemberRow,
    OffsetEffects,
)
from core.ports.groups import GuardedEffects
from core.ports.leases import Lease
from core.security.principal import Principal
from core.shard import shard_of
from core.types import BatchFormat, RecordBatch
from storage.groups.store import GroupStore
from storage.views import VIEWS
from tests.batches import batch
from tests.storage.conftest import Log

T0 = 1_750_000_000_000
G = "flights-to-lake"


@dataclass
class Watched:
    """A log, groups over it, and psql."""

    log: Log

    async def write(self, *effects: GroupEffects | OffsetEffects) -> None:
        flush = GroupStore(self.log.database).open_flush()
        for each in effects:
            lease = Lease(shard_of(each.group_id), 1)
            if isinstance(each, GroupEffects):
                await flush.commit([GuardedEffects(lease, groups=(each,))])
            else:
                await flush.commit([GuardedEffects(lease, offsets=(each,))])
        await flush.close()

    async def commit(self, group_id: str, *offsets: tuple[int, int]) -> None:
        put = tuple(CommittedOffset(p, offset, -1, "", T0) for p, offset in offsets)
        await self.write(OffsetEffects(group_id, put))

    def dicts(self, query: str) -> list[dict[str, Any]]:
        """Rows by column name."""
        cursor = self.log.psql.cursor(row_factory=dict_row)
        return cursor.execute(query.encode()).fetchall()

    def lag(self, group_id: str = G) -> list[Any]:
        """(partition, committed offset, lag) of a group."""
        return self.log.rows(
            "SELECT partition, committed_offset, lag FROM v_group_lag WHERE group_id = %s",
            group_id,
        )


@pytest.fixture
def watched(log: Log) -> Watched:
    log.rows(
        "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
        " SELECT shard, 1, gen_random_uuid(), 1 FROM generate_series(0, 63) AS shard"
    )
    return Watched(log)


def control() -> RecordBatch:
    """An end of a transaction: one record that no reader gets."""
    return RecordBatch(
        1, T0, 78, BatchFormat.KAFKA_V2, producer_id=9, producer_epoch=0, is_control=True
    )


async def test_lag_is_what_a_reader_has_yet_to_read(watched: Watched) -> None:
    p, q, r = watched.log.new_partitions(3)
    for each in (p, q, r):
        await watched.log.append(each, batch(10), batch(5))
    await watched.commit(G, (p, 0), (q, 12))
    await watched.commit("other", (p, 15))
    assert watched.lag() == [(0, 0, 15), (1, 12, 3)]
    assert watched.lag("other") == [(0, 15, 0)]
    # What is deleted cannot be read; who is before it goes on at the log start.
    await watched.log.store.advance_log_start(p, 11)
    assert watched.lag() == [(0, 0, 4), (1, 12, 3)]
    # Beyond the end, as after a restore of an older backup: nothing to read.
    await watched.commit(G, (q, 99))
    assert watched.lag() == [(0, 0, 4), (1, 99, 0)]


async def test_control_batches_are_no_lag(watched: Watched) -> None:
    (p,) = watched.log.new_partitions()
    # 0-2 data, 3 control, 4-8 data, 9 control, 10 control
    await watched.log.append(p, batch(3), control(), batch(5), control(), control())
    expected = {0: 8, 2: 6, 3: 5, 4: 5, 8: 1, 9: 0, 10: 0, 11: 0, 12: 0}
    for offset, lag in expected.items():
        await watched.commit(G, (p, offset))
        assert watched.lag() == [(0, offset, lag)]
    await watched.log.store.advance_log_start(p, 4)
    for offset, lag in {0: 5, 3: 5, 5: 4, 9: 0}.items():
        await watched.commit(G, (p, offset))
        assert watched.lag() == [(0, offset, lag)]


async def test_lag_of_many_batches_is_found_by_an_index(watched: Watched) -> None:
    p, q = watched.log.new_partitions(2)
    watched.log.rows(
        "INSERT INTO record_batch SELECT partition_id, n, n, n, 0, 1, 70, 0, 0, 7, -1, 0, 2, true,"
        " partition_id = %s AND n %% 1000 = 999"
        " FROM unnest(%s::bigint[]) AS partition_id, generate_series(0, 39999) AS n",
        q,
        [p, q],
    )
    watched.log.rows("UPDATE topic_partition SET next_offset = 40000")
    await watched.commit(G, (p, 0), (q, 0))
    assert watched.lag() == [(0, 0, 40_000), (1, 0, 39_960)]
    for statement in ("ANALYZE record_batch", "VACUUM ANALYZE"):
        (plan,) = watched.log.value(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM v_group_lag"
        )
        touched = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert touched < 100, plan  # of some 1,500 that the batches take
        watched.log.rows(statement)


async def test_offsets_of_a_deleted_topic_are_not_shown(watched: Watched) -> None:
    (p,) = watched.log.new_partitions(name="old")
    (q,) = watched.log.new_partitions(name="new")
    await watched.commit(G, (p, 0), (q, 0))
    watched.log.rows("DELETE FROM topic WHERE name = 'old'")
    assert watched.log.rows("SELECT topic FROM v_group_lag") == [("new",)]


async def test_a_group_can_be_read(watched: Watched) -> None:
    watched.log.new_partitions(20, name="flights")
    watched.log.new_partitions(1, name="airports")
    flights, airports = (
        str(watched.log.value("SELECT topic_id FROM topic WHERE name = %s", name))
        for name in ("flights", "airports")
    )
    gone = str(uuid4())
    consumer = GroupRow(
        G, "consumer", "consumer", "uniform", None, 7, 6, "Reconciling", T0, ("m-1", "m-2")
    )
    one = MemberRow(
        "m-1",
        "consumer",
        "instance",
        "a\0b",
        "/10.0.0.1",
        "rack",
        45_000,
        300_000,
        member_epoch=5,
        state="unrevoked_partitions",
        subscribed_topic_names=("flights",),
        # As a group keeps it where clients are asked for rights: with who sees by it.
        subscribed_topic_regex=seen_by("air.*", Viewer(Principal("bob"), "10.0.0.1")),
        assigned={flights: (3, 0, 1, 2, 7, 9, 10), airports: (0,)},
        revoking={gone: (4,)},
        target={flights: (0,)},
    )
    classic = GroupRow("old", "classic", "consumer", "range", "m-3", 3, state="Stable")
    two = MemberRow(
        "m-3",
        "classic",
        client_id="c",
        client_host="/10.0.0.2",
        session_timeout_ms=10_000,
        protocols=(("range", b"\0"), ("roundrobin", b"")),
        assignment=b"\0\1",
        assigned={"airports": (0,)},
    )
    await watched.write(
        GroupEffects(G, consumer, put_members=(one,)),
        GroupEffects("old", classic, put_members=(two, MemberRow("m-4", "classic"))),
        OffsetEffects("simple", put=()),
    )
    await watched.commit("simple", (1, 0))
    assert watched.dicts("SELECT * FROM v_group") == [
        {
            "group_id": G,
            "protocol": "consumer",
            "state": "Reconciling",
            "since": datetime(2025, 6, 15, 15, 6, 40, tzinfo=UTC),
            "members": 1,
            "waiting_for": "m-1, m-2",
            "generation": 7,
            "assignment_epoch": 6,
            "protocol_type": "consumer",
            "assignor": "uniform",
            "leader": None,
            "coordinator": None,
            "shard": shard_of(G),
        },
        {
            "group_id": "old",
            "protocol": "classic",
            "state": "Stable",
            "since": None,
            "members": 2,
            "waiting_for": None,
            "generation": 3,
            "assignment_epoch": None,
            "protocol_type": "consumer",
            "assignor": "range",
            "leader": "m-3",
            "coordinator": None,
            "shard": shard_of("old"),
        },
        {
            "group_id": "simple",
            "protocol": "classic",
            "state": "Empty",
            "since": None,
            "members": 0,
            "waiting_for": None,
            "generation": 0,
            "assignment_epoch": None,
            "protocol_type": None,
            "assignor": None,
            "leader": None,
            "coordinator": None,
            "shard": shard_of("simple"),
        },
    ]
    assert watched.dicts("SELECT * FROM v_group_member WHERE member_id <> 'm-4'") == [
        {
            "group_id": G,
            "member_id": "m-1",
            "group_instance_id": "instance",
            "protocol": "consumer",
            "state": "unrevoked_partitions",
            "epoch": 5,
            "is_leader": False,
            "assigned": "airports 0; flights 0-3,7,9-10",
            "revoking": f"{gone} 4",
            "target": "flights 0",
            "subscribed": "flights, air.*",
            "offers": None,
            "client_id": "a␀0b",
            "client_host": "/10.0.0.1",
            "rack_id": "rack",
            "session_timeout": timedelta(seconds=45),
        },
        {
            "group_id": "old",
            "member_id": "m-3",
            "group_instance_id": None,
            "protocol": "classic",
            "state": None,
            "epoch": 3,
            "is_leader": True,
            "assigned": "airports 0",
            "revoking": None,
            "target": None,
            "subscribed": None,
            "offers": "range, roundrobin",
            "client_id": "c",
            "client_host": "/10.0.0.2",
            "rack_id": None,
            "session_timeout": timedelta(seconds=10),
        },
    ]


async def test_who_coordinates_can_be_read(watched: Watched) -> None:
    shard = shard_of(G)
    watched.log.rows(
        "INSERT INTO broker (broker_id, incarnation, version, session_timeout_s)"
        " VALUES (1, gen_random_uuid(), '', 30)"
    )
    watched.log.rows("INSERT INTO broker_endpoint VALUES (1, 'kafka', 'h', 9092)")
    watched.log.rows(
        "UPDATE coordinator_lease SET incarnation = (SELECT incarnation FROM broker)"
        " WHERE shard = %s",
        shard,
    )
    await watched.commit(G, (1, 0))
    assert watched.log.rows(
        "SELECT shard, kind, last_holder, coordinator, generation, groups FROM v_coordinator_lease"
        " WHERE state = 'held'"
    ) == [(shard, "groups", 1, "h:9092", 1, 1)]
    assert watched.log.value("SELECT coordinator FROM v_group") == "h:9092"
    watched.log.rows("UPDATE broker SET heartbeat_at = now() - interval '1 hour'")
    assert watched.log.rows(
        "SELECT DISTINCT state, coordinator, groups FROM v_coordinator_lease WHERE shard = %s",
        shard,
    ) == [("free", None, 1)]
    assert watched.log.value("SELECT coordinator FROM v_group") is None


async def test_views_are_replaced_whole_while_they_are_there(watched: Watched) -> None:
    from storage.views import replace_statements

    for statement in replace_statements():
        watched.log.rows(statement.replace("%", "%%"))
    for name in VIEWS:
        watched.log.rows(f"SELECT * FROM {name}")
