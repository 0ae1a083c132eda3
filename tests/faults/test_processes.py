"""Processes die under load: the gateway, its PostgreSQL, single backends, one broker of several."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway, free_port, wait_until_ready
from tests.faults.conftest import (
    PARTITIONS,
    create_topic,
    embedded_url,
    kill_postmaster,
    query,
    verify,
)
from tests.faults.history import Outcome
from tests.faults.load import Load
from tests.faults.proxies import BrokerProxy, running
from tests.variants import variants

pytestmark = pytest.mark.fault

# Of records that are large: 64 kB and more go to the embedded server another way.
SMALL_AND_LARGE = 0.2
BROKERS_FORGOTTEN_FAST = ("--override", "penstock.broker.session.timeout.ms=2000")


def until(seconds: float) -> Callable[[], bool]:
    """Says whether time is left."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


@pytest.mark.parametrize("database", variants("embedded", "url"))
def test_gateway_killed_and_started_again(
    database: str, data_dir: Path, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        where: dict[str, object] = {"data": data_dir}
        url = embedded_url(data_dir)
        if database == "url":
            url = stack.enter_context(EmbeddedPostgres(data_dir)).url
            where = {"database_url": url}
        port = free_port()
        gateway = start_gateway(**where, port=port)
        create_topic(gateway.bootstrap, "load")
        kills = 0
        with Load(
            gateway.bootstrap,
            "load",
            PARTITIONS,
            seed,
            connections_break=True,
            large_share=SMALL_AND_LARGE,
        ).running() as load:
            load.wait_for_progress()
            time_left = until(seconds)
            while time_left() or kills < 3:
                time.sleep(chance.uniform(0.1, 1.0))
                gateway.kill()
                kills += 1
                # Sometimes again before it is ready, to hit it in its start.
                gateway = start_gateway(**where, port=port, wait=False)
                if chance.random() < 0.3:
                    time.sleep(chance.uniform(0, 1.0))
                    continue
                wait_until_ready(gateway)
            wait_until_ready(gateway)
            load.wait_for_progress()
        verify(load.history, gateway, url, "load")


def test_embedded_postgres_killed(
    migrated_dir: Path, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    gateway = start_gateway(data=migrated_dir)
    url = embedded_url(migrated_dir)
    create_topic(gateway.bootstrap, "load")
    with Load(
        gateway.bootstrap, "load", PARTITIONS, seed, large_share=SMALL_AND_LARGE
    ).running() as load:
        load.wait_for_progress()
        time_left = until(seconds)
        kills = 0
        while time_left() or kills < 3:
            time.sleep(chance.uniform(0.1, 0.8))
            # Postmaster, one backend (which makes the postmaster crash-restart all), or a backend
            # asked to go: each another way to lose a connection.
            kind = ("postmaster", "backend", "terminate")[kills % 3]
            kill_postgres(kind, migrated_dir, url, chance)
            kills += 1
            load.wait_for_progress()
    verify(load.history, gateway, url, "load")


def kill_postgres(kind: str, data_dir: Path, url: str, chance: random.Random) -> None:
    """One of three ways."""
    if kind == "postmaster":
        kill_postmaster(data_dir)
        return
    pid = chance.choice(gateways_backends(url))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if kind == "backend" else signal.SIGTERM)


def gateways_backends(url: str) -> list[int]:
    """Their processes; waits for a server that is starting, and for the gateway to come back."""
    statement = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'"
        " AND pid <> pg_backend_pid()"
    )
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            if found := [int(str(pid)) for (pid,) in query(url, statement)]:
                return found
        assert time.monotonic() < deadline, "the gateway does not come back"
        time.sleep(0.05)


def test_backends_terminated_in_a_flurry(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    """Every connection of the gateway, many times a second: each point of a flush is hit."""
    chance = random.Random(seed)
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    with Load(gateway.bootstrap, "load", PARTITIONS, seed, large_share=0.1).running() as load:
        load.wait_for_progress()
        time_left = until(seconds)
        with psycopg.connect(server.url, autocommit=True) as connection:
            while time_left():
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'penstock' AND random() < %s",
                    (chance.uniform(0.2, 1.0),),
                )
                time.sleep(chance.uniform(0.01, 0.3))
        load.wait_for_progress()
    verify(load.history, gateway, server.url, "load")


def test_database_server_killed_and_away_for_a_while(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, seconds: float
) -> None:
    chance = random.Random(seed)
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    with Load(gateway.bootstrap, "load", PARTITIONS, seed).running() as load:
        load.wait_for_progress()
        time_left = until(seconds)
        rounds = 0
        while time_left() or rounds < 2:
            server.kill()
            acknowledged = load.settled()  # with the answers that were on their way when it died
            time.sleep(chance.uniform(0.3, 1.5))
            assert load.history.count(Outcome.ACKNOWLEDGED) == acknowledged
            server.start()
            load.wait_for_progress()
            rounds += 1
    verify(load.history, gateway, server.url, "load")


