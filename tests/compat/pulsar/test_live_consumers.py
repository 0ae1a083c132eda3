"""What psql and metrics show of Pulsar's consumers while they are connected."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pulsar
from psycopg.rows import dict_row

from tests.compat.groups import eventually
from tests.compat.pulsar.conftest import Both, ClientOf


def _rows(both: Both, topic: str) -> list[dict[str, Any]]:
    with (
        psycopg.connect(both.gateway.database_url) as connection,
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        cursor.execute("SELECT * FROM v_consumer WHERE topic = %s", (topic,))
        return cursor.fetchall()


def test_a_consumer_is_seen_while_it_is_there(both: Both, client_of: ClientOf, topic: str) -> None:
    before = int(time.time())
    client = client_of(both.service_url)
    consumer = client.subscribe(
        topic,
        "work",
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="worker-1",
        receiver_queue_size=10,
    )
    eventually(lambda: len(_rows(both, topic)) == 1, "a row of the consumer")
    (row,) = _rows(both, topic)
    assert (row["partition"], row["subscription"], row["consumer"]) == (0, "work", "worker-1")
    assert (row["type"], row["permits"], row["unacknowledged"]) == ("Shared", 10, 0)
    assert row["address"].startswith("127.0.0.1:")
    assert row["client"].startswith("Pulsar-CPP")
    assert before - 1 <= row["connected_at"].timestamp() <= time.time() + 1

    producer = client.create_producer(topic)
    for number in range(25):
        producer.send(str(number).encode())
    eventually(lambda: _rows(both, topic)[0]["permits"] == 0, "it has what it asked for")
    assert _rows(both, topic)[0]["unacknowledged"] == 10

    for _ in range(25):
        consumer.acknowledge(consumer.receive(30_000))
    eventually(lambda: _rows(both, topic)[0]["unacknowledged"] == 0, "all is acknowledged")

    consumer.close()
    eventually(lambda: not _rows(both, topic), "its row is gone")


def test_of_several_on_failover_one_is_active(both: Both, client_of: ClientOf, topic: str) -> None:
    client = client_of(both.service_url)
    consumers = [
        client.subscribe(
            topic, "work", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name
        )
        for name in ("a", "b")
    ]
    eventually(lambda: len(_rows(both, topic)) == 2, "two rows")
    eventually(lambda: sorted(each["is_active"] for each in _rows(both, topic)) == [False, True])
    consumers[0].close()
    eventually(
        lambda: (
            [(each["consumer"], each["is_active"]) for each in _rows(both, topic)] == [("b", True)]
        )
    )
