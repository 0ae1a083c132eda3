"""Proxies that cut: between clients and brokers at random, and before PostgreSQL at its COMMIT.

Each runs in a thread with an event loop of its own. Must not know what clients send or expect.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

PIECE = 64 * 1024


class _Loop:
    """An event loop in a thread, and the connections that live on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def start(self) -> None:
        self._thread.start()
        self.call(self._listen())

    def stop(self) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            abort(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream = None
        try:
            upstream_reader, upstream = await self._connect()
            self._writers.add(upstream)
            pumps = [
                asyncio.create_task(self._to_server(reader, upstream)),
                asyncio.create_task(self._to_client(upstream_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # nobody listens there just now: the client sees a closed connection
        finally:
            for each in (writer, upstream):
                if each is not None:
                    abort(each)
                    self._writers.discard(each)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise NotImplementedError

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


def abort(writer: asyncio.StreamWriter) -> None:
    """Closes without sending what is left."""
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()


class BrokerProxy(_Loop):
    """Stands before brokers: each connection goes to one of `targets` at random.

    cut_share: how likely a piece on its way is cut short, its connection with it. cuts_max: after
    so many there are no more (a large request is many pieces, more of them the busier the machine
    is: it might never arrive).
    """

    def __init__(self, port: int, targets: list[int], seed: int, cut_share: float = 0.0) -> None:
        super().__init__()
        self.port = port
        self.targets = list(targets)
        self.cut_share = cut_share
        self.cuts = 0
        self.cuts_max: float = math.inf
        self._random = random.Random(seed)

    def drop(self, target: int) -> None:
        """Closes every connection to a target, as a load balancer does that finds it silent."""
        self.call(self._drop(target))

    async def _drop(self, target: int) -> None:
        for writer in list(self._writers):
            if writer.get_extra_info("peername")[1] == target:
                abort(writer)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ports = self._random.sample(self.targets, len(self.targets))
        for port in ports[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return await asyncio.open_connection("127.0.0.1", ports[-1])

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            if self.cuts < self.cuts_max and self._random.random() < self.cut_share:
                self.cuts += 1
                writer.write(piece[: self._random.randrange(len(piece))])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await writer.drain()
                await asyncio.sleep(self._random.uniform(0, 0.01))  # half a frame arrives
                return
            writer.write(piece)
            await writer.drain()

    _to_server = _pump
    _to_client = _pump


class Cut(Enum):
    """Where PostgreSQL's connection is cut."""

    BEFORE_COMMIT = "before the commit reaches the server"
    AFTER_COMMIT = "after the commit, before its answer gets back"


RUN_S = 0.02
"""In which the server has run what has reached it."""
_HELD_BACK = {b"P", b"B", b"D", b"E", b"C"}  # Parse, Bind, Describe, Execute, Close


class CommitProxy(_Loop):
    """Stands before PostgreSQL on a unix socket and cuts connections at the commit of a flush.

    That is the pipeline with the append in it, up to its Sync: one implicit transaction, or the end
    of a block that was opened before and ends with the prepared COMMIT. on_cut: called each time,
    before the connection ends.
    """

    def __init__(self, directory: Path, server_socket: Path, seed: int) -> None:
        super().__init__()
        self.directory = directory
        self._server_socket = server_socket
        self._random = random.Random(seed)
        self._next: Cut | None = None
        self._cut_after: int | None = None
        self.executed = 0  # statements of the last commit that was cut after some
        self.on_cut: Callable[[], None] = lambda: None
        self.share = 0.0
        self.done: dict[tuple[Cut, str], int] = {}

    async def _listen(self) -> None:
        path = self.directory / self._server_socket.name
        self._server = await asyncio.start_unix_server(self._accept, str(path))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream = None
        try:
            upstream_reader, upstream = await asyncio.open_unix_connection(str(self._server_socket))
            self._writers.add(upstream)
            session = _Session(self, reader, writer, upstream_reader, upstream)
            await session.run()
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side has gone: so does the other
        finally:
            for each in (writer, upstream):
                if each is not None:
                    abort(each)
                    self._writers.discard(each)

    def cut_next(self, cut: Cut) -> None:
        """Cuts the next commit there."""
        self._next = cut

    def cut_next_after(self, count: int) -> None:
        """Cuts the next commit when the server has run so many of its statements."""
        self._cut_after = count

    def pieces_of(self, pipeline: Sequence[bytes]) -> Sequence[bytes] | None:
        """What reaches the server of a commit that is cut after some statements, else None."""
        count, self._cut_after = self._cut_after, None
        if count is None:
            return None
        ends = [at for at, message in enumerate(pipeline, 1) if message[:1] == b"E"]
        self.executed = min(count, len(ends))
        return pipeline[: ends[self.executed - 1]] if self.executed else ()

    def draw(self, shape: str) -> Cut | None:
        """Whether this commit is cut, and where."""
        cut, self._next = self._next, None
        if cut is None:
            if self._random.random() >= self.share:
                return None
            cut = self._random.choice(list(Cut))
        self.done[cut, shape] = self.done.get((cut, shape), 0) + 1
        return cut


class _Session:
    """One connection through a CommitProxy."""

    def __init__(
        self,
        proxy: CommitProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream_reader = upstream_reader
        self._upstream = upstream
        self._swallow = False
        self._committed = asyncio.Event()

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._to_server()), asyncio.create_task(self._to_client())]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _to_server(self) -> None:
        size = await self._reader.readexactly(4)
        self._upstream.write(size + await self._reader.readexactly(int.from_bytes(size) - 4))
        pipeline: list[bytes] = []  # held back until its Sync, so that a cut one never starts
        statements: set[bytes] = set()
        while True:
            kind, message = await _read_message(self._reader)
            pipeline.append(message)
            if kind == b"B":
                statements.add(message[5:].split(b"\0", 2)[1])
            if kind in _HELD_BACK:
                continue
            cut = None
            if kind == b"S" and any(name.startswith(b"append_batches") for name in statements):
                pieces = self._proxy.pieces_of(pipeline)
                if pieces is not None:
                    self._upstream.writelines(pieces)
                    await self._upstream.drain()
                    await asyncio.sleep(RUN_S)
                    self._proxy.on_cut()
                    return
                cut = self._proxy.draw("in a block" if b"commit" in statements else "implicit")
            if cut is Cut.BEFORE_COMMIT:
                self._proxy.on_cut()
                return
            self._swallow = cut is Cut.AFTER_COMMIT
            self._upstream.writelines(pipeline)
            await self._upstream.drain()
            pipeline, statements = [], set()
            if cut is Cut.AFTER_COMMIT:
                await self._committed.wait()
                self._proxy.on_cut()
                return

    async def _to_client(self) -> None:
        while True:
            kind, message = await _read_message(self._upstream_reader)
            if self._swallow:
                if kind == b"Z":
                    self._committed.set()
                    await asyncio.sleep(3600)
                continue
            self._writer.write(message)
            await self._writer.drain()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


@contextlib.contextmanager
def running(proxy: _Loop) -> Iterator[None]:
    """The proxy, while the block runs."""
    proxy.start()
    try:
        yield
    finally:
        proxy.stop()
