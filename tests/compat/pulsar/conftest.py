"""Fixtures for the tests that Pulsar's stock clients run against a broker that serves both."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.pulsar import drivers
from tests.compat.pulsar.administering import Admin
from tests.compat.pulsar.clients import Client, Python
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

WITHIN_S = 30.0
COMPILED_WITHIN_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allows for fetching and compiling Go's client, which each process's first test waits for."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here) and "make_client" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(COMPILED_WITHIN_S))


@dataclass(frozen=True, slots=True)
class Both:
    """A gateway, and how Pulsar's clients reach it."""

    gateway: Gateway
    pulsar_port: int
    http_port: int

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.pulsar_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


@pytest.fixture(scope="session")
def both(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """The session's gateway for Pulsar's clients."""
    port, http_port = free_port(), free_port()
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("both")) as start,
    ):
        gateway = start(
            *("--pulsar-listen", f"127.0.0.1:{port}"),
            *("--http-listen", f"127.0.0.1:{http_port}"),
            # Tests write records of long ago: no round of retention is to delete them.
            *("--override", "log.retention.check.interval.ms=86400000"),
            database_url=url,
        )
        yield Both(gateway, port, http_port)


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


ClientOf = Callable[..., pulsar.Client]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    """Makes clients of a service URL, closed afterwards."""
    made: list[pulsar.Client] = []

    def make(url: str, **settings: Any) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(url, logger=logger, **settings)
        made.append(client)
        return client

    yield make
    for client in made:
        with contextlib.suppress(pulsar.AlreadyClosed, pulsar.NotConnected):
            client.close()


@pytest.fixture
def client(both: Both, client_of: ClientOf) -> pulsar.Client:
    """A client of the session's gateway."""
    return client_of(both.service_url)


@pytest.fixture(scope="session")
def java_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[drivers.Call]:
    """One JVM with the Java clients of a session."""
    yield from _driver(drivers.java_command, tmp_path_factory.mktemp("pulsar-java"))


@pytest.fixture(scope="session")
def go_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[drivers.Call]:
    """One process with the Go clients of a session."""
    yield from _driver(drivers.go_command, tmp_path_factory.mktemp("pulsar-go"))


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[drivers.Call]:
    """One JVM with the admin classes of a session, and a client."""
    yield from _driver(drivers.admin_command, tmp_path_factory.mktemp("pulsar-admin"))


@pytest.fixture(scope="session")
def admin(java: drivers.Call, both: Both) -> Admin:
    """Of the session's gateway."""
    return Admin(java, both.http_url)


def _driver(command: Callable[[], list[str]], directory: Path) -> Iterator[drivers.Call]:
    try:
        found = command()
    except drivers.DriverUnavailable as missing:
        pytest.skip(str(missing))
    with drivers.driver(found, directory / "errors") as call:
        yield call


@pytest.fixture(scope="session")
def python_driver() -> drivers.Call:
    return Python()


MakeClient = Callable[..., Client]


@pytest.fixture
def make_client(request: pytest.FixtureRequest, both: Both) -> Iterator[MakeClient]:
    """Makes stock clients: `make_client("java")`, of the session's gateway or another `url`."""
    made: list[Client] = []

    def make(name: str, url: str | None = None, **settings: Any) -> Client:
        call = request.getfixturevalue(f"{name}_driver")
        client = Client(name, call, url or both.service_url, **settings)
        made.append(client)
        return client

    yield make
    for client in reversed(made):
        with contextlib.suppress(drivers.Refused):  # closed already
            client.close()


JAVA = pytest.param("java", marks=pytest.mark.java)


@pytest.fixture(params=[JAVA, "go", "python"])
def stock(request: pytest.FixtureRequest, make_client: MakeClient) -> Client:
    """Each of the three clients, or those of a test's `of(...)`."""
    return make_client(request.param)


def of(*names: str) -> pytest.MarkDecorator:
    """A test of these clients alone: the others cannot do it (compat/pulsar/README.md)."""
    params = [JAVA if name == "java" else name for name in names]
    return pytest.mark.parametrize("stock", params, indirect=True)


def make_topic(bootstrap: str, name: str, partitions: int, **config: str) -> None:
    """As Kafka's administrators do it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(name, partitions, config=config)
    admin.create_topics([wanted])[name].result(WITHIN_S)


def records_of(
    bootstrap: str, topic: str, count: int, partition: int = 0, start: int = 0
) -> list[Any]:
    """The first records of a partition (or those from `start` on), as a Kafka client reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, partition, start)])
    found: list[Any] = []
    try:
        while len(found) < count:
            got = consumer.consume(count - len(found), WITHIN_S)
            assert got, f"{len(found)} of {count} records within {WITHIN_S} s"
            for message in got:
                assert message.error() is None, message.error()
            found += got
    finally:
        consumer.close()
    return found
