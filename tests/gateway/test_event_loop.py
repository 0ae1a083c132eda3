"""What the server's event loop does with sockets that it only watches, as asyncio's own does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from gateway.event_loop import new_event_loop
from storage.connection.pool import Database
from storage.connection.session import HotSession
from storage.server.embedded import EmbeddedPostgres
from tests.gateway.event_loops import on_every_loop


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def reset(here: socket.socket, there: socket.socket) -> None:
    """The other end goes with something unread: an error waits at this one."""
    here.send(b"unread")
    there.close()


async def soon(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.001)


@on_every_loop
async def test_a_reset_is_something_to_read_until_it_is_read() -> None:
    """libuv ends its own watch at the first word of it, with more to be read."""
    loop, heard = asyncio.get_running_loop(), list[bytes | None]()
    with connected() as (here, there):

        def read() -> None:
            try:
                heard.append(here.recv(5))
            except ConnectionResetError:
                heard.append(None)
                assert loop.remove_reader(here)

        loop.add_reader(here, read)
        there.send(b"last words")
        reset(here, there)
        await soon(lambda: None in heard)
        assert heard == [b"last ", b"words", None]


@on_every_loop
async def test_a_reset_that_came_before_it_was_watched() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    with connected() as (here, there):
        reset(here, there)
        loop.add_reader(here, heard.set)
        await asyncio.wait_for(heard.wait(), 30)
        loop.remove_reader(here)


@on_every_loop
async def test_a_reset_is_room_to_write() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    with connected() as (here, there):
        with suppress(BlockingIOError):
            while True:
                here.send(bytes(65536))
        loop.add_writer(here, heard.set)
        await asyncio.sleep(0.01)
        assert not heard.is_set()
        there.close()
        await asyncio.wait_for(heard.wait(), 30)
        assert loop.remove_writer(here)


@on_every_loop
async def test_reading_and_writing_are_watched_apart() -> None:
    loop, told = asyncio.get_running_loop(), list[str]()
    with connected() as (here, there):
        loop.add_reader(here, told.append, "read")
        await asyncio.sleep(0.01)
        assert told == []
        loop.add_writer(here, told.append, "write")
        await soon(lambda: told)
        assert loop.remove_writer(here) and not loop.remove_writer(here)
        assert set(told) == {"write"}
        told.clear()
        there.send(b"x")
        await soon(lambda: told)
        loop.add_reader(here, told.append, "read instead")
        told.clear()
        await soon(lambda: told)
        assert loop.remove_reader(here.fileno()) and not loop.remove_reader(here)
        assert set(told) == {"read instead"}
        told.clear()
        await asyncio.sleep(0.01)
        assert told == []


@on_every_loop
async def test_what_is_taken_back_in_the_same_turn_is_not_called() -> None:
    loop, told = asyncio.get_running_loop(), list[int]()
    with connected() as (one, a), connected() as (two, b):

        def first_come(number: int) -> None:
            told.append(number)
            assert loop.remove_reader(one) and loop.remove_reader(two)

        loop.add_reader(one, first_come, 1)
        loop.add_reader(two, first_come, 2)
        a.send(b"x")
        b.send(b"x")
        await soon(lambda: told)
        await asyncio.sleep(0.01)
        assert len(told) == 1


async def test_a_number_that_was_closed_while_watched_serves_the_next_socket() -> None:
    await asyncio.to_thread(_with_loop, _next_socket)


def _with_loop(test: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(test())  # type: ignore[arg-type]


async def _next_socket() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    with connected() as (here, _):
        number = here.fileno()
        loop.add_reader(here, lambda: None)
    with connected() as (here, there):
        if here.fileno() != number:
            os.dup2(here.fileno(), number)
        loop.add_reader(number, heard.set)
        there.send(b"x")
        await asyncio.wait_for(heard.wait(), 30)
        assert loop.remove_reader(number)
        if here.fileno() != number:
            os.close(number)


async def test_a_socket_closed_while_watched_both_ways_can_be_let_go() -> None:
    """libpq closes its socket where it ends; the watches of it are taken back after that."""
    await asyncio.to_thread(_with_loop, _closed_both_ways)


async def _closed_both_ways() -> None:
    loop, told = asyncio.get_running_loop(), list[str]()
    for is_reused in (False, True):
        with connected() as (here, _):
            number = here.fileno()
            loop.add_reader(number, told.append, "read")
            loop.add_writer(number, told.append, "write")
        if is_reused:
            os.dup2(2, number)
        assert loop.remove_reader(number)
        assert not loop.remove_writer(number)  # gone with the other
        if is_reused:
            os.close(number)
    await asyncio.sleep(0.01)
    assert told == []


@on_every_loop
async def test_exceptions_of_who_is_told_are_the_loops() -> None:
    loop, found = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: found.append(context.get("exception")))
    with connected() as (here, there):

        def fail() -> None:
            loop.remove_reader(here)
            raise RuntimeError("a bug")

        loop.add_reader(here, fail)
        there.send(b"x")
        await soon(lambda: found)
        assert isinstance(found[0], RuntimeError)


@on_every_loop
async def test_what_is_no_open_file_cannot_be_watched() -> None:
    loop = asyncio.get_running_loop()
    with connected() as (here, _):
        number = here.fileno()
    with pytest.raises(OSError):
        loop.add_reader(number, lambda: None)
    assert not loop.remove_reader(number)


@on_every_loop
async def test_a_server_process_that_dies_with_a_request_unread_is_lost_at_once(
    server: EmbeddedPostgres,
) -> None:
    """As all of them do when one crashes: whoever waits, on a session, in the middle of sending or
    not, or through psycopg."""
    database = Database(server.url)
    session, sending = [HotSession(await database.connect()) for _ in range(2)]
    connection = await database.connect()
    try:
        await sending.prepare_all({b"size": "SELECT octet_length($1::bytea)"})
        connections = (session._connection, sending._connection, connection)
        pids = [each.info.backend_pid for each in connections]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(session.execute(b"SELECT 1"))
        large = [(b"size", (bytes(20_000_000),))]
        sent = asyncio.create_task(sending.run(large, commits=False))
        read = asyncio.create_task(connection.execute("SELECT 1"))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(asked, 20)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(sent, 20)
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(read, 20)
        assert time.monotonic() - started < 10, "no deadline was waited for"
    finally:
        await session.close()
        await sending.close()
        await connection.close()
        await database.close()
        server.stop("immediate")  # it starts anew after the crash, and would do that first
