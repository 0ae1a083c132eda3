"""The listener: binding, limits, TLS, and what becomes of connections at the end."""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from core.quota.connections import read_connections_per_ip
from gateway.connection_account import AccountLimits, ConnectionAccount, Most
from gateway.listener import ConnectionLimits, Listener
from tests.gateway.event_loops import on_every_loop

LIMITS = ConnectionLimits()


class Echo(asyncio.Protocol):
    """A front-end that knows nothing: it says back what it hears."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def finish(self) -> None:
        self._transport.write(b"bye")
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class Stubborn(Echo):
    def finish(self) -> None:
        pass


class EchoFrontEnd:
    def __init__(self, kind: type[Echo] = Echo) -> None:
        self._kind = kind

    def connection(self, on_lost: Callable[[], None]) -> Echo:
        return self._kind(on_lost)


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1",
    limits: ConnectionLimits = LIMITS,
    tls: Callable[[], ssl.SSLContext] | None = None,
    kind: type[Echo] = Echo,
    account: ConnectionAccount | None = None,
) -> AsyncIterator[Listener]:
    listener = Listener(EchoFrontEnd(kind), host, 0, limits, tls, account, "NAMED")
    await listener.start()
    try:
        yield listener
    finally:
        await listener.shutdown(1)
        assert listener.connection_count == 0


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"hello")
    async with asyncio.timeout(30):
        return await reader.readexactly(5)


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(30):
            return await reader.read() == b""
    except ConnectionError:
        return True


@on_every_loop
async def test_listens_on_a_port_of_the_systems_choice() -> None:
    async with listening() as listener:
        assert listener.port > 0
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        assert listener.connection_count == 1
        writer.close()


@on_every_loop
async def test_every_address_of_a_name_has_the_same_port() -> None:
    async with listening("localhost") as listener:
        addresses = {info[4][0] for info in socket.getaddrinfo("localhost", 1, type=1)}
        for address in addresses:
            reader, writer = await asyncio.open_connection(address, listener.port)
            assert await echoed(reader, writer) == b"hello"
            writer.close()


@on_every_loop
async def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with listening("::1") as listener:
        reader, writer = await asyncio.open_connection("::1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        writer.close()


@on_every_loop
async def test_a_taken_port_is_an_error_at_start() -> None:
    async with listening() as listener:
        second = Listener(EchoFrontEnd(), "127.0.0.1", listener.port, LIMITS)
        with pytest.raises(OSError):
            await second.start()


@pytest.mark.parametrize("limits", [(1, 10), (10, 1)], ids=["in all", "from one address"])
async def test_limits_may_change_while_it_listens(limits: tuple[int, int]) -> None:
    account = ConnectionAccount(AccountLimits())
    async with listening(account=account) as listener:
        pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        for reader, writer in pairs:
            assert await echoed(reader, writer) == b"hello"
        account.limits = AccountLimits(Most(limits[0]), limits[1])
        for reader, writer in pairs:
            assert await echoed(reader, writer) == b"hello", "those that are open stay"
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await closed(reader)
        writer.close()
        account.limits = AccountLimits(Most(10), 10)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        for each in (writer, *(writer for _, writer in pairs)):
            each.close()


@pytest.mark.parametrize(
    ("limits", "property_name"),
    [
        (AccountLimits(Most(2)), "max.connections"),
        (AccountLimits(by_listener={"NAMED": Most(2)}), "its listener (max.connections"),
        (AccountLimits(max_connections_per_ip=2), "max.connections.per.ip"),
        (
            AccountLimits(
                max_connections_per_ip_overrides=read_connections_per_ip("10.0.0.1:9,127.0.0.1:2")
            ),
            "max.connections.per.ip",
        ),
    ],
)
@on_every_loop
async def test_a_connection_over_the_limit_is_refused_with_one_line(
    limits: AccountLimits, property_name: str
) -> None:
    async with listening(account=ConnectionAccount(limits)) as listener:
        pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        for reader, writer in pairs:
            assert await echoed(reader, writer) == b"hello"
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await closed(reader)
            writer.close()
        assert [line["event"] for line in logs] == ["connection refused"]
        assert property_name in logs[0]["reason"]
        pairs[0][1].transport.abort()
        async with asyncio.timeout(30):
            while listener.connection_count > 1:
                await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello", "a place has become free"
        writer.close()
        pairs[1][1].close()


@on_every_loop
async def test_an_address_that_makes_too_many_is_held_and_closed() -> None:
    """KIP-612. What it was let make counts; what was held does not."""
    account = ConnectionAccount(AccountLimits(), burst_s=200.0)
    rates = {"127.0.0.1": 0.01}
    account.rate_of = rates.get
    held: list[float] = []
    account.observe = held.append
    async with listening(account=account) as listener:
        loop = asyncio.get_running_loop()
        began = loop.time()
        pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(4)]
        for reader, writer in pairs[:2]:
            assert await echoed(reader, writer) == b"hello"
        for reader, _ in pairs[2:]:
            assert await closed(reader)
        assert loop.time() - began > 0.9
        assert held == [1.0, 1.0]
        rates.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        for each in (writer, *(writer for _, writer in pairs)):
            each.close()


@on_every_loop
async def test_shutdown_closes_what_is_held() -> None:
    account = ConnectionAccount(AccountLimits(), burst_s=0.0)
    account.rate_of = lambda ip: 0.001
    async with listening(account=account) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        async with asyncio.timeout(30):
            while not listener._held:
                await asyncio.sleep(0.01)
        await listener.shutdown(1)
        assert not listener._held
        assert await closed(reader)
        writer.close()


@pytest.mark.parametrize(
    "limits",
    [
        AccountLimits(Most(creation_rate=4)),
        AccountLimits(by_listener={"NAMED": Most(creation_rate=4)}),
    ],
    ids=["in all", "at the listener"],
)
async def test_connections_that_come_too_fast_wait_to_be_accepted(limits: AccountLimits) -> None:
    async with listening(account=ConnectionAccount(limits)) as listener:
        loop = asyncio.get_running_loop()
        began = loop.time()
        pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(7)]
        for reader, writer in pairs:
            assert await echoed(reader, writer) == b"hello"
        # A second's worth at once, and the last of the others after half a second more.
        assert loop.time() - began > 0.4
        for _, writer in pairs:
            writer.close()


@on_every_loop
async def test_listeners_share_the_limits_of_the_process() -> None:
    account = ConnectionAccount(AccountLimits(Most(1)))
    async with listening(account=account) as one, listening(account=account) as other:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        assert await echoed(reader, writer) == b"hello"
        second, more = await asyncio.open_connection("127.0.0.1", other.port)
        assert await closed(second)
        more.close()
        writer.close()


@on_every_loop
async def test_shutdown_lets_connections_finish() -> None:
    async with listening() as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        await listener.shutdown(5)
        assert await reader.read() == b"bye"
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", listener.port)
        writer.close()


@on_every_loop
async def test_shutdown_cuts_what_does_not_finish() -> None:
    async with listening(kind=Stubborn) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await echoed(reader, writer) == b"hello"
        with capture_logs() as logs:
            await listener.shutdown(0.05)
        assert logs == [
            {"event": "connections cut at shutdown", "count": 1, "log_level": "warning"}
        ]
        assert await closed(reader)
        writer.close()


@on_every_loop
async def test_tls(certificate: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    client = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    async with listening(tls=lambda: server) as listener:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, ssl=client, server_hostname="localhost"
        )
        assert await echoed(reader, writer) == b"hello"
        writer.close()
        await writer.wait_closed()


@on_every_loop
async def test_a_failed_handshake_is_counted_off_and_disturbs_nobody(certificate: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    async with listening(tls=lambda: server) as listener:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"this is no handshake" * 10)
            await closed(reader)
            async with asyncio.timeout(30):
                while listener.connection_count:
                    await asyncio.sleep(0.01)
            writer.close()
        assert [line["event"] for line in logs] == ["connection failed"]


@on_every_loop
async def test_running_out_of_files_is_survived() -> None:
    """The process may open no more files; later it may, and the waiting client is accepted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with listening() as listener:
        client = socket.socket()
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.getaddrinfo("127.0.0.1", listener.port)  # uvloop's first one imports a codec
        open_files = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        fillers = [os.dup(client.fileno()) for _ in range(open_files)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
            with capture_logs() as logs:
                await loop.sock_connect(client, ("127.0.0.1", listener.port))
                async with asyncio.timeout(30):
                    while not logs:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
            assert [line["event"] for line in logs] == ["cannot accept connections"]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        await loop.sock_sendall(client, b"hello")
        async with asyncio.timeout(30):
            assert await loop.sock_recv(client, 5) == b"hello"
        client.close()
