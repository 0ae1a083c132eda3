"""A client that logs in and asks, and does little else: the broker is what is measured.

A stock client costs more than what a broker does for its login. Passwords are salted once, not at
each login. Runs inside a client process (`bench.worker`); must not know brokers, cases or what is
compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import cache
from typing import cast
from uuid import uuid4

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36  # v1 of each
AUTHENTICATION_FAILED = 58


class LoginFailed(RuntimeError):
    """A broker's error, or a broker that does not know the password itself."""


def framed(api_key: int, version: int, body: bytes) -> bytes:
    """A request with its size and a header of version 1."""
    header = struct.pack(">hhih5s", api_key, version, 7, 5, b"bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


@cache
def handshake(mechanism: str) -> bytes:
    name = mechanism.encode()
    return framed(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)


def token(text: bytes) -> bytes:
    """A SaslAuthenticate with what the mechanism has to say."""
    return framed(SASL_AUTHENTICATE, 1, struct.pack(">i", len(text)) + text)


def read_token(answer: bytes) -> tuple[int, bytes]:
    """Error code and token of a SaslAuthenticate's answer, given from the correlation id on."""
    error, length = struct.unpack_from(">hh", answer, 4)
    place = 8 + max(length, 0)  # behind the message
    size = int.from_bytes(answer[place : place + 4], "big")
    return error, answer[place + 4 : place + 4 + size]


@dataclass(frozen=True, slots=True)
class _Keys:
    client: bytes
    stored: bytes
    server: bytes


@dataclass(slots=True)
class ScramUser:
    """Who logs in by SCRAM (RFC 5802). user: without a comma or an equals sign."""

    mechanism: str
    user: str
    password: str
    _keys: dict[tuple[str, int], _Keys] = field(default_factory=dict)

    def first(self, nonce: str) -> bytes:
        """The client's first message."""
        return f"n,,{self._bare(nonce)}".encode()

    def final(self, nonce: str, server_first: bytes) -> tuple[bytes, bytes]:
        """The client's last message, and what a server that has the verifier answers."""
        challenge = server_first.decode()
        fields = dict(each.split("=", 1) for each in challenge.split(","))
        keys = self._keys_of(fields["s"], int(fields["i"]))
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{self._bare(nonce)},{challenge},{without_proof}".encode()
        signature = self._hmac(keys.stored, signed)
        proof = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
        sent = f"{without_proof},p={b64encode(proof).decode()}".encode()
        return sent, b"v=" + b64encode(self._hmac(keys.server, signed))

    def _bare(self, nonce: str) -> str:
        return f"n={self.user},r={nonce}"

    def _keys_of(self, salt: str, iterations: int) -> _Keys:
        if (salt, iterations) not in self._keys:
            kind, password = SCRAM_HASHES[self.mechanism], self.password.encode()
            salted = hashlib.pbkdf2_hmac(kind, password, b64decode(salt), iterations)
            client = self._hmac(salted, b"Client Key")
            stored = hashlib.new(kind, client).digest()
            self._keys[salt, iterations] = _Keys(client, stored, self._hmac(salted, b"Server Key"))
        return self._keys[salt, iterations]

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, SCRAM_HASHES[self.mechanism])


class Connection(asyncio.Protocol):
    """To a broker's address, while it is entered; one request under way at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._host, port = bootstrap.rsplit(":", 1)
        self._port = int(port)
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    async def __aenter__(self) -> Connection:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, frame: bytes | bytearray) -> bytes:
        """The answer to a frame, from its correlation id on. Raises ConnectionError."""
        assert self._transport is not None and self._answer is None
        if self._transport.is_closing():
            raise ConnectionResetError("the broker has closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await self._answer

    async def log_in(self, who: ScramUser) -> None:
        """Also again, on a connection that has logged in. Raises LoginFailed, ConnectionError."""
        if error := struct.unpack_from(">h", await self.ask(handshake(who.mechanism)), 4)[0]:
            raise LoginFailed(f"SaslHandshake: error {error}")
        nonce = uuid4().hex
        sent, believed = who.final(nonce, await self._tell(who.first(nonce)))
        if await self._tell(sent) != believed:
            raise LoginFailed("the broker has shown no knowledge of the password")

    async def be_refused(self, user: str) -> None:
        """A login by PLAIN with a wrong password. Raises LoginFailed unless it is refused."""
        await self.ask(handshake("PLAIN"))
        error, _ = read_token(await self.ask(token(f"\0{user}\0{uuid4().hex}".encode())))
        if error != AUTHENTICATION_FAILED:
            raise LoginFailed(f"a wrong password was answered with error {error}")

    async def _tell(self, text: bytes) -> bytes:
        error, answer = read_token(await self.ask(token(text)))
        if error:
            raise LoginFailed(f"SaslAuthenticate: error {error}")
        return answer

    # --- called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4:
            return
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + size:
            return
        assert self._answer is not None and len(self._received) == 4 + size
        answer, self._answer = self._answer, None
        frame = bytes(self._received[4:])
        self._received.clear()
        if not answer.done():
            answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the broker has closed"))
