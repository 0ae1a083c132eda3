"""Groups and offsets on real PostgreSQL: what is written comes back, and only under its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

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
from core.ports.groups import AgedOffset, GuardedEffects, ListedGroup
from core.ports.leases import Lease
from core.ports.log import EffectRefused, VersionMismatch
from core.shard import shard_of
from storage.connection.client_text import key_of
from storage.connection.pool import Database
from storage.connection.session import HotSession, Statement
from storage.flush import groups as group_flush
from storage.flush.groups import GroupFlush
from storage.groups.store import GroupStore

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Effects = GroupEffects | OffsetEffects

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

    def topic_of(self, partition_id: int) -> str:
        """The name of its topic."""
        return str(
            self.value(
                "SELECT name FROM topic JOIN topic_partition USING (topic_id)"
                " WHERE partition_id = %s",
                partition_id,
            )
        )

    def delete_topic_of(self, partition_id: int) -> None:
        self.rows("DELETE FROM topic WHERE name = %s", self.topic_of(partition_id))

    def backends(self) -> list[tuple[Any, ...]]:
        """The flush's sessions that have not ended yet."""
        return self.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'penstock' AND query LIKE '%%committed_offset%%'"
        )

    async def write(self, *effects: Effects) -> None:
        """One flush, the effects in this order."""
        await self.flush.commit([guarded(each) for each in effects])

    async def offsets(self, group_id: str) -> Mapping[int, CommittedOffset]:
        (found,) = await self.store.fetch_offsets([(group_id, None)])
        return found


def guarded(effects: Effects, generation: int = 1) -> GuardedEffects:
    """Effects under their shard's lease."""
    lease = Lease(shard_of(effects.group_id), generation)
    if isinstance(effects, GroupEffects):
        return GuardedEffects(lease, groups=(effects,))
    return GuardedEffects(lease, offsets=(effects,))


def key(group_id: str) -> UUID:
    return UUID(bytes=key_of(group_id))


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


async def open_groups(url: str) -> AsyncIterator[Groups]:
    database = Database(url)
    store = GroupStore(database)
    with psycopg.connect(url, autocommit=True) as psql:
        psql.execute(
            "INSERT INTO coordinator_lease (shard, broker_id, incarnation, generation)"
            " SELECT shard, 1, gen_random_uuid(), 1 FROM generate_series(0, 63) AS shard"
        )
        yield Groups(database, store, store.open_flush(), psql)
    await database.close()


@pytest.fixture
async def groups(any_url: str) -> AsyncIterator[Groups]:
    async for each in open_groups(any_url):
        yield each


@pytest.fixture
async def groups18(database_url: str) -> AsyncIterator[Groups]:
    async for each in open_groups(database_url):
        yield each


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


async def test_commits_alone_make_a_group(groups: Groups) -> None:
    (p,) = groups.new_partitions()
    await groups.write(OffsetEffects("g", put=(committed(p, 5),)))
    plain = GroupRow("g", "classic")
    assert await groups.store.load_group("g") == StoredGroup(plain)
    assert await groups.store.load_shard(shard_of("g")) == []
    assert await groups.store.list_groups(range(64)) == [ListedGroup(plain, False)]
    assert await groups.store.list_groups([shard_of("g") ^ 1]) == []
    # Neither do they touch the row that is there.
    row = GroupRow("h", "consumer", generation_id=4)
    await groups.write(GroupEffects("h", row, put_members=(member("m"),)))
    await groups.write(OffsetEffects("h", put=(committed(p, 5),)))
    assert await groups.store.load_group("h") == StoredGroup(row, (member("m"),))


async def test_an_unknown_group_is_none(groups: Groups) -> None:
    assert await groups.store.load_group("g") is None
    assert await groups.offsets("g") == {}


async def test_a_shard_is_loaded_with_all_its_members(groups: Groups) -> None:
    shard = shard_of("g-0")
    names = [name for n in range(2_000) if shard_of(name := f"g-{n}") == shard][:8]
    expected = {}
    for number, name in enumerate(names):
        members = tuple(member(f"{name}-m{n}") for n in range(number))
        row = GroupRow(name, "classic", generation_id=number)
        await groups.write(GroupEffects(name, row, put_members=members))
        expected[name] = (row, set(map(repr, members)))
    await groups.write(GroupEffects("elsewhere", GroupRow("elsewhere", "classic"), (member("m"),)))
    loaded = await groups.store.load_shard(shard)
    del expected[names[0]]  # has no members
    assert {
        each.group.group_id: (each.group, set(map(repr, each.members))) for each in loaded
    } == expected
    assert len(loaded) == len(expected)


