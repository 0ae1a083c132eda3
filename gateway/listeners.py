"""The addresses that a broker listens on, each with the front-end that serves it.

A port is bound before its front-end can be made: the broker's id belongs to its address. A client
that connects in between is disconnected, and tries again. Knows no protocol.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from gateway.config import Endpoint, SettingsError
from gateway.connection_account import ConnectionAccount
from gateway.listener import ConnectionLimits, ConnectionMaker, Listener
from gateway.tls import Revoked, TlsContext


class LateFrontEnd:
    """Stands in for a front-end until `open`. port: the listener's."""

    def __init__(self) -> None:
        self.port = -1
        self._front_end: ConnectionMaker | None = None

    def open(self, front_end: ConnectionMaker) -> None:
        """Gives this front-end all connections from now on."""
        self._front_end = front_end

    def connection(self, on_lost: Callable[[], None]) -> Any:
        """See ConnectionMaker."""
        if self._front_end is None:
            return _NotYet(on_lost)
        return self._front_end.connection(on_lost)


class _NotYet(asyncio.Protocol):
    """Closes an early connection; the client tries again."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def finish(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Listeners:
    """All of them. `open` each, then `shutdown`; not reusable."""

    def __init__(self, limits: ConnectionLimits, account: ConnectionAccount) -> None:
        self.limits = limits
        self.account = account
        self._listeners: list[Listener] = []

    async def open(
        self,
        endpoint: Endpoint,
        flag: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        name: str = "",
    ) -> LateFrontEnd:
        """Listens on an address. flag: the option that names it, for the error's sentence. name:
        Kafka's of the listener, if it has one.

        Raises SettingsError if that fails.
        """
        front_end = LateFrontEnd()
        listener = Listener(
            front_end, endpoint.host, endpoint.port, self.limits, tls, self.account, name
        )
        with listening_on(endpoint, flag):
            await listener.start()
        self._listeners.append(listener)
        front_end.port = listener.port
        return front_end

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return sum(listener.connection_count for listener in self._listeners)

    def close_revoked(self, tls: TlsContext, revoked: Revoked) -> None:
        """Closes connections by certificates that were taken back, where this context is used."""
        for listener in self._listeners:
            if listener.tls is tls:
                listener.close_revoked(revoked)

    async def shutdown(self, timeout_s: float) -> None:
        """Accepts no more, lets connections finish, and closes the rest after `timeout_s`."""
        await asyncio.gather(*(listener.shutdown(timeout_s) for listener in self._listeners))


@contextlib.contextmanager
def listening_on(endpoint: Endpoint, flag: str, whose: str = "") -> Iterator[None]:
    """Turns the system's error about an address into a sentence. whose: the address is, where that
    cannot be seen from what is set. Raises SettingsError."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # a host's name may be too long to look up
        told = f"{endpoint}, {whose}" if whose else endpoint
        raise SettingsError(
            f"Cannot listen on {told} ({getattr(error, 'strerror', None) or error}): "
            f"stop what listens there, or choose another address with {flag}."
        ) from error
