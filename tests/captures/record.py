"""A recording proxy between Kafka clients and a broker; keeps one exchange per API and version.

Knows sizes, the first fields of a request header and kafka-python's message classes; must not
know what any message means, nor change a byte of it. How to use it: README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from gateway.kafka import codec

CAPTURES = Path(__file__).with_name("kafka")
PREFERRED_SIZE = 2048  # bytes of both messages: among equals the largest below it is kept
FIXED_HEADER = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its response, as frames without their size. `client` is who asked."""

    api_key: int
    api_version: int
    client: str
    request: bytes
    response: bytes

    @property
    def message(self) -> Any:
        return codec.request_class(self.api_key)


@dataclass(slots=True)
class Connection:
    """What is known of one client connection; requests without an answer yet, in order."""

    client: str = ""
    waiting: list[bytes] = field(default_factory=list)


def response_class(api_key: int) -> Any:
    """The response message of API `api_key`."""
    return getattr(codec, codec.request_class(api_key).name.replace("Request", "Response"))


def body_of_response(api_key: int, version: int) -> int:
    """Where the body begins after the response header (ApiVersions keeps header v0, KIP-511)."""
    message = codec.request_class(api_key)
    flexible = message.flexible_version_q(version) and api_key != codec.API_VERSIONS_KEY
    return 5 if flexible else 4


def described(message: Any) -> Any:
    """A decoded message as JSON-ready values: what a person reads, and the tests compare."""
    if hasattr(message, "to_dict"):
        message = message.to_dict(json=False)
    if isinstance(message, dict):
        return {
            # kafka-python reads "operations not asked for" (only bit 31 set) as None
            name: 1 << 31
            if value is None and name.endswith("authorized_operations")
            else described(value)
            for name, value in message.items()
        }
    if isinstance(message, list | tuple):
        return [described(value) for value in message]
    if isinstance(message, set):  # kafka-python reads a bit field as the set of its bits
        return sum(1 << bit for bit in message)
    if isinstance(message, bytes | bytearray | memoryview):
        return {"hex": bytes(message).hex()}
    if message is None or isinstance(message, bool | int | float | str):
        return message
    return str(message)  # a topic id


def describe_request(frame: bytes) -> Any:
    header = codec.decode_header(memoryview(frame))
    message = codec.request_class(header.api_key)
    return described(message.decode(frame[header.body :], version=header.api_version))


def read_response(api_key: int, version: int, frame: bytes) -> Any:
    body = frame[body_of_response(api_key, version) :]
    return response_class(api_key).decode(body, version=version)


def describe_response(api_key: int, version: int, frame: bytes) -> Any:
    return described(read_response(api_key, version, frame))


def failed(description: Any) -> bool:
    """Whether a described response carries an error code anywhere."""
    if isinstance(description, dict):
        return any(
            (name.endswith("error_code") and value != 0) or failed(value)
            for name, value in description.items()
        )
    return isinstance(description, list) and any(map(failed, description))


class Recorder:
    """Relays connections to the broker and keeps the best exchange of each API and version."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.best: dict[tuple[int, int], Exchange] = {}
        self.connections: set[asyncio.Task[None]] = set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client connection until either side closes."""
        broker_reader, broker_writer = await asyncio.open_connection(self.host, self.port)
        connection = Connection()
        tasks = [
            asyncio.create_task(self.requests(reader, broker_writer, connection)),
            asyncio.create_task(self.responses(broker_reader, writer, connection)),
        ]
        self.connections.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for closing in (writer, broker_writer):
            closing.close()
        with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            await asyncio.gather(*tasks)
        self.connections.difference_update(tasks)

    async def requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        while True:
            frame = await self.pass_on(reader, writer)
            key, version, _, _ = FIXED_HEADER.unpack_from(frame)
            if key == codec.API_VERSIONS_KEY and version >= 3:
                with contextlib.suppress(codec.MalformedRequest, ValueError):
                    asked = describe_request(frame)
                    connection.client = (
                        f"{asked['client_software_name']} {asked['client_software_version']}"
                    )
            if key != codec.ProduceRequest.API_KEY or wants_answer(frame):
                connection.waiting.append(frame)

    async def responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        while True:
            response = await self.pass_on(reader, writer)
            request = connection.waiting.pop(0)
            if request[4:8] != response[:4]:
                raise ValueError("a response out of order: the correlation ids differ")
            key, version, _, length = FIXED_HEADER.unpack_from(request)
            client_id = request[10 : 10 + max(length, 0)].decode()
            if client_id.startswith("aiokafka"):  # never names its software in ApiVersions
                client_id = f"aiokafka {installed('aiokafka')}"
            named = client_id.startswith("encoder") or not connection.client
            client = client_id if named else connection.client
            self.keep(Exchange(key, version, client, request, response))

    @staticmethod
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        size = await reader.readexactly(4)
        frame = await reader.readexactly(int.from_bytes(size, "big"))
        writer.write(size + frame)
        await writer.drain()
        return frame

    def keep(self, found: Exchange) -> None:
        try:
            codec.request_class(found.api_key)
        except ValueError:
            return  # an API that the gateway does not speak
        known = self.best.get((found.api_key, found.api_version))
        if known is None or rank(found) > rank(known):
            self.best[found.api_key, found.api_version] = found


