"""Offsets committed in SQL: what is refused at the call and at COMMIT, and what holds up whom."""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from core.errors import Error
from core.group.absent import ABSENT
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.records import GroupRow, MemberRow, StoredGroup
from core.group.settings import GroupSettings
from core.group.values import Instant
from core.shard import shard_of
from storage.connection.client_text import key_of, written
from storage.flush.groups import LOCK_GROUPS
from tests.core.group.classic.driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver

GROUP = "flights"
NOW = Instant(0, 1_750_000_000_000)
ODD = "a␀0b\\\"{},𝄞'\n"


@dataclass
class Psql:
    """A person with psql, and applications beside."""

    url: str
    connection: psycopg.Connection[Any]
    topic: str
    partition_ids: Sequence[int]
    topic_id: UUID

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters: Any) -> Any:
        ((value,),) = self.rows(query, *parameters)
        return value

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """An application's, committed at the end."""
        with closing(psycopg.connect(self.url)) as connection:
            yield connection
            connection.commit()

    def commit(self, arguments: str, *parameters: Any) -> None:
        """One call in a transaction of its own."""
        self.rows(f"SELECT penstock.commit_offsets({arguments})", *parameters)

    def committed(self, group_id: str = GROUP) -> dict[int, int]:
        """By partition."""
        return dict(
            self.rows(
                "SELECT partition, committed_offset FROM committed_offset"
                " JOIN topic_partition USING (partition_id) WHERE group_key = %s ORDER BY 1",
                UUID(bytes=key_of(group_id)),
            )
        )

    def put(self, stored: StoredGroup) -> None:
        """The rows of a group, as the flush writes them."""
        put(self.connection, stored)

    def classic(
        self, generation: int = 3, assigned: Sequence[int] = (0, 1), state: str = "Stable"
    ) -> None:
        """The group, with member m1 that has these partitions, in a generation."""
        self.put(
            StoredGroup(
                GroupRow(GROUP, "classic", "consumer", "range", "m1", generation, state=state),
                (MemberRow("m1", "classic", assigned={self.topic: tuple(assigned)}),),
            )
        )

    def consumer(
        self, epoch: int = 3, assigned: Sequence[int] = (), revoking: Sequence[int] = ()
    ) -> None:
        """The same of KIP-848."""
        topic = str(self.topic_id)
        member = MemberRow(
            "m1",
            "consumer",
            member_epoch=epoch,
            assigned={topic: tuple(assigned)},
            revoking={topic: tuple(revoking)},
        )
        self.put(StoredGroup(GroupRow(GROUP, "consumer", "consumer"), (member,)))


def put(connection: psycopg.Connection[Any], stored: StoredGroup) -> None:
    group, key = stored.group, UUID(bytes=key_of(stored.group.group_id))
    connection.execute(
        "INSERT INTO consumer_group VALUES"
        " (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, '{}', 0) ON CONFLICT (group_key) DO UPDATE"
        " SET protocol = excluded.protocol, generation_id = excluded.generation_id,"
        " state = excluded.state",
        (
            *(key, written(group.group_id), shard_of(group.group_id), group.protocol),
            *(group.protocol_type, group.protocol_name, group.leader, group.generation_id),
            *(group.assignment_epoch, group.state, group.state_timestamp),
        ),
    )
    connection.execute("DELETE FROM group_member WHERE group_key = %s", [key])
    for row in stored.members:
        connection.execute(
            "INSERT INTO group_member (group_key, member_key, member_id, protocol,"
            " group_instance_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,"
            " protocols, assignment, member_epoch, previous_member_epoch, state,"
            " subscribed_topic_names, assigned, revoking, target)"
            " VALUES (%s, %s, %s, %s, %s, '', '', 10000, 10000, '[]', '', %s, 0, '', '{}', %s, %s,"
            " '{}')",
            (
                *(key, UUID(bytes=key_of(row.member_id)), written(row.member_id), row.protocol),
                *(row.group_instance_id, row.member_epoch),
                *(json.dumps(row.assigned), json.dumps(row.revoking)),
            ),
        )


