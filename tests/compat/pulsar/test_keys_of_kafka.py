"""Key_Shared on what Kafka's clients wrote: batches of many keys, each key's records in order."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pulsar
import pytest
from confluent_kafka import Producer

from tests.compat.groups import eventually
from tests.compat.pulsar.conftest import Both, ClientOf, make_topic

KEYS = 20
ROUNDS = 25
COUNT = KEYS * ROUNDS


def _write(both: Both, topic: str, compression: str = "none") -> None:
    """One batch, or nearly: `ROUNDS` records of each key, one key after the other."""
    producer = Producer(
        {
            "bootstrap.servers": both.gateway.bootstrap,
            "linger.ms": 500,
            "compression.type": compression,
        }
    )
    for number in range(COUNT):
        producer.produce(topic, str(number), key=f"key-{number % KEYS}", partition=0)
    assert producer.flush(30) == 0


def _subscribe(client: pulsar.Client, topic: str, name: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "by key",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name=name,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=50,
        negative_ack_redelivery_delay_ms=200,
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_each_key_has_one_consumer_and_its_order(
    both: Both, client_of: ClientOf, topic: str, compression: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    consumers = [_subscribe(client_of(both.service_url), topic, name) for name in ("a", "b")]
    _write(both, topic, compression)
    taken: dict[str, list[tuple[str, int]]] = defaultdict(list)
    lock = threading.Lock()

    def work(consumer: pulsar.Consumer, name: str) -> None:
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < 5 and sum(map(len, taken.values())) < COUNT:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            idle_since = time.monotonic()
            with lock:
                taken[message.partition_key()].append((name, int(message.data())))
            consumer.acknowledge(message)

    threads = [
        threading.Thread(target=work, args=each) for each in zip(consumers, ("a", "b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: [number for _, number in found] for key, found in taken.items()} == {
        f"key-{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)
    }
    assert all(len({name for name, _ in found}) == 1 for found in taken.values())
    assert {name for found in taken.values() for name, _ in found} == {"a", "b"}


def test_one_record_of_a_batch_is_acknowledged_and_another_given_back(
    both: Both, client_of: ClientOf, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    _write(both, topic)
    consumer = _subscribe(client_of(both.service_url), topic, "a")
    seen: list[tuple[int, int]] = []
    returned = {number for number in range(COUNT) if number % 10 == 3}
    wanted = {*((number, 0) for number in range(COUNT)), *((number, 1) for number in returned)}
    # The first one of all, whose id is as that of its whole batch, is acknowledged, alone.
    while not wanted <= set(seen):  # what is given back comes between the others, or behind them
        message = consumer.receive(30_000)
        number = int(message.data())
        seen.append((number, message.redelivery_count()))
        if number % 10 == 3 and message.redelivery_count() == 0:
            consumer.negative_acknowledge(message)
        elif number % 2 == 0:
            consumer.acknowledge(message)
    given_back = [number for number, count in seen if count]
    assert set(given_back) == returned
    for key in range(KEYS):
        of_key = [number for number in given_back if number % KEYS == key]
        assert of_key == sorted(of_key)
    consumer.close()

    # All that was acknowledged stays so, and nothing else.
    again = _subscribe(client_of(both.service_url), topic, "a")
    left = {number for number in range(COUNT) if number % 2}
    found = set()
    while len(found) < len(left):
        message = again.receive(30_000)
        found.add(int(message.data()))
        again.acknowledge(message)
    assert found == left
    with pytest.raises(pulsar.Timeout):
        again.receive(1_000)
    eventually(lambda: _backlog(both, topic) == 0, "nothing is left")


def test_what_has_no_key_goes_to_anybody_and_stays_without(
    both: Both, client_of: ClientOf, topic: str
) -> None:
    make_topic(both.gateway.bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": both.gateway.bootstrap, "linger.ms": 500})
    sent = [(None if number % 3 == 1 else f"key-{number % 5}", number) for number in range(60)]
    for key, number in sent:
        headers = {"number": str(number)}
        producer.produce(topic, str(number), key=key, partition=0, headers=headers)
    assert producer.flush(30) == 0
    consumer = _subscribe(client_of(both.service_url), topic, "a")
    found = []
    for _ in sent:
        message = consumer.receive(30_000)
        number = int(message.data())
        assert message.properties() == {"number": str(number)}
        found.append((message.partition_key() or None, number))
    assert sorted(found, key=lambda each: each[1]) == sent


def _backlog(both: Both, topic: str) -> int:
    import psycopg

    with psycopg.connect(both.gateway.database_url) as connection:
        row = connection.execute(
            "SELECT sum(backlog) FROM v_subscription_backlog WHERE topic = %s", (topic,)
        ).fetchone()
    return int(row[0])
