"""Is a broker there, and its database: one request each over a socket, for health checks.

Knows no client library (a health check runs every few seconds and should cost nothing) and
nothing of the server.
"""

from __future__ import annotations

import ssl
import struct
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from penstock.connection import (
    METADATA,
    Api,
    Connection,
    ConnectionLost,
    ResponseBody,
    metadata_request,
)

if TYPE_CHECKING:
    from penstock.connecting import Login

API_VERSIONS: Final = 18, 0
# Flexible: tags after the header. A broker reads it from the database, as one row at most.
DESCRIBE_TRANSACTIONS: Final = 65, 0
_ONE_ID: Final = b"\0" + b"\2\7check?" + b"\0"
_STATE: Final = struct.Struct(">bibh")  # tags, throttle time, states plus one, the error
_NONE, _TRANSACTIONAL_ID_NOT_FOUND = 0, 105


class Presence(Enum):
    """What is found at an address."""

    ANSWERS = auto()
    """It answers Metadata, and names a broker (itself, at least)."""
    ASKS_FOR_LOGIN = auto()
    """It tells which requests it knows, and answers none before a login."""
    SILENT = auto()
    """Nothing was said in time."""
    ABSENT = auto()
    """Nobody is there, or none that speaks Kafka's protocol."""


def presence(
    bootstrap: str,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
) -> Presence:
    """What is at HOST:PORT. Raises LoginRefused."""
    try:
        answer = _ask(
            bootstrap, METADATA, metadata_request([], may_create=False), timeout_s, tls, login
        )
        answer.number(4)  # throttle time
        return Presence.ANSWERS if answer.count() else Presence.ABSENT
    except ConnectionLost as lost:
        if isinstance(lost.__cause__, TimeoutError):
            return Presence.SILENT
    except ValueError:
        return Presence.ABSENT
    try:
        if _ask(bootstrap, API_VERSIONS, b"", timeout_s, tls, None).number(2) == _NONE:
            return Presence.ASKS_FOR_LOGIN
    except ConnectionLost:
        pass
    return Presence.ABSENT


def database_answers(
    bootstrap: str,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
) -> bool:
    """Whether the broker at HOST:PORT has just read something from its database. Raises
    LoginRefused."""
    try:
        answer = _ask(bootstrap, DESCRIBE_TRANSACTIONS, _ONE_ID, timeout_s, tls, login)
        *_, error_code = _STATE.unpack(answer.take(_STATE.size))
    except (ConnectionLost, ValueError):
        return False
    return error_code in {_NONE, _TRANSACTIONAL_ID_NOT_FOUND}


def any_certificate() -> ssl.SSLContext:
    """For TLS with whoever is there: nothing is told that is a secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _ask(
    bootstrap: str,
    api: Api,
    body: bytes,
    timeout_s: float,
    tls: ssl.SSLContext | None,
    login: Login | None,
) -> ResponseBody:
    host, _, port = bootstrap.rpartition(":")
    with Connection((host.strip("[]"), int(port)), timeout_s, tls, login) as connection:
        return connection.ask(api, body)
