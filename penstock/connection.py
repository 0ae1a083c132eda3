"""One blocking connection to a broker of Kafka's protocol, in plain text or by TLS, with a login.

For who needs a few requests and no client library: the sink, a health check, a login to try. Knows
bytes and sockets; must not know when to try again, or where. Its own messages are Metadata and the
two of SASL.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final, Self

from penstock.login import LoginFailed, exchange
from penstock.tokens import NoToken

if TYPE_CHECKING:
    from penstock.connecting import Login

METADATA: Final = 3, 4
SASL_HANDSHAKE: Final = 17, 1
SASL_AUTHENTICATE: Final = 36, 1

Api = tuple[int, int]
"""Key and version."""
Address = tuple[str, int]
Buffer = bytes | memoryview

_RENEWED_AFTER: Final = 0.8  # of a login's time
_MAX_ANSWER: Final = 100 * 1024 * 1024


# --- errors ---

_NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    10: "MESSAGE_TOO_LARGE",
    13: "NETWORK_EXCEPTION",
    17: "INVALID_TOPIC_EXCEPTION",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    29: "TOPIC_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    33: "UNSUPPORTED_SASL_MECHANISM",
    34: "ILLEGAL_SASL_STATE",
    35: "UNSUPPORTED_VERSION",
    42: "INVALID_REQUEST",
    44: "POLICY_VIOLATION",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    56: "KAFKA_STORAGE_ERROR",
    58: "SASL_AUTHENTICATION_FAILED",
    76: "UNSUPPORTED_COMPRESSION_TYPE",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
    91: "RESOURCE_NOT_FOUND",
}
_RETRIABLE: Final = frozenset({5, 6, 7, 13, 19, 20, 56, 89})


class ConnectionLost(OSError):
    """There is no connection, or it ended early: what came of the requests is unknown."""


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str | None = None) -> None:
        name = _NAMES.get(code, f"error {code}")
        super().__init__(f"{name}: {message}" if message else name)
        self.code = code

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may be answered otherwise a little later."""
        return self.code in _RETRIABLE


class LoginRefused(Exception):
    """Nobody is let in as whom the options say; trying again will not help."""


# --- messages ---


class ResponseBody:
    """The bytes of an answer, read one field after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise ConnectionLost("an answer is cut short: no Kafka protocol is spoken there")
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def string(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self.take(size).decode()

    def text(self) -> str:
        return self.string() or ""

    def count(self) -> range:
        """For each element of an array."""
        return range(max(self.number(4), 0))

    def refusal(self) -> Refused | None:
        code, message = self.number(2), self.string()
        return Refused(code, message) if code else None


def string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0x7FFF:
        raise ValueError("a string of the protocol has at most 32,767 bytes")
    return len(data).to_bytes(2, "big") + data


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def metadata_request(topics: Iterable[str], *, may_create: bool) -> bytes:
    names = [string(topic) for topic in topics]
    return number(len(names), 4) + b"".join(names) + bytes([may_create])


def _read_handshake(answer: ResponseBody) -> None:
    code, offered = answer.number(2), [answer.text() for _ in answer.count()]
    if code:
        raise Refused(code, f"it offers {', '.join(offered) or 'nothing'}")


def _read_authenticate(answer: ResponseBody) -> tuple[bytes, int]:
    """The broker's token, and how long the login counts (milliseconds, 0: for ever)."""
    if refusal := answer.refusal():
        raise refusal
    return answer.take(max(answer.number(4), 0)), answer.number(8)


# --- the connection ---


