"""Is a broker there, and its database: one request each over a socket, for health checks.

Knows no client library (a health check runs every few seconds and should cost nothing) and
nothing of the server.
"""

import socket
import ssl
import struct

# Metadata v1: size, key 3, version 1, correlation id 7, no client id, no topics.
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)
_ANSWER = struct.Struct(">iii")
# DescribeTransactions v0 (flexible): key 65, version 0, correlation id 7, no client id, one id. A
# broker reads it from the database for each request, as one row at most.
_READ_REQUEST = struct.pack(">ihhihbb8sb", 21, 65, 0, 7, -1, 0, 2, b"\x07check?", 0)
# Size, correlation id, tags, throttle time, number of states plus one, and the state's error code.
_READ_ANSWER = struct.Struct(">iibibh")
_NONE, _TRANSACTIONAL_ID_NOT_FOUND = 0, 105


def broker_answers(bootstrap: str, *, timeout_s: float, tls: bool = False) -> bool:
    """Whether HOST:PORT answers Metadata and names a broker (itself, at least).

    tls: by TLS, whatever the certificate is: nothing is told to the broker.
    """
    try:
        answer = _asked(bootstrap, _METADATA_REQUEST, _ANSWER.size, timeout_s, tls)
    except (OSError, ValueError):
        return False
    correlation_id: int
    brokers: int
    _, correlation_id, brokers = _ANSWER.unpack(answer)
    return correlation_id == 7 and brokers > 0


def database_answers(bootstrap: str, *, timeout_s: float, tls: bool = False) -> bool:
    """Whether the broker at HOST:PORT has just read something from its database."""
    try:
        answer = _asked(bootstrap, _READ_REQUEST, _READ_ANSWER.size, timeout_s, tls)
    except (OSError, ValueError):
        return False
    *_, error_code = _READ_ANSWER.unpack(answer)
    return error_code in {_NONE, _TRANSACTIONAL_ID_NOT_FOUND}


def _asked(bootstrap: str, request: bytes, wanted: int, timeout_s: float, tls: bool) -> bytes:
    """The first bytes of the answer. Raises OSError or ValueError where there is none in time."""
    host, _, port = bootstrap.rpartition(":")
    with _connected(host.strip("[]"), int(port), timeout_s, tls) as peer:
        peer.sendall(request)
        answer = b""
        while len(answer) < wanted:
            part = peer.recv(wanted - len(answer))
            if not part:
                raise ConnectionError("the connection was closed")
            answer += part
    return answer


def _connected(host: str, port: int, timeout_s: float, tls: bool) -> socket.socket:
    peer = socket.create_connection((host, port), timeout=timeout_s)
    if not tls:
        return peer
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(peer, server_hostname=host or None)
    except BaseException:
        peer.close()
        raise
