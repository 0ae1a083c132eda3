"""The database is stopped and comes back: what clients are told meanwhile, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.ports.log import StoreUnavailable
from core.types import Endpoint
from gateway.kafka import codec
from gateway.kafka.api import CLOSE_CONNECTION, load_handlers
from gateway.kafka.codec import decode_message, encode_message
from gateway.runtime.cluster.membership import Cluster
from storage.brokers import ClusterStore
from storage.connection.pool import Database
from storage.server.embedded import EmbeddedPostgres
from tests.batches import kafka_batch
from tests.captures import record
from tests.conftest import SMALL_POSTGRES
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import commit, committed, heartbeat, stable
from tests.gateway.kafka.handlers.producing import create, produce, produce_request
from tests.kafka_codes import Code

MESSAGE = "The database cannot be reached at the moment; try again."


@dataclass
class Away:
    """A broker of its own database, which can be stopped."""

    broker: Broker
    server: EmbeddedPostgres

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)


@pytest.fixture
async def away(migrated_dir: Path) -> AsyncIterator[Away]:
    """Serves the log; topic `t` has been created and is not known any more."""
    async with AsyncExitStack() as stack:
        server = EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES)
        await asyncio.to_thread(server.start)
        stack.callback(server.stop)
        database = Database(server.url)
        stack.push_async_callback(database.close)
        cluster = Cluster(
            ClusterStore(database),
            endpoints=[Endpoint("kafka", "h", 1)],
            version="test",
            session_timeout_s=30.0,
        )
        await cluster.join()
        broker = Broker(database, cluster, {}).with_log()
        stack.push_async_callback(broker.close_log)
        await broker.with_groups()
        stack.push_async_callback(broker.groups.close)
        await create(broker)
        broker.topics.invalidate()
        yield Away(broker, server)


async def answer_to(broker: Broker, capture: Path) -> Any:
    """What the handler returns, put through the codec."""
    frame = memoryview(capture.read_bytes())
    header = codec.decode_header(frame)
    answer = await broker.handle(codec.decode_body(header, frame), header.api_version)
    if answer is None or answer is CLOSE_CONNECTION:
        return answer
    sent = b"".join(encode_message(answer, header.api_version))
    return decode_message(type(answer), header.api_version, memoryview(sent))


def without_words(answer: Any) -> Iterator[str]:
    """Errors in an answer, or in a part of it, whose `error_message` does not say what is wrong."""
    if isinstance(answer, list):
        for part in answer:
            yield from without_words(part)
    elif isinstance(answer, dict):
        if answer.get("error_code") and not answer.get("error_message", "none here"):
            yield f"{answer}"
        for part in answer.values():
            yield from without_words(part)


async def test_every_api_answers_while_the_database_is_stopped(away: Away) -> None:
    """With words, wherever an answer has room for them."""
    await away.stop()
    closed, silent, said = set(), set(), set()
    for api in load_handlers().table():
        for version in api.versions:
            capture = record.folder_of(api.key) / f"v{version}_request.bin"
            try:
                answer = await answer_to(away.broker, capture)
            except StoreUnavailable:
                closed.add(api.name)
                continue
            if answer is not None and answer is not CLOSE_CONNECTION:
                shown = answer.to_dict(json=False)  # what its version has
                silent |= {f"{api.name} v{version}: {each}" for each in without_words(shown)}
                if MESSAGE in str(shown):
                    said.add(api.name)
    assert silent == set()
    assert len(said) > 15, said
    # An empty list of all topics would be taken at its word.
    assert closed <= {"Metadata"}


async def test_a_topic_not_yet_known_is_refused_for_now_and_taken_later(away: Away) -> None:
    await away.stop()
    for version in (3, 9, 12):
        part = await produce(away.broker, kafka_batch(), version=version)
        assert (part.error_code, part.base_offset) == (Code.NOT_ENOUGH_REPLICAS, -1)
    assert await away.broker.handle(produce_request({0: kafka_batch()}, acks=0), 9) is (
        CLOSE_CONNECTION
    )
    await away.start()
    part = await produce(away.broker, kafka_batch())
    assert (part.error_code, part.base_offset) == (0, 0)


def numbered(sequence: int) -> bytes:
    return kafka_batch(producer=7, epoch=0, sequence=sequence)


async def test_later_batches_of_a_producer_wait_for_the_refused_one(away: Away) -> None:
    """The log does not know the producer yet, and would take any batch for its first."""
    await away.stop()
    waiting = [produce(away.broker, numbered(n)) for n in range(3)]
    refused = await asyncio.gather(*waiting)
    assert {part.error_code for part in refused} == {Code.NOT_ENOUGH_REPLICAS}
    await away.start()
    late = await produce(away.broker, numbered(3))
    assert (late.error_code, late.error_message) == (
        Code.NOT_ENOUGH_REPLICAS,
        "An earlier batch of this producer was refused and has to come first",
    )
    for n in range(4):
        part = await produce(away.broker, numbered(n))
        assert (part.error_code, part.base_offset) == (0, n)


async def test_waiters_of_a_failed_lookup_do_not_repeat_it(away: Away) -> None:
    looks = 0
    get_many = away.broker.topics.get_many

    async def counted(names: Any) -> Any:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)
        return await get_many(names)

    away.broker.topics.get_many = counted  # type: ignore[method-assign]  # to be counted
    await away.stop()
    refused = await asyncio.gather(*(produce(away.broker, kafka_batch()) for _ in range(5)))
    assert {part.error_code for part in refused} == {Code.NOT_ENOUGH_REPLICAS}
    assert looks == 1


async def test_members_and_their_commits(away: Away) -> None:
    """Heartbeats go on from memory; what cannot be stored is refused, and can be said again."""
    member = await stable(away.broker)
    await away.stop()
    assert await heartbeat(away.broker, member) == Code.NONE
    for _ in range(2):
        done = await commit(away.broker, {"t": {0: 5}}, member=member)
        assert done["t"][0] in (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
    await away.start()
    await away.broker.cluster.heartbeat()
    done = await commit(away.broker, {"t": {0: 6}}, member=member)
    assert done == {"t": {0: Code.NONE}}
    assert await heartbeat(away.broker, member) == Code.NONE, "it has kept its place"
    assert await committed(away.broker) == {"t": {0: 6}}
