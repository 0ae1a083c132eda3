"""uvloop, whose watches of sockets (`add_reader`, `add_writer`) outlive an error.

Where a socket has an error, as after a reset, libuv tells of it once and ends the watch of it. A
hot session that then reads the server's last words, and waits for the end, would do so until its
deadline; such sockets are what PostgreSQL's processes leave when one of them crashes. So what is
watched lies in an epoll of our own, which uvloop watches in its turn: an epoll has no errors.
Connections of clients are uvloop's transports and do not come here. Knows nothing of who watches
what.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from select import EPOLLIN, EPOLLOUT, epoll  # Linux; elsewhere asyncio's own loop serves
from typing import Any, TypeVarTuple

import uvloop

_Args = TypeVarTuple("_Args")


class _Handle(asyncio.Handle):
    """A callback to be run in its context; the loop hears of its exceptions."""

    def run(self) -> None:
        """Unless it has been taken back in the meantime."""
        if not self.cancelled():
            self._run()


@dataclass(slots=True)
class _Watch:
    """Who is told what of one socket."""

    reader: _Handle | None = None
    writer: _Handle | None = None

    @property
    def events(self) -> int:
        return (EPOLLIN if self.reader else 0) | (EPOLLOUT if self.writer else 0)


class EventLoop(uvloop.Loop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = epoll()
        self._watches: dict[int, _Watch] = {}
        super().add_reader(self._epoll.fileno(), self._on_ready)

    def add_reader(self, fd: Any, callback: Callable[[*_Args], Any], *args: *_Args) -> None:
        """See asyncio. Errors and hang-ups count as something to read."""
        watch = self._watch(fd)
        if watch.reader is not None:
            watch.reader.cancel()
        watch.reader = _Handle(callback, args, self)
        self._register(_number(fd), watch)

    def add_writer(self, fd: Any, callback: Callable[[*_Args], Any], *args: *_Args) -> None:
        """See asyncio. Errors and hang-ups count as room to write."""
        watch = self._watch(fd)
        if watch.writer is not None:
            watch.writer.cancel()
        watch.writer = _Handle(callback, args, self)
        self._register(_number(fd), watch)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override] # wrong in uvloop's stub
        """See asyncio."""
        watch = self._watches.get(_number(fd))
        if watch is None or watch.reader is None:
            return False
        watch.reader.cancel()
        watch.reader = None
        self._lessen(_number(fd), watch)
        return True

    def remove_writer(self, fd: Any) -> bool:  # type: ignore[override] # likewise
        """See asyncio."""
        watch = self._watches.get(_number(fd))
        if watch is None or watch.writer is None:
            return False
        watch.writer.cancel()
        watch.writer = None
        self._lessen(_number(fd), watch)
        return True

    def close(self) -> None:
        """See asyncio."""
        if not self.is_closed():
            super().remove_reader(self._epoll.fileno())
            self._epoll.close()
        super().close()

    def _watch(self, fd: Any) -> _Watch:
        return self._watches.setdefault(_number(fd), _Watch())

    def _register(self, fd: int, watch: _Watch) -> None:
        """Tells the kernel, which has forgotten a socket that was closed."""
        try:
            self._epoll.register(fd, watch.events)
        except FileExistsError:
            self._epoll.modify(fd, watch.events)
        except OSError:
            del self._watches[fd]
            raise

    def _lessen(self, fd: int, watch: _Watch) -> None:
        """Less is wanted. The socket may have been closed, and its number be another one's."""
        if watch.events:
            with contextlib.suppress(OSError):
                self._epoll.modify(fd, watch.events)
                return
        for handle in (watch.reader, watch.writer):
            if handle is not None:
                handle.cancel()
        del self._watches[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def _on_ready(self) -> None:
        """All that is due is looked up before the first is told: one may close another's socket."""
        due: list[_Handle] = []
        for fd, events in self._epoll.poll(0):
            watch = self._watches.get(fd)
            if watch is None:
                continue
            if watch.reader is not None and events & ~EPOLLOUT:
                due.append(watch.reader)
            if watch.writer is not None and events & ~EPOLLIN:
                due.append(watch.writer)
        for handle in due:
            handle.run()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for the server."""
    return EventLoop()


def _number(fd: Any) -> int:
    number: int = fd if isinstance(fd, int) else fd.fileno()
    return number
