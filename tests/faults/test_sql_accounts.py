"""Applications' transactions while sessions, brokers and the database die: nothing of them is lost,
doubled, torn or out of order. The checker finds what publishers of other orders would do."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import psycopg
import pytest

from storage.schema import INBOX_SLOTS
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, Gateway, StartGateway, free_port, wait_until_ready
from tests.faults.accounts import Anomaly, Flaw, check_accounts, parse, summary
from tests.faults.accounts_load import TOPIC, Sessions, prepare, told
from tests.faults.conftest import PARTITIONS, create_topic, query
from tests.faults.reading import read_by_offset
from tests.faults.workers import Workers

pytestmark = pytest.mark.fault

# Sessions run into deadlocks all the time.
SETTINGS = {**SMALL_POSTGRES, "deadlock_timeout": "30ms"}
FORGOTTEN_FAST = ("--override", "penstock.broker.session.timeout.ms=2000")
APPENDED = """
SELECT p.partition, b.base_offset, b.last_offset, b.xmin::text::bigint
FROM penstock.record_batch b JOIN penstock.topic_partition p USING (partition_id)
JOIN penstock.topic t USING (topic_id) WHERE t.name = %s
"""
KILL_A_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'bank' ORDER BY random() LIMIT 1
"""


def wait_until_published(url: str, within_s: float = 60.0) -> None:
    """Until nothing waits in the inbox."""
    deadline = time.monotonic() + within_s
    while waiting := query(url, "SELECT * FROM penstock.v_inbox"):
        assert time.monotonic() < deadline, f"still waiting: {waiting}"
        time.sleep(0.05)


def anomalies_of(bootstrap: str, url: str) -> list[Anomaly]:
    """Reads all as a consumer does, and compares."""
    wait_until_published(url)
    accounts, movements = told(url)
    found = read_by_offset(bootstrap, TOPIC, PARTITIONS, "read_committed")
    with psycopg.connect(url) as connection:
        batches = connection.execute(APPENDED, [TOPIC]).fetchall()
    commits = {
        (partition, offset): commit
        for partition, first, last, commit in batches
        for offset in range(first, last + 1)
    }
    entries = [
        parse(value, commits[partition, offset])
        for partition, values in found.items()
        for offset, value in values.items()
    ]
    return check_accounts(entries, accounts, movements)


def verify(sessions: Sessions, brokers: list[Gateway], url: str) -> None:
    """Fails on any anomaly."""
    anomalies = anomalies_of(brokers[0].bootstrap, url)
    _, movements = told(url)
    anomalies += [
        Anomaly(Flaw.LOST, f"{each}: the session was told that it was committed")
        for each in sessions.acknowledged - movements.keys()
    ]
    assert not anomalies, f"{summary(anomalies)}\nsaid: {sessions.told()}"


class Rotation(Workers):
    """Has another slot written to again and again, so that transactions write to two, and slots are
    emptied under them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._count = 0
        self._add("rotation", self._rotate)

    def done(self) -> dict[str, int]:
        return {"rotation": self._count}

    def told(self) -> object:
        return None

    def _rotate(self) -> None:
        while not self._stop.wait(0.03):
            with contextlib.suppress(psycopg.Error):
                query(self._url, "UPDATE penstock.sql_door SET slot = (slot + 1) % 3")
                self._count += 1


def test_sessions_brokers_and_the_database_die(
    migrated_dir: Path, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir, settings=SETTINGS) as server:
        ports = [free_port() for _ in range(2)]
        where = {"database_url": server.url}
        brokers = [start_gateway(*FORGOTTEN_FAST, **where, port=port) for port in ports]
        create_topic(brokers[0].bootstrap, TOPIC)
        prepare(server.url)
        sessions = Sessions(server.url, seed)
        with sessions.running(), Rotation(server.url).running():
            sessions.wait_for_progress()
            until = time.monotonic() + seconds
            rounds = 0
            faults = ["session"] * 3 + ["broker killed", "broker stopped", "database"]
            while time.monotonic() < until or rounds < len(faults):
                # In a short run each once.
                fault = faults[rounds] if rounds < len(faults) else chance.choice(faults)
                rounds += 1
                time.sleep(chance.uniform(0.05, 0.3))
                victim = chance.randrange(len(brokers))
                match fault:
                    case "session":
                        query(server.url, KILL_A_SESSION)
                    case "broker killed":
                        brokers[victim].kill()
                        sessions.wait_for_progress(2)
                        brokers[victim] = start_gateway(
                            *FORGOTTEN_FAST, **where, port=ports[victim], wait=False
                        )
                    case "broker stopped":
                        brokers[victim].pause()
                        sessions.wait_for_progress(2)
                        time.sleep(chance.uniform(0, 0.6))
                        brokers[victim].resume()
                    case "database":
                        for each in brokers:
                            wait_until_ready(each)
                        server.stop("immediate")
                        server.start()
                        sessions.wait_for_progress(1)
            for each in brokers:
                wait_until_ready(each)
            sessions.wait_for_progress()
        verify(sessions, brokers, server.url)


# Orders that other publishers have: of calls, of transactions' ids, of the first deferred pass.
ORDERS = {
    "by the sequence of calls": """(
        SELECT min(number) FROM (SELECT number, r.xid FROM penstock.inbox_record_0 r) AS r
        WHERE r.xid = NEW.xid)""",
    "by the transaction's id": "NEW.xid::text::bigint",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_checker_finds_a_publisher_of_another_order(
    migrated_dir: Path, start_gateway: StartGateway, seed: int, order: str
) -> None:
    """Of what was committed while it stood still it has the choice."""
    with EmbeddedPostgres(migrated_dir, settings=SETTINGS) as server:
        _publish_in_another_order(server, start_gateway, seed, order)


def _publish_in_another_order(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, order: str
) -> None:
    broker = start_gateway(database_url=server.url)
    create_topic(broker.bootstrap, TOPIC)
    prepare(server.url)
    right, end = "nextval('penstock.inbox_stamp_seq')", "penstock.write_offsets(NEW.xid));"
    for slot in range(INBOX_SLOTS):
        name = f"penstock.stamp_commit_{slot}"
        ((source,),) = query(server.url, f"SELECT pg_get_functiondef('{name}'::regproc)")
        assert right in str(source)
        assert end in str(source)
        other = str(source).replace(right, ORDERS[order])
        query(server.url, other.replace(end, f"{end[:-1]} ON CONFLICT DO NOTHING;"))
    sessions = Sessions(server.url, seed)
    with sessions.running():
        broker.pause()
        sessions.wait_for_progress(10)
        broker.resume()
    query(server.url, "SELECT nextval('penstock.inbox_stamp_seq')")  # as if it had been right
    found = {each.flaw for each in anomalies_of(broker.bootstrap, server.url)}
    assert Flaw.REORDERED in found
    assert found == {Flaw.REORDERED}, "nothing else is wrong"
