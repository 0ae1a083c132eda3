"""The five requests that tests' fixtures make: topics and groups are listed, made, deleted.

By hand, in the oldest versions that Kafka 4 has: a client library would be imported into every test
run, with its warnings. Must not know what the topics are for.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self, TypeVar

Item = TypeVar("Item")

_TIMEOUT_S: Final = 30.0
_TIMEOUT_MS: Final = 30_000
_CLIENT_ID: Final = "penstock.testing"


class RequestRefused(Exception):
    """The broker said no; the text has Kafka's error code and the broker's sentence."""


class Connection:
    """One connection to a broker, one request after the other."""

    def __init__(self, bootstrap: str) -> None:
        """Connects. Raises OSError."""
        host, _, port = bootstrap.rpartition(":")
        self._peer = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def topics(self) -> set[str]:
        """Names of all topics (Metadata, version 1)."""
        answer = self._ask(3, 1, struct.pack(">i", -1))
        answer.array(
            lambda: (answer.integer("i"), answer.text(), answer.integer("i"), answer.text())
        )
        answer.integer("i")
        return set(answer.array(lambda: _topic_name(answer)))

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """CreateTopics, version 2. Raises RequestRefused."""
        settings = b"".join(_text(key) + _text(value) for key, value in config.items())
        topic = _text(name) + struct.pack(">ihii", partitions, 1, 0, len(config)) + settings
        body = struct.pack(">i", 1) + topic + struct.pack(">i?", _TIMEOUT_MS, False)
        answer = self._ask(19, 2, body)
        answer.integer("i")
        answer.array(lambda: _refused(answer.text(), answer.integer("h"), answer.text()))

    def delete_topics(self, names: Iterable[str]) -> None:
        """DeleteTopics, version 1; those that are gone already are no matter."""
        if wanted := list(names):
            self._ask(20, 1, _texts(wanted) + struct.pack(">i", _TIMEOUT_MS))

    def groups(self) -> set[str]:
        """Ids of all groups (ListGroups, version 0)."""
        answer = self._ask(16, 0, b"")
        answer.integer("h")
        return {group for group, _ in answer.array(lambda: (answer.text(), answer.text()))}

    def delete_groups(self, ids: Iterable[str]) -> None:
        """DeleteGroups, version 0; those that have members stay."""
        if wanted := list(ids):
            self._ask(42, 0, _texts(wanted))

    def _ask(self, key: int, version: int, body: bytes) -> _ResponseBody:
        request = struct.pack(">hhi", key, version, 1) + _text(_CLIENT_ID) + body
        self._peer.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        return _ResponseBody(self._receive(size)[4:])

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._peer.recv(size - len(received))
            if not part:
                raise ConnectionError("The broker closed the connection.")
            received += part
        return received


class _ResponseBody:
    """The body of an answer, read from its beginning."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def integer(self, kind: str) -> int:
        """kind: of the struct module."""
        (number,) = struct.unpack_from(f">{kind}", self._body, self._at)
        self._at += struct.calcsize(kind)
        return int(number)

    def text(self) -> str:
        length = max(self.integer("h"), 0)
        self._at += length
        return self._body[self._at - length : self._at].decode()

    def array(self, item: Callable[[], Item]) -> list[Item]:
        return [item() for _ in range(self.integer("i"))]


def _topic_name(answer: _ResponseBody) -> str:
    answer.integer("h")
    name = answer.text()
    answer.integer("?")
    answer.array(lambda: _skip_partition(answer))
    return name


def _skip_partition(answer: _ResponseBody) -> None:
    for kind in "hii":
        answer.integer(kind)
    for _ in ("replicas", "in-sync replicas"):
        answer.array(lambda: answer.integer("i"))


def _refused(name: str, error_code: int, sentence: str) -> None:
    if error_code:
        raise RequestRefused(f"Topic {name} cannot be made (error {error_code}): {sentence}")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _texts(texts: list[str]) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(map(_text, texts))
