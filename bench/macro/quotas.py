"""How well a quota holds over ten windows, and what a neighbour without one keeps of its rate.

Quotas are set by Kafka's own tool, for the id that each client has by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped
from bench.clients import prepared, produce_java, run_workers
from compat.java.tools import java_tool, unavailable

QUOTA = 2_000_000  # bytes a second
WINDOWS = 10  # of a second
SIZE = 1_000

CLIENT_IDS = {
    "java": "producer-0",
    "confluent": "rdkafka",
    "aiokafka": "aiokafka-producer-1",
}
NEIGHBOURS = {"java": "confluent", "confluent": "aiokafka", "aiokafka": "confluent"}
NEIGHBOURS_RECORDS = {"confluent": 600_000, "aiokafka": 100_000}


@contextmanager
def limited(broker: Broker, client_id: str, key: str, rate: int) -> Iterator[None]:
    """A client id with a quota."""

    def alter(*change: str) -> None:
        java_tool(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", broker.bootstrap, "--alter"),
            *("--entity-type", "clients", "--entity-name", client_id),
            *change,
        )

    alter("--add-config", f"{key}={rate}")
    try:
        yield
    finally:
        alter("--delete-config", key)


def produced(client: str, records: int, topic: str, broker: Broker) -> float:
    """Bytes a second that a client writes, of records' values."""
    if client == "java":
        result = produce_java(broker.bootstrap, topic, records, SIZE)
        return float(result["records_per_s"]) * SIZE
    result = run_workers(
        f"produce_{client}", bootstrap=broker.bootstrap, topic=topic, records=records, size=SIZE
    )
    return float(records * SIZE / result["seconds"])


def held(client: str, windows: float, broker: Broker) -> Figures:
    """What a client writes as a part of its quota."""
    if reason := unavailable():
        raise Skipped(reason)
    records = int(QUOTA * windows / SIZE)
    with (
        broker.topic(1) as topic,
        limited(broker, CLIENT_IDS[client], "producer_byte_rate", QUOTA),
    ):
        return {"of_quota_ratio": produced(client, records, topic, broker) / QUOTA}


def read(windows: float, broker: Broker) -> Figures:
    """What librdkafka reads as a part of its quota."""
    if reason := unavailable():
        raise Skipped(reason)
    records = int(QUOTA * windows / SIZE)
    with broker.topic(1) as topic:
        produced("confluent", records, topic, broker)
        with limited(broker, CLIENT_IDS["confluent"], "consumer_byte_rate", QUOTA):
            result = run_workers(
                "consume_confluent",
                bootstrap=broker.bootstrap,
                topic=topic,
                records=records,
                partitions=1,
            )
    return {"of_quota_ratio": records * SIZE / result["seconds"] / QUOTA}


def neighbour(client: str, share: float, broker: Broker) -> Figures:
    """What a client without a quota writes beside one that is held back, as a part of what it
    writes alone."""
    if reason := unavailable():
        raise Skipped(reason)
    other = NEIGHBOURS[client]
    records = int(NEIGHBOURS_RECORDS[other] * share)

    def alone() -> float:
        with broker.topic(1) as topic:
            return produced(other, records, topic, broker)

    before = alone()
    with (
        broker.topic(1) as topic,
        broker.topic(1) as others,
        limited(broker, CLIENT_IDS[client], "producer_byte_rate", QUOTA),
        prepared(
            f"produce_{client}",
            bootstrap=broker.bootstrap,
            topic=topic,
            records=int(QUOTA * WINDOWS * 2 / SIZE),
            size=SIZE,
        ) as workers,
    ):
        workers[0].go()
        beside = produced(other, records, others, broker)
    return {"neighbour_ratio": 2 * beside / (before + alone()), "mb_per_s": beside / 1e6}


def cases(share: float) -> list[Case]:
    """`share` scales the windows of each turn, from ten on."""
    windows = WINDOWS * max(share, 1.0)
    return [
        *(
            Case(f"quotas/produce/{client}", "of_quota_ratio", partial(held, client, windows))
            for client in CLIENT_IDS
        ),
        Case("quotas/consume/confluent", "of_quota_ratio", partial(read, windows)),
        *(
            Case(
                f"quotas/neighbour/{client}",
                "neighbour_ratio",
                partial(neighbour, client, share),
                rounds=3,
            )
            for client in ("confluent", "aiokafka")
        ),
    ]
