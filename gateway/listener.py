"""Listening sockets: accepts, counts, refuses over the limits, and winds connections down.

What makes connections (`ConnectionMaker`) knows their protocol; this file knows none.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from gateway.connection_account import AccountLimits, ConnectionAccount
from gateway.tls import HANDSHAKE, Handshake, Revoked, peer_certificate

log = structlog.get_logger(__name__)

_ACCEPTS_PER_WAKEUP: Final = 64
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_WHEN_OUT_OF_RESOURCES_S: Final = 0.5
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_ABORT_TIMEOUT_S: Final = 1.0
_MOST_HELD: Final = 1000  # each has a file descriptor


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on connections; names are Kafka's properties if there is one.

    request_receive_timeout_ms: in this time a request that has begun must arrive whole.
    max_in_flight_requests_per_connection: with so many unanswered requests, reading pauses.
    max_in_flight_bytes_per_connection: the same, in bytes of requests.
    queued_max_request_bytes: of all connections together, parts of requests included; at least
    twice socket_request_max_bytes, even if set lower.
    write_high_water_bytes: with so many bytes of unsent answers, a connection is not served.
    listen_backlog: connections that the system may hold before they are accepted.
    """

    socket_request_max_bytes: int = 100 * 1024 * 1024
    connections_max_idle_ms: int = 600_000
    request_receive_timeout_ms: int = 30_000
    max_in_flight_requests_per_connection: int = 64
    max_in_flight_bytes_per_connection: int = 8 * 1024 * 1024
    queued_max_request_bytes: int = 256 * 1024 * 1024
    write_high_water_bytes: int = 256 * 1024
    listen_backlog: int = 1024


class Connection(Protocol):
    """What the listener calls on a front-end's protocol object (also an asyncio protocol)."""

    def finish(self) -> None:
        """Reads no more; answers what is in flight, flushes, closes."""

    def abort(self) -> None:
        """Closes now."""


class ConnectionMaker(Protocol):
    """Makes the protocol object of one connection. `on_lost` is called once when it has ended."""

    def connection(self, on_lost: Callable[[], None]) -> Any: ...


