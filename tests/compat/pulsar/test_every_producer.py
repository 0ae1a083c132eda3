"""Java's, Go's and Python's clients produce: one test for all that can; see README's table."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from compat.pulsar.drivers import Refused
from tests.compat.pulsar.clients import Client, numbers, refusal, values
from tests.compat.pulsar.conftest import Both, MakeClient, make_topic, of, records_of

T0 = 1_700_000_000_000
CODECS = ("none", "lz4", "zlib", "zstd", "snappy")
MAKE_NOTHING_UNREADABLE = {("python", "zlib"), *(("go", codec) for codec in CODECS)}


@pytest.mark.parametrize("is_batched", [False, True])
def test_every_field_in_every_compression(
    both: Both, stock: Client, topic: str, is_batched: bool
) -> None:
    consumer = stock.consumer(topic)
    batching = {"is_batched": is_batched, "batch_messages": 11, "batch_delay_ms": 60_000}
    place = 0
    for codec in CODECS:
        sent: list[dict[str, Any]] = [
            {
                "value": b"%04d" % number * 100,
                "key": f"k{number % 3}",
                "ordering_key": b"o%d" % number,
                "properties": {"number": str(number), "ü": "é"},
                "event_time": T0 + number,
            }
            for number in range(20)
        ]
        # Two clients cannot read what they have made of nothing (compat/pulsar/*/FINDINGS.md).
        is_broken = not is_batched and (stock.name, codec) in MAKE_NOTHING_UNREADABLE
        sent.append({"value": b"0" if is_broken else b""})
        before = int(time.time() * 1000)
        ids = stock.send(topic, *sent, compression=codec, **batching)
        assert [each.entry + max(each.batch_index, 0) for each in ids] == [
            *range(place, place + 21)
        ]
        assert len({each.entry for each in ids}) == (2 if is_batched else 21)
        found = consumer.take(21)
        assert [each.id.place for each in found] == [each.place for each in ids]
        for number, message in enumerate(found[:-1]):
            assert message.value == sent[number]["value"]
            assert message.key == sent[number]["key"].encode()
            assert message.ordering_key == sent[number]["ordering_key"]
            assert message.properties == sent[number]["properties"]
            assert message.event_time == T0 + number
            assert before <= message.publish_time <= before + 60_000
        last = found[-1]
        assert (last.value, last.key, last.ordering_key) == (sent[-1]["value"], None, None)
        assert (last.properties, last.event_time) == ({}, 0)
        records = records_of(both.gateway.bootstrap, topic, 21, start=place)
        assert [each.offset() for each in records] == list(range(place, place + 21))
        assert [each.value() for each in records] == [each["value"] for each in sent]
        for number, record in enumerate(records[:-1]):
            assert record.key() == b"k%d" % (number % 3)
            headers = [each for each in record.headers() if not each[0].startswith("penstock.")]
            assert sorted(headers) == [("number", b"%d" % number), ("ü", "é".encode())]
            assert record.timestamp() == (TIMESTAMP_CREATE_TIME, T0 + number)
        assert (records[-1].key(), records[-1].timestamp()[1]) == (None, last.publish_time)
        place += 21


def test_batches_by_key(both: Both, stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic, type="Key_Shared")
    sent = [{"value": b"%d" % number, "key": f"k{number % 3}"} for number in range(30)]
    # No time ends a batch, but the flush (Go's clock runs from the producer's start on).
    batching = {"is_batched": True, "is_by_key": True, "batch_delay_ms": 60_000}
    ids = stock.send(topic, *sent, **batching)
    entries = {}
    for message in consumer.take(30):
        entries.setdefault(message.id.entry, []).append(message)
    # Each entry has one key, and its messages are in order.
    assert len(entries) == 3 == len({each.entry for each in ids})
    for each in entries.values():
        (key,) = {message.key for message in each}
        assert key is not None
        assert values(each) == [b"%d" % number for number in range(int(key[1:]), 30, 3)]


def test_large_messages_in_chunks(both: Both, stock: Client, topic: str) -> None:
    whole = bytes(range(256)) * 25_000  # 6.4 MB
    consumer = stock.consumer(topic, type="Shared")
    ids = stock.send(topic, whole, b"small", is_chunking=True)
    large, small = consumer.take(2)
    assert (large.value, small.value) == (whole, b"small")
    assert large.id.entry == ids[0].entry == 1  # the last chunk's
    assert small.id.entry == ids[1].entry == 2
    consumer.close()
    assert stock.consumer(topic, type="Shared").nothing_comes()
    # Kafka's clients see a record for each chunk.
    records = records_of(both.gateway.bootstrap, topic, 3)
    assert records[0].value() + records[1].value() == whole
    if stock.name != "go":  # its readers begin at the last chunk
        reader = stock.reader(topic, ids[0], is_inclusive=True)
        assert values(reader.take(2)) == [whole, b"small"]


@of("java", "python")
def test_no_value_is_not_an_empty_one(both: Both, stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic)
    for is_batched in (False, True):
        sent = [{"key": "a", "value": None}, {"key": "b", "value": b""}]
        stock.send(topic, *sent, is_batched=is_batched)
        assert [(each.key, each.value) for each in consumer.take(2)] == [(b"a", None), (b"b", b"")]
    records = records_of(both.gateway.bootstrap, topic, 4)
    assert [each.value() for each in records] == [None, b"", None, b""]


@of("java")
def test_keys_of_bytes(both: Both, stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic)
    keys = [b"\xff\x00", b"", b"text"]
    for is_batched in (False, True):
        sent = [{"key_bytes": key, "value": b"v"} for key in keys]
        stock.send(topic, *sent, is_batched=is_batched)
        assert [each.key for each in consumer.take(3)] == keys
    assert [each.key() for each in records_of(both.gateway.bootstrap, topic, 6)] == keys * 2


def test_delayed_messages_wait_on_shared_subscriptions(stock: Client, topic: str) -> None:
    shared = stock.consumer(topic, "shared", type="Shared")
    exclusive = stock.consumer(topic, "exclusive")
    started = time.time()
    # Not so soon that a broker that was without a processor finds all of them due.
    at = {"value": b"at", "deliver_at": int(started * 1000) + 6_000}
    after = {"value": b"after", "deliver_after_ms": 4_000}
    stock.send(topic, at, after, b"now")
    assert values(exclusive.take(3)) == [b"at", b"after", b"now"]
    came = [(*values(shared.take(1)), time.time() - started) for _ in range(3)]
    assert came[0][0] == b"now"
    assert {value for value, _ in came} == {b"now", b"after", b"at"}
    waited = dict(came)
    assert waited[b"after"] >= 4
    assert waited[b"at"] >= 6


def test_names_and_exclusive_access(stock: Client, make_client: MakeClient, topic: str) -> None:
    other = make_client(stock.name)
    producer = stock.producer(topic, producer_name="mine", access="Exclusive")
    assert producer.name == "mine"
    for settings in ({}, {"producer_name": "mine"}):
        assert "Busy" in refusal(lambda s=settings: other.producer(topic, **s))
    assert "Fenced" in refusal(lambda: other.producer(topic, access="Exclusive"))
    producer.send(b"x")
    producer.close()
    shared = [other.producer(topic, producer_name="mine"), other.producer(topic)]
    assert "Busy" in refusal(lambda: stock.producer(topic, producer_name="mine"))
    assert len({each.name for each in shared}) == 2


def test_who_waits_becomes_the_only_producer(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    other = make_client(stock.name)
    first = stock.producer(topic, access="WaitForExclusive")
    first.send(b"first")
    waiting = other.producer_later(topic, access="WaitForExclusive")
    with pytest.raises(Refused):
        waiting(within_ms=500)
    first.send(b"first again")
    first.close()
    second = waiting()
    (last,) = second.send(b"second")
    assert last.entry == 2


@of("java", "python")
def test_who_fences_throws_the_others_out(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    other = make_client(stock.name)
    first = stock.producer(topic, send_timeout_ms=4_000)
    first.send(b"first")
    second = other.producer(topic, access="ExclusiveWithFencing")
    second.send(b"second")
    refused = refusal(lambda: first.send(b"late"))
    assert refused
    third = stock.producer(topic, access="ExclusiveWithFencing")
    third.send(b"third")
    assert refusal(lambda: second.send(b"late"))
    assert values(stock.reader(topic).rest()) == [b"first", b"second", b"third"]


def test_partitions(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 3)
    whole = "" if stock.name == "go" else "persistent://public/default/"
    assert stock.partitions(topic) == [f"{whole}{topic}-partition-{each}" for each in range(3)]
    consumer = stock.consumer(topic)
    producer = stock.producer(topic, is_round_robin=True)
    ids = [producer.send(value)[0] for value in numbers(9)]
    assert {each.partition for each in ids} == {0, 1, 2}
    by_place = {
        (each.partition, each.place): value for each, value in zip(ids, numbers(9), strict=True)
    }
    found = consumer.take(9)
    assert {(each.id.partition, each.id.place): each.value for each in found} == by_place
    # A key stays where it is, and is in order.
    keyed = [{"value": b"%d" % number, "key": f"k{number % 5}"} for number in range(30)]
    producer.send(*keyed)
    seen: dict[Any, list[Any]] = defaultdict(list)
    for each in consumer.take(30):
        seen[each.key].append((each.id.partition, int(each.value or b"")))
    for key, places in seen.items():
        assert len({partition for partition, _ in places}) == 1
        assert [number for _, number in places] == list(range(int(key[1:]), 30, 5))


def test_deduplication_goes_by_the_name(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **{"penstock.deduplication.enabled": "true"})
    producer = stock.producer(topic, producer_name="app")
    producer.send(
        *({"value": value, "sequence_id": number} for number, value in enumerate(numbers(5)))
    )
    producer.close()
    producer = stock.producer(topic, producer_name="app")
    if stock.name != "go":  # it tells only of what it has sent itself
        assert producer.last_sequence_id() == 4
    # What has been sent already is confirmed, and not stored again.
    producer.send(*({"value": b"twice", "sequence_id": number} for number in range(2, 5)))
    producer.send({"value": b"5", "sequence_id": 5})
    assert values(stock.reader(topic).rest()) == numbers(6)
