"""Pulsar's stock Python client (made of the C++ one) consumes, reads, seeks, over real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulsar
from confluent_kafka import Producer as KafkaProducer
from pulsar import ConsumerType, MessageId

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


def test_receipts_for_acknowledgements(client_of: ClientOf, both: Both, topic: str) -> None:
    client = client_of(both.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send(client, topic, numbers(100), batching_enabled=False)
    assert take(consumer, 100) == numbers(100)
    client.close()
    client = client_of(both.service_url)
    assert nothing_comes(client.subscribe(topic, "s", ConsumerType.Shared))


def test_what_was_aborted_is_nobodys(both: Both, client: pulsar.Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    consumer = client.subscribe(topic, "s")
    producer = KafkaProducer(
        {"bootstrap.servers": both.gateway.bootstrap, "transactional.id": topic}
    )
    producer.init_transactions(WITHIN_MS / 1000)
    for number, ends in enumerate(("commit", "abort", "commit", "abort")):
        producer.begin_transaction()
        for place in range(3):
            producer.produce(topic, b"%s-%d-%d" % (ends.encode(), number, place))
        producer.flush()
        if ends == "commit":
            producer.commit_transaction(WITHIN_MS / 1000)
        else:
            producer.abort_transaction(WITHIN_MS / 1000)
    expected = [b"commit-%d-%d" % (number, place) for number in (0, 2) for place in range(3)]
    assert take(consumer, 6) == expected
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WITHIN_MS).data())
    assert found == expected
    # What is in an open transaction, and what comes behind it, waits for its end.
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush()
    send(client, topic, [b"behind"])
    assert not reader.has_message_available()
    assert nothing_comes(consumer)
    producer.commit_transaction(WITHIN_MS / 1000)
    assert take(consumer, 2) == [b"open", b"behind"]
    assert reader.has_message_available()
