"""CONNECT with `proxy_to_broker_url`: whom the client wants to reach, and who answers."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from core.types import Endpoint, LiveBroker
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandConnect
from gateway.pulsar.ids import NO_ID
from gateway.pulsar.proxied import named_elsewhere
from tests.gateway.pulsar.conftest import Broker


@pytest.mark.parametrize(
    ("host", "named", "is_it"),
    [
        ("broker.example", "broker.example:6650", True),
        ("broker.example", "pulsar://Broker.Example:6650", True),
        ("broker.example", "broker.example:6651", False),
        ("::1", "[::1]:6650", True),
        ("::1", "0:0:0:0:0:0:0:1:6650", True),  # as Java writes it
        ("127.0.0.1", "127.0.0.1:6650/", True),
        ("127.0.0.1", "nonsense", False),
    ],
)
def test_how_a_broker_is_named(host: str, named: str, is_it: bool) -> None:
    this = LiveBroker(1, None, (Endpoint("pulsar", "this.example", 6650),))
    other = LiveBroker(2, None, (Endpoint("pulsar", host, 6650),))
    silent = LiveBroker(3, None, (Endpoint("kafka", host, 6651),))

    class Cluster:
        live = (this, other, silent)

        def __init__(self) -> None:
            self.this = this

    cluster: Any = Cluster()
    assert named_elsewhere(named, cluster) is (other if is_it else None)
    cluster.this = other
    assert named_elsewhere(named, cluster) is None


def connect(port: int) -> CommandConnect:
    return CommandConnect(
        client_version="test", protocol_version=21, proxy_to_broker_url=f"127.0.0.1:{port}"
    )


async def test_who_means_another_broker_is_sent_away(make_broker: Any) -> None:
    brokers: list[Broker] = [await make_broker() for _ in range(2)]
    for broker in brokers:
        await broker.runtime.cluster.heartbeat()
    ports = [each.runtime.cluster.this.at("pulsar").port for each in brokers]
    for meant in (ports[0], 9):  # this one, and one that nobody is
        client = brokers[0].call()
        client.say(connect(meant))
        await client.hear(CommandType.CONNECTED)
        await client.produce_to("t", producer_id=meant)
    client = brokers[0].call()
    with capture_logs() as lines:
        client.say(connect(ports[1]))
        error = await client.hear(CommandType.ERROR)
        await client.ended()
    assert (error.request_id, error.error) == (NO_ID, ServerError.SERVICE_NOT_READY)
    assert f"127.0.0.1:{ports[1]}" in error.message
    assert [line["event"] for line in lines] == ["connection closed"]
