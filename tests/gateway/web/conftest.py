"""A broker that serves HTTP, and bytes to and from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

WITHIN_S = 30.0
RECEIVE_MS = 1_500
"""The broker's time for a request to come."""


@dataclass(frozen=True, slots=True)
class Web:
    """A broker, and its port for HTTP."""

    gateway: Gateway
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S)

    def say(self, *parts: bytes) -> bytes:
        """All that is answered to these bytes until the broker closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):  # it may close before it has read all
                for part in parts:
                    connection.sendall(part)
            return heard(connection)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON of one request; None where there is no body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            whole = response.read()
            return response.status, json.loads(whole) if whole else None
        finally:
            connection.close()


def heard(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    whole = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            whole += part
    return whole


def statuses(answers: bytes) -> list[int]:
    """Of each answer."""
    return [int(each[:3]) for each in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture(scope="session")
def web(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Web]:
    """The session's broker for HTTP, which waits for requests a short time."""
    port = free_port()
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("web")) as start,
    ):
        gateway = start(
            *("--pulsar-listen", f"127.0.0.1:{free_port()}"),
            *("--http-listen", f"127.0.0.1:{port}"),
            *("--override", f"penstock.request.receive.timeout.ms={RECEIVE_MS}"),
            database_url=url,
        )
        yield Web(gateway, port)