class Connection:
    """One blocking connection. timeout_s: for connecting, and for each step of an answer.

    Raises ConnectionLost, LoginRefused.
    """

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        *,
        client_id: str | None = None,
    ) -> None:
        self.address = address
        self._client_id = number(-1, 2) if client_id is None else string(client_id)
        try:
            self._socket = socket.create_connection(address, timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        except OSError as failed:  # ssl.SSLError is one
            raise ConnectionLost(f"cannot connect to {shown(address)}: {failed}") from failed
        self._sent = self._answered = 0
        self._login = login
        self._renew_at = inf  # by then the login has to be renewed
        if login is not None:
            try:
                self._log_in(login)
            except BaseException:
                self.close()
                raise

    def _log_in(self, login: Login) -> None:
        """Also once more, before the login's time is over (KIP-368)."""
        self._renew_at = inf
        began = time.monotonic()
        try:
            _read_handshake(self.ask(SASL_HANDSHAKE, string(login.mechanism)))
            tokens, answer, lifetime_ms = exchange(login), None, 0
            with suppress(StopIteration):
                while True:
                    token = next(tokens) if answer is None else tokens.send(answer)
                    asked = self.ask(SASL_AUTHENTICATE, number(len(token), 4) + token)
                    answer, lifetime_ms = _read_authenticate(asked)
        except (Refused, LoginFailed) as no:
            raise LoginRefused(
                f"{shown(self.address)} does not let '{login.user}' in: {no}"
            ) from no
        except ConnectionLost:
            raise
        except OSError as failed:
            raise ConnectionLost(f"there is no token to log in with: {failed}") from failed
        if lifetime_ms > 0:
            self._renew_at = began + _RENEWED_AFTER * lifetime_ms / 1000

    def send(self, api: Api, body: bytes | Sequence[Buffer]) -> None:
        """Sends a request, without waiting. Answers come in the order of the requests."""
        is_waiting = self._sent > self._answered
        if self._login is not None and not is_waiting and time.monotonic() > self._renew_at:
            try:
                self._log_in(self._login)
            except LoginRefused as refused:  # who connects again is told
                raise self._lost(refused) from refused
        pieces = [body] if isinstance(body, bytes) else body
        header = struct.pack(">hhi", *api, self._sent) + self._client_id
        size = len(header) + sum(map(len, pieces))
        try:
            self._socket.sendall(b"".join((number(size, 4), header, *pieces)))
        except OSError as failed:
            raise self._lost(failed) from failed
        self._sent += 1

    def receive(self) -> ResponseBody:
        """The next answer. Raises ConnectionLost, also when none comes in time."""
        size = int.from_bytes(self._take(4), "big", signed=True)
        if not 4 <= size <= _MAX_ANSWER:
            raise ConnectionLost(f"{shown(self.address)} does not speak Kafka's protocol")
        answer = ResponseBody(self._take(size))
        if answer.number(4) != self._answered:
            raise ConnectionLost(f"{shown(self.address)} mixes up its answers")
        self._answered += 1
        return answer

    def ask(self, api: Api, body: bytes) -> ResponseBody:
        """A request and its answer."""
        self.send(api, body)
        return self.receive()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            try:
                count = self._socket.recv_into(rest)
            except OSError as failed:
                raise self._lost(failed) from failed
            if not count:
                hint = "" if self._answered else " before any answer: does it want TLS, or a login?"
                raise self._lost(f"it was closed at the other end{hint}")
            rest = rest[count:]
        return bytes(data)

    def _lost(self, why: object) -> ConnectionLost:
        return ConnectionLost(f"lost the connection to {shown(self.address)}: {why}")


def why_not_let_in(
    addresses: Iterable[Address], timeout_s: float, tls: ssl.SSLContext | None, login: Login
) -> str | None:
    """Why nobody logs in so, in a sentence, by the first of these that can be asked; None where it
    lets them in, or none can be asked. For clients of kafka-python, which does not tell (3.0.12):
    it tries again and again, and where there is no token for ever."""
    if login.tokens is not None:
        try:
            login.tokens.token()
        except (NoToken, OSError) as no:
            return f"There is no token to log in with: {no}."
    for address in addresses:
        try:
            with Connection(address, timeout_s, tls, login):
                return None
        except LoginRefused as refused:
            return f"{refused}."
        except ConnectionLost:
            continue
    return None


def shown(address: Address) -> str:
    """An address as people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses_of(bootstrap_servers: str) -> list[Address]:
    """`host:port` with commas between. Raises ValueError, in a sentence."""
    found = []
    for server in filter(None, map(str.strip, bootstrap_servers.split(","))):
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"kafka.bootstrap.servers is host:port[,host:port…], not '{server}'.")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ValueError("kafka.bootstrap.servers names no server.")
    return found
