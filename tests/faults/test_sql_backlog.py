"""Much that waits, large transactions, no space, connections cut: the inbox is published in the
end, once, and no broker ends or holds up others' appends meanwhile."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway
from tests.faults.conftest import create_topic, query, url_through
from tests.faults.proxies import CommitProxy, Cut
from tests.faults.reading import read_by_offset
from tests.faults.test_sql_accounts import wait_until_published
from tests.faults.test_sql_takeover import wait_until
from tests.variants import ARE_ALL_RUN

pytestmark = pytest.mark.fault

TOPIC = "much"
PARTITIONS = 4
WAITING = 10_000_000 if ARE_ALL_RUN else 60_000
IN_ONE = 1_000_000 if ARE_ALL_RUN else 50_000
LONG_S = 3_600 if ARE_ALL_RUN else 120
FULL = """
CREATE FUNCTION penstock.full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_here BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION penstock.full()
"""

COMMITS = f"""
SELECT count(DISTINCT b.xmin::text) FROM penstock.record_batch b
JOIN penstock.topic_partition USING (partition_id) JOIN penstock.topic t USING (topic_id)
WHERE t.name = '{TOPIC}'
"""


def produce_many(url: str, count: int, *, in_one: bool = False, topic: str = TOPIC) -> None:
    """Records 0, 1, 2 … with keys: a transaction for each twenty, or one."""
    with psycopg.connect(url, autocommit=True) as session:
        if in_one:
            session.execute(INSERT.format(topic=topic, first=0, last=count - 1).encode())
            return
        session.execute(
            f"""
            DO $$ BEGIN
                FOR n IN 0..{count // 20 - 1} LOOP
                    {INSERT.format(topic=topic, first="n * 20", last="n * 20 + 19")};
                    COMMIT;
                END LOOP;
            END $$
            """.encode()
        )


INSERT = """
INSERT INTO penstock.outbox (topic, key, value)
SELECT '{topic}', (m % 100)::text, m::text FROM generate_series({first}, {last}) AS m
"""


def rss_mib(gateway: Gateway) -> float:
    """Memory of a broker."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def verify(gateway: Gateway, count: int, topic: str = TOPIC) -> None:
    """Each record is there once, those of a key in order."""
    found = read_by_offset(gateway.bootstrap, topic, PARTITIONS, "read_committed")
    numbers = [[int(value) for value in of_one.values()] for of_one in found.values()]
    assert sorted(each for of_one in numbers for each in of_one) == list(range(count))
    last: dict[int, int] = {}
    for of_one in numbers:
        for each in of_one:
            assert each > last.get(each % 100, -1), f"{each} behind {last[each % 100]}"
            last[each % 100] = each


class Delivering:
    """A Kafka producer beside: how long its records take."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.took_s: list[float] = []

    def once(self) -> None:
        began = time.monotonic()
        self._producer.produce("beside", b"x")
        assert self._producer.flush(30) == 0
        self.took_s.append(time.monotonic() - began)

    @property
    def slowest_s(self) -> float:
        return max(self.took_s, default=0.0)


def watch(
    gateway: Gateway, beside: Delivering, is_over: Callable[[], bool], within_s: float = LONG_S
) -> float:
    """Until then others' records go on; gives the most memory that the broker has had."""
    most, deadline = rss_mib(gateway), time.monotonic() + within_s
    while not is_over():
        beside.once()
        most = max(most, rss_mib(gateway))
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)
    return most


def is_published(url: str, count: int, topic: str = TOPIC) -> Callable[[], bool]:
    """Whether the topic has so many records."""
    ends = (
        "SELECT sum(next_offset) FROM penstock.topic_partition p JOIN penstock.topic t"
        f" USING (topic_id) WHERE t.name = '{topic}'"
    )
    return lambda: int(str(query(url, ends)[0][0])) >= count


@pytest.mark.timeout(LONG_S + 60)
def test_a_long_backlog(server: EmbeddedPostgres, start_gateway: StartGateway) -> None:
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    create_topic(gateway.bootstrap, "beside", 1)
    gateway.pause()
    produce_many(server.url, WAITING)
    gateway.resume()
    began, before = time.monotonic(), rss_mib(gateway)
    beside = Delivering(gateway.bootstrap)
    most = watch(gateway, beside, is_published(server.url, WAITING))
    took = time.monotonic() - began
    print(  # noqa: T201 - measured
        f"{WAITING / took:.0f} records/s, {before:.0f} to {most:.0f} MiB,"
        f" a producer's slowest {beside.slowest_s * 1000:.0f} ms of {len(beside.took_s)}"
    )
    assert most < before + 150
    # All of it is published within a second, and this process may have stood still.
    assert len(beside.took_s) >= 3, "it had to wait for the backlog"
    assert statistics.median(beside.took_s) < 1
    wait_until_published(server.url)
    if not ARE_ALL_RUN:
        verify(gateway, WAITING)


