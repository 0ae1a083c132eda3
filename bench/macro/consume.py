"""Consumption: catching up from the start, right after a CHECKPOINT, and following the tail."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged, throughput
from bench.clients import consume_java, prepared, run_workers
from compat.java.tools import unavailable

SIZE = 1_000
PARTITIONS = 4
RECORDS = {"java": 500_000, "confluent": 500_000, "aiokafka": 150_000}


def load(broker: Broker, topic: str, records: int) -> None:
    run_workers(
        "produce_confluent", bootstrap=broker.bootstrap, topic=topic, records=records, size=SIZE
    )


def catch_up(client: str, records: int, checkpoint: bool, broker: Broker) -> Figures:
    """Load a topic, then read it whole twice.

    The first reading meets rows nobody has read (hint bits are still to be set), the second is
    warm; with `checkpoint` the first comes right after a CHECKPOINT, so that setting hint bits
    may cost full-page images (for a broker without a database: after sync(2)).
    """
    if client == "java" and (reason := unavailable()):
        raise Skipped(reason)
    with broker.topic(PARTITIONS) as topic:
        load(broker, topic, records)
        if checkpoint:
            broker.write_out()
        first = read(client, broker, topic, records)
        figures = {f"first_{key}": value for key, value in first.items()}
        return figures if checkpoint else figures | read(client, broker, topic, records)


def read(client: str, broker: Broker, topic: str, records: int) -> Figures:
    before = broker.cpu_seconds()
    if client == "java":
        result = consume_java(broker.bootstrap, topic, records)
    else:
        result = run_workers(
            f"consume_{client}",
            bootstrap=broker.bootstrap,
            topic=topic,
            records=records,
            partitions=PARTITIONS,
        )
    if (result["records"], result["bytes"]) != (records, records * SIZE):
        raise RuntimeError(f"read {result['records']} records, {result['bytes']} bytes: not all")
    return throughput(result, SIZE) | charged(broker, before, records, result["cpu_s"])


def follow_tail(records: int, broker: Broker) -> Figures:
    """A consumer at the tail while a producer sends as fast as it can: rate until both are done."""
    with broker.topic(PARTITIONS) as topic:
        common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic, "records": records}
        with (
            prepared("consume_confluent", tail=True, partitions=PARTITIONS, **common) as [consumer],
            prepared("produce_confluent", size=SIZE, **common) as [producer],
        ):
            before = broker.cpu_seconds()
            consumer.go()
            producer.go()
            sent, seen = producer.result(300), consumer.result(300)
    seconds = max(seen["ended"], sent["ended"]) - sent["begun"]
    figures = throughput({"records": records, "seconds": seconds}, SIZE)
    figures["behind_ms"] = max(0.0, 1e3 * (seen["ended"] - sent["ended"]))
    return figures | charged(broker, before, records, seen["cpu_s"] + sent["cpu_s"])


def cases(share: float) -> list[Case]:
    """`share` scales the records of each turn."""

    def catch_up_case(client: str, checkpoint: bool = False, quick: bool = False) -> Case:
        records = int(RECORDS[client] * max(share, 0.4))
        kind, figure = ("after-checkpoint", "first_") if checkpoint else ("catch-up", "")
        return Case(
            f"{kind}/{client}/1kB/{PARTITIONS}p",
            f"{figure}mb_per_s",
            partial(catch_up, client, records, checkpoint),
            quick=quick,
        )

    tail = partial(follow_tail, int(200_000 * share))
    return [
        catch_up_case("java", quick=True),
        catch_up_case("confluent"),
        catch_up_case("aiokafka"),
        catch_up_case("confluent", checkpoint=True, quick=True),
        Case(f"tail/confluent/1kB/{PARTITIONS}p", "mb_per_s", tail),
    ]
