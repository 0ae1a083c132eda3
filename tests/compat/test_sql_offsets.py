"""Members of stock clients commit their offsets in SQL, with the rows of the application.

A commit is in before the next owner of a partition reads it, or it fails with those rows. Not for
other brokers. Expectations are Kafka's: of what it refuses, what a member is told.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as Place

from compat.java import tools
from tests.compat.clients import Java
from tests.compat.confluent import producer, send_all
from tests.compat.conftest import MakeTopic
from tests.compat.groups import (
    AIOKAFKA,
    CONSUMER,
    COOPERATIVE,
    RANGE,
    Group,
    MakeGroup,
    Member,
    Way,
    eventually,
)
from tests.variants import variants

WAITING = """
SELECT count(*)::integer FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
BY_MEMBER = {"PS201", "PS202", "PS204", "PS205"}
"""Who has left a group, or not heard of its next generation."""


@pytest.fixture
def url(gateway: Any) -> str:
    """The broker's database, with an application's table."""
    if not getattr(gateway, "database_url", None):
        pytest.skip("only Penstock keeps groups in PostgreSQL")
    with psycopg.connect(gateway.database_url, autocommit=True) as psql:
        psql.execute("CREATE TABLE IF NOT EXISTS public.work (group_id text, value text)")
    return str(gateway.database_url)


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    """An application's, committed at the end."""
    with closing(psycopg.connect(url)) as connection:
        yield connection
        connection.commit()


def who(member: Member, group: Group, client: str) -> dict[str, Any]:
    """The arguments that say who commits, by name; of aiokafka's members none."""
    if client == "confluent":
        return {"group_metadata": member.ask(lambda consumer: consumer.consumer_group_metadata())}
    if client == "aiokafka":
        return {"group_id": group.name}
    told = member.ask(lambda consumer: consumer.group_metadata())
    return {
        "group_id": told.group_id,
        "member_id": told.member_id,
        "generation": told.generation_id,
        "instance_id": told.group_instance_id,
    }


def call(
    connection: psycopg.Connection[Any], group: Group, offsets: Mapping[int, int], **said: Any
) -> None:
    """Commits offsets, and a row of the application, in the open transaction."""
    arguments = {
        **said,
        "topics": [group.topic] * len(offsets),
        "partitions": list(offsets),
        "committed_offsets": list(offsets.values()),
    }
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    connection.execute("INSERT INTO public.work VALUES (%s, 'done')", [group.name])
    connection.execute(f"SELECT penstock.commit_offsets({named})".encode(), arguments)


def commit(url: str, group: Group, offsets: Mapping[int, int], **said: Any) -> None:
    """In a transaction of its own."""
    with session(url) as connection:
        call(connection, group, offsets, **said)


def done(url: str, group: Group) -> int:
    """How many rows of the application are committed."""
    with session(url) as psql:
        found = psql.execute("SELECT count(*) FROM public.work WHERE group_id = %s", [group.name])
        return int(found.fetchone()[0])  # type: ignore[index]


def partition_of(member: Member) -> int:
    ((_, number),) = member.owned
    return number


@pytest.mark.parametrize(
    "way",
    [
        Way("confluent", "consumer", CONSUMER),
        AIOKAFKA,
        *(
            pytest.param(each, marks=pytest.mark.variant)
            for each in (
                Way("kafka-python"),
                Way("confluent", "cooperative", COOPERATIVE),
                Way("confluent", "range", RANGE),
            )
        ),
    ],
    ids=str,
)
def test_offsets_and_rows_are_committed_together(url: str, make_group: MakeGroup, way: Way) -> None:
    group = make_group(partitions=2, client=way.client)
    first = group.join(way.settings)
    group.wait_stable()
    before = who(first, group, way.client)
    tells = way.client != "aiokafka"
    commit(url, group, {0: 3, 1: 4}, **before, **({} if tells else {"previous": [None, -1]}))
    assert first.committed(2) == [3, 4]
    second = group.join(way.settings)
    group.wait_stable()
    assert second.committed(2) == [3, 4]
    theirs = partition_of(second)
    if tells:
        with pytest.raises(psycopg.Error) as old:
            commit(url, group, {theirs: 5}, **before)
        assert old.value.sqlstate == ("PS204" if way.how == "consumer" else "PS202")
        # By KIP-848 it hears of its new epoch when the other may have its partition already.
        eventually(lambda: who(first, group, way.client) != before)
        with pytest.raises(psycopg.Error) as anothers:
            commit(url, group, {theirs: 5}, **who(first, group, way.client))
        assert anothers.value.sqlstate == "PS207"
        with pytest.raises(psycopg.Error) as nobody:
            commit(url, group, {theirs: 5}, group_id=group.name)
        assert nobody.value.sqlstate == "PS201"
        commit(url, group, {theirs: 6}, **who(second, group, way.client))
    else:
        commit(url, group, {theirs: 6}, **before, previous=[3 + theirs])
        with pytest.raises(psycopg.Error) as old:
            commit(url, group, {theirs: 5}, **before, previous=[3 + theirs])
        assert old.value.sqlstate == "PS208"
    assert first.committed(2)[theirs] == 6
    assert done(url, group) == 2
    group.leave(second)
    group.wait_stable()
    assert first.committed(2)[theirs] == 6