def rank(exchange: Exchange) -> tuple[int, ...]:
    """Greater is better: a stock client, no error, small enough, and then as much as possible."""
    size = len(exchange.request) + len(exchange.response)
    good = not failed(describe_response(exchange.api_key, exchange.api_version, exchange.response))
    small = size <= PREFERRED_SIZE
    stock = not exchange.client.startswith("encoder")
    return (stock, good, small, size if small else -size)


def wants_answer(produce: bytes) -> bool:
    """False for a Produce with acks=0."""
    return bool(describe_request(produce)["acks"])


def folder_of(api_key: int) -> Path:
    """`22_init_producer_id`, below the captures."""
    name = str(codec.request_class(api_key).name).removesuffix("Request")
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return CAPTURES / f"{api_key:02}_{snake}"


def origins(folder: Path) -> dict[int, str]:
    """The lines of ORIGIN by version: `v5: client -> broker`."""
    lines = (folder / "ORIGIN").read_text().splitlines() if (folder / "ORIGIN").exists() else []
    return {
        int(version[1:]): origin for version, _, origin in (line.partition(": ") for line in lines)
    }


def store(exchange: Exchange, broker: str, replace: bool) -> bool:
    """Write the four files and the line in ORIGIN; False if this version was there already."""
    folder = folder_of(exchange.api_key)
    known = origins(folder)
    version = exchange.api_version
    if version in known and not replace:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    asked = describe_request(exchange.request)
    answered = describe_response(exchange.api_key, version, exchange.response)
    for name, frame, description in (
        (f"v{version}_request", exchange.request, asked),
        (f"v{version}_response", exchange.response, answered),
    ):
        (folder / f"{name}.bin").write_bytes(frame)
        (folder / f"{name}.json").write_text(json.dumps(description, indent=1) + "\n")
    known[version] = f"{exchange.client} -> {broker}"
    lines = [f"v{known_version}: {origin}\n" for known_version, origin in sorted(known.items())]
    (folder / "ORIGIN").write_text("".join(lines))
    return True


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def record(arguments: argparse.Namespace) -> int:
    """Run the command with the proxy in front of the broker, then store what was best."""
    recorder = Recorder(*address(arguments.broker))
    server = await asyncio.start_server(recorder.relay, *address(arguments.listen))
    async with server:
        environment = {**os.environ, "PENSTOCK_TEST_BOOTSTRAP": arguments.listen}
        command = await asyncio.create_subprocess_exec(*arguments.command, env=environment)
        code = await command.wait()
        for task in recorder.connections:
            task.cancel()
    stored = [
        exchange
        for _, exchange in sorted(recorder.best.items())
        if store(exchange, arguments.broker_name, arguments.replace)
    ]
    sys.stdout.writelines(summary(stored))
    return code


def summary(stored: list[Exchange]) -> Iterator[str]:
    yield f"{len(stored)} captures stored\n"
    for exchange in stored:
        size = f"{len(exchange.request)} + {len(exchange.response)} bytes"
        yield f"{exchange.message.name} v{exchange.api_version}: {exchange.client}, {size}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, help="HOST:PORT, as the broker advertises it")
    parser.add_argument("--broker", required=True, help="HOST:PORT where the broker really is")
    parser.add_argument("--broker-name", required=True, help='for ORIGIN: "Apache Kafka 4.1.1"')
    parser.add_argument("--replace", action="store_true", help="also what is captured already")
    parser.add_argument("command", nargs="+", help="the client, after --")
    return asyncio.run(record(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
