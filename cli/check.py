"""Is a broker there: one Metadata request over a socket, for health checks and waiting.

Knows no client library (a health check runs every few seconds and should cost nothing) and
nothing of the server.
"""

import socket
import ssl
import struct

# Metadata v1: size, key 3, version 1, correlation id 7, no client id, no topics.
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)
_ANSWER = struct.Struct(">iii")


def broker_answers(bootstrap: str, *, timeout_s: float, tls: bool = False) -> bool:
    """Whether HOST:PORT answers Metadata and names a broker (itself, at least).

    tls: by TLS, whatever the certificate is: nothing is told to the broker.
    """
    host, _, port = bootstrap.rpartition(":")
    try:
        with _connected(host.strip("[]"), int(port), timeout_s, tls) as peer:
            peer.sendall(_METADATA_REQUEST)
            answer = b""
            while len(answer) < _ANSWER.size:
                part = peer.recv(_ANSWER.size - len(answer))
                if not part:
                    return False
                answer += part
    except (OSError, ValueError):
        return False
    correlation_id: int
    brokers: int
    _, correlation_id, brokers = _ANSWER.unpack(answer)
    return correlation_id == 7 and brokers > 0


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