def test_static_member_that_was_replaced_is_fenced(url: str, make_group: MakeGroup) -> None:
    group = make_group(partitions=1)
    settings = {**RANGE, "group.instance.id": "stays"}
    fenced = group.join(settings)
    group.wait_stable()
    before = who(fenced, group, "confluent")
    usurper = group.join(settings)
    group.wait_stable(among=[usurper])
    with pytest.raises(psycopg.Error, match=r"^FENCED_INSTANCE_ID") as refused:
        commit(url, group, {0: 1}, **before)
    assert refused.value.sqlstate == "PS203"
    commit(url, group, {0: 2}, **who(usurper, group, "confluent"))
    assert usurper.committed(1) == [2]


@pytest.mark.variant
@pytest.mark.parametrize("settings", [RANGE, CONSUMER], ids=["classic", "consumer"])
def test_member_that_stood_still_is_too_late(
    url: str, make_group: MakeGroup, settings: dict[str, Any]
) -> None:
    group = make_group(partitions=1)
    limits = {"max.poll.interval.ms": 2_000}
    if settings is RANGE:
        limits["session.timeout.ms"] = 2_000
    zombie = group.join({**settings, **limits})
    group.wait_stable()
    before = who(zombie, group, "confluent")
    with session(url) as connection:
        call(connection, group, {0: 5}, **before)  # in time
        zombie.stop_polling()
        heir = group.join(settings)
        group.wait_stable(among=[heir])
        assert heir.committed(1) == [-1001]
        with pytest.raises(psycopg.Error, match=r"^UNKNOWN_MEMBER_ID"):
            connection.commit()
    commit(url, group, {0: 6}, **who(heir, group, "confluent"))
    assert (heir.committed(1), done(url, group)) == ([6], 1)
    zombie.go_on_polling()


def test_kafka_python_says_who_it_is(url: str, bootstrap: str, topic: str, group_id: str) -> None:
    client = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group_id)
    with closing(client) as consumer, session(url) as connection:
        eventually(lambda: consumer.poll(100) or consumer.assignment())
        told = consumer.group_metadata()
        connection.execute(
            "SELECT penstock.commit_offsets(%s, %s, 0, 7, %s, %s, %s)",
            [group_id, topic, told.member_id, told.generation_id, told.group_instance_id],
        )
        connection.commit()
        # Not at once: it may have asked before, and takes that answer for this question, too.
        eventually(lambda: consumer.committed(Place(topic, 0)) == 7)
    with pytest.raises(psycopg.Error, match=r"^UNKNOWN_MEMBER_ID"), session(url) as connection:
        connection.execute(
            "SELECT penstock.commit_offsets(%s, %s, 0, 8, %s, %s)",
            [group_id, topic, told.member_id, told.generation_id],
        )


both = pytest.mark.parametrize(
    "settings", variants(CONSUMER, COOPERATIVE), ids=["consumer", "classic"]
)


@both
def test_rebalance_during_commit_decides_once(
    url: str, make_group: MakeGroup, settings: dict[str, Any]
) -> None:
    """The application's own deferred trigger waits: the group moves on. Then the offset's row is
    locked, when the commit has compared already: the group waits."""
    group = make_group(partitions=2)
    first = group.join(settings)
    group.wait_stable()
    commit(url, group, {0: 1, 1: 1}, **who(first, group, "confluent"))
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(url, autocommit=True) as psql,
        session(url) as blocker,
    ):

        def waiting() -> int:
            return int(psql.execute(WAITING).fetchone()[0])  # type: ignore[index]

        psql.execute(HELD)
        psql.execute("SELECT pg_advisory_lock(21)")
        before = who(first, group, "confluent")
        held = pool.submit(commit_held, url, group, {0: 2, 1: 2}, before)
        eventually(lambda: waiting() or held.done())
        second = group.join(settings)
        group.wait_stable()
        psql.execute("SELECT pg_advisory_unlock(21)")
        with pytest.raises(psycopg.Error) as refused:
            held.result(30)
        assert refused.value.sqlstate in BY_MEMBER
        assert second.committed(2) == [1, 1]

        eventually(lambda: who(first, group, "confluent") != before)  # it may hear of it later
        mine = partition_of(first)
        blocker.execute("SELECT FROM penstock.committed_offset FOR UPDATE")
        said = who(first, group, "confluent")
        compared = pool.submit(commit, url, group, {mine: 3}, **said)
        eventually(lambda: waiting() == 1 or compared.done())
        third = group.join(settings)
        eventually(lambda: waiting() == 2)  # the coordinator's flush
        assert not third.owned
        blocker.commit()
        compared.result(30)
        group.leave(third)
        group.wait_stable()
        assert second.committed(2)[mine] == 3
    assert done(url, group) == 2


