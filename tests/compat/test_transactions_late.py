"""A request of one transaction that arrives in the next, on a connection its client has left.

Jepsen's finding on Kafka: V1 keeps the epoch, so the broker would end the next transaction, or
write into it. V2 (Java) is immune; for V1 the broker knows that the client has gone on on another
connection. No healthy request is refused: that every other test of this room looks at, by the log
(`conftest.gateway`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.compat import confluent
from tests.compat.clients import (
    READ_UNCOMMITTED,
    Client,
    Confluent,
    Java,
    read_to_end,
    read_until,
    values,
)
from tests.compat.conftest import CLIENTS, MakeTopic, create, make_client
from tests.compat.frames import CuttingProxy, Lost
from tests.compat.groups import eventually
from tests.conftest import Gateway, gateways

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
OF_V1 = (ADD_PARTITIONS, ADD_OFFSETS)
"""Of V1 alone."""


@pytest.fixture(scope="module")
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """One of its own: here requests are refused."""
    copies = request.getfixturevalue("copies")
    template = request.getfixturevalue("template_database")
    with (
        copies.taken(template) as url,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        yield start(database_url=url)


@pytest.fixture(scope="module")
def bootstrap(gateway: Gateway) -> str:
    return gateway.bootstrap


@pytest.fixture
def make_topic(bootstrap: str, topic_name: str) -> Callable[[], str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made: list[str] = []

    def make() -> str:
        made.append(f"{topic_name}-{len(made)}")
        create(admin, made[-1], 1, None)
        return made[-1]

    return make


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[CuttingProxy]:
    with closing(CuttingProxy(bootstrap)) as made:
        yield made


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Iterator[Client]:
    """Each client, behind the proxy."""
    with closing(make_client(request.param, request, proxy.bootstrap)) as made:
        yield made


@pytest.fixture
def watcher(bootstrap: str) -> Iterator[Client]:
    """Reads what is there, past the proxy."""
    with closing(Confluent(bootstrap)) as made:
        yield made


@pytest.mark.parametrize("key", [PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, TXN_OFFSET_COMMIT])
def test_a_late_request_does_nothing_in_the_next_transaction(
    client: Client,
    watcher: Client,
    proxy: CuttingProxy,
    bootstrap: str,
    make_topic: MakeTopic,
    transactional_id: str,
    group_id: str,
    key: int,
) -> None:
    if client.name == Java.name and key in OF_V1:
        return  # it has no such request
    topic, copies = make_topic(), make_topic()
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": b"x"}] * 20)
    producer = client.producer(transactional_id)
    with closing(client.reader(topic, group=group_id)) as reader:
        read_until(reader, lambda found: len(found) == 20)

        def write(number: int) -> None:
            producer.begin()
            producer.send(copies, str(number))
            producer.flush()
            producer.send_offsets(topic, {0: number}, reader.member())

        proxy.lose(key, Lost.LATE)
        write(1)
        producer.commit()
        write(2)
        answer = proxy.deliver()
        assert_nothing_is_granted(client, answer)
        assert values(read_to_end(watcher, copies)) == ["1"]
        producer.commit()
        eventually(lambda: reader.committed(0) == 2)
    producer.close()
    assert values(read_to_end(watcher, copies, isolation=READ_UNCOMMITTED)) == ["1", "2"]
    assert values(read_to_end(watcher, copies)) == ["1", "2"]


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_late_end_does_not_end_the_next_transaction(
    client: Client,
    watcher: Client,
    proxy: CuttingProxy,
    make_topic: MakeTopic,
    transactional_id: str,
    is_commit: bool,
) -> None:
    topic = make_topic()
    producer = client.producer(transactional_id)

    def end(how: bool) -> Any:
        return producer.commit() if how else producer.abort()

    producer.begin()
    producer.send(topic, "first")
    producer.flush()
    proxy.lose(END_TXN, Lost.LATE)
    end(is_commit)
    producer.begin()
    producer.send(topic, "second")
    producer.flush()
    answer = proxy.deliver()
    assert_nothing_is_granted(client, answer)
    producer.send(topic, "second as well")
    producer.flush()
    end(not is_commit)
    producer.close()
    expected = ["first"] if is_commit else ["second", "second as well"]
    assert values(read_to_end(watcher, topic)) == expected
    everything = ["first", "second", "second as well"]
    assert values(read_to_end(watcher, topic, isolation=READ_UNCOMMITTED)) == everything


def assert_nothing_is_granted(client: Client, answer: bytes | None) -> None:
    """V1: the connection is closed; V2: the epoch is an old one, and is told so."""
    assert (answer is not None) == (client.name == Java.name)
