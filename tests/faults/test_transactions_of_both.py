"""Kafka's and Pulsar's transactions on the same topic while brokers and the database die, stand
still or are cut off; every message and every acknowledgement is accounted for, in both views."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, query
from tests.faults.consumption import (
    AckAnomaly,
    check_consumption,
    fates,
    left_over,
    written_late,
)
from tests.faults.pulsar_txn_load import PulsarTxnLoad, drain
from tests.faults.reading import read_by_offset
from tests.faults.test_pulsar import CAMPAIGNS, SESSION_S, Broker, Cluster, read_with_reader
from tests.faults.test_transactions import committed_offset
from tests.faults.txn_history import Ending, TxnAnomaly, TxnFlaw, TxnHistory, check_transactions
from tests.faults.txn_load import TIMEOUT_MS, LibrdkafkaTxnLoad
from tests.faults.workers import Workers
from tests.pulsar_wire import closing_all

pytestmark = pytest.mark.fault

TOPIC = "load"
Views = dict[int, dict[int, bytes]]
"""By partition and offset."""


class PausingCluster(Cluster):
    """Pulsar's clients leave a broker that is silent before it may have lost its topics."""

    def _pause(self, broker: Broker, _: Workers) -> None:  # type: ignore[override]
        broker.gateway.pause()
        try:
            time.sleep(SESSION_S + self.chance.uniform(0.5, 2))
        finally:
            broker.gateway.resume()


@pytest.mark.parametrize("faults", CAMPAIGNS)
def test_both_protocols_see_one_truth(
    faults: Sequence[str],
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    cluster = PausingCluster(2, server, start_gateway, ports, seed)
    create_topic(cluster.bootstrap, TOPIC)
    kafka = LibrdkafkaTxnLoad(cluster.bootstrap, TOPIC, PARTITIONS, seed, producers=1)
    pulsar = PulsarTxnLoad([each.port for each in cluster.brokers], TOPIC, PARTITIONS, seed)
    with cluster.reachable():
        with kafka.running(), pulsar.running():
            pulsar.wait_for_progress()
            end = time.monotonic() + seconds
            for fault in itertools.cycle(faults):
                cluster.happen(fault, pulsar)  # type: ignore[arg-type]
                pulsar.wait_for_progress()
                kafka.wait_for_progress(1)
                if fault == faults[-1] and time.monotonic() > end:
                    break
        verify(cluster, kafka, pulsar)


def verify(cluster: Cluster, kafka: LibrdkafkaTxnLoad, pulsar: PulsarTxnLoad) -> None:
    """Waits until nothing is open, reads everything in every way, and fails on any anomaly."""
    listed = [f"{each.flaw.value}: {each.where}" for each in examine(cluster, kafka, pulsar)]
    if listed:
        for each in cluster.brokers:
            print(each.gateway.log()[-20_000:])  # noqa: T201 - for the report
    assert not listed, "\n".join([f"{len(listed)} in all", *listed[:30], str(pulsar.told())])


def examine(
    cluster: Cluster, kafka: LibrdkafkaTxnLoad, pulsar: PulsarTxnLoad
) -> list[TxnAnomaly | AckAnomaly]:
    """Every anomaly, once nothing is open."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000 + 30
    hanging = "SELECT transactional_id, state FROM transaction_state WHERE started_at >= 0"
    held = "SELECT partition_id, producer_id FROM producer_state WHERE txn_first_offset >= 0"
    pending = "SELECT subscription_id, producer_id FROM pending_ack WHERE NOT is_committed"
    joined = "SELECT txn_key, name FROM transaction_participant WHERE kind = 1"
    url = cluster.server.url
    while (
        left := [row for each in (hanging, held, pending, joined) for row in query(url, each)]
    ) and time.monotonic() < deadline:
        time.sleep(0.2)
    broken = [TxnAnomaly(TxnFlaw.HANGING, str(each)) for each in left]
    history = TxnHistory({**kafka.history.attempts, **pulsar.history.attempts})
    committed = read_by_offset(cluster.bootstrap, TOPIC, PARTITIONS, "read_committed")
    everything = read_by_offset(cluster.bootstrap, TOPIC, PARTITIONS, "read_uncommitted")
    by_reader = {n: read_with_reader(cluster, pulsar.topic_of(n)) for n in range(PARTITIONS)}
    offsets = {name: committed_offset(cluster.bootstrap, kafka, name) for name in kafka.names}
    flaws = [
        *broken,
        *check_transactions(history, in_order(committed), in_order(everything), offsets),
        *(TxnAnomaly(TxnFlaw.ZOMBIE, f"{each}") for each in written_late(history, everything)),
        *compare(committed, by_reader),
    ]
    fate = fates(pulsar.history, committed)
    wanted = {
        place: left_over(pulsar.consumption, place, committed, fate) for place in pulsar.places
    }
    drained = asyncio.run(closing_all(drain(pulsar, wanted)))
    acks = check_consumption(pulsar.history, pulsar.consumption, committed, drained)
    counts = {each.value: pulsar.history.count(each) for each in Ending}
    print(  # noqa: T201 - for the report
        f"pulsar's {counts}, kafka's {kafka.done()}, {len(pulsar.consumption.consumed)} consumed,"
        f" {len(pulsar.consumption.deliveries)} delivered,"
        f" {sum(map(len, committed.values()))} of {sum(map(len, everything.values()))} committed;"
        f" {pulsar.told()}"
    )
    return [*flaws, *acks]


def in_order(views: Views) -> dict[int, list[bytes]]:
    return {n: [value for _, value in sorted(found.items())] for n, found in views.items()}


def compare(kafkas: Views, pulsars: Views) -> list[TxnAnomaly]:
    """Both protocols' readers of committed data see the same values at the same offsets."""
    found = []
    for n, values in kafkas.items():
        apart = sorted(values.items() ^ pulsars[n].items())[:4]
        if apart:
            where = f"partition {n}: {len(values)} and {len(pulsars[n])}: {apart}"
            found.append(TxnAnomaly(TxnFlaw.VIEWS_APART, where))
    return found
