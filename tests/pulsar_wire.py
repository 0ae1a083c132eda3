"""A client of Pulsar's wire that says what it is told to, right or wrong, over a real socket.

For what stock clients cannot be brought to do: receipts of every acknowledgement, commands that
make no sense, bytes that are none. Must not know what a test is about.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from google.protobuf.message import Message

from gateway.pulsar.commands import Command, CommandType, LookupResult
from gateway.pulsar.commands_pb2 import (
    CommandConnect,
    CommandLookupTopic,
    CommandPing,
    CommandPong,
    CommandSend,
    FeatureFlags,
)
from gateway.pulsar.entries import Entry, messages, open_stored
from gateway.pulsar.framing import encode_entry_frame, encode_frame, parse_frame

WITHIN_S = 20.0
CONNECT = CommandConnect(client_version="test", protocol_version=21, feature_flags=FeatureFlags())


Result = TypeVar("Result")

_OPEN: set[Wire] = set()


def close_all() -> None:
    """Every connection of the running loop that is open still."""
    loop = asyncio.get_running_loop()
    for wire in list(_OPEN):
        if wire.loop is loop:
            wire.close()


async def closing_all(work: Awaitable[Result]) -> Result:
    """Does it, and closes what it has left open, before its loop ends."""
    try:
        return await work
    finally:
        close_all()
        await asyncio.sleep(0)


class Delivered(NamedTuple):
    """One message out of a MESSAGE. offset: its place in the partition's log, as Kafka counts."""

    offset: int
    value: bytes
    key: str


class Wire:
    """A connection. Commands that nobody has asked for are in `unasked`, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.request_ids = itertools.count(1)
        self.loop = asyncio.get_running_loop()
        _OPEN.add(self)

    @classmethod
    async def open(cls, port: int) -> Self:
        """A connection to a broker on this machine; nothing is said yet."""
        async with asyncio.timeout(WITHIN_S):
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    @classmethod
    async def connected(cls, port: int) -> Self:
        """One that has said CONNECT, and was answered."""
        made = await cls.open(port)
        made.say(CONNECT)
        await made.hear(CommandType.CONNECTED)
        return made

    def feed(self, data: bytes) -> None:
        """Any bytes."""
        self._writer.write(data)

    def say(self, message: Message) -> None:
        """A command without an entry."""
        self._writer.write(encode_frame(message))

    def send(self, entry: bytes, **send: Any) -> None:
        """A SEND of producer 0, unless another is said."""
        command = CommandSend(**{"producer_id": 0, "sequence_id": 0, "num_messages": 1, **send})
        self._writer.writelines(encode_entry_frame(command, entry))

    async def read(self) -> tuple[Command, memoryview | None]:
        """The next frame. Raises asyncio.IncompleteReadError or OSError at the end."""
        size = int.from_bytes(await self._reader.readexactly(4))
        return parse_frame(memoryview(await self._reader.readexactly(size)))

    async def hear(self, *types: CommandType, within_s: float = WITHIN_S) -> Any:
        """The next command of these types; others are passed over, and PING is answered."""
        async with asyncio.timeout(within_s):
            while True:
                command, _ = await self.read()
                if command.type in types:
                    return command.message
                if command.type is CommandType.PING:
                    self.say(CommandPong())

    async def ask(self, message: Any, *types: CommandType, within_s: float = WITHIN_S) -> Any:
        """The answer to a request, whose id is put into it."""
        message.request_id = next(self.request_ids)
        self.say(message)
        while True:
            heard = await self.hear(*types, within_s=within_s)
            if heard.request_id == message.request_id:
                return heard

    async def ping(self) -> None:
        """The broker is there, and answers."""
        self.say(CommandPing())
        await self.hear(CommandType.PONG)

    async def owner_of(self, topic: str) -> int | None:
        """The port of the broker that has the topic; None where it cannot be said now."""
        lookup = CommandLookupTopic(topic=topic)
        found = await self.ask(lookup, CommandType.LOOKUP_RESPONSE, within_s=5)
        if found.response != LookupResult.CONNECT:
            return None
        return urlsplit(found.broker_service_url).port

    async def drain(self) -> None:
        """Waits until what was said has gone, more or less."""
        await self._writer.drain()

    async def ended(self, within_s: float = WITHIN_S) -> list[CommandType]:
        """Waits until the broker closes the connection; what it said before."""
        heard = []
        async with asyncio.timeout(within_s):
            try:
                while True:
                    heard.append((await self.read())[0].type)
            except (asyncio.IncompleteReadError, OSError):
                return heard

    def stop_reading(self) -> None:
        """What comes stays in the system's buffers."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        """The opposite."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        """At once; what was not sent is lost."""
        _OPEN.discard(self)
        self._writer.transport.abort()


def delivered_by(entry_id: int, ack_set: Any, block: memoryview) -> list[Delivered]:
    """The messages of a MESSAGE that are not acknowledged yet."""
    entry = open_stored(bytes(block))
    words = [word & 0xFFFFFFFFFFFFFFFF for word in ack_set]
    return [
        Delivered(entry_id + index, bytes(message.payload), message.metadata.partition_key)
        for index, message in enumerate(messages(entry))
        if not words or _is_set(words, index)
    ]


def entry_of(block: memoryview) -> Entry:
    """What a MESSAGE delivers."""
    return open_stored(bytes(block))


def _is_set(words: list[int], bit: int) -> bool:
    return bit // 64 < len(words) and bool(words[bit // 64] >> bit % 64 & 1)