async def test_a_deleted_group_leaves_nothing(groups: Groups) -> None:
    (p,) = groups.new_partitions()
    for name in ("g", "h"):
        await groups.write(
            GroupEffects(name, GroupRow(name, "classic"), (member("m"),)),
            OffsetEffects(name, put=(committed(p, 1),)),
        )
    await groups.write(GroupEffects("g", deleted=True))
    for table in ("consumer_group", "group_member", "committed_offset"):
        assert groups.rows(f"SELECT group_key FROM {table}") == [(key("h"),)], table


async def test_members_and_offsets_go_one_by_one(groups: Groups) -> None:
    p, q = groups.new_partitions(2)
    await groups.write(
        GroupEffects("g", GroupRow("g", "classic"), (member("m"), member(LONG))),
        OffsetEffects("g", put=(committed(p, 1), committed(q, 2))),
    )
    await groups.write(
        GroupEffects("g", delete_members=(LONG, "never there")),
        OffsetEffects("g", delete=(p, 12345)),
    )
    assert await groups.store.load_group("g") == StoredGroup(
        GroupRow("g", "classic"), (member("m"),)
    )
    assert await groups.offsets("g") == {q: committed(q, 2)}


# --- one flush ---


def random_effects(random: Random, group_id: str, partitions: list[int]) -> Iterator[Effects]:
    """What may become of a group, in an order."""
    for n in range(random.randint(1, 12)):
        members = random.sample(["a", "b", "c"], random.randint(0, 3))
        put = tuple(member(each, member_epoch=n) for each in members[1:])
        match random.randint(0, 8):
            case 0:
                yield GroupEffects(group_id, deleted=True)
            case 1:
                yield GroupEffects(group_id, forgotten=True)
            case 2 | 3:
                row = GroupRow(group_id, "classic", generation_id=n)
                yield GroupEffects(group_id, row, put, tuple(members[:1]))
            case 4:
                yield OffsetEffects(group_id, delete=(random.choice(partitions),))
            case 5:
                yield OffsetEffects(
                    group_id, expired=(committed(random.choice(partitions), random.randint(0, 2)),)
                )
            case _:
                chosen = random.sample(partitions, random.randint(1, 2))
                yield OffsetEffects(
                    group_id, put=tuple(committed(p, random.randint(0, 2)) for p in chosen)
                )


async def test_one_flush_does_what_many_would(groups: Groups) -> None:
    partitions = groups.new_partitions(3)
    names = [f"g-{seed}" for seed in range(60)]
    at_once: list[Effects] = []
    for name in names:
        for each in random_effects(Random(name), name, partitions):
            await groups.write(each)
        first, *rest = random_effects(Random(name), name + "!", partitions)
        await groups.write(first)
        at_once += rest
    await groups.write(*at_once)
    for name in names:
        one_by_one = await groups.store.load_group(name)
        together = await groups.store.load_group(name + "!")
        assert (one_by_one is None) == (together is None), name
        if one_by_one is not None and together is not None:
            assert replace(together.group, group_id=name) == one_by_one.group
            assert together.members == one_by_one.members
        assert await groups.offsets(name) == await groups.offsets(name + "!")


