"""`compression.type` from a request to the bytes that are read; what is large keeps its place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from gateway.kafka.compression import Codec, compress
from gateway.kafka.handlers import produce as produce_handler
from gateway.kafka.handlers import stage_records as stage_handler
from gateway.kafka.records import codec_of, opened, with_records
from gateway.kafka.validation import accept
from tests.batches import kafka_batch, with_body
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.producing import create, produce, produce_request
from tests.gateway.kafka.handlers.staging import publish, stage
from tests.kafka_codes import Code

TYPES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
LARGE = kafka_batch([b"large" * 20] * 1_000)


async def stored(broker: Broker, partition: int = 0, name: str = "t") -> list[bytes]:
    """The batches of a partition, whole."""
    request = fetch_request({partition: 0}, topic=name, partition_max_bytes=10**8, max_bytes=10**8)
    answer = await broker.ask(request, 11)
    ((part,),) = [topic.partitions for topic in answer.responses]
    assert part.error_code == 0
    found, records = [], bytes(part.records)
    while records:
        length = 12 + int.from_bytes(records[8:12], "big")
        found.append(records[:length])
        records = records[length:]
    return found


@pytest.mark.parametrize("kind", TYPES)
async def test_batches_of_every_codec_are_stored_in_the_topics(
    log_broker: Broker, kind: str
) -> None:
    await create(log_broker, compression_type=kind)
    plain = kafka_batch([b"value" * 100, None, b""], keys=[b"key", None, b""])
    for number, codec in enumerate(Codec):
        sent = with_records(plain, compress(plain[61:], codec), codec)
        part = await produce(log_broker, sent)
        assert (part.error_code, part.base_offset) == (0, 3 * number)
    found = await stored(log_broker)
    assert [codec_of(batch) for batch in found] == [TYPES[kind]] * 5
    assert [bytes(opened(batch)) for batch in found] == [plain[61:]] * 5


async def test_the_brokers_type_holds_where_the_topic_has_none(make_broker: MakeBroker) -> None:
    broker = (await make_broker({"compression.type": "lz4"})).with_log()
    try:
        await create(broker)
        await create(broker, "own", compression_type="producer")
        for name, codec in (("t", Codec.LZ4), ("own", Codec.NONE)):
            await produce(broker, kafka_batch([b"value" * 100]), name=name)
            assert [codec_of(batch) for batch in await stored(broker, name=name)] == [codec]
    finally:
        await broker.close_log()


async def test_what_is_stored_must_not_be_too_large_either(log_broker: Broker) -> None:
    await create(log_broker, compression_type="uncompressed", max_message_bytes="1000")
    plain = kafka_batch([bytes(2_000)])
    small = with_records(plain, compress(plain[61:], Codec.ZSTD), Codec.ZSTD)
    part = await produce(log_broker, small)
    assert (part.error_code, part.base_offset) == (Code.MESSAGE_TOO_LARGE, -1)
    assert str(len(plain)) in part.error_message


async def test_records_are_looked_into(log_broker: Broker) -> None:
    broken = with_body(kafka_batch([b"value"]), bytes([12, 0, 0, 0, 1, 8, 0]))
    await create(log_broker, compression_type="zstd")
    assert (await produce(log_broker, broken)).error_code == Code.INVALID_RECORD
    await create(log_broker, "as-it-comes")
    assert (await produce(log_broker, broken, name="as-it-comes")).error_code == 0


async def test_a_request_of_many_batches_keeps_their_order(log_broker: Broker) -> None:
    """A few are compressed in the event loop, the others in threads."""
    await create(log_broker, compression_type="lz4")
    request = produce_request({0: kafka_batch([b"0" * 1000])})
    parts = request.topic_data[0].partition_data
    for number in range(1, 300):
        parts += (
            produce_request({0: kafka_batch([b"%d" % number * 1000])}).topic_data[0].partition_data
        )
    (topic,) = (await log_broker.ask(request, 9)).responses
    told = [(part.error_code, part.base_offset) for part in topic.partition_responses]
    assert told == [(0, number) for number in range(300)]
    found = await stored(log_broker)
    assert [codec_of(batch) for batch in found] == [Codec.LZ4] * 300
    values = [bytes(opened(batch)) for batch in found]
    assert [(b"%d" % n) * 1000 in value for n, value in enumerate(values)] == [True] * 300


async def test_a_batch_sent_again_is_a_duplicate(log_broker: Broker) -> None:
    await create(log_broker, compression_type="zstd")
    for batch, offset in ((LARGE, 0), (kafka_batch([b"v"]), 1000)):
        ids = {"producer": 7, "epoch": 0, "sequence": offset}
        values = [b"large" * 20] * 1_000 if batch is LARGE else [b"v"]
        for _ in range(2):
            part = await produce(log_broker, kafka_batch(values, **ids))
            assert (part.error_code, part.base_offset) == (0, offset)
    assert len(await stored(log_broker)) == 2


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, large batches are not ready."""
    may_go_on = threading.Event()

    def slowly(*what: Any) -> Any:
        assert may_go_on.wait(30)
        return accept(*what)

    for handler in (produce_handler, stage_handler):
        monkeypatch.setattr(handler, "accept", slowly)
    return may_go_on


