"""A listener that asks who comes, on real sockets, and a client that behaves as is wanted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from core.security.credentials import Credential, CredentialChanges
from core.security.verifier import ScramMechanism, Verifier
from gateway.kafka.api import load_handlers
from gateway.kafka.codec import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    decode_message,
    encode_message,
    request_class,
)
from gateway.kafka.connection import ConnectionLimits, KafkaFrontEnd
from gateway.kafka.login import Door
from gateway.listener import Listener
from gateway.request_memory import RequestMemory
from gateway.runtime.bearer_tokens import BearerTokens
from storage.users import UserStore
from tests.captures.record import body_of_response, response_class
from tests.core.security.exchanges import Client as ScramClient
from tests.gateway.kafka.handlers.conftest import Broker

QUICK = {
    "connection.failed.authentication.delay.ms": "0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
}
LIMITS = ConnectionLimits()
SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = Verifier.of_password(SHA_256, b"salt of alice", 4096, "wonderland")
INVALID = b'{"status":"invalid_token"}'
WRONG = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism "
)


@dataclass
class Entrance:
    """The listener, and what it has counted."""

    broker: Broker
    listener: Listener
    door: Door
    counted: list[tuple[str, str]] = field(default_factory=list)

    async def put(self, *users: tuple[str, Verifier]) -> None:
        """As another broker would: this one has to notice."""
        store = UserStore(self.broker.database)
        await store.alter([], lambda _: CredentialChanges(upserts=users))

    async def put_and_know(self, *users: tuple[str, Verifier]) -> None:
        """The same, and it has noticed."""
        await self.put(*users)
        await self.broker.users.refresh()

    async def delete(self, *credentials: Credential) -> None:
        store = UserStore(self.broker.database)
        await store.alter([], lambda _: CredentialChanges(deletions=credentials))


@asynccontextmanager
async def entrance(
    broker: Broker, limits: ConnectionLimits = LIMITS, bearers: BearerTokens | None = None
) -> AsyncIterator[Entrance]:
    """One with alice in its database; it keeps up with changes. bearers: what checks tokens."""
    counted: list[tuple[str, str]] = []
    memory = RequestMemory(limits)
    door = Door(
        "SECURE",
        broker.users,
        broker.delegation_tokens,
        broker.configs,
        lambda *each: counted.append(each),
        bearers,
    )
    front_end = KafkaFrontEnd(load_handlers(), broker.services(), limits, memory, door=door)
    listener = Listener(front_end, "127.0.0.1", 0, limits)
    await listener.start()
    made = Entrance(broker, listener, door, counted)
    await made.put(("alice", ALICE))
    following = asyncio.create_task(broker.users.run())
    try:
        yield made
    finally:
        await listener.shutdown(5)
        await front_end.drain(5)
        following.cancel()
        await broker.users.close()
        assert memory.held_bytes == 0
        assert not door._inside


class Peer:
    """A connection. `ask` sends a request and reads its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.correlation_id = 0

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self) -> bytes:
        async with asyncio.timeout(30):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def ask(self, request: Any, version: int) -> Any:
        self.correlation_id += 1
        key = request.API_KEY
        self.send(framed(request, version, self.correlation_id))
        frame = await self.receive()
        assert struct.unpack_from(">i", frame) == (self.correlation_id,)
        body = body_of_response(key, version)
        return decode_message(response_class(key), version, memoryview(frame), body)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(30):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def handshake(self, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> Any:
        return await self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    async def token(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    async def versions(self) -> Any:
        request = ApiVersionsRequest(client_software_name="me", client_software_version="1")
        return await self.ask(request, 3)

    async def metadata(self) -> Any:
        return await self.ask(MetadataRequest(topics=[]), 9)

    async def scram(
        self,
        user: str = "alice",
        password: str = "wonderland",
        mechanism: str = "SCRAM-SHA-256",
        **how: Any,
    ) -> Any:
        """The last answer of a login by SCRAM that begins with the handshake."""
        assert (await self.handshake(mechanism)).error_code == 0
        client = ScramClient(mechanism, user, password, **how)
        challenge = await self.token(client.first())
        if challenge.error_code:
            return challenge
        assert challenge.session_lifetime_ms == 0
        answer = await self.token(client.final(bytes(challenge.auth_bytes)))
        assert answer.error_code or client.believes(bytes(answer.auth_bytes))
        return answer

    async def bearer(self, token: str, as_whom: str = "") -> Any:
        """The last answer to a login by OAUTHBEARER that begins with the handshake."""
        assert (await self.handshake("OAUTHBEARER")).error_code == 0
        name = f"a={as_whom}" if as_whom else ""
        answer = await self.token(f"n,{name},\x01auth=Bearer {token}\x01\x01".encode())
        if answer.auth_bytes:
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, INVALID)
            answer = await self.token(b"\x01")
        return answer

    async def plain(
        self, user: str = "alice", password: str = "wonderland", as_whom: str = ""
    ) -> Any:
        """The answer to a login by PLAIN that begins with the handshake."""
        assert (await self.handshake("PLAIN")).error_code == 0
        return await self.token("\0".join((as_whom, user, password)).encode())


@asynccontextmanager
async def peer(at: Entrance) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", at.listener.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def framed(request: Any, version: int, correlation_id: int) -> bytes:
    """Header and body, without the size."""
    key = request.API_KEY
    header = struct.pack(">hhih", key, version, correlation_id, -1)
    flexible = b"\0" if request_class(key).flexible_version_q(version) else b""
    return header + flexible + b"".join(map(bytes, encode_message(request, version)))


def refusals(logs: Sequence[Any]) -> list[tuple[str | None, str]]:
    """Of logins, as they were logged: the user and the reason."""
    return [(each["user"], each["reason"]) for each in logs if each["event"] == "login_refused"]
