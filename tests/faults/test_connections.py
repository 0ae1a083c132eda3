"""Connections break: to PostgreSQL at COMMIT, to clients anywhere; one batch is poison."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Message, Producer

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, query, url_through, verify
from tests.faults.history import Outcome
from tests.faults.load import Load
from tests.faults.proxies import BrokerProxy, CommitProxy, Cut, running
from tests.variants import variants

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("shape", variants("implicit", "in a block"))
def test_connections_cut_at_commit(
    shape: str,
    server: EmbeddedPostgres,
    commit_proxy: CommitProxy,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    """Just before the commit reaches the server, and just after, before its answer gets back.

    in a block: two brokers write to the same partitions and so decide under the lock.
    """
    advertised = ports(1 if shape == "implicit" else 2)
    gateways = [
        start_gateway("--advertise", f"127.0.0.1:{port}", database_url=url_through(commit_proxy))
        for port in advertised
    ]
    targets = [gateway.port for gateway in gateways]
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in advertised)
    with contextlib.ExitStack() as stack:
        for port in advertised:
            stack.enter_context(running(BrokerProxy(port, targets, seed + port)))
        create_topic(bootstrap, "load")
        load = Load(bootstrap, "load", PARTITIONS, seed, large_share=0.1)
        with load.running():
            load.wait_for_progress()
            commit_proxy.share = 0.15
            time.sleep(seconds)
            wait_for_cuts(commit_proxy, shape, load)
            commit_proxy.share = 0.0
            load.wait_for_progress()
        for gateway in gateways:
            verify(load.history, gateway, server.url, "load")


def wait_for_cuts(proxy: CommitProxy, shape: str, load: Load) -> None:
    """Until commits of this shape were cut at each point, and who does not retry was told so."""
    deadline = time.monotonic() + 60
    while not (
        {(cut, shape) for cut in Cut} <= set(proxy.done)
        and load.history.count(Outcome.UNKNOWN, "plain")
    ):
        assert time.monotonic() < deadline, (proxy.done, load.history.errors())
        time.sleep(0.05)


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("cut", list(Cut), ids=["before", "after"])
def test_a_client_is_told_what_became_of_its_batch(
    cut: Cut,
    size: int,
    server: EmbeddedPostgres,
    commit_proxy: CommitProxy,
    start_gateway: StartGateway,
) -> None:
    """One batch, one cut, no retry: the error says whether it may have been stored."""
    gateway = start_gateway(database_url=url_through(commit_proxy))
    create_topic(gateway.bootstrap, "load", 1)
    warm_up = produce_once(gateway.bootstrap, b"first", retries=0)
    assert warm_up is None
    commit_proxy.cut_next(cut)
    error = produce_once(gateway.bootstrap, b"x" * size, retries=0)
    assert error is not None
    # Whether the commit arrived the gateway cannot know: it had sent it, so both are told alike.
    assert error.code() == KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    stored = 1 if cut is Cut.BEFORE_COMMIT else 2
    assert query(server.url, "SELECT next_offset FROM topic_partition") == [(stored,)]
    commit_proxy.cut_next(cut)
    assert produce_once(gateway.bootstrap, b"y" * size, idempotent=True) is None
    assert query(server.url, "SELECT next_offset FROM topic_partition") == [(stored + 1,)]
    assert sum(commit_proxy.done.values()) == 2


def produce_once(
    bootstrap: str, value: bytes, *, retries: int | None = None, idempotent: bool = False
) -> KafkaError | None:
    """One record from a producer of its own; what its delivery report says."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": idempotent,
        "retry.backoff.ms": 20,
    }
    if retries is not None:
        settings["message.send.max.retries"] = retries
    reports: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        reports.append(error)

    producer = Producer(settings)
    producer.produce("load", value, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    (report,) = reports
    return report


def test_client_connections_cut_anywhere(
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    """Half a request arrives, or half an answer, and the connection closes."""
    port, *_ = ports(1)
    gateway = start_gateway("--advertise", f"127.0.0.1:{port}", database_url=server.url)
    proxy = BrokerProxy(port, [gateway.port], seed)
    with running(proxy):
        create_topic(f"127.0.0.1:{port}", "load")
        bootstrap = f"127.0.0.1:{port}"
        load = Load(bootstrap, "load", PARTITIONS, seed, large_share=0.05, connections_break=True)
        with load.running():
            load.wait_for_progress()
            proxy.cut_share = 0.03
            time.sleep(seconds)
            deadline = time.monotonic() + 60
            while proxy.cuts <= 5:  # on a busy machine little may have gone through so far
                assert time.monotonic() < deadline, f"{proxy.cuts} cuts"
                time.sleep(0.05)
            proxy.cut_share = 0.0
            load.wait_for_progress()
        verify(load.history, gateway, server.url, "load")


POISON = b"poison! " * 3

# Raised while payload is written, and while the index row is.
REFUSE_PAYLOAD = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF position('poison! poison!'::bytea IN NEW.data) > 0 THEN RAISE 'this is poison'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()
"""
REFUSE_ROW = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size BETWEEN {size} AND {size} + 150 THEN RAISE 'this is poison'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON record_batch FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize("size", [20_000, 150_000], ids=["small", "large"])
@pytest.mark.parametrize("where", ["payload", "row"])
def test_only_the_poisonous_batch_is_refused(
    where: str,
    size: int,
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
) -> None:
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    kinds = ("idempotent", "plain", "aiokafka")
    with Load(gateway.bootstrap, "load", PARTITIONS, seed, kinds=kinds).running() as load:
        load.wait_for_progress()
        if where == "payload":
            ((table,),) = query(
                server.url, "SELECT payload_table FROM v_segment WHERE state = 'open'"
            )
            statement = REFUSE_PAYLOAD.format(table=table)
        else:
            statement = REFUSE_ROW.format(size=size)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(statement.encode())
        value = POISON + b"." * (size - len(POISON))
        refused = 0
        end = time.monotonic() + seconds / 2
        while time.monotonic() < end or refused < 3:
            error = produce_once(gateway.bootstrap, value, retries=0)
            assert error is not None
            assert error.code() == KafkaError.UNKNOWN, error
            refused += 1
        load.wait_for_progress()
    assert load.history.errors() == {}, "nobody else was told of it"
    verify(load.history, gateway, server.url, "load")


def test_a_partition_that_another_session_holds_stops_nobody_else(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    """As a stalled broker would, but for longer; the batches that wait keep their order."""
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "held", PARTITIONS)
    create_topic(gateway.bootstrap, "load")
    kinds = ("idempotent", "aiokafka")
    held = Load(gateway.bootstrap, "held", PARTITIONS, seed, kinds=kinds)
    others = Load(gateway.bootstrap, "load", PARTITIONS, seed + 1)
    with held.running(), others.running():
        held.wait_for_progress()
        others.wait_for_progress()
        with psycopg.connect(server.url) as connection:
            connection.execute(
                "SELECT FROM topic_partition JOIN topic USING (topic_id) WHERE name = 'held'"
                " FOR UPDATE OF topic_partition"
            )
            acknowledged = held.settled()
            others.wait_for_progress(within_s=30)
            others.wait_for_progress(within_s=30)
            time.sleep(seconds / 2)
            assert held.history.count(Outcome.ACKNOWLEDGED) == acknowledged
        held.wait_for_progress(within_s=30)
    verify(held.history, gateway, server.url, "held")
    verify(others.history, gateway, server.url, "load")
