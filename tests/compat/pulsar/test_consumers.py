"""Pulsar's stock Python client (made of the C++ one) consumes, reads, seeks, over real sockets."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pulsar
import pytest
from confluent_kafka import Producer as KafkaProducer
from pulsar import ConsumerType, InitialPosition, MessageId

from tests.compat.pulsar.conftest import Both, ClientOf, make_topic

WITHIN_MS = 30_000
NOTHING_MS = 300
"""How long nothing is waited for."""


def send(client: pulsar.Client, topic: str, values: Sequence[bytes], **settings: Any) -> list[Any]:
    """Sends all of them; gives the ids."""
    keys = settings.pop("keys", [None] * len(values))
    producer = client.create_producer(topic, **settings)
    ids: list[Any] = []

    def sent(result: Any, message_id: Any) -> None:
        assert result == pulsar.Result.Ok
        ids.append(message_id)

    for value, key in zip(values, keys, strict=True):
        producer.send_async(value, sent, **({} if key is None else {"partition_key": key}))
    producer.flush()
    producer.close()
    return ids


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def take(consumer: Any, count: int, *, acknowledge: bool = True) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(WITHIN_MS)
        found.append(message.data())
        if acknowledge:
            consumer.acknowledge(message)
    return found


def nothing_comes(consumer: Any) -> bool:
    try:
        message = consumer.receive(NOTHING_MS)
    except pulsar.Timeout:
        return True
    raise AssertionError(f"there came {message.data()!r}")


TYPES = [
    ConsumerType.Exclusive,
    ConsumerType.Shared,
    ConsumerType.Failover,
    ConsumerType.KeyShared,
]
BATCHING = {"batching_enabled": True, "batching_max_publish_delay_ms": 20}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_batched", [False, True])
def test_all_comes_once_and_what_is_acknowledged_is_done(
    client: pulsar.Client, topic: str, kind: ConsumerType, is_batched: bool
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    settings = BATCHING if is_batched else {"batching_enabled": False}
    send(client, topic, numbers(200), **settings)
    assert take(consumer, 150) == numbers(150)
    consumer.close()
    consumer = client.subscribe(topic, "s", kind)
    # Of a batch half done the client has not acknowledged anything.
    rest = take(consumer, 50 if not is_batched else 1)
    assert rest == numbers(50, 150) if not is_batched else int(rest[0]) <= 150
    if not is_batched:
        assert nothing_comes(consumer)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_messages_given_back_are_counted(
    client: pulsar.Client, topic: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=100)
    send(client, topic, [b"a", b"b"], batching_enabled=False)
    for count in range(3):
        message = consumer.receive(WITHIN_MS)
        if message.data() == b"b":
            consumer.acknowledge(message)
            message = consumer.receive(WITHIN_MS)
        assert (message.data(), message.redelivery_count()) == (b"a", count)
        consumer.negative_acknowledge(message)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_one_that_has_all_gives_all_back(
    client: pulsar.Client, topic: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    send(client, topic, numbers(5), batching_enabled=False)
    assert take(consumer, 2) == numbers(2)
    assert take(consumer, 3, acknowledge=False) == numbers(3, 2)
    consumer.redeliver_unacknowledged_messages()
    messages = [consumer.receive(WITHIN_MS) for _ in range(3)]
    assert [each.data() for each in messages] == numbers(3, 2)
    assert {each.redelivery_count() for each in messages} == {1}


def test_a_cumulative_acknowledgement_is_of_all_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, numbers(30), **BATCHING)
    messages = [consumer.receive(WITHIN_MS) for _ in range(30)]
    consumer.acknowledge_cumulative(messages[29])
    send(client, topic, [b"next"])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert take(consumer, 1) == [b"next"]


def test_messages_of_a_batch_are_acknowledged_one_by_one(client: pulsar.Client, topic: str) -> None:
    settings: dict[str, Any] = {"batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **settings)
    send(client, topic, numbers(10), batching_enabled=True, batching_max_publish_delay_ms=200)
    messages = [consumer.receive(WITHIN_MS) for _ in range(10)]
    assert len({each.message_id().entry_id() for each in messages}) == 1
    for index in (0, 3, 4, 9):
        consumer.acknowledge(messages[index])
    consumer.close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **settings)
    expected = [b"%d" % index for index in (1, 2, 5, 6, 7, 8)]
    assert take(consumer, 6) == expected
    assert nothing_comes(consumer)


def test_what_is_given_back_too_often_is_a_dead_letter(client: pulsar.Client, topic: str) -> None:
    dead = f"{topic}-s-DLQ"
    letters = client.subscribe(dead, "letters")
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, dead),
    )
    send(client, topic, [b"poison"], batching_enabled=False)
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(WITHIN_MS))
    assert take(letters, 1) == [b"poison"]
    assert nothing_comes(consumer)


def test_a_second_exclusive_consumer_is_turned_away(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s", kind)


def test_shared_consumers_share(client_of: ClientOf, both: Both, topic: str) -> None:
    clients = [client_of(both.service_url) for _ in range(3)]
    consumers = [
        each.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10) for each in clients
    ]
    send(clients[0], topic, numbers(90), batching_enabled=False)
    found: Counter[bytes] = Counter()
    for consumer in consumers[:2]:
        found.update(take(consumer, 10))
    consumers[2].close()  # what it had goes to the others
    while len(found) < 90:
        for consumer in consumers[:2]:
            try:
                message = consumer.receive(NOTHING_MS)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found[message.data()] += 1
    assert set(found) == set(numbers(90))
    assert set(found.values()) == {1}


def test_a_keys_messages_come_in_order_while_consumers_go(
    client_of: ClientOf, both: Both, topic: str
) -> None:
    clients = [client_of(both.service_url) for _ in range(3)]
    consumers = [
        each.subscribe(topic, "s", ConsumerType.KeyShared, receiver_queue_size=10)
        for each in clients
    ]
    keys = [f"k{number % 13}" for number in range(300)]
    send(clients[0], topic, numbers(300), batching_enabled=False, keys=keys)
    seen: dict[str, list[int]] = defaultdict(list)
    deadline = time.monotonic() + 60
    done = 0
    while done < 300:
        assert time.monotonic() < deadline, f"{done} of 300"
        for consumer in list(consumers):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            seen[message.partition_key()].append(int(message.data()))
            done += 1
            if done == 100:
                consumers.pop().close()
                break
    for order in seen.values():
        assert order == sorted(order)
        assert len(set(order)) == len(order)


def test_failover_goes_on_after_the_acknowledged(
    client_of: ClientOf, both: Both, topic: str
) -> None:
    first, second = client_of(both.service_url), client_of(both.service_url)
    consumers = [
        client.subscribe(topic, "s", ConsumerType.Failover, consumer_name=name)
        for client, name in ((first, "a"), (second, "b"))
    ]
    send(second, topic, numbers(20), batching_enabled=False)
    active = None
    for consumer in consumers:
        try:
            message = consumer.receive(2_000)
        except pulsar.Timeout:
            continue
        assert active is None
        active = consumer
        assert message.data() == b"0"
        consumer.acknowledge(message)
    assert active is not None
    assert take(active, 9) == numbers(9, 1)
    other = consumers[1 - consumers.index(active)]
    active.close()
    assert take(other, 10) == numbers(10, 10)


def test_a_new_subscription_begins_where_it_says(client: pulsar.Client, topic: str) -> None:
    send(client, topic, numbers(5), batching_enabled=False)
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=InitialPosition.Earliest)
    send(client, topic, [b"5"], batching_enabled=False)
    assert take(latest, 1) == [b"5"]
    assert take(earliest, 6) == numbers(6)


def test_a_subscription_that_is_deleted_begins_anew(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    send(client, topic, numbers(3), batching_enabled=False)
    assert take(consumer, 3) == numbers(3)
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    assert take(consumer, 3) == numbers(3)


@pytest.mark.parametrize("is_batched", [False, True])
def test_readers_begin_at_an_id_inclusive_or_not(
    client: pulsar.Client, topic: str, is_batched: bool
) -> None:
    settings = BATCHING if is_batched else {"batching_enabled": False}
    ids = send(client, topic, numbers(20), **settings)
    for is_inclusive in (False, True):
        reader = client.create_reader(topic, ids[11], start_message_id_inclusive=is_inclusive)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WITHIN_MS).data())
        first = 11 if is_inclusive else 12
        assert found == numbers(20 - first, first)
        reader.close()
    reader = client.create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WITHIN_MS).data() for _ in range(20)] == numbers(20)
    assert not reader.has_message_available()
    reader = client.create_reader(topic, MessageId.latest)
    assert not reader.has_message_available()
    send(client, topic, [b"new"])
    assert reader.read_next(WITHIN_MS).data() == b"new"


def test_an_id_means_the_same_after_serialization(client: pulsar.Client, topic: str) -> None:
    ids = send(client, topic, numbers(5), batching_enabled=False)
    again = MessageId.deserialize(ids[3].serialize())
    reader = client.create_reader(topic, again, start_message_id_inclusive=True)
    assert reader.read_next(WITHIN_MS).data() == b"3"


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_seek_by_id_and_by_time(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, start_message_id_inclusive=True)
    ids = send(client, topic, numbers(5), batching_enabled=False)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    send(client, topic, numbers(5, 5), batching_enabled=False)
    assert take(consumer, 10) == numbers(10)
    consumer.seek(ids[2])
    assert take(consumer, 8) == numbers(8, 2)
    consumer.seek(between)
    assert take(consumer, 5) == numbers(5, 5)
    consumer.seek(MessageId.earliest)
    assert take(consumer, 10) == numbers(10)
    consumer.seek(MessageId.latest)
    assert nothing_comes(consumer)


def test_readers_seek(client: pulsar.Client, topic: str) -> None:
    send(client, topic, numbers(10), batching_enabled=False)
    reader = client.create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WITHIN_MS).data() for _ in range(10)] == numbers(10)
    reader.seek(MessageId.earliest)
    assert [reader.read_next(WITHIN_MS).data() for _ in range(10)] == numbers(10)


def test_delayed_messages_wait_on_shared_subscriptions(client: pulsar.Client, topic: str) -> None:
    shared = client.subscribe(topic, "shared", ConsumerType.Shared)
    exclusive = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic, batching_enabled=False)
    started = time.time()
    producer.send(b"later", deliver_at=int(started * 1000) + 1_500)
    producer.send(b"now")
    assert take(exclusive, 2) == [b"later", b"now"]
    assert take(shared, 2) == [b"now", b"later"]
    assert time.time() - started >= 1.5


def test_large_messages_in_chunks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    payload = bytes(range(256)) * 4096 * 12
    producer.send(payload)
    message = consumer.receive(WITHIN_MS)
    assert message.data() == payload
    consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    assert nothing_comes(consumer)


def test_receipts_for_acknowledgements(client_of: ClientOf, both: Both, topic: str) -> None:
    client = client_of(both.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send(client, topic, numbers(100), batching_enabled=False)
    assert take(consumer, 100) == numbers(100)
    client.close()
    client = client_of(both.service_url)
    assert nothing_comes(client.subscribe(topic, "s", ConsumerType.Shared))


def test_partitioned_topics_and_patterns(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 3)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send(client, topic, numbers(60), batching_enabled=False)
    assert sorted(take(consumer, 60)) == sorted(numbers(60))
    some = client.subscribe(
        re.compile(f"persistent://public/default/{topic}.*"),
        "pattern",
        initial_position=InitialPosition.Earliest,
    )
    assert sorted(take(some, 60)) == sorted(numbers(60))


def test_what_kafka_writes_pulsar_reads(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    consumer = client.subscribe(topic, "s")
    at = 1_700_000_000_123
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = KafkaProducer(
            {
                "bootstrap.servers": both.gateway.bootstrap,
                "compression.type": codec,
                "linger.ms": 50,
            }
        )
        headers = [("text", b"ol\xc3\xa9"), ("codec", codec.encode())]
        for number in range(20):
            value = None if number == 7 else b"%d" % number * 50
            producer.produce(topic, value, b"key-%d" % number, headers=headers, timestamp=at)
        producer.produce(topic, b"", None, timestamp=at)
        producer.flush()
        for number in range(21):
            message = consumer.receive(WITHIN_MS)
            if number == 20:
                assert (message.data(), message.partition_key()) == (b"", "")
            else:
                expected = b"" if number == 7 else b"%d" % number * 50
                assert message.data() == expected
                assert message.partition_key() == f"key-{number}"
                assert message.properties() == {"text": "olé", "codec": codec}
            assert message.publish_timestamp() == at
            consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert nothing_comes(consumer)