@pytest.mark.parametrize(("brokers", "number"), variants((2, signal.SIGKILL), (3, signal.SIGTERM)))
def test_clients_go_on_when_one_of_several_brokers_goes(
    brokers: int,
    number: signal.Signals,
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    seed: int,
    seconds: float,
) -> None:
    """Clients go on at the others by themselves, led by Metadata; the broker comes back later."""
    chance = random.Random(seed)
    gateways = [
        start_gateway(*BROKERS_FORGOTTEN_FAST, database_url=server.url, wait=False)
        for _ in range(brokers)
    ]
    for gateway in gateways:
        wait_until_ready(gateway)  # all at once on an empty database: one makes the schema
    bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
    create_topic(bootstrap, "load")
    with Load(bootstrap, "load", PARTITIONS, seed, connections_break=True).running() as load:
        load.wait_for_progress()
        time_left = until(seconds)
        rounds = 0
        while time_left() or rounds < 1:
            victim = chance.randrange(brokers)
            if number is signal.SIGKILL:
                gateways[victim].kill()
            else:
                assert gateways[victim].stop() == 0, gateways[victim].log()[-2000:]
            load.wait_for_progress()
            gateways[victim] = start_gateway(
                *BROKERS_FORGOTTEN_FAST, database_url=server.url, port=gateways[victim].port
            )
            load.wait_for_progress()
            rounds += 1
    verify(load.history, gateways[0], server.url, "load")


@pytest.mark.parametrize("fault", variants("kill", "stop unnoticed", "stop"))
def test_all_brokers_write_to_the_same_partitions(
    fault: str,
    server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
    seconds: float,
) -> None:
    """Behind a proxy that sends each connection to any broker, so that all are contended.

    stop: SIGSTOP at random moments, so that a broker sometimes holds locks; the other one goes on
    within seconds, and after SIGCONT nothing is amiss. Unnoticed: its connections stay open.
    """
    chance = random.Random(seed)
    advertised = ports(2)
    gateways = [
        start_gateway(
            *BROKERS_FORGOTTEN_FAST,
            "--advertise",
            f"127.0.0.1:{port}",
            database_url=server.url,
        )
        for port in advertised
    ]
    targets = [gateway.port for gateway in gateways]
    proxies = [BrokerProxy(port, targets, seed + port) for port in advertised]
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in advertised)
    with contextlib.ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(running(proxy))
        create_topic(bootstrap, "load")
        kinds = ("idempotent-a", "idempotent-b", "idempotent-lz4", "plain", "aiokafka-a")
        if fault == "stop unnoticed":  # aiokafka waits for its delivery timeout, a minute
            kinds = kinds[:-1]
        load = Load(
            bootstrap,
            "load",
            PARTITIONS,
            seed,
            kinds=kinds,
            large_share=0.05,
            connections_break=True,
        )
        with load.running():
            load.wait_for_progress()
            time_left = until(seconds)
            while time_left():
                victim = chance.randrange(len(gateways))
                time.sleep(chance.uniform(0.1, 0.5))
                if fault == "kill":
                    gateways[victim].kill()
                    survivors(proxies, gateways, victim)
                    load.wait_for_progress()
                    gateways[victim] = start_gateway(
                        *BROKERS_FORGOTTEN_FAST,
                        "--advertise",
                        f"127.0.0.1:{advertised[victim]}",
                        database_url=server.url,
                        port=gateways[victim].port,
                    )
                else:
                    gateways[victim].pause()
                    survivors(proxies, gateways, victim)
                    if fault == "stop":
                        for proxy in proxies:
                            proxy.drop(gateways[victim].port)
                    load.wait_for_progress(within_s=30)
                    if chance.random() < 0.5:
                        time.sleep(chance.uniform(0, 3))
                    gateways[victim].resume()
                survivors(proxies, gateways, None)
            load.wait_for_progress()
        for gateway in gateways:
            verify_through(gateway, server.url, load)


def survivors(proxies: list[BrokerProxy], gateways: list[Gateway], gone: int | None) -> None:
    """New connections go to brokers that answer, as a load balancer would have it."""
    for proxy in proxies:
        proxy.targets = [gateway.port for n, gateway in enumerate(gateways) if n != gone]


def verify_through(gateway: Gateway, database_url: str, load: Load) -> None:
    verify(load.history, gateway, database_url, load.topic)