@pytest.fixture
def psql(any_url: str) -> Iterator[Psql]:
    """On each version, with a topic of three partitions."""
    with psycopg.connect(any_url, autocommit=True) as connection:
        yield with_topic(any_url, connection)


@pytest.fixture
def psql18(database_url: str) -> Iterator[Psql]:
    """On the embedded PostgreSQL only."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield with_topic(database_url, connection)


def with_topic(url: str, connection: psycopg.Connection[Any]) -> Psql:
    topic_id, ids = uuid4(), []
    connection.execute("INSERT INTO topic (topic_id, name) VALUES (%s, 'legs')", [topic_id])
    for number in range(3):
        cursor = connection.execute(
            "INSERT INTO topic_partition (topic_id, partition) VALUES (%s, %s)"
            " RETURNING partition_id",
            [topic_id, number],
        )
        ids += [each for (each,) in cursor]
    return Psql(url, connection, "legs", ids, topic_id)


def refused(state: str, name: str = "") -> Any:
    """Expects an error of ours, which begins with a name."""
    return pytest.raises(psycopg.Error, match=f"^{name}", check=lambda e: e.sqlstate == state)


# --- what is said once, and repeated in SQL ---


def test_keys_and_shards_are_those_of_brokers(psql: Psql) -> None:
    texts = ["", "flights", "a" * 300, ODD, "é" * 32, *map(str, range(300))]
    found = psql.rows(
        "SELECT penstock.key_of(t), penstock.shard_of(t), penstock.written(t)"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS e (t, n) ORDER BY n",
        texts,
    )
    assert found == [(UUID(bytes=key_of(text)), shard_of(text), written(text)) for text in texts]


INSTANCES = (None, "i1", "i2")
MEMBERS = ("", "m1", "m2", ODD)
GENERATIONS = (-2, -1, 0, 3, 4, 5)


def stored_groups() -> Iterator[StoredGroup]:
    """Each kind of group, without members, with one and with two, static ones too."""
    mine = [MemberRow("m1", "classic"), MemberRow("m1", "classic", "i1", member_epoch=3)]
    others = [None, MemberRow(ODD, "classic", "i2", member_epoch=4)]
    kip848 = [
        MemberRow("m1", "consumer", instance, member_epoch=epoch)
        for instance in (None, "i1")
        for epoch in (-2, 0, 3, 4)
    ]
    others_848 = [None, MemberRow(ODD, "consumer", "i2", member_epoch=4)]
    for protocol_type in ("", "consumer", "connect"):
        yield StoredGroup(GroupRow("", "classic", protocol_type, generation_id=3))
    yield StoredGroup(GroupRow("", "consumer", "consumer", generation_id=3))
    for state in ("Stable", "PreparingRebalance"):
        group = GroupRow("", "classic", "consumer", "range", "m1", 3, state=state)
        for member, other in itertools.product(mine, others):
            yield StoredGroup(group, tuple(each for each in (member, other) if each))
    group = GroupRow("", "consumer", "consumer", generation_id=4, assignment_epoch=4)
    for member, other in itertools.product([*kip848, *mine], [*others_848, *others[1:]]):
        yield StoredGroup(group, tuple(each for each in (member, other) if each))


def test_verdicts_on_rows_are_those_of_core(psql18: Psql) -> None:
    named = {
        f"g{n}": replace(each, group=replace(each.group, group_id=f"g{n}"))
        for n, each in enumerate(stored_groups())
    }
    for stored in named.values():
        psql18.put(stored)
    asked = list(itertools.product([*named, "absent"], MEMBERS, GENERATIONS, INSTANCES))
    found = psql18.rows(
        "SELECT penstock.commit_refusal(penstock.key_of(e.g), e.m, e.n, e.i)"
        " FROM unnest(%s::text[], %s::text[], %s::integer[], %s::text[])"
        " WITH ORDINALITY AS e (g, m, n, i, place) ORDER BY place",
        *[list(each) for each in zip(*asked, strict=True)],
    )
    expected = [(of_core(named.get(group_id), *who),) for group_id, *who in asked]
    wrong = [(a, f, e) for a, f, e in zip(asked, found, expected, strict=True) if f != e]
    assert not wrong
    assert len({each for (each,) in found}) == 6  # none of the kinds is left out


def of_core(
    stored: StoredGroup | None, member_id: str, generation: int, instance_id: str | None
) -> str | None:
    group: Any = ABSENT
    if stored is not None:
        kind = ConsumerGroup if stored.group.protocol == "consumer" else ClassicGroup
        group = kind.load(stored, GroupSettings(), NOW)
    error = group.commit_refusal(member_id, instance_id, generation, NOW)
    return None if error is Error.NONE else error.name


def test_rows_of_a_live_group_never_let_in_what_is_too_late(psql18: Psql) -> None:
    """While members join core knows of a generation that is not stored. Until it is, the one before
    counts, with the members it had, or none; beyond that nobody is let in whom core refuses."""
    driver = Driver()
    early = 0

    def compare() -> None:
        nonlocal early
        stored = driver.group.in_store()
        psql18.put(stored)
        for member_id, generation, instance_id in itertools.product(
            ["", *(f"m-{n}" for n in range(1, 5)), "i-1", "i-5"], (-1, 0, 1, 2, 3), (None, "i")
        ):
            found = psql18.value(
                "SELECT penstock.commit_refusal(penstock.key_of('g'), %s, %s, %s)",
                *(member_id, generation, instance_id),
            )
            core = driver.group.commit_refusal(member_id, instance_id, generation, driver.now)
            if found is None and core is not Error.NONE:
                if stored.members:
                    assert generation == stored.group.generation_id
                    assert member_id in {each.member_id for each in stored.members}
                else:
                    assert generation < 0
                early += 1
            elif driver.group.state in ("Stable", "Empty"):
                assert found == (None if core is Error.NONE else core.name)

    for step in (
        lambda: driver.join(version=3, instance="i"),
        lambda: driver.advance(DELAY_MS),
        lambda: driver.sync("i-1", 1),
        lambda: driver.join(version=3),
        lambda: driver.join("i-1", "i"),
        lambda: driver.sync("i-1", 2),
        lambda: driver.join(instance="i"),
        lambda: driver.leave("m-2"),
        lambda: driver.advance(REBALANCE_MS),
        lambda: driver.advance(SESSION_MS),
        lambda: driver.advance(REBALANCE_MS),
    ):
        step()
        compare()
    assert early


# --- at the call ---


REFUSED_AT_THE_CALL = [
    ("'g', 'nowhere', 0, 1", "PS101", "UNKNOWN_TOPIC_OR_PARTITION"),
    ("'g', 'legs', 3, 1", "PS101", "UNKNOWN_TOPIC_OR_PARTITION"),
    ("'g', 'legs', 0, -1", "PS211", "INVALID_REQUEST"),
    ("'g', 'legs', NULL, 1", "PS211", "INVALID_REQUEST"),
    ("'g', 'legs', 0, 1, -2", "PS211", "INVALID_REQUEST"),
    ("'g', ARRAY['legs'], ARRAY[0, 1], ARRAY[1]", "PS211", "INVALID_REQUEST"),
    ("'g', ARRAY['legs', 'legs'], ARRAY[0, 1], ARRAY[1, 2], ARRAY[1]", "PS211", "INVALID_REQUEST"),
    ("'pulsar-subscription:legs:0:s', 'legs', 0, 1", "PS209", "INVALID_GROUP_ID"),
    ("'\\x00'::bytea, 'legs', 0, 1", "PS211", "INVALID_REQUEST"),
    (r"'CGMDv2:\000\000\000'::bytea, 'legs', 0, 1", "PS211", "INVALID_REQUEST"),
    (
        "'g', 'legs', 0, 1, 'm', 1, metadata => repeat('é', 4097)",
        "PS210",
        "OFFSET_METADATA_TOO_LARGE",
    ),
    (
        "'g', 'legs', 0, 1, 'm', 1, metadata => repeat('𝄞', 2049)",
        "PS210",
        "OFFSET_METADATA_TOO_LARGE",
    ),
]


def test_what_would_be_refused_later_is_refused_at_the_call(psql18: Psql) -> None:
    with psql18.session() as session:
        for arguments, state, name in REFUSED_AT_THE_CALL:
            with refused(state, name):
                session.execute(f"SELECT penstock.commit_offsets({arguments})".encode())
            session.rollback()


def test_longest_metadata_comes_back(psql: Psql) -> None:
    for text in ("é" * 4096, "𝄞" * 2048, ODD):
        psql.classic()
        psql.commit("'flights', 'legs', 0, 1, 'm1', 3, metadata => %s", text)
        assert psql.value("SELECT metadata FROM committed_offset") == written(text)


CALLS: list[tuple[str, tuple[Any, ...], dict[int, int]]] = [
    ("'flights', 'legs', 0, 5", (), {0: 5}),
    ("%s, %s, %s, %s", (GROUP, "legs", 0, 2**40), {0: 2**40}),
    ("%s, %s, %s, %s, %s", (GROUP, "legs", 0, 5, -1), {0: 5}),
    ("%s, %s, %s, %s, previous => %s", (GROUP, "legs", 0, 5, None), {0: 5}),
    ("%s, %s, %s, %s, %s, %s", (GROUP, "legs", 0, 5, "", -1), {0: 5}),
    ("%s, %s, %s, %s, %s, %s, %s, %s", (GROUP, "legs", 0, 5, "", -1, None, "x"), {0: 5}),
    ("%s, %s, %s, %s", (GROUP, ["legs", "legs"], [0, 2], [5, 2**40]), {0: 5, 2: 2**40}),
    ("%s, %s, %s, %s, %s", (GROUP, ["legs"], [1], [5], [-1]), {1: 5}),
    ("%s, %s, %s, %s, %s, %s", (GROUP, ["legs"], [1], [5], "", -1), {1: 5}),
    ("%s, %s, %s, %s", (b"CGMDv1:flights\0", "legs", 0, 5), {0: 5}),
    ("%s, %s, %s, %s", (b"CGMDv1:flights\0", ["legs"], [0], [5]), {0: 5}),
]


def test_calls_need_no_casts(psql18: Psql) -> None:
    for arguments, parameters, by_partition in CALLS:
        psql18.commit(arguments, *parameters)
        assert psql18.committed() == by_partition
        psql18.rows("DELETE FROM committed_offset")


def test_with_names_drivers_may_leave_types_open(psql18: Psql) -> None:
    # As asyncpg prepares: the server is to say what the parameters are.
    for who, *types in (
        ("",),
        (", previous => $5", "bigint"),
        (", member_id => $5, generation => $6", "text", "integer"),
        (", member_id => $5, generation => $6, instance_id => $7", "text", "integer", "text"),
    ):
        one = "topic => $2, partition => $3, committed_offset => $4"
        assert prepared(psql18, one + who) == ["text", "text", "integer", "bigint", *types]
        many = "topics => $2, partitions => $3, committed_offsets => $4"
        types = ["bigint[]"] if types == ["bigint"] else types
        assert prepared(psql18, many + who) == ["text", "text[]", "integer[]", "bigint[]", *types]


def test_strings_of_jdbc_are_texts(psql18: Psql) -> None:
    psql18.rows(
        "PREPARE call (varchar, varchar, integer, bigint, varchar, integer, varchar) AS"
        " SELECT penstock.commit_offsets($1, $2, $3, $4, $5, $6, $7)"
    )
    psql18.rows("EXECUTE call ('flights', 'legs', 0, 5, '', -1, NULL)")
    assert psql18.committed() == {0: 5}


def prepared(psql: Psql, arguments: str) -> list[str]:
    """The types that parameters have."""
    psql.rows(f"PREPARE call AS SELECT penstock.commit_offsets($1, {arguments})")
    found: list[str] = psql.value(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'call'"
    )
    psql.rows("DEALLOCATE call")
    return found


def test_bytes_of_confluent_kafka_say_who_commits(psql: Psql) -> None:
    psql.put(
        StoredGroup(
            GroupRow(GROUP, "classic", "consumer", "range", "m1", 3, state="Stable"),
            (MemberRow("m1", "classic", "i1", assigned={"legs": (0,)}),),
        )
    )
    v2 = b"CGMDv2:%b" + GROUP.encode() + b"\0m1\0"
    psql.commit("%s, 'legs', 0, 5", v2 % struct.pack("=i", 3) + b"\0i1\0")
    with refused("PS202", "ILLEGAL_GENERATION"):
        psql.commit("%s, 'legs', 0, 6", v2 % struct.pack("=i", 2) + b"\1")
    with refused("PS202", "ILLEGAL_GENERATION"):
        psql.commit("%s, 'legs', 0, 6", v2 % struct.pack("=i", -1) + b"\1")
    with refused("PS201", "UNKNOWN_MEMBER_ID"):
        psql.commit("%s, 'legs', 0, 6", v2 % struct.pack("=i", 3) + b"\0i2\0")
    assert psql.committed() == {0: 5}


# --- at COMMIT ---


def test_offset_is_committed_as_by_a_request(psql: Psql) -> None:
    psql.commit("'new', 'legs', 1, 7")
    row = psql.rows(
        "SELECT g.group_id, g.shard, g.protocol, g.protocol_type, g.generation_id, g.state,"
        " o.committed_offset, o.leader_epoch, o.metadata, o.expire_timestamp,"
        " o.commit_order > 0, abs(o.commit_timestamp / 1000 - extract(epoch FROM now())) < 100"
        " FROM consumer_group g JOIN committed_offset o USING (group_key)"
    )
    assert row == [("new", shard_of("new"), "classic", "", 0, "Empty", 7, -1, "", -1, True, True)]


def test_rolled_back_and_behind_a_savepoint_counts_not(psql: Psql) -> None:
    with psql.session() as session:
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5)")
        session.rollback()
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 1, 5)")
        with session.transaction(force_rollback=True):
            session.execute("SELECT penstock.commit_offsets('flights', 'legs', 1, 6)")
            session.execute("SELECT penstock.commit_offsets('flights', 'legs', 2, 6)")
    assert psql.committed() == {1: 5}


def test_of_several_calls_the_last_counts(psql18: Psql) -> None:
    with psql18.session() as session:
        for slot, offset in enumerate((5, 9, 7)):
            session.execute("UPDATE sql_door SET slot = %s", [slot])
            session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, %s)", [offset])
    assert psql18.committed() == {0: 7}


def test_previous_has_to_be_what_is_committed(psql: Psql) -> None:
    psql.classic()  # members make no difference to it
    with refused("PS208", "OFFSET_MOVED"):
        psql.commit("'flights', 'legs', 0, 5, 4")
    psql.commit("'flights', 'legs', 0, 5, -1")
    with refused("PS208", "OFFSET_MOVED"):
        psql.commit("'flights', 'legs', 0, 6, -1")
    with refused("PS208", "OFFSET_MOVED"):
        psql.commit("'flights', 'legs', 0, 6, 4")
    with psql.session() as session:  # what follows is about what was before
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 6, 5)")
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 8, 6)")
    assert psql.committed() == {0: 8}
    with refused("PS208", "OFFSET_MOVED"), psql.session() as session:
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 9, 8)")
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 10, 8)")
    assert psql.committed() == {0: 8}


def test_commit_fails_with_the_applications_rows(psql18: Psql) -> None:
    psql18.classic(state="CompletingRebalance")
    psql18.rows("CREATE TABLE public.seat (n integer)")
    for who, state, name in (
        ("", "PS201", "UNKNOWN_MEMBER_ID"),
        (", 'm2', 3", "PS201", "UNKNOWN_MEMBER_ID"),
        (", 'm1', 2", "PS202", "ILLEGAL_GENERATION"),
        (", 'm1', 3, 'i'", "PS201", "UNKNOWN_MEMBER_ID"),
        (", 'm1', 4", "PS205", "REBALANCE_IN_PROGRESS"),
    ):
        with refused(state, name), psql18.session() as session:
            call = f"SELECT penstock.commit_offsets('flights', 'legs', 0, 5{who})"
            session.execute("INSERT INTO public.seat VALUES (1)")
            session.execute(call.encode())
    assert psql18.value("SELECT count(*) FROM public.seat") == 0
    assert psql18.committed() == {}
    psql18.commit("'flights', 'legs', 0, 5, 'm1', 3")  # the generation that is stored


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_partition_has_to_be_the_members(psql: Psql, kind: str) -> None:
    if kind == "classic":
        psql.classic(assigned=[0])
    else:
        psql.consumer(revoking=[0])
    psql.commit("'flights', 'legs', 0, 5, 'm1', 3")
    with refused("PS207", "PARTITION_NOT_ASSIGNED"):
        psql.commit("'flights', 'legs', 1, 5, 'm1', 3")
    with refused("PS207", "PARTITION_NOT_ASSIGNED"):
        psql.commit("'flights', ARRAY['legs', 'legs'], ARRAY[0, 1], ARRAY[6, 5], 'm1', 3")
    assert psql.committed() == {0: 5}


def test_member_epoch_has_to_be_the_present_one(psql: Psql) -> None:
    psql.consumer(4, [0])
    with refused("PS204", "STALE_MEMBER_EPOCH"):
        psql.commit("'flights', 'legs', 0, 5, 'm1', 3")
    psql.commit("'flights', 'legs', 0, 5, 'm1', 4")
    assert psql.committed() == {0: 5}


def test_absent_group_has_no_generation(psql18: Psql) -> None:
    with refused("PS206", "GROUP_ID_NOT_FOUND"):
        psql18.commit("'flights', 'legs', 0, 5, 'm1', 3")
    assert psql18.value("SELECT count(*) FROM consumer_group") == 0


def test_topic_that_was_deleted_since_is_refused(psql18: Psql) -> None:
    with refused("PS101", "UNKNOWN_TOPIC_OR_PARTITION"), psql18.session() as session:
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5)")
        psql18.rows("DELETE FROM topic")


def test_commit_waits_for_the_applications_deferred_triggers(psql18: Psql) -> None:
    with psql18.session() as session:
        session.execute(
            """
            CREATE FUNCTION public.immediate() RETURNS void LANGUAGE plpgsql AS
            $$ BEGIN SET CONSTRAINTS ALL IMMEDIATE; END $$;
            CREATE FUNCTION public.immediate_too() RETURNS void LANGUAGE sql AS
            'SET CONSTRAINTS ALL IMMEDIATE';
            CREATE PROCEDURE public.commits() LANGUAGE plpgsql AS
            $$ BEGIN PERFORM penstock.commit_offsets('flights', 'legs', 0, 4); COMMIT; END $$;
            """
        )
        session.commit()
        for how in (
            "SET CONSTRAINTS ALL IMMEDIATE",
            "SELECT public.immediate()",
            "SELECT public.immediate_too()",
            "PREPARE TRANSACTION 'p'",
        ):
            with refused("PS104"):
                session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5)")
                session.execute(how.encode())
            session.rollback()
        with refused("PS104"):
            session.execute("SET CONSTRAINTS ALL IMMEDIATE")
            session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5)")
        session.rollback()
    assert psql18.committed() == {}
    psql18.rows("CALL public.commits()")
    assert psql18.committed() == {0: 4}


def test_deferred_trigger_may_commit_offsets_unless_it_comes_last(psql18: Psql) -> None:
    psql18.rows(
        """
        CREATE TABLE public.first (n bigint); CREATE TABLE public.second (n bigint);
        CREATE FUNCTION public.go_on() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO public.second VALUES (NEW.n); RETURN NULL; END $$;
        CREATE FUNCTION public.commits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM penstock.commit_offsets('flights', 'legs', 0, NEW.n); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON public.first DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.go_on();
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON public.second DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.commits();
        """
    )
    psql18.rows("INSERT INTO public.second VALUES (5)")
    assert psql18.committed() == {0: 5}
    psql18.rows("INSERT INTO public.first VALUES (6)")
    assert psql18.committed() == {0: 6}
    with refused("PS104"), psql18.session() as session:
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 1, 5)")
        session.execute("INSERT INTO public.first VALUES (7)")
    assert psql18.committed() == {0: 6}


def test_records_take_their_place_behind_what_offsets_have_waited_for(psql18: Psql) -> None:
    psql18.commit("'flights', 'legs', 0, 5")
    assert psql18.rows(PLACES) == []  # nothing is to be published
    with refused("PS208"), psql18.session() as session:
        session.execute("SELECT penstock.produce('legs', 'k', 'never')")
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 7, 4)")

    def produce_and_commit() -> None:
        with psql18.session() as session:
            session.execute("SELECT penstock.produce('legs', 'k', 'second')")
            session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 6)")

    with psql18.session() as blocker, ThreadPoolExecutor(1) as pool:
        blocker.execute("SELECT FROM committed_offset FOR UPDATE")
        done = pool.submit(produce_and_commit)
        wait_until(lambda: psql18.value(WAITING) == 1)
        blocker.execute("SELECT penstock.produce('legs', 'k', 'first')")
        blocker.commit()
        done.result(30)
    assert psql18.rows(PLACES) == [("first",), ("second",)]
    assert psql18.committed() == {0: 6}


PLACES = """
SELECT convert_from(r.value, 'UTF8') FROM inbox_commit_0 c JOIN inbox_record_0 r USING (xid)
GROUP BY 1 ORDER BY max(stamp)
"""


# --- who holds up whom ---


def test_session_that_dawdles_holds_up_nobody(psql: Psql) -> None:
    psql.classic()
    psql.rows("SET lock_timeout = '1s'")
    with refused("PS202", "ILLEGAL_GENERATION"), psql.session() as session:
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5, 'm1', 3)")
        psql.rows(LOCK_GROUPS.replace("$1", "%s"), [UUID(bytes=key_of(GROUP))])
        psql.commit("'flights', 'legs', 0, 7, 'm1', 3")
        psql.classic(generation=4)
    assert psql.committed() == {0: 7}


def test_rebalance_during_commit_fails_it(psql18: Psql) -> None:
    # The application's own deferred trigger waits while the group moves on.
    psql18.classic()
    with held_commits(psql18) as commit, ThreadPoolExecutor(1) as pool:
        done = pool.submit(commit, "'flights', 'legs', 0, 5, 'm1', 3")
        wait_until(lambda: psql18.value(WAITING) == 1)
        psql18.classic(generation=4)
        psql18.rows("SELECT pg_advisory_unlock(1)")
        with refused("PS202", "ILLEGAL_GENERATION"):
            done.result(30)
    assert psql18.value("SELECT count(*) FROM public.seat") == 0
    assert psql18.committed() == {}


def test_rebalance_waits_for_a_commit_that_has_compared(psql18: Psql) -> None:
    psql18.classic()
    psql18.commit("'flights', 'legs', 0, 5, 'm1', 3")
    with (
        psql18.session() as blocker,
        psql18.session() as coordinator,
        ThreadPoolExecutor(2) as pool,
    ):
        blocker.execute("SELECT FROM committed_offset FOR UPDATE")
        done = pool.submit(commit_alone, psql18, "'flights', 'legs', 0, 6, 'm1', 3")
        wait_until(lambda: psql18.value(WAITING) == 1)
        moved = pool.submit(
            lambda: (
                coordinator.execute("UPDATE consumer_group SET generation_id = 4"),
                coordinator.execute("SELECT committed_offset FROM committed_offset").fetchall(),
                coordinator.commit(),
            )
        )
        wait_until(lambda: psql18.value(WAITING) == 2)
        blocker.rollback()
        done.result(30)
        assert moved.result(30)[1] == [(6,)]  # the next owner reads it
    with refused("PS202"):
        psql18.commit("'flights', 'legs', 0, 7, 'm1', 3")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_old_snapshot_does_not_hide_a_new_generation(psql18: Psql, level: str) -> None:
    psql18.classic()
    with pytest.raises(errors.SerializationFailure), psql18.session() as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5, 'm1', 3)")
        psql18.classic(generation=4)
    with psql18.session() as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        session.execute("SELECT penstock.commit_offsets('flights', 'legs', 0, 5, 'm1', 4)")
    assert psql18.committed() == {0: 5}


def test_of_two_with_the_same_previous_one_is_committed(psql18: Psql) -> None:
    barrier = threading.Barrier(4)

    def work(_: int) -> list[int]:
        won = []
        with psql18.session() as session:
            for previous in range(-1, 19):
                barrier.wait(30)
                session.execute(
                    "SELECT penstock.commit_offsets('flights', 'legs', 0, %s, %s)",
                    [previous + 1, previous],
                )
                try:
                    session.commit()
                    won.append(previous + 1)
                except psycopg.Error as error:
                    assert error.sqlstate == "PS208"
        return won

    with ThreadPoolExecutor(4) as pool:
        won = itertools.chain.from_iterable(pool.map(work, range(4)))
        assert sorted(won) == list(range(20))


def test_commits_of_many_groups_do_not_wait_in_a_circle(psql18: Psql) -> None:
    def work(turn: int) -> None:
        names = [f"g{n}" for n in range(8)]
        with psql18.session() as session:
            for round_ in range(20):
                for name in names[:: 1 if turn % 2 else -1]:
                    for partition in (0, 2) if turn % 2 else (2, 0):
                        session.execute(
                            "SELECT penstock.commit_offsets(%s, 'legs', %s, %s)",
                            [f"{name}-{round_ // 4}", partition, round_],
                        )
                session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert psql18.value("SELECT count(*) FROM committed_offset") == 8 * 5 * 2


def commit_alone(psql: Psql, arguments: str) -> None:
    """One call, in a session of its own."""
    with psql.session() as session:
        session.execute(f"SELECT penstock.commit_offsets({arguments})".encode())


WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def held_commits(psql: Psql) -> Iterator[Callable[[str], None]]:
    """COMMITs that wait in a deferred trigger of the application's until lock 1 is free."""
    psql.rows(
        """
        CREATE TABLE public.seat (n integer);
        CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON public.seat
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait();
        SELECT pg_advisory_lock(1);
        """
    )

    def commit(arguments: str) -> None:
        with psql.session() as session:
            session.execute(f"SELECT penstock.commit_offsets({arguments})".encode())
            session.execute("INSERT INTO public.seat VALUES (1)")

    try:
        yield commit
    finally:
        psql.rows("SELECT pg_advisory_unlock_all()")


