"""DropStaged over the real store."""

from __future__ import annotations

from uuid import uuid4

import psycopg

from tests.batches import kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.staging import ALREADY, PUBLISHED, drop, fetched, publish, stage
from tests.kafka_codes import Code


async def test_what_is_dropped_is_gone(make_broker: MakeBroker) -> None:
    one, other = [(await make_broker()).with_log() for _ in range(2)]
    try:
        await create(one)
        token, kept = uuid4(), uuid4()
        part = ("t", 0, kafka_batch())
        await stage(one, token, part)
        await stage(one, kept, part)
        assert (await drop(other, token, uuid4(), None)).error_code == Code.NONE
        # The first broker remembers it, and finds out.
        assert (
            await stage(one, token, part, first=1)
        ).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await publish(one, [(token, 1)])).error_code == Code.RESOURCE_NOT_FOUND
        assert (await publish(one, [(kept, 1)])).outcome == PUBLISHED
        with psycopg.connect(one.database.url, autocommit=True) as psql:
            assert psql.execute("SELECT * FROM staged_batch").fetchall() == []
    finally:
        await one.close_log()
        await other.close_log()


async def test_a_publication_is_not_undone(log_broker: Broker) -> None:
    await create(log_broker)
    token = uuid4()
    await stage(log_broker, token, ("t", 0, kafka_batch([b"kept"])))
    await publish(log_broker, [(token, 1)])
    assert (await drop(log_broker, token)).error_code == Code.NONE
    assert b"kept" in await fetched(log_broker)
    assert (await publish(log_broker, [(token, 1)])).outcome == ALREADY


async def test_drop_without_a_database_is_refused(cut_off: Broker) -> None:
    cut_off.with_log()
    try:
        assert (await drop(cut_off, uuid4())).error_code == Code.NOT_ENOUGH_REPLICAS
    finally:
        await cut_off.close_log()