async def test_only_the_statements_that_are_needed_are_sent(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    run = HotSession.run

    async def spy(
        session: HotSession, statements: Sequence[Statement], *, commits: bool
    ) -> list[PGresult]:
        sent.append(b" ".join(name for name, _ in statements))
        return await run(session, statements, commits=commits)

    monkeypatch.setattr(HotSession, "run", spy)
    partitions = groups.new_partitions(2)
    many = [
        OffsetEffects(f"g-{n}", put=tuple(committed(p, 1) for p in partitions)) for n in range(64)
    ]
    await groups.write(*many)
    row = GroupRow("g", "classic")
    await groups.write(GroupEffects("g", row, (member("m"),)), *many)
    await groups.write(GroupEffects("g", row))
    await groups.write(GroupEffects("g", row), GroupEffects("h", replace(row, group_id="h")))
    await groups.write(
        GroupEffects("g", row, delete_members=("m",)), OffsetEffects("g-1", delete=(partitions[0],))
    )
    await groups.write(GroupEffects("g", deleted=True))
    await groups.write(OffsetEffects("g-2", expired=(committed(partitions[0], 1),)))
    await groups.write(GroupEffects("g-3", forgotten=True))
    await groups.flush.commit([])
    assert sent == [
        b"hold_leases make_groups put_offsets",
        b"hold_leases make_groups hold_groups put_groups put_members put_offsets",
        b"hold_leases put_groups",
        b"hold_leases make_groups hold_groups put_groups",
        b"hold_leases make_groups lock_groups put_groups delete_members delete_offsets",
        b"hold_leases lock_groups delete_groups",
        b"hold_leases lock_groups expire_offsets",
        b"hold_leases lock_groups forget_groups",
    ]


async def test_large_members_go_in_several_statements_of_one_flush(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_flush, "MAX_STATEMENT_BYTES", 5_000)
    members = [member(f"m{n}", assignment=bytes(3_000)) for n in range(5)]
    row = GroupRow("g", "classic")
    with pytest.raises(EffectRefused):  # the last one: nothing of the others is left
        bad = member("bad", assignment=bytes(3_000), state="\0")
        await groups.write(GroupEffects("g", row, (*members, bad)))
    assert await groups.store.load_group("g") is None
    await groups.write(GroupEffects("g", row, tuple(members)))
    stored = await groups.store.load_group("g")
    assert stored is not None
    assert sorted(stored.members, key=repr) == members


async def test_an_assignment_of_50_mb(groups18: Groups) -> None:
    groups = groups18
    large = member("m", assignment=b"".join(n.to_bytes(4, "big") for n in range(12_500_000)))
    await groups.write(GroupEffects("g", GroupRow("g", "classic"), (large,)))
    stored = await groups.store.load_group("g")
    assert stored is not None
    assert stored.members == (large,)


async def test_updates_stay_on_their_pages(groups: Groups) -> None:
    partitions = groups.new_partitions(200)
    names = [f"g-{n}" for n in range(64)]
    for n in range(40):
        await groups.write(
            *(OffsetEffects(name, put=(committed(partitions[0], n),)) for name in names),
            OffsetEffects("many", put=tuple(committed(p, n) for p in partitions)),
        )
    await groups.flush.close()  # so that its counts are seen
    while groups.backends():
        await asyncio.sleep(0.01)
    updates, in_place = groups.rows(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'committed_offset'"
    )[0]
    assert updates == 39 * 264
    # A transaction of another test, in another database, puts off the pruning of a few dead rows.
    assert in_place > 0.95 * updates


async def test_offsets_are_locked_in_order(groups: Groups) -> None:
    names = sorted(("g", "h", "i"), key=key)
    p, q = groups.new_partitions(2)
    put = [OffsetEffects(name, put=(committed(q, 1), committed(p, 1))) for name in names]
    await groups.write(*put)
    with psycopg.connect(groups.psql.info.dsn) as other:
        other.execute(
            "SELECT FROM committed_offset WHERE (group_key, partition_id) = (%s, %s) FOR UPDATE",
            [key(names[0]), p],
        )
        writing = asyncio.ensure_future(groups.write(*reversed(put)))
        while not groups.rows(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            assert not writing.done(), "it was to wait"
            await asyncio.sleep(0.01)
        # It waits for the first row and has not taken one behind it.
        other.execute("SELECT FROM committed_offset FOR UPDATE NOWAIT")
    await writing


# --- the guard ---


async def test_one_stale_lease_stops_the_whole_flush(groups: Groups) -> None:
    (p,) = groups.new_partitions()
    names = [f"g-{n}" for n in range(20)]
    effects = [guarded(OffsetEffects(name, put=(committed(p, 1),))) for name in names]
    stale = guarded(OffsetEffects("g-20", put=(committed(p, 1),)), generation=2)
    groups.rows("UPDATE coordinator_lease SET generation = 2 WHERE shard = %s", stale.lease.shard)
    stale = replace(stale, lease=replace(stale.lease, generation=1))
    with pytest.raises(VersionMismatch):
        await groups.flush.commit([*effects, stale])
    assert groups.value("SELECT count(*) FROM committed_offset") == 0
    assert groups.value("SELECT count(*) FROM consumer_group") == 0


@pytest.mark.parametrize("generation", [0, 2, -1])
async def test_another_generation_is_refused(groups: Groups, generation: int) -> None:
    effects = GroupEffects("g", GroupRow("g", "classic"))
    with pytest.raises(VersionMismatch):
        await groups.flush.commit([guarded(effects, generation)])
    with pytest.raises(VersionMismatch):
        await groups.flush.commit([guarded(effects), guarded(effects, generation)])
    groups.rows("DELETE FROM coordinator_lease")
    with pytest.raises(VersionMismatch):
        await groups.flush.commit([guarded(effects)])
    assert await groups.store.load_group("g") is None


async def test_a_refused_row_leaves_nothing_and_the_next_flush_works(groups: Groups) -> None:
    bad = GroupEffects("h", GroupRow("h", "classic", state="\0"))
    good = GroupEffects("g", GroupRow("g", "classic"), (member("m"),))
    with pytest.raises(EffectRefused):
        await groups.write(good, bad)
    assert await groups.store.load_group("g") is None
    await groups.write(good)
    assert await groups.store.load_group("g") is not None


# --- what is committed ---


async def test_many_groups_offsets_are_fetched_at_once(groups: Groups) -> None:
    p, q, r = groups.new_partitions(3)
    await groups.write(
        OffsetEffects("g", put=(committed(p, 1), committed(q, 2, "m\0"))),
        OffsetEffects("h", put=(committed(p, 3),)),
    )
    found = await groups.store.fetch_offsets(
        [("h", None), ("g", [q, r, q]), ("unknown", None), ("g", None), ("g", []), ("h", [q])]
    )
    assert found == [
        {p: committed(p, 3)},
        {q: committed(q, 2, "m\0")},
        {},
        {p: committed(p, 1), q: committed(q, 2, "m\0")},
        {},
        {},
    ]
    assert await groups.store.fetch_offsets([]) == []


async def test_offsets_of_a_deleted_topic_are_not_fetched(groups: Groups) -> None:
    (p,), (q,) = groups.new_partitions(), groups.new_partitions()
    await groups.write(OffsetEffects("g", put=(committed(p, 1), committed(q, 2))))
    groups.delete_topic_of(p)
    assert await groups.store.fetch_offsets([("g", None), ("g", [p, q])]) == [
        {q: committed(q, 2)},
        {q: committed(q, 2)},
    ]


# --- what may go ---


async def test_aged_offsets_come_page_by_page(groups: Groups) -> None:
    partitions = groups.new_partitions(4)
    gone = groups.new_partitions(1)[0]
    name = groups.topic_of(partitions[0])
    expected = []
    for group_id in ("g", "h", "i"):
        old, edge, young, own_time = (
            committed(partitions[0], 1, at=T0 - 1),
            committed(partitions[1], 1, at=T0),
            committed(partitions[2], 1, at=T0 + 1),
            CommittedOffset(partitions[3], 1, 3, "", T0 + 1, T0 + 2),
        )
        deleted = committed(gone, 1, at=T0 + 1)
        await groups.write(OffsetEffects(group_id, put=(old, edge, young, own_time, deleted)))
        expected += [
            AgedOffset(group_id, name, old),
            AgedOffset(group_id, name, own_time),
            AgedOffset(group_id, None, deleted),
        ]
    groups.delete_topic_of(gone)
    found: list[AgedOffset] = []
    while page := await groups.store.aged_offsets(
        range(64), T0, 2, after=found[-1] if found else None
    ):
        assert len(page) <= 2
        found += page
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert {each.group_id for each in await groups.store.aged_offsets([shard_of("g")], T0, 9)} == {
        "g"
    }
    assert await groups.store.aged_offsets([], T0, 9) == []


async def test_an_offset_that_was_committed_again_does_not_expire(groups: Groups) -> None:
    p, q, r = groups.new_partitions(3)
    read = (committed(p, 1), committed(q, 1), committed(r, 1))
    await groups.write(OffsetEffects("g", put=read))
    again = (committed(q, 1, at=T0 + 1), committed(r, 2))
    await groups.write(OffsetEffects("g", put=again))
    await groups.write(OffsetEffects("g", expired=read))
    assert await groups.offsets("g") == {q: again[0], r: again[1]}


async def test_a_group_is_forgotten_only_when_nothing_is_left_of_it(groups: Groups) -> None:
    (p,) = groups.new_partitions()
    for name in ("empty", "members", "offsets"):
        await groups.write(GroupEffects(name, GroupRow(name, "classic")))
    assert sorted(await groups.store.groups_without_offsets(range(64), 9)) == [
        "empty",
        "members",
        "offsets",
    ]
    assert len(await groups.store.groups_without_offsets(range(64), 2)) == 2
    await groups.write(GroupEffects("members", put_members=(member("m"),)))
    await groups.write(OffsetEffects("offsets", put=(committed(p, 1),)))
    assert await groups.store.groups_without_offsets(range(64), 9) == ["empty"]
    assert await groups.store.groups_without_offsets([shard_of("empty") ^ 1], 9) == []
    await groups.write(
        *(GroupEffects(name, forgotten=True) for name in ("empty", "members", "offsets"))
    )
    assert {each.group.group_id for each in await groups.store.list_groups(range(64))} == {
        "members",
        "offsets",
    }
    # Who writes the row after that means to keep it.
    row = GroupRow("empty", "classic", generation_id=1)
    await groups.write(GroupEffects("empty", forgotten=True), GroupEffects("empty", row))
    assert await groups.store.load_group("empty") == StoredGroup(row)


@pytest.mark.usefixtures("patient_sessions")
async def test_flushes_and_commits_in_sql_do_not_wait_in_a_circle(groups18: Groups) -> None:
    """Applications hold groups at their COMMIT, several at a time, and make them."""
    groups, names = groups18, [f"g{n}" for n in range(6)]
    name = groups.value("SELECT current_database()")
    groups.rows(f"ALTER DATABASE {name} SET deadlock_timeout = '20ms'")
    partitions = groups.new_partitions(3)
    topic, is_over = groups.topic_of(partitions[0]), asyncio.Event()
    all_are_there = asyncio.Barrier(4)

    async def apply(chance: Random) -> int:
        count = 0
        psql = await psycopg.AsyncConnection.connect(groups.psql.info.dsn)
        async with psql:
            await all_are_there.wait()
            while not is_over.is_set():
                for group_id in chance.sample(names, 3):
                    await psql.execute(
                        "SELECT penstock.commit_offsets(%s, %s, %s, %s)",
                        [group_id, [topic] * 3, chance.sample(range(3), 3), [1, 2, 3]],
                    )
                try:
                    await psql.commit()
                    count += 1
                except psycopg.Error as refused:  # it has members, or was deleted
                    assert refused.sqlstate in ("PS201", "40001"), refused
        return count

    def change(chance: Random, group_id: str) -> Effects:
        row, m = GroupRow(group_id, "classic", "consumer", generation_id=chance.randrange(9)), "m"
        offsets = tuple(committed(each, 5) for each in chance.sample(partitions, 2))
        return chance.choice(
            [
                GroupEffects(group_id, row, (member(m, member_epoch=chance.randrange(9)),)),
                GroupEffects(group_id, row, delete_members=(m,)),
                GroupEffects(group_id, deleted=True),
                GroupEffects(group_id, forgotten=True),
                OffsetEffects(group_id, put=offsets),
                OffsetEffects(group_id, delete=tuple(partitions[:2])),
                OffsetEffects(group_id, expired=offsets),
            ]
        )

    applications = [asyncio.create_task(apply(Random(n))) for n in range(3)]
    await all_are_there.wait()
    chance = Random()
    for _ in range(150):
        chosen = chance.sample(names, chance.randrange(1, 5))
        await groups.write(*(change(chance, group_id) for group_id in chosen))
    is_over.set()
    assert all(await asyncio.gather(*applications))
