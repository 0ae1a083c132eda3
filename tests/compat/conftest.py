"""Fixtures for the tests that stock clients run against a live broker.

Knows a bootstrap address and how to make topics with unique names; must not know which broker is
behind it: `PENSTOCK_TEST_BOOTSTRAP=kafka` runs the same tests against an Apache Kafka of their own,
`=host:port` against any other broker; so their expectations were found (Apache Kafka 4.1).
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat.java import tools
from tests.compat.clients import (
    AIOKafka,
    Client,
    Confluent,
    EventLoop,
    Java,
    JavaShell,
    KafkaPython,
    java_shell,
)
from tests.compat.groups import BROKER_SETTINGS, Group, MakeGroup, groups
from tests.conftest import gateways
from tests.spark.conftest import checkpoint, connector_settings, spark, unavailable

__all__ = ["checkpoint", "spark"]  # fixtures of tests/spark, used here too

MakeTopic = Callable[..., str]

UNCLOSED_SOCKET = (
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips Spark's stock connector where it cannot run, and says why; lets clients forget to
    close their sockets (kafka-python does)."""
    here = f"{Path(__file__).parent}{os.sep}"
    clients = [item for item in items if str(item.path).startswith(here)]
    for item in clients:
        item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKET))
    ours = [item for item in clients if item.get_closest_marker("spark")]
    if not ours:
        return
    reason = unavailable() or (None if connector_settings() else "the connector's jars are missing")
    for item in ours:
        item.add_marker(pytest.mark.timeout(900))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker somebody else started; `bootstrap` is `host:port`."""

    bootstrap: str


@pytest.fixture(scope="session")
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """What is tested: a gateway with quick groups, or what `PENSTOCK_TEST_BOOTSTRAP` says."""
    bootstrap = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if bootstrap == "kafka":
        from bench.peer.kafka import started_kafka

        home = tmp_path_factory.mktemp("kafka")
        with started_kafka(home, ["nosync"], settings_beside=BROKER_SETTINGS) as ([broker], _):
            yield broker
        return
    if bootstrap is not None:
        yield Broker(bootstrap)
        return
    copies = request.getfixturevalue("copies")
    template = request.getfixturevalue("template_database")
    quick = [f"--override={name}={value}" for name, value in BROKER_SETTINGS.items()]
    with (
        copies.taken(template) as url,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        made = start(*quick, database_url=url)
        yield made
    # Of all that these clients do nothing is late (gateway/kafka/late_requests.py).
    assert "has gone on on another connection" not in made.log()


@pytest.fixture(scope="session")
def bootstrap(gateway: Any) -> str:
    return str(gateway.bootstrap)


@pytest.fixture(scope="session")
def session_admin(bootstrap: str) -> AdminClient:
    """librdkafka's admin client, kept for the session: its start costs more than its calls."""
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="module")
def shell() -> Iterator[tools.RunTool]:
    """Runs Kafka's tools in one JVM; a tool that ends with an error fails the test, unless
    `check=False`."""
    if reason := tools.unavailable():
        pytest.skip(reason)
    with tools.tool_shell(tools.SHORT_LIVED) as run:
        yield run


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name no other test uses, not yet a topic."""
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    return f"{words[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topic(session_admin: AdminClient, topic_name: str) -> Iterator[MakeTopic]:
    """Creates topics: `make_topic(partitions=4, config={"cleanup.policy": "compact"})`."""
    made: list[str] = []

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"{topic_name}-{len(made)}"
        create(session_admin, name, partitions, config)
        made.append(name)
        return name

    yield make
    if made:
        for deleted in session_admin.delete_topics(made, operation_timeout=10).values():
            deleted.exception()  # the test may have deleted it itself


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition and default configuration."""
    return make_topic()


@pytest.fixture
def group_id(request: pytest.FixtureRequest) -> str:
    """A name no other test uses for its group."""
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    return f"{words[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_group(
    request: pytest.FixtureRequest, bootstrap: str, group_id: str, make_topic: MakeTopic
) -> Iterator[MakeGroup]:
    """Makes groups with a topic each: `make_group(partitions=6)`; all members leave afterwards.

    librdkafka's, or another client's: `make_group(client="aiokafka")`.
    """
    with groups(bootstrap) as make:
        count = 0

        def made(partitions: int = 6, topic: str | None = None, client: str = "confluent") -> Group:
            nonlocal count
            count += 1
            # Records of any time stay: tests ask for offsets by time.
            topic = topic or make_topic(partitions, {"retention.ms": "-1"})
            its_client = make_client(client, request, bootstrap)
            return make(f"{group_id}-{count}", topic, partitions, its_client)

        yield made


@pytest.fixture(scope="session")
def event_loop_thread() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def java_clients() -> Iterator[JavaShell]:
    """One JVM with the Java clients of a session."""
    if reason := tools.unavailable():
        pytest.skip(reason)
    with java_shell() as shell:
        yield shell


CLIENTS = [
    "confluent",
    "aiokafka",
    "kafka-python",
    pytest.param("java", marks=pytest.mark.java),
]


def make_client(name: str, request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A stock client by its name."""
    if name == "aiokafka":
        return AIOKafka(bootstrap, request.getfixturevalue("event_loop_thread"))
    if name == "java":
        return Java(bootstrap, request.getfixturevalue("java_clients"))
    return {"confluent": Confluent, "kafka-python": KafkaPython}[name](bootstrap)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Client]:
    """Each of the four clients that has transactions."""
    with closing(make_client(request.param, request, bootstrap)) as made:
        yield made


@pytest.fixture
def confluent_client(bootstrap: str) -> Iterator[Confluent]:
    with closing(Confluent(bootstrap)) as made:
        yield made


@pytest.fixture
def java_client(bootstrap: str, java_clients: JavaShell) -> Iterator[Java]:
    with closing(Java(bootstrap, java_clients)) as made:
        yield made


@pytest.fixture
def transactional_id(topic_name: str) -> str:
    """An id no other test uses."""
    return f"txn-{topic_name}"


def create(
    admin: AdminClient, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Create a topic and wait until Metadata shows its leaders (Apache Kafka answers earlier)."""
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([new])[name].result(20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        seen = admin.list_topics(timeout=10).topics.get(name)
        if seen and not seen.error and len(seen.partitions) == partitions:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{name} was created but Metadata does not show it")
