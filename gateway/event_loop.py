"""uvloop, but a socket stays watched (`add_reader`, `add_writer`) after an error.

After an error on a socket, such as a reset, libuv reports it once and stops watching. A crashed
PostgreSQL process leaves such a socket: a hot session would read the server's last words and then
wait for the end of the stream until its deadline. So the sockets are in an epoll of their own,
which has no errors, and uvloop watches that epoll. Client connections are uvloop's transports and
do not come here. Does not know why a socket is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT, epoll  # Linux; elsewhere asyncio's own loop serves
from typing import Any, TypeVarTuple

import uvloop

_Args = TypeVarTuple("_Args")


class _Handle(asyncio.Handle):
    """A callback that runs in its context; the loop gets its exceptions."""

    def run(self) -> None:
        """Runs the callback, unless it was cancelled."""
        if not self.cancelled():
            self._run()


class EventLoop(uvloop.Loop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = epoll()
        # By a socket's number: the callbacks for EPOLLIN and EPOLLOUT.
        self._watches: dict[int, dict[int, _Handle]] = {}
        super().add_reader(self._epoll.fileno(), self._on_ready)

    def add_reader(self, fd: Any, callback: Callable[[*_Args], Any], *args: *_Args) -> None:
        """See asyncio. Errors and hang-ups count as something to read."""
        self._add(_number(fd), EPOLLIN, _Handle(callback, args, self))

    def add_writer(self, fd: Any, callback: Callable[[*_Args], Any], *args: *_Args) -> None:
        """See asyncio. Errors and hang-ups count as room to write."""
        self._add(_number(fd), EPOLLOUT, _Handle(callback, args, self))

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override] # wrong in uvloop's stub
        """See asyncio."""
        return self._remove(_number(fd), EPOLLIN)

    def remove_writer(self, fd: Any) -> bool:  # type: ignore[override] # likewise
        """See asyncio."""
        return self._remove(_number(fd), EPOLLOUT)

    def close(self) -> None:
        """See asyncio."""
        if not self.is_closed():
            super().remove_reader(self._epoll.fileno())
            self._epoll.close()
        super().close()

    def _add(self, fd: int, event: int, handle: _Handle) -> None:
        watch = self._watches.setdefault(fd, {})
        if event in watch:
            watch[event].cancel()
        watch[event] = handle
        try:
            self._epoll.register(fd, sum(watch))  # the kernel has removed the closed socket
        except FileExistsError:
            self._epoll.modify(fd, sum(watch))
        except OSError:
            del self._watches[fd]
            raise

    def _remove(self, fd: int, event: int) -> bool:
        """The socket may be closed by now, and another one may have its number."""
        watch = self._watches.get(fd, {})
        if event not in watch:
            return False
        watch.pop(event).cancel()
        if watch:
            with contextlib.suppress(OSError):
                self._epoll.modify(fd, sum(watch))
                return True
        for handle in watch.values():
            handle.cancel()
        del self._watches[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        return True

    def _on_ready(self) -> None:
        """Looks up all due callbacks before it runs one: a callback may close another's socket."""
        due: list[_Handle] = []
        for fd, events in self._epoll.poll(0):
            watch = self._watches.get(fd, {})
            for event, other in ((EPOLLIN, EPOLLOUT), (EPOLLOUT, EPOLLIN)):
                if event in watch and events & ~other:
                    due.append(watch[event])
        for handle in due:
            handle.run()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for the server."""
    return EventLoop()


def _number(fd: Any) -> int:
    number: int = fd if isinstance(fd, int) else fd.fileno()
    return number
