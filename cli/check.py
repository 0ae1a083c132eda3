"""Is a broker there, and its database: one request each over a socket, for health checks.

Knows no client library (a health check runs every few seconds and should cost nothing) and
nothing of the server.
"""

from __future__ import annotations

import ssl
import struct
from typing import TYPE_CHECKING, Final

from penstock.connection import METADATA, Connection, ConnectionLost, metadata_request

if TYPE_CHECKING:
    from penstock.connecting import Login

API_VERSIONS: Final = 18, 0
# Flexible: tags after the header. A broker reads it from the database, as one row at most.
DESCRIBE_TRANSACTIONS: Final = 65, 0
_ONE_ID: Final = b"\0" + b"\2\7check?" + b"\0"
_STATE: Final = struct.Struct(">bibh")  # tags, throttle time, states plus one, the error
_NONE, _TRANSACTIONAL_ID_NOT_FOUND = 0, 105


def broker_answers(
    bootstrap: str,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
) -> bool:
    """Whether HOST:PORT answers Metadata and names a broker (itself, at least). Raises
    LoginRefused."""
    try:
        with _connected(bootstrap, timeout_s, tls, login) as connection:
            answer = connection.ask(METADATA, metadata_request([], may_create=False))
            answer.number(4)  # throttle time
            return len(answer.count()) > 0
    except (ConnectionLost, ValueError):
        return False


def asks_for_login(bootstrap: str, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Whether HOST:PORT tells which requests it knows, and answers none before a login."""
    if broker_answers(bootstrap, timeout_s=timeout_s, tls=tls):
        return False
    try:
        with _connected(bootstrap, timeout_s, tls, None) as connection:
            return connection.ask(API_VERSIONS, b"").number(2) == _NONE
    except (ConnectionLost, ValueError):
        return False


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
        with _connected(bootstrap, timeout_s, tls, login) as connection:
            answer = connection.ask(DESCRIBE_TRANSACTIONS, _ONE_ID)
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


def _connected(
    bootstrap: str, timeout_s: float, tls: ssl.SSLContext | None, login: Login | None
) -> Connection:
    host, _, port = bootstrap.rpartition(":")
    return Connection((host.strip("[]"), int(port)), timeout_s, tls, login)