class Listener:
    """One address, one front-end. `start`, then `shutdown`; not reusable.

    tls: gives the context for a new connection; None for plain text.
    account: shared with the other listeners of the process. name: Kafka's, if it has one.
    """

    def __init__(
        self,
        front_end: ConnectionMaker,
        host: str,
        port: int,
        limits: ConnectionLimits,
        tls: Callable[[], ssl.SSLContext] | None = None,
        account: ConnectionAccount | None = None,
        name: str = "",
    ) -> None:
        self._front_end = front_end
        self._host = host
        self._port = port
        self._limits = limits
        self._tls = tls
        self._account = account or ConnectionAccount(AccountLimits())
        self._name = name
        self._held: set[socket.socket] = set()
        self._sockets: list[socket.socket] = []
        self._connections: set[Connection] = set()
        self._by_tls: dict[Connection, tuple[asyncio.BaseTransport, str]] = {}
        self._revoked = Revoked()
        self._per_ip: Counter[str] = Counter()
        self._greeting: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The port; if 0 was requested, the one that the system chose."""
        return self._port

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return self._per_ip.total()

    async def start(self) -> None:
        """Binds every address of the host and accepts. Raises OSError if it cannot."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._host or None,
            self._port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                bound = _bind(
                    family, (address[0], self._port, *address[2:]), self._limits.listen_backlog
                )
                self._sockets.append(bound)
                self._port = self._sockets[-1].getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for listening in self._sockets:
            loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_PER_WAKEUP):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                if failure.errno not in _OUT_OF_RESOURCES or self._stopping:
                    raise
                log.error("cannot accept connections", reason=str(failure))
                self._pause(listening, _PAUSE_WHEN_OUT_OF_RESOURCES_S)
                return
            if self._admit(accepted, address):
                task = loop.create_task(self._greet(accepted, address[0]))
                self._greeting.add(task)
                task.add_done_callback(self._greeting.discard)
                if pause_s := self._account.pause_s(self._name):
                    self._pause(listening, pause_s)
                    return

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        loop.call_later(seconds, self._listen_again, listening)

    def _listen_again(self, listening: socket.socket) -> None:
        if not self._stopping:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _admit(self, accepted: socket.socket, address: tuple[Any, ...]) -> bool:
        """Counts the connection, or refuses it with one line in the log. Where its
        address makes too many, it is held for a while, so that the client does not come again at
        once, and closed (KIP-612)."""
        ip = address[0]
        if held_s := self._account.hold_s(ip):
            log.debug("connection_held", peer=f"{ip}:{address[1]}", seconds=round(held_s, 3))
            self._hold(accepted, held_s)
            return False
        if reason := self._account.refusal(self._name, ip):
            log.warning("connection refused", peer=f"{ip}:{address[1]}", reason=reason)
            accepted.close()
            return False
        self._per_ip[ip] += 1
        self._account.enter(self._name, ip)
        return True

    def _hold(self, accepted: socket.socket, seconds: float) -> None:
        def let_go() -> None:
            self._held.discard(accepted)
            accepted.close()

        if len(self._held) >= _MOST_HELD:
            accepted.close()
            return
        self._held.add(accepted)
        asyncio.get_running_loop().call_later(seconds, let_go)

    async def _greet(self, accepted: socket.socket, ip: str) -> None:
        """Makes an accepted socket a connection of the front-end, behind TLS if configured."""
        loop = asyncio.get_running_loop()
        made: list[Connection] = []
        handshake = Handshake()
        counted = True

        def lost() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._connections.difference_update(made)
                for each in made:
                    self._by_tls.pop(each, None)
                self._forget(ip)

        def make() -> Any:
            connection = self._front_end.connection(lost)
            made.append(connection)
            self._connections.add(connection)
            return connection

        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            timeout = _HANDSHAKE_TIMEOUT_S if self._tls else None
            HANDSHAKE.set(handshake)
            transport, _ = await loop.connect_accepted_socket(
                make,
                accepted,
                ssl=self._tls() if self._tls else None,
                ssl_handshake_timeout=timeout,
            )
        except OSError as failure:  # ssl.SSLError and ConnectionResetError among them
            reason = handshake.failure or failure
            log.info("connection failed", peer=ip, reason=str(reason) or repr(reason))
            accepted.close()
            lost()
        except asyncio.CancelledError:
            accepted.close()
            lost()
            raise
        else:
            if self._tls is not None and counted:
                self._by_tls[made[0]] = transport, ip
                self._abort_if_revoked(made[0])
            if self._stopping:
                made[0].finish()

    @property
    def tls(self) -> Callable[[], ssl.SSLContext] | None:
        """What gives its contexts."""
        return self._tls

    def close_revoked(self, revoked: Revoked) -> None:
        """Closes the connections that have come by such a certificate, also those that are coming
        now."""
        self._revoked = revoked
        for connection in list(self._by_tls):
            self._abort_if_revoked(connection)

    def _abort_if_revoked(self, connection: Connection) -> None:
        transport, ip = self._by_tls[connection]
        if not self._revoked.numbers:
            return
        certificate = peer_certificate(transport)
        if certificate is not None and certificate in self._revoked:
            log.warning("connection closed", reason="its certificate was revoked", peer=ip)
            connection.abort()

    def _forget(self, ip: str) -> None:
        self._account.leave(self._name, ip)
        self._per_ip[ip] -= 1
        if not self._per_ip[ip]:
            del self._per_ip[ip]
        if self._all_gone is not None and not self._per_ip and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        while self._sockets:
            listening = self._sockets.pop()
            loop.remove_reader(listening.fileno())
            listening.close()

    async def shutdown(self, timeout_s: float) -> None:
        """Accepts no more, lets connections finish, and closes the rest after `timeout_s`."""
        self._stopping = True
        self._close_sockets()
        while self._held:
            self._held.pop().close()
        for connection in list(self._connections):
            connection.finish()
        await self._wait_until_gone(timeout_s)
        if self._per_ip:
            log.warning("connections cut at shutdown", count=self.connection_count)
        for task in self._greeting:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_gone(_ABORT_TIMEOUT_S)

    async def _wait_until_gone(self, timeout_s: float) -> None:
        if self._per_ip:
            self._all_gone = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._all_gone}, timeout=timeout_s)


def _bind(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
