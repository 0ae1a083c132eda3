"""Conversations with a Pulsar connection, without a socket: commands in, commands out.

The runtime and its database are real; the transport is not. Must not know what a test is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from google.protobuf.message import Message

from gateway.framing import Framer, make_scratch
from gateway.pulsar.commands import Buffer, Command, CommandType
from gateway.pulsar.commands_pb2 import (
    CommandConnect,
    CommandProducer,
    CommandSend,
    FeatureFlags,
    MessageMetadata,
)
from gateway.pulsar.connection import PulsarConnection, PulsarFrontEnd
from gateway.pulsar.entries import encode_entry
from gateway.pulsar.framing import encode_entry_frame, encode_frame, parse_frame

WITHIN_S = 20.0
T0 = 1_700_000_000_000
CONNECT = CommandConnect(client_version="test", protocol_version=21, feature_flags=FeatureFlags())


class Transport:
    """Collects what is written. is_full: whether the client takes nothing."""

    def __init__(self, protocol: PulsarConnection, port: int) -> None:
        self._protocol = protocol
        self._port = port
        self._framer = Framer(2**31 - 1, make_scratch())
        self.commands: list[Command] = []
        self.entries: list[memoryview | None] = []
        self.arrived = asyncio.Event()
        self.is_reading = True
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", self._port) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: Buffer) -> None:
        assert not self.is_closed
        for frame in self._framer.feed(memoryview(data)):
            command, entry = parse_frame(frame)
            self.commands.append(command)
            self.entries.append(entry)
        self.arrived.set()

    def writelines(self, pieces: list[Buffer]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.arrived.set()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close


class Conversation:
    """One client's. What it has not looked at yet is in `transport.commands`."""

    def __init__(self, front_end: PulsarFrontEnd, port: int = 1) -> None:
        self.front_end = front_end
        self.has_ended = asyncio.Event()
        self.connection: PulsarConnection = front_end.connection(self.has_ended.set)
        self.transport = Transport(self.connection, port)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self._request_ids = iter(range(1, 2**31))

    def feed(self, data: Buffer) -> None:
        """Bytes of the client's, in pieces as large as are read at a time."""
        view = memoryview(data)
        while view and not self.transport.is_closed:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self.connection.buffer_updated(size)
            view = view[size:]

    def say(self, message: Message) -> None:
        """A command without an entry."""
        self.feed(encode_frame(message))

    def send(self, entry: Buffer, **send: Any) -> None:
        """A SEND of producer 0, unless another is said."""
        command = CommandSend(**{"producer_id": 0, "sequence_id": 0, "num_messages": 1, **send})
        self.feed(b"".join(encode_entry_frame(command, entry)))

    async def hear(self, command_type: CommandType) -> Any:
        """The next command, which must be of this type."""
        await asyncio.wait_for(self._some(), WITHIN_S)
        command = self.transport.commands.pop(0)
        self.transport.entries.pop(0)
        assert command.type is command_type, command
        return command.message

    async def _some(self) -> None:
        while not self.transport.commands:
            assert not self.transport.is_closed, "the connection was closed"
            self.transport.arrived.clear()
            await self.transport.arrived.wait()

    async def ask(self, message: Any, answer: CommandType) -> Any:
        """The answer to a request, whose id is put into it."""
        message.request_id = next(self._request_ids)
        self.say(message)
        heard = await self.hear(answer)
        assert heard.request_id == message.request_id
        return heard

    async def connect(self) -> Conversation:
        """CONNECT, and its answer."""
        self.say(CONNECT)
        await self.hear(CommandType.CONNECTED)
        return self

    async def produce_to(self, topic: str, **producer: Any) -> Any:
        """PRODUCER, of id 0 unless another is said, and its success."""
        wanted = CommandProducer(**{"topic": topic, "producer_id": 0, **producer})
        return await self.ask(wanted, CommandType.PRODUCER_SUCCESS)

    async def ended(self) -> None:
        """Returns once the broker has closed the connection."""
        await asyncio.wait_for(self.has_ended.wait(), WITHIN_S)


def entry_of(payload: Buffer = b"payload", **metadata: Any) -> bytes:
    """An entry as clients send it."""
    wanted: dict[str, Any] = {"producer_name": "p", "sequence_id": 0, "publish_time": T0}
    return encode_entry(MessageMetadata(**(wanted | metadata)), payload)


Converse = Callable[..., Conversation]