@pytest.mark.timeout(LONG_S + 60)
def test_one_large_transaction_and_two_brokers(
    server: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    """To make it ready takes longer than others wait for a broker that does nothing."""
    brokers = [start_gateway(database_url=server.url) for _ in range(2)]
    create_topic(brokers[0].bootstrap, TOPIC, PARTITIONS)
    create_topic(brokers[0].bootstrap, "beside", 1)
    before = rss_mib(brokers[0])
    produce_many(server.url, IN_ONE, in_one=True)
    began = time.monotonic()
    beside = Delivering(brokers[0].bootstrap)
    most = watch(brokers[0], beside, is_published(server.url, IN_ONE))
    took = time.monotonic() - began
    print(  # noqa: T201 - measured
        f"{took:.1f} s, {before:.0f} to {most:.0f} MiB,"
        f" a producer's slowest {beside.slowest_s * 1000:.0f} ms"
    )
    assert most < before + 250
    wait_until_published(server.url)
    assert query(server.url, COMMITS) == [(1,)], "all of it in one commit"
    verify(brokers[0], IN_ONE)
    # The other broker may have prepared it, too, and finds out only when it is to publish it.
    left = "SELECT count(*) FROM penstock.staged_batch"
    wait_until(lambda: query(server.url, left) == [(0,)])


@pytest.mark.parametrize("how", ["terminated", "deleted"])
def test_a_large_transaction_for_a_topic_that_takes_none(
    server: EmbeddedPostgres, start_gateway: StartGateway, how: str
) -> None:
    """It is noted as refused, and holds up nothing."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    create_topic(gateway.bootstrap, "gone", PARTITIONS)
    gateway.pause()
    with psycopg.connect(server.url) as session:
        for topic in ("gone", TOPIC):
            session.execute(INSERT.format(topic=topic, first=0, last=9_999).encode())
    gateway.kill()
    of_gone = "(SELECT topic_id FROM penstock.topic WHERE name = 'gone')"
    if how == "terminated":
        query(
            server.url,
            "UPDATE penstock.topic_partition SET terminated_offset = next_offset"
            f" WHERE topic_id = {of_gone}",
        )
    else:
        query(server.url, f"DELETE FROM penstock.topic_partition WHERE topic_id = {of_gone}")
        query(server.url, "DELETE FROM penstock.topic WHERE name = 'gone'")
    gateway = start_gateway(database_url=server.url, port=gateway.port)
    wait_until_published(server.url)
    verify(gateway, 10_000)
    refused = query(server.url, "SELECT topic, sum(records) FROM v_inbox_refused GROUP BY topic")
    assert refused == [("gone", 10_000)]


def test_no_space_for_what_is_produced(
    server: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    query(server.url, FULL.format(table="penstock.inbox_record_0"))
    with psycopg.connect(server.url, autocommit=True) as session:
        with pytest.raises(psycopg.errors.DiskFull):
            session.execute("SELECT penstock.produce(%s, 'k'::text, 'v'::text)", [TOPIC])
        session.execute("DROP TRIGGER full_here ON penstock.inbox_record_0")
    produce_many(server.url, 100)
    wait_until_published(server.url)
    verify(gateway, 100)


@pytest.mark.parametrize("table", ["penstock.inbox_position", "penstock.record_batch"])
def test_no_space_for_what_is_published(
    server: EmbeddedPostgres, start_gateway: StartGateway, table: str
) -> None:
    """It waits, and does not fill the log of the broker meanwhile."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    query(server.url, FULL.format(table=table))
    produce_many(server.url, 100)
    time.sleep(2)
    assert gateway.process.poll() is None
    assert gateway.log().count("database_out_of_space") < 40
    query(server.url, f"DROP TRIGGER full_here ON {table}")
    wait_until_published(server.url)
    verify(gateway, 100)


def test_the_database_is_away_for_a_while(
    server: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    """Twice, with what waits."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    gateway.pause()
    produce_many(server.url, 40_000)
    gateway.resume()
    for count in (2_000, 20_000):
        wait_until(is_published(server.url, count))
        server.stop("immediate")
        time.sleep(3)
        assert gateway.process.poll() is None
        server.start()
    wait_until_published(server.url)
    verify(gateway, 40_000)


def test_the_database_dies_right_behind_commits(
    server: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    """Whether the broker had seen them or not."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    for last in (99, 199, 299):
        with psycopg.connect(server.url, autocommit=True) as session:
            for first in range(last - 99, last, 10):
                session.execute(INSERT.format(topic=TOPIC, first=first, last=first + 9).encode())
        server.stop("immediate")
        server.start()
    wait_until_published(server.url)
    verify(gateway, 300)


def test_connections_are_cut_at_the_publishing_commit(
    server: EmbeddedPostgres, commit_proxy: CommitProxy, start_gateway: StartGateway, seed: int
) -> None:
    gateway = start_gateway(database_url=url_through(commit_proxy))
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    commit_proxy.share = 0.3
    chance = random.Random(seed)
    count = 0
    deadline = time.monotonic() + 60
    with psycopg.connect(server.url, autocommit=True) as session:
        while {cut for cut, _ in commit_proxy.done} < set(Cut) or count < 200:
            assert time.monotonic() < deadline
            last = count + chance.randint(0, 5)
            session.execute(INSERT.format(topic=TOPIC, first=count, last=last).encode())
            count = last + 1
            time.sleep(chance.uniform(0, 0.02))
    commit_proxy.share = 0.0
    wait_until_published(server.url)
    verify(gateway, count)
    assert gateway.process.poll() is None


@pytest.mark.parametrize("cut", list(Cut), ids=["before", "after"])
@pytest.mark.parametrize("count", [40, 10_000], ids=["small", "prepared first"])
def test_a_connection_is_cut_at_the_commit_of_a_transaction(
    server: EmbeddedPostgres,
    commit_proxy: CommitProxy,
    start_gateway: StartGateway,
    cut: Cut,
    count: int,
) -> None:
    """Whether it was published the broker cannot know; it is there once."""
    gateway = start_gateway(database_url=url_through(commit_proxy))
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    create_topic(gateway.bootstrap, "before", 1)
    produce_many(server.url, 20, topic="before")
    wait_until_published(server.url)
    commit_proxy.cut_next(cut)
    produce_many(server.url, count, in_one=True)
    wait_until_published(server.url)
    assert [each for each, _ in commit_proxy.done] == [cut]
    verify(gateway, count)
    assert query(server.url, COMMITS) == [(1,)], "all of it in one commit"