# --- rights ---


def test_consumer_may_call_and_nothing_else(psql18: Psql) -> None:
    psql18.rows("DROP ROLE IF EXISTS offsets_app; CREATE ROLE offsets_app")
    psql18.rows("GRANT penstock_consumer TO offsets_app")
    try:
        psql18.rows("SET ROLE offsets_app")
        psql18.commit("'flights', 'legs', 0, 5, 'm1', -1")
        for forbidden in (
            "INSERT INTO penstock.offset_box (group_id, role) VALUES ('g', 'postgres')",
            "INSERT INTO penstock.inbox_offset_0 SELECT * FROM penstock.inbox_offset_0",
            "SELECT penstock.write_offsets(pg_current_xact_id())",
            "SELECT penstock.commit_refusal(penstock.key_of('g'), '', 0, NULL)",
            "SELECT penstock.produce('legs', 'k', 'v')",
            "SELECT * FROM penstock.committed_offset",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                psql18.rows(forbidden)
        psql18.rows("RESET ROLE")
        psql18.rows("UPDATE sql_door SET asks_rights = true")
        psql18.rows("SET ROLE offsets_app")
        with pytest.raises(
            errors.InsufficientPrivilege, match=r'^GROUP_AUTHORIZATION_FAILED: role "offsets_app"'
        ):
            psql18.commit("'flights', 'nowhere', 0, 5")
    finally:
        psql18.rows("RESET ROLE")
        psql18.rows("REVOKE penstock_consumer FROM offsets_app; DROP ROLE offsets_app")
