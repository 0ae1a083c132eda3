"""gateway.app: what only the whole process shows."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from typing import Any

import jwt
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from core.security.verifier import Verifier
from gateway.app import FRONT_ENDS
from gateway.config import LISTENERS, Settings
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandConnect, CommandConnected, CommandPing
from storage.server.embedded import EmbeddedPostgres
from storage.users import put_user
from tests.conftest import StartGateway, free_port
from tests.gateway.kafka.handlers.logging_in import SHA_256, Peer
from tests.pulsar_wire import Wire

SECRET = bytes(range(32))


def is_refused(port: int) -> bool:
    """Whether a new connection is closed at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(0.2)
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


def test_each_front_end_has_settings_for_its_addresses() -> None:
    names = [each.listener for each in FRONT_ENDS]
    assert sorted(names) == sorted(LISTENERS)
    for fields in LISTENERS.values():
        assert {fields.listen, fields.advertise or fields.listen} <= set(Settings.model_fields)


def test_killed_and_started_again_it_is_seen_once(
    start_gateway: StartGateway, database_url: str
) -> None:
    first = start_gateway(database_url=database_url)
    first.kill()
    start_gateway(database_url=database_url, port=first.port)
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    assert list(admin.list_topics(timeout=10).brokers) == [1]


def test_most_connections_may_change_while_it_runs(
    start_gateway: StartGateway, database_url: str
) -> None:
    gateway = start_gateway(database_url=database_url)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    assert not is_refused(gateway.port)
    entry = ConfigEntry("max.connections", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(10)
    deadline = time.monotonic() + 10
    while not is_refused(gateway.port):
        assert time.monotonic() < deadline, "the broker goes on as it was started"
        time.sleep(0.05)


def test_a_port_that_is_taken_is_refused_in_one_sentence(
    start_gateway: StartGateway, database_url: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listen = ("--pulsar-listen", f"127.0.0.1:{port}")
        gateway = start_gateway(*listen, database_url=database_url, wait=False)
        assert gateway.process.wait(60) == 2
    assert "choose another address with --pulsar-listen." in gateway.log()
    assert "Traceback" not in gateway.log()


# --- listeners with names ---


def addresses_at(port: int) -> set[str]:
    """Of all brokers, as a client that comes by this port is told."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    brokers = admin.list_topics(timeout=20).brokers.values()
    nodes = admin.describe_cluster(request_timeout=20).result(20).nodes
    told = {f"{each.host}:{each.port}" for each in brokers}
    assert told == {f"{each.host}:{each.port}" for each in nodes}
    return told


def test_clients_are_told_addresses_of_the_listener_that_they_ask(
    start_gateway: StartGateway, database_url: str
) -> None:
    inside, outside = [free_port(), free_port()], [free_port(), free_port()]
    for inner, outer in zip(inside, outside, strict=True):
        start_gateway(
            f"--override=listeners=IN://127.0.0.1:{inner},OUT://127.0.0.1:{outer}",
            f"--override=advertised.listeners=OUT://localhost:{outer}",
            "--override=listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT",
            database_url=database_url,
            port=inner,
        )
    deadline = time.monotonic() + 30
    while len(addresses_at(inside[0])) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for port in inside:
        assert addresses_at(port) == {f"127.0.0.1:{each}" for each in inside}
    for port in outside:
        assert addresses_at(port) == {f"localhost:{each}" for each in outside}


def test_listeners_that_are_open_without_a_login_are_warned_of_in_one_line(
    start_gateway: StartGateway, database_url: str
) -> None:
    first, second, third = (free_port() for _ in range(3))
    made = start_gateway(
        f"--override=listeners=PLAINTEXT://0.0.0.0:{first},SASL_PLAINTEXT://0.0.0.0:{second}",
        "--override=advertised.listeners=PLAINTEXT://127.0.0.1:" + str(first),
        *("--pulsar-listen", f"0.0.0.0:{third}"),
        database_url=database_url,
        port=first,
    )
    [line] = [each for each in made.log().splitlines() if "open_to_others" in each]
    assert "warning" in line
    assert f"PLAINTEXT 0.0.0.0:{first}, pulsar 0.0.0.0:{third}" in line
    assert str(second) not in line


def test_what_nobody_else_reaches_is_not_warned_of(
    start_gateway: StartGateway, database_url: str
) -> None:
    assert "open_to_others" not in start_gateway(database_url=database_url).log()


async def test_without_its_database_a_broker_lets_in_nobody_new_and_keeps_the_others(
    start_gateway: StartGateway, server: EmbeddedPostgres
) -> None:
    opened, asks, pulsar = free_port(), free_port(), free_port()
    put_user(server.url, "alice", [Verifier.of_password(SHA_256, b"salt", 4096, "wonderland")])
    made = start_gateway(
        f"--override=listeners=PLAINTEXT://127.0.0.1:{opened},SASL_PLAINTEXT://127.0.0.1:{asks}",
        "--override=sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
        "--override=penstock.broker.session.timeout.ms=6000",
        "--override=authenticationEnabled=true",
        "--override=authenticationProviders=token,basic",
        f"--override=tokenSecretKey={base64.b64encode(SECRET).decode()}",
        *("--pulsar-listen", f"127.0.0.1:{pulsar}"),
        database_url=server.url,
        port=opened,
    )

    async def come() -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", asks))

    async def come_by_pulsar(method: str, data: bytes) -> tuple[Wire, Any]:
        wire = await Wire.open(pulsar)
        login = {"auth_method_name": method, "auth_data": data}
        wire.say(CommandConnect(client_version="test", protocol_version=21, **login))
        return wire, await wire.hear(CommandType.CONNECTED, CommandType.ERROR)

    token = jwt.encode({"sub": "alice"}, SECRET).encode()
    by_pulsar = [("basic", b"alice:wonderland"), ("token", token)]
    inside = await come()
    assert (await inside.scram()).error_code == 0
    insiders = [await come_by_pulsar(*each) for each in by_pulsar]
    assert all(isinstance(said, CommandConnected) for _, said in insiders)
    server.kill()
    outside = await come()
    assert (await outside.scram()).error_code == 0, "what it knows still holds"
    await asyncio.sleep(6.5)
    for how in ("plain", "scram"):
        late = await come()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await getattr(late, how)()
        late.writer.transport.abort()
    for how in by_pulsar:
        wire, said = await come_by_pulsar(*how)
        assert said.error == ServerError.SERVICE_NOT_READY
        wire.close()
    assert (await inside.versions()).error_code == 0
    for wire, _ in insiders:
        wire.say(CommandPing())
        await wire.hear(CommandType.PONG)
        wire.close()
    assert made.log().count("login_impossible") >= 4
    server.start()
    deadline = time.monotonic() + 30
    while True:
        again = await come()
        try:
            assert (await again.plain()).error_code == 0
            break
        except (asyncio.IncompleteReadError, ConnectionError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        finally:
            again.writer.transport.abort()
    for each in (inside, outside):
        each.writer.transport.abort()
