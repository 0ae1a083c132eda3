"""Groups and offsets on real PostgreSQL: what is written comes back, and only under its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from core.group.records import (
    CommittedOffset,
    GroupEffects,
    GroupRow,
    MemberRow,
    OffsetEffects,
    StoredGroup,
)
from core.group.shard import shard_of
from core.group_ports import AgedOffset, GuardedEffects, Lease, ListedGroup
from core.ports import EffectRefused, RowLocked, VersionMismatch
from storage import group_flush
from storage.client_text import key_of
from storage.group_flush import GroupFlush
from storage.groups import GroupStore
from storage.pool import Database

T0 = 1_750_000_000_000

# Ids as long as the wire lets them be, NUL, and letters beyond the first plane.
LONG = "𝄞" * 8_190
ODD = "a\0b␀0c␀\\\"{},𝄞'\n"


@dataclass
class Groups:
    """A database's groups, every lease of them held with generation 1, and a person with psql."""

    database: Database
    store: GroupStore
    flush: GroupFlush
    psql: psycopg.Connection[Any]

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.psql.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters: Any) -> Any:
        ((value,),) = self.rows(query, *parameters)
        return value

    def new_partitions(self, count: int = 1) -> list[int]:
        """Partitions of a new topic."""
        topic_id = uuid4()
        self.rows("INSERT INTO topic (topic_id, name) VALUES (%s, %s)", topic_id, topic_id.hex)
        return [
            self.value(
                "INSERT INTO topic_partition (topic_id, partition) VALUES (%s, %s)"
                " RETURNING partition_id",
                topic_id,
                number,
            )
            for number in range(count)
        ]

    async def write(self, *effects: GroupEffects | OffsetEffects) -> None:
        """One flush, the effects in this order."""
        await self.flush.commit([guarded(each) for each in effects])

    async def offsets(self, group_id: str) -> Mapping[int, CommittedOffset]:
        (found,) = await self.store.fetch_offsets([(group_id, None)])
        return found


def guarded(effects: GroupEffects | OffsetEffects, generation: int = 1) -> GuardedEffects:
    """Effects under their shard's lease."""
    lease = Lease(shard_of(effects.group_id), generation)
    if isinstance(effects, GroupEffects):
        return GuardedEffects(lease, groups=(effects,))
    return GuardedEffects(lease, offsets=(effects,))


def committed(partition_id: int, offset: int, metadata: str = "", at: int = T0) -> CommittedOffset:
    return CommittedOffset(partition_id, offset, 3, metadata, at)


def member(member_id: str, **fields: Any) -> MemberRow:
    return MemberRow(member_id, "classic", client_id="c", client_host="/127.0.0.1", **fields)


def full_member(member_id: str) -> MemberRow:
    """A member with every field filled, where it can be with text that is hard to keep."""
    topic = str(uuid4())
    return MemberRow(
        member_id=member_id,
        protocol="consumer",
        group_instance_id=ODD + "i",
        client_id=ODD + "c",
        client_host="/127.0.0.1",
        rack_id=ODD + "r",
        session_timeout_ms=2**31 - 1,
        rebalance_timeout_ms=-1,
        protocols=(("range", b"\0\xff"), (ODD, b""), ("", bytes(range(256)))),
        assignment=b"\0" + bytes(range(256)),
        member_epoch=7,
        previous_member_epoch=-2,
        state="unrevoked_partitions",
        subscribed_topic_names=("a", ODD, "", "NULL"),
        subscribed_topic_regex=r"^a\.\d+\0$" + ODD,
        server_assignor="uniform",
        assigned={topic: (0, 1, 7), ODD: (2**31 - 1,)},
        revoking={topic: (3,)},
        target={},
    )


@pytest.fixture
async def groups(any_url: str) -> AsyncIterator[Groups]:
    database = Database(any_url)
    store = GroupStore(database)
    with psycopg.connect(any_url, autocommit=True) as psql:
        psql.execute(
            "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
            " SELECT shard, 1, gen_random_uuid(), 1 FROM generate_series(0, 63) AS shard"
        )
        yield Groups(database, store, store.open_flush(), psql)
    await database.close()


@pytest.mark.parametrize("group_id", ["g", LONG, ODD.replace("\0", ""), "𝄞"])
async def test_what_is_written_comes_back(groups: Groups, group_id: str) -> None:
    row = GroupRow(
        group_id,
        "consumer",
        "consumer" + ODD,
        ODD,
        LONG,
        2**31 - 1,
        5,
        "Reconciling",
        T0,
        (LONG, ODD, ""),
        -(2**63),
    )
    members = [full_member(each) for each in ("m", LONG, ODD)]
    (p,) = groups.new_partitions()
    offset = CommittedOffset(p, 2**63 - 1, -1, ODD * 200, T0, T0 + 1)
    await groups.write(
        GroupEffects(group_id, row, put_members=tuple(members)),
        OffsetEffects(group_id, put=(offset,)),
    )
    found = await groups.store.load_group(group_id)
    assert found is not None
    assert found.group == row
    assert sorted(found.members, key=repr) == sorted(members, key=repr)
    assert await groups.store.load_shard(shard_of(group_id)) == [found]
    assert await groups.offsets(group_id) == {p: offset}
    assert await groups.store.list_groups([shard_of(group_id)]) == [ListedGroup(row, True)]
