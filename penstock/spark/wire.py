"""The few messages of Kafka's protocol that the sink speaks, and one blocking connection.

Knows bytes and sockets; must not know Spark, Arrow, when to try again or where. StageRecords,
PublishStaged and DropStaged are Penstock's own, which its gateways serve and never list; the others
are Kafka's.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from penstock.login import LoginFailed, exchange

if TYPE_CHECKING:
    from penstock.connecting import Login
    from penstock.spark.batches import Batch


CLIENT_ID: Final = "penstock-spark"

METADATA: Final = 3, 4
SASL_HANDSHAKE: Final = 17, 1
DESCRIBE_CONFIGS: Final = 32, 1
SASL_AUTHENTICATE: Final = 36, 1
STAGE_RECORDS: Final = 10_000, 0
PUBLISH_STAGED: Final = 10_001, 0
DROP_STAGED: Final = 10_002, 0

Api = tuple[int, int]
Address = tuple[str, int]
Buffer = bytes | memoryview

_TOPIC_RESOURCE: Final = 2
_RENEWED_AFTER: Final = 0.8  # of a login's time
_MAX_ANSWER: Final = 100 * 1024 * 1024


# --- errors ---

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
MESSAGE_TOO_LARGE: Final = 10
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
THROTTLING_QUOTA_EXCEEDED: Final = 89
RESOURCE_NOT_FOUND: Final = 91

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


# --- answers ---


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Metadata tells. partitions: how many each topic has, or why it has none."""

    brokers: list[Address]
    partitions: dict[str, int | Refused]


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """staged: batches that the token holds, -1 if that is not known."""

    refusal: Refused | None
    staged: int


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """What one partition got."""

    topic: str
    index: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """is_new: published by this very request; else it, or a later batch, had been before.
    highest: the last batch of this query and sink that is published by now."""

    is_new: bool
    highest: int
    partitions: list[PublishedPartition]


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


# --- requests ---


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0x7FFF:
        raise ValueError("a string of the protocol has at most 32,767 bytes")
    return len(data).to_bytes(2, "big") + data


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def metadata_request(topics: Iterable[str], *, may_create: bool) -> bytes:
    names = [_string(topic) for topic in topics]
    return _number(len(names), 4) + b"".join(names) + bytes([may_create])


def read_metadata(answer: ResponseBody) -> Cluster:
    answer.number(4)  # throttle time
    brokers = []
    for _ in answer.count():
        answer.number(4)
        brokers.append((answer.text(), answer.number(4)))
        answer.string()  # rack
    answer.string()  # cluster id
    answer.number(4)  # controller
    partitions: dict[str, int | Refused] = {}
    for _ in answer.count():
        code, name = answer.number(2), answer.text()
        answer.number(1)  # whether it is internal
        count = 0
        for _ in answer.count():
            count += 1
            answer.take(2 + 4 + 4)  # error, index, leader
            for _ in range(2):  # replicas, in-sync replicas
                answer.take(4 * len(answer.count()))
        partitions[name] = Refused(code) if code else count
    return Cluster(brokers, partitions)


def describe_configs_request(topics: Sequence[str], name: str) -> bytes:
    """Asks for one setting of topics."""
    each = [_number(_TOPIC_RESOURCE, 1) + _string(topic) for topic in topics]
    wanted = _number(1, 4) + _string(name)
    return _number(len(each), 4) + b"".join(one + wanted for one in each) + b"\0"


def read_configs(answer: ResponseBody) -> dict[str, str | None]:
    """The setting's value, by topic; topics that were refused are left out."""
    answer.number(4)  # throttle time
    values: dict[str, str | None] = {}
    for _ in answer.count():
        answer.refusal()
        answer.number(1)
        topic = answer.text()
        for _ in answer.count():
            answer.string()
            values[topic] = answer.string()
            answer.take(1 + 1 + 1)  # read-only, source, sensitive
            for _ in answer.count():  # synonyms
                answer.string()
                answer.string()
                answer.number(1)
    return values


def stage_request(
    token: UUID, first_batch: int, batches: Sequence[tuple[str, int, Batch]]
) -> list[Buffer]:
    """Stages batches, each for a topic and a partition. first_batch: how many went before."""
    head = token.bytes + _number(first_batch, 4) + _number(len(batches), 4)
    pieces: list[Buffer] = [head]
    for topic, index, batch in batches:
        place = _string(topic) + _number(index, 4) + _number(batch.size, 4)
        pieces += place + batch.header, batch.body
    return pieces


def read_stage(answer: ResponseBody) -> StageAnswer:
    return StageAnswer(answer.refusal(), answer.number(4))


def publish_request(
    query_id: str, sink: str, batch_id: int, tokens: Sequence[tuple[UUID, int]], timeout_ms: int
) -> bytes:
    """tokens: each with how many batches it holds."""
    each = [token.bytes + _number(batches, 4) for token, batches in tokens]
    head = _string(query_id) + _string(sink) + _number(batch_id, 8) + _number(len(each), 4)
    return head + b"".join(each) + _number(timeout_ms, 4)


def read_publish(answer: ResponseBody) -> PublishAnswer:
    if refusal := answer.refusal():
        raise refusal
    is_new = answer.number(1) == 1
    return PublishAnswer(
        is_new,
        answer.number(8),
        [
            PublishedPartition(answer.text(), answer.number(4), answer.number(8), answer.number(8))
            for _ in answer.count()
        ],
    )


def drop_request(tokens: Sequence[UUID]) -> bytes:
    return _number(len(tokens), 4) + b"".join(token.bytes for token in tokens)


def read_drop(answer: ResponseBody) -> None:
    if refusal := answer.refusal():
        raise refusal


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
        client_id: str | None = CLIENT_ID,
    ) -> None:
        self.address = address
        self._client_id = _number(-1, 2) if client_id is None else _string(client_id)
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
            _read_handshake(self.ask(SASL_HANDSHAKE, _string(login.mechanism)))
            tokens, answer, lifetime_ms = exchange(login), None, 0
            with suppress(StopIteration):
                while True:
                    token = next(tokens) if answer is None else tokens.send(answer)
                    asked = self.ask(SASL_AUTHENTICATE, _number(len(token), 4) + token)
                    answer, lifetime_ms = _read_authenticate(asked)
        except (Refused, LoginFailed) as no:
            raise LoginRefused(
                f"{shown(self.address)} does not let '{login.user}' in: {no}"
            ) from no
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
            self._socket.sendall(b"".join((_number(size, 4), header, *pieces)))
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
    """Why nobody logs in so, in a sentence; None where one of these lets them in, or none can be
    asked. For clients of kafka-python, which does not tell (3.0.12): it tries again and again."""
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
