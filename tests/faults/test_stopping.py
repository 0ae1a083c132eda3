"""SIGTERM under load: what is in flight is finished and answered, the exit code is 0, in time."""

from __future__ import annotations

import random
import time

import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, verify
from tests.faults.history import Outcome, parse_value
from tests.faults.load import Load

pytestmark = pytest.mark.fault

STOPPED_WITHIN_S = 25.0
"""penstock.shutdown.timeout.ms (10 s), and much for a busy machine."""


def test_sigterm_answers_what_it_stores(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    """Nothing is stored that its producer was not told of, if the broker stops in order."""
    chance = random.Random(seed)
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    kinds = ("plain-a", "plain-b", "idempotent", "aiokafka")
    with Load(gateway.bootstrap, "load", PARTITIONS, seed, kinds=kinds).running() as load:
        end = time.monotonic() + seconds
        stops = 0
        while time.monotonic() < end or stops < 3:
            load.wait_for_progress()
            time.sleep(chance.uniform(0, 0.3))
            started = time.monotonic()
            assert gateway.stop() == 0, gateway.log()[-2000:]
            assert time.monotonic() - started < STOPPED_WITHIN_S
            stops += 1
            gateway = start_gateway(database_url=server.url, port=gateway.port)
        load.wait_for_progress()
    log = verify(load.history, gateway, server.url, "load")["postgresql"]
    stored = {
        parsed[0]
        for view in log.values()
        for each in view.records
        if (parsed := parse_value(each.value)) is not None
    }
    untold = [
        record
        for record, attempt in load.history.attempts.items()
        if attempt.outcome is not Outcome.ACKNOWLEDGED and record in stored
    ]
    assert not untold, f"stored, but their producers were not told: {untold[:10]}"


def test_sigterm_while_the_database_is_away(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int
) -> None:
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    with Load(gateway.bootstrap, "load", PARTITIONS, seed).running() as load:
        load.wait_for_progress()
        server.kill()
        time.sleep(0.5)
        started = time.monotonic()
        assert gateway.stop() == 0, gateway.log()[-2000:]
        assert time.monotonic() - started < STOPPED_WITHIN_S
        server.start()
        gateway = start_gateway(database_url=server.url, port=gateway.port)
        load.wait_for_progress()
    verify(load.history, gateway, server.url, "load")
