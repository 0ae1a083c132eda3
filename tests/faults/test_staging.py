"""Staging and publishing while brokers and the database die; every record is accounted for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, Gateway, StartGateway, wait_until_ready
from tests.faults.conftest import PARTITIONS, create_topic, query
from tests.faults.staging_load import Place, StagingLoad, check_publications
from tests.faults.test_transactions import read, until

pytestmark = pytest.mark.fault

TOPICS = ("load", "more")
# A crash is to lose what was staged and not yet made durable.
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "64MB"}
BROKERS_FORGOTTEN_FAST = ("--override", "penstock.broker.session.timeout.ms=2000")


def verify(load: StagingLoad, gateway: Gateway, url: str) -> int:
    """Reads all topics and fails on any anomaly; how many batches are there."""
    found: dict[Place, list[bytes]] = {}
    for topic in TOPICS:
        for index, values in read(gateway.bootstrap, topic, "read_committed").items():
            found[topic, index] = values
    wrong, batches = check_publications(load.attempts, found)
    assert not wrong, "\n".join([*wrong[:20], f"said: {dict(load.said)}"])
    orphans = "SELECT token FROM staged_batch WHERE token NOT IN (SELECT token FROM staged_token)"
    assert query(url, orphans) == []
    wrong_totals = (
        "SELECT * FROM staged_token t, LATERAL ("
        " SELECT count(*) AS n, sum(record_count) AS r, sum(size) AS s FROM staged_batch b"
        " WHERE b.token = t.token) AS b"
        " WHERE (batches, records, bytes) IS DISTINCT FROM (n, r, s)"
    )
    assert query(url, wrong_totals) == []
    return batches


def test_brokers_killed_and_stopped(
    migrated_dir: Path,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        where = {"database_url": server.url}
        numbers = ports(2)
        brokers = [start_gateway(*BROKERS_FORGOTTEN_FAST, **where, port=port) for port in numbers]
        for topic in TOPICS:
            create_topic(brokers[0].bootstrap, topic)
        load = StagingLoad([each.bootstrap for each in brokers], TOPICS, PARTITIONS, seed)
        with load.running():
            load.wait_for_progress()
            time_left = until(seconds)
            rounds = 0
            while time_left() or rounds < 3:
                rounds += 1
                victim = chance.randrange(len(brokers))
                time.sleep(chance.uniform(0.05, 0.8))
                if chance.random() < 0.7:
                    brokers[victim].kill()
                    brokers[victim] = start_gateway(
                        *BROKERS_FORGOTTEN_FAST, **where, port=numbers[victim]
                    )
                    wait_until_ready(brokers[victim])
                else:
                    brokers[victim].pause()
                    time.sleep(chance.uniform(0.1, 2.5))
                    brokers[victim].resume()
            load.wait_for_progress()
        assert verify(load, brokers[0], server.url) > len(load.queries)


def test_published_records_survive_a_killed_database(
    migrated_dir: Path,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    """What was staged is lost in part; what was published is not."""
    chance = random.Random(seed)
    with EmbeddedPostgres(migrated_dir, settings={**SMALL_POSTGRES, **LAZY}) as server:
        brokers = [start_gateway(database_url=server.url, port=port) for port in ports(2)]
        for topic in TOPICS:
            create_topic(brokers[0].bootstrap, topic)
        load = StagingLoad([each.bootstrap for each in brokers], TOPICS, PARTITIONS, seed)
        with load.running():
            load.wait_for_progress()
            time_left = until(seconds)
            kills = 0
            while time_left() or kills < 3:
                time.sleep(chance.uniform(0.05, 0.8))
                server.kill()
                kills += 1
                server.start()
                load.wait_for_progress(1)
            load.wait_for_progress()
        assert verify(load, brokers[0], server.url) > len(load.queries)
