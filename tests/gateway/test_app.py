"""gateway.app: what only the whole process shows."""

from __future__ import annotations

import socket
import time

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from gateway.app import FRONT_ENDS
from gateway.config import LISTENERS, Settings
from tests.conftest import StartGateway


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
