"""A proxy before a broker that cuts connections at a chosen request, or before its answer, or keeps
a request until its client has long gone on.

It is a process: some calls of confluent-kafka keep Python's lock while they wait for an answer.
Knows the size of a frame and the first fields of a request; replaces the broker's address in what
it passes back, so that clients stay with it. Must not know what a test expects.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from multiprocessing.connection import Connection


class Lost(Enum):
    """What does not arrive: the connection is closed instead.

    LATE: the request does arrive, when `CuttingProxy.deliver` says so.
    """

    REQUEST = "request"
    ANSWER = "answer"
    LATE = "late request"


Cut = tuple[int, Lost]  # the API's number, and what was lost


class CuttingProxy:
    """The proxy, as a test sees it."""

    def __init__(self, bootstrap: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(bootstrap, theirs), daemon=True)
        self._process.start()
        self.bootstrap: str = self._pipe.recv()

    def lose(self, api_key: int, what: Lost) -> None:
        """The next request of this API, or the answer to it."""
        self._pipe.send((api_key, what))
        self._pipe.recv()

    def deliver(self) -> bytes | None:
        """The late request now arrives; what it is answered, None if the connection is closed."""
        self._pipe.send("deliver")
        answer: bytes | None = self._pipe.recv()
        return answer

    def cuts(self) -> list[Cut]:
        """What was cut, in order."""
        self._pipe.send(None)
        cuts: list[Cut] = self._pipe.recv()
        return cuts

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def serve(bootstrap: str, pipe: Connection) -> None:
    """The life of the proxy's process."""
    listener = _Listener(bootstrap)
    pipe.send(listener.bootstrap)
    while True:
        wanted = pipe.recv()
        if wanted == "deliver":
            pipe.send(listener.deliver())
            continue
        listener.lose_next = wanted or listener.lose_next
        pipe.send(listener.cuts)


class _Late:
    """A request that is kept, and what became of it."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.has_ended = threading.Event()
        self.answer: bytes | None = None


class _Listener:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        ours = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{ours}"
        # As Metadata and FindCoordinator tell it: the host's name, then four bytes of port.
        self._theirs = host.encode() + struct.pack(">i", int(port))
        self._ours = host.encode() + struct.pack(">i", ours)
        self._lock = threading.Lock()
        self.lose_next: Cut | None = None
        self.cuts: list[Cut] = []
        self._late: dict[socket.socket, _Late] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _cuts(self, api_key: int, what: Lost) -> bool:
        with self._lock:
            if self.lose_next != (api_key, what):
                return False
            self.lose_next = None
            self.cuts.append((api_key, what))
            return True

    def deliver(self) -> bytes | None:
        [(server, late)] = self._late.items()
        server.sendall(late.frame)
        late.has_ended.wait()
        self._late.clear()
        return late.answer

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._upstream)
            waiting: deque[int] = deque()
            for pump in (self._to_server, self._to_client):
                threading.Thread(
                    target=run, args=(pump, client, server, waiting), daemon=True
                ).start()

    def _to_server(self, client: socket.socket, server: socket.socket, waiting: deque[int]) -> None:
        for frame in frames(client):
            api_key = int.from_bytes(frame[:2])
            if self._cuts(api_key, Lost.REQUEST):
                return
            if self._cuts(api_key, Lost.LATE):
                waiting.append(api_key)
                late = self._late[server] = _Late(struct.pack(">i", len(frame)) + frame)
                client.shutdown(socket.SHUT_RDWR)
                late.has_ended.wait()
                return
            waiting.append(api_key)
            server.sendall(struct.pack(">i", len(frame)) + frame)

    def _to_client(self, client: socket.socket, server: socket.socket, waiting: deque[int]) -> None:
        try:
            for frame in frames(server):
                if self._cuts(waiting.popleft(), Lost.ANSWER):
                    return
                if (late := self._late.get(server)) is None:
                    shown = frame.replace(self._theirs, self._ours)
                    client.sendall(struct.pack(">i", len(shown)) + shown)
                elif not waiting:
                    late.answer = frame
                    return
        finally:
            if late := self._late.get(server):
                late.has_ended.set()


Pump = Callable[[socket.socket, socket.socket, deque[int]], None]


def run(pump: Pump, client: socket.socket, server: socket.socket, waiting: deque[int]) -> None:
    """One direction of a connection; when it ends, so does the other."""
    for each in (client, server):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        pump(client, server, waiting)
    for each in (client, server):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def frames(source: socket.socket) -> Iterator[bytes]:
    """Everything that comes until the other side closes, without the sizes."""
    with source.makefile("rb") as stream:
        while len(size := stream.read(4)) == 4:
            yield stream.read(int.from_bytes(size))