def running(ask: Callable[[], Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(ask())


async def test_a_large_batch_keeps_its_place_in_its_partition_and_holds_up_no_other(
    log_broker: Broker, held: threading.Event
) -> None:
    await create(log_broker, partitions=2, compression_type="zstd")

    def batch(count: int, sequence: int) -> bytes:
        return kafka_batch([b"large" * 20] * count, producer=7, epoch=0, sequence=sequence)

    first = running(lambda: log_broker.ask(produce_request({0: batch(1_000, 0)}), 9))
    await asyncio.sleep(0)
    both = running(lambda: log_broker.ask(produce_request({0: batch(1, 1_000)}), 9))
    await asyncio.sleep(0)
    other = await log_broker.ask(produce_request({1: kafka_batch()}), 9)
    assert other.responses[0].partition_responses[0].error_code == 0
    assert not first.done()
    assert not both.done()
    held.set()
    answers = [
        task.responses[0].partition_responses[0] for task in await asyncio.gather(first, both)
    ]
    assert [(part.error_code, part.base_offset) for part in answers] == [(0, 0), (0, 1_000)]
    assert len(await stored(log_broker)) == 2


async def test_a_staged_batch_is_stored_in_the_topics_codec_in_its_place(
    log_broker: Broker, held: threading.Event
) -> None:
    await create(log_broker, compression_type="gzip")
    token = uuid4()
    first = running(lambda: stage(log_broker, token, ("t", 0, LARGE)))
    await asyncio.sleep(0)
    second = running(lambda: stage(log_broker, token, ("t", 0, kafka_batch([b"v"])), first=1))
    other = await stage(log_broker, uuid4(), ("t", 0, kafka_batch([b"not published"])))
    assert (other.error_code, other.staged) == (0, 1)
    assert not first.done()
    held.set()
    assert [each.staged for each in await asyncio.gather(first, second)] == [1, 2]
    await publish(log_broker, [(token, 2)])
    found = await stored(log_broker)
    assert [codec_of(batch) for batch in found] == [Codec.GZIP] * 2
    assert bytes(opened(found[0])) == LARGE[61:]


async def test_what_a_staged_batch_is_refused_for_is_said(log_broker: Broker) -> None:
    await create(log_broker, compression_type="gzip")
    broken = with_body(kafka_batch([b"value" * 20] * 1_000), bytes(50_000))
    answer = await stage(log_broker, uuid4(), ("t", 0, LARGE), ("t", 0, broken))
    assert answer.error_code == Code.INVALID_RECORD
    assert answer.error_message.startswith("t-0: ")