HELD = """
CREATE TABLE IF NOT EXISTS public.held (n integer);
CREATE OR REPLACE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(21); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS wait ON public.held;
CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON public.held
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait();
"""


def commit_held(url: str, group: Group, offsets: Mapping[int, int], said: Any) -> None:
    """A COMMIT that waits for lock 21."""
    with session(url) as connection:
        call(connection, group, offsets, **said)
        connection.execute("INSERT INTO public.held VALUES (1)")


RECORDS, PARTITIONS = 400, 4


@both
def test_each_record_is_worked_off_once(
    url: str,
    bootstrap: str,
    make_topic: MakeTopic,
    group_id: str,
    settings: dict[str, Any],
    seed: int,
) -> None:
    """Members come, go, and are too late: the rows are those of every record, each once."""
    topic = make_topic(PARTITIONS)
    send_all(
        producer(bootstrap),
        ({"topic": topic, "partition": n % PARTITIONS, "value": b"%d" % n} for n in range(RECORDS)),
    )
    chance, over = random.Random(seed), threading.Event()
    workers = [
        threading.Thread(
            target=work, args=(url, bootstrap, topic, group_id, settings, chance.random(), over)
        )
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    with psycopg.connect(url, autocommit=True) as psql:
        rows = "SELECT count(*) FROM public.work WHERE group_id = %s"
        eventually(lambda: psql.execute(rows, [group_id]).fetchone()[0] >= RECORDS)  # type: ignore[index]
        over.set()
        for worker in workers:
            worker.join(60)
        found = psql.execute("SELECT value FROM public.work WHERE group_id = %s", [group_id])
        assert sorted(int(value) for (value,) in found) == list(range(RECORDS))


def work(
    url: str,
    bootstrap: str,
    topic: str,
    group_id: str,
    settings: dict[str, Any],
    chosen: float,
    over: threading.Event,
) -> None:
    """Members of a group, one after the other, until all is over."""
    chance = random.Random(chosen)
    with closing(psycopg.connect(url)) as connection:
        while not over.is_set():
            consumer = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": group_id,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    **settings,
                }
            )
            consumer.subscribe([topic])
            for _ in range(chance.randrange(5, 30)):
                if not over.is_set():
                    work_off(connection, consumer, group_id, chance)
            consumer.close()


def work_off(
    connection: psycopg.Connection[Any], consumer: Consumer, group_id: str, chance: random.Random
) -> None:
    messages = [each for each in consumer.consume(5, 0.2) if not each.error()]
    if not messages:
        return
    ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
    try:
        for each in messages:
            value = (each.value() or b"").decode()
            connection.execute("INSERT INTO public.work VALUES (%s, %s)", [group_id, value])
        topics, partitions = zip(*ends, strict=True)
        connection.execute(
            "SELECT penstock.commit_offsets(%s, %s, %s, %s)",
            [
                consumer.consumer_group_metadata(),
                list(topics),
                list(partitions),
                list(ends.values()),
            ],
        )
        time.sleep(chance.choice([0, 0, 0.01, 0.1]))  # dawdles
        connection.commit()
    except psycopg.Error as refused:
        connection.rollback()
        assert refused.sqlstate in {*BY_MEMBER, "PS207"}, refused
        for found in consumer.committed(consumer.assignment(), 10):
            consumer.seek(TopicPartition(found.topic, found.partition, max(found.offset, 0)))


@pytest.mark.java
def test_java_members_commit_and_kafkas_tool_shows_the_lag(
    url: str,
    bootstrap: str,
    java_client: Java,
    shell: tools.RunTool,
    topic: str,
    group_id: str,
) -> None:
    values = ({"topic": topic, "value": b"%d" % n} for n in range(10))
    send_all(producer(bootstrap), values)
    reader = java_client.reader(topic, None, group=group_id, **{"group.protocol": "consumer"})
    eventually(lambda: reader.poll(0.2))
    member_id, epoch, instance_id = reader.identity()
    with session(url) as connection:
        connection.execute(
            "SELECT penstock.commit_offsets(%s, %s, 0, 7, %s, %s, %s)",
            [group_id, topic, member_id, int(epoch), instance_id or None],
        )
    assert reader.committed(0) == 7
    shown = shell(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--group", group_id),
    ).stdout.split("\n")
    (row,) = [line.split() for line in shown if topic in line]
    assert row[2:6] == ["0", "7", "10", "3"]
