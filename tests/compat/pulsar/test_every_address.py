"""Stock clients behind what maps ports: the address that a broker tells is none of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.compat.pulsar.clients import numbers, values
from tests.compat.pulsar.conftest import JAVA, MakeClient
from tests.conftest import StartGateway, free_port
from tests.faults.proxies import PIECE, BrokerProxy

TOLD = "broker.invalid:6650"


class Mapping(BrokerProxy):
    """Another port for a broker's. heard: how each client began."""

    def __init__(self, target: int) -> None:
        super().__init__(free_port(), [target], seed=0)
        self.heard: list[bytes] = []

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(await reader.read(PIECE))
        writer.write(self.heard[-1])
        await super()._to_server(reader, writer)


@pytest.fixture
def mapping(start_gateway: StartGateway, database_url: str) -> Iterator[Mapping]:
    """Before a broker that tells an address where nobody is."""
    port = free_port()
    start_gateway(
        *("--pulsar-listen", f"127.0.0.1:{port}", "--pulsar-advertise", TOLD),
        database_url=database_url,
    )
    made = Mapping(port)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("name", [JAVA, "go", "python"])
def test_clients_go_on_by_the_address_that_they_have(
    mapping: Mapping, make_client: MakeClient, topic: str, name: str
) -> None:
    client = make_client(name, f"pulsar://127.0.0.1:{mapping.port}")
    consumer = client.consumer(topic)
    client.send(topic, *numbers(10))
    assert values(consumer.take(10)) == numbers(10)
    # The broker was told whom the client means; else it was not this that was tried.
    assert any(TOLD.encode() in each for each in mapping.heard)
