"""A small shop, for pages to show: one of its consumers is stuck, by a transaction that is open."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.gateway.console.conftest import WITHIN_S, Site

STUCK_ON = 3
"""The partition of `orders` where the transaction is."""
ORDERS = 240
STATUSES = ("placed", "paid", "packed", "shipped")


def later(site: Site, seconds: int) -> None:
    """So much time passes for what has been stored."""
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        for table, column in (
            ("committed_offset", "commit_timestamp"),
            ("record_batch", "max_timestamp"),
            ("transaction_state", "started_at"),
        ):
            connection.execute(
                f"UPDATE penstock.{table} SET {column} = {column} - %s WHERE {column} > 0",
                [seconds * 1000],
            )


@contextmanager
def shop(site: Site) -> Iterator[None]:
    """Orders of `checkout`, an open transaction `payments-7` among them, and two groups, of which
    `billing` waits for it. Its clients poll meanwhile."""
    common = {"bootstrap.servers": site.bootstrap}
    admin = AdminClient(common)
    topics = [NewTopic("orders", 4), NewTopic("shipments", 2)]
    for made in admin.create_topics(topics).values():
        made.result(WITHIN_S)
    checkout = Producer({**common, "client.id": "checkout", "enable.idempotence": True})
    for number in range(ORDERS):
        order = {
            "id": number,
            "status": STATUSES[number % len(STATUSES)],
            "customer": {"name": f"Customer {number % 17}", "city": "Lübeck"},
            "total": round(9.99 + number * 1.7, 2),
        }
        value = json.dumps(order, ensure_ascii=False)
        checkout.produce("orders", value, f"order-{number % 40}", partition=number % 4)
        checkout.produce("shipments", value, f"order-{number % 40}", partition=number % 2)
    checkout.flush(WITHIN_S)
    own = {"transactional.id": "payments-7", "transaction.timeout.ms": 600_000}
    payments = Producer({**common, **own, "client.id": "payments"})
    payments.init_transactions(WITHIN_S)
    payments.begin_transaction()
    for number in range(5):
        value = json.dumps({"id": number, "status": "paid"})
        payments.produce("orders", value, f"order-{number}", partition=STUCK_ON)
    payments.flush(WITHIN_S)
    reads = {"billing": ("orders", 4), "shipping": ("shipments", 2)}
    consumers = [_consumer(common, group, *of) for group, of in reads.items()]
    ended = threading.Event()

    def poll() -> None:  # or their groups think that they are gone
        while not ended.is_set():
            for consumer in consumers:
                consumer.poll(0.2)
            payments.poll(0)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield
    finally:
        ended.set()
        polling.join()
        for consumer in consumers:
            consumer.close()
        payments.abort_transaction(WITHIN_S)


def _consumer(common: dict[str, str], group: str, topic: str, partitions: int) -> Consumer:
    """A member that has read all there is, up to the transaction."""
    own = {"group.id": group, "client.id": f"{group}-1", "enable.auto.commit": False}
    consumer = Consumer({**common, **own, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.poll(WITHIN_S) is not None
    read = [TopicPartition(topic, each, ORDERS // partitions) for each in range(partitions)]
    consumer.commit(offsets=read, asynchronous=False)
    return consumer
