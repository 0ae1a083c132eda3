"""The database killed right after an answer: staging may be lost, what is published is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from core.errors import Error
from core.ports.log import ReadRange
from core.staging.values import Outcome
from storage.server.embedded import EmbeddedPostgres
from tests.batches import batch
from tests.conftest import SMALL_POSTGRES
from tests.storage.conftest import Log, open_log
from tests.storage.test_staging import Stage

pytestmark = pytest.mark.fault


@pytest.fixture
def own_postgres(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    quiet = {"wal_writer_delay": "10s", "wal_writer_flush_after": "64MB", "autovacuum": "off"}
    with EmbeddedPostgres(migrated_dir, settings={**SMALL_POSTGRES, **quiet}) as server:
        yield server


async def test_a_crash_loses_the_end_of_a_token_and_never_a_publication(
    own_postgres: EmbeddedPostgres,
) -> None:
    token, torn = uuid4(), uuid4()
    async for log in open_log(own_postgres.url):
        stage = Stage(log)
        (p,) = log.new_partitions()
        payloads = await stage.stage(token, (p, batch(2, size=30_000)))
        payloads += await stage.stage(token, (p, batch(1, size=10)), expected=1)
        await stage.stage(torn, (p, batch()))
        assert (await stage.publish(0, (token, 2))).outcome is Outcome.PUBLISHED
        await stage.stage(torn, (p, batch()), expected=1)
        await kill(own_postgres, stage, log)
    async for log in open_log(own_postgres.url):
        stage = Stage(log)
        # What was staged before the publication was made durable by it; what came after was not.
        assert await stage.store.load([token, torn]) == {torn: 1}
        assert (await stage.publish(0, (token, 2))).outcome is Outcome.ALREADY_PUBLISHED
        answer = await stage.publish(1, (torn, 2))
        assert answer.error is Error.RESOURCE_NOT_FOUND
        assert "holds 1 batches, not 2" in (answer.message or "")
        (found,) = await log.store.read([ReadRange(p, 0, 99, 10**6)], 2**40)
        assert [bytes(each.payload) for each in found] == payloads
        await stage.flush.close()


async def kill(server: EmbeddedPostgres, stage: Stage, log: Log) -> None:
    server.kill()
    server.start()
    await stage.flush.close()
