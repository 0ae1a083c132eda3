"""What workers do with logins and Metadata. Each function is a worker's WORK.

Must not know brokers, cases or what the figures are compared with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import chain

from bench.processes import may_open
from bench.security.logins import Connection, ScramUser
from bench.worker import Result, ready, summary

OPENED_AT_ONCE = 32


async def security_logins(
    bootstrap: str, mechanism: str, user: str, password: str, connections: int, seconds: float
) -> Result:
    """Logins one after the other, each on a new connection, by `connections` at a time.

    The latency is from the connection's beginning to the last answer.
    """
    who = ScramUser(mechanism, user, password)

    async def once() -> float:
        begun = time.perf_counter()
        async with Connection(bootstrap) as connection:
            await connection.log_in(who)
            return time.perf_counter() - begun

    async def until(end: float) -> list[float]:
        taken = []
        while time.monotonic() < end:
            taken.append(await once())
        return taken

    await once()  # the password is salted now
    await asyncio.to_thread(ready)
    begun = time.monotonic()
    each = await asyncio.gather(*[until(begun + seconds) for _ in range(connections)])
    return counted(each, begun, time.monotonic())


def counted(each: Sequence[list[float]], begun: float, ended: float) -> Result:
    """Of the latencies that each of several has measured."""
    latencies = list(chain.from_iterable(each))
    return summary(latencies) | {"records": len(latencies), "begun": begun, "ended": ended}


async def paced(count: int, seconds: float, once: Callable[[int], Awaitable[None]]) -> Result:
    """`once(number)` for each, begun evenly over so long, whatever has become of those before."""
    latencies = []

    async def timed(number: int) -> None:
        begun = time.perf_counter()
        await once(number)
        latencies.append(time.perf_counter() - begun)

    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            early = begun + number * seconds / count - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            tasks.create_task(timed(number))
    return counted([latencies], begun, time.monotonic())


async def security_relogins(
    bootstrap: str, mechanism: str, user: str, password: str, connections: int, seconds: float
) -> Result:
    """All log in, then each logs in again on its connection (KIP-368), evenly over `seconds`."""
    may_open(connections)
    who = ScramUser(mechanism, user, password)
    async with AsyncExitStack() as stack:
        inside: list[Connection] = []

        async def enter(count: int) -> None:
            for _ in range(count):
                connection = await stack.enter_async_context(Connection(bootstrap))
                await connection.log_in(who)
                inside.append(connection)

        shares = [len(range(n, connections, OPENED_AT_ONCE)) for n in range(OPENED_AT_ONCE)]
        await asyncio.gather(*map(enter, shares))
        await asyncio.to_thread(ready)
        return await paced(connections, seconds, lambda number: inside[number].log_in(who))


async def security_wrong_logins(bootstrap: str, user: str, logins: int, seconds: float) -> Result:
    """Logins by PLAIN with a wrong password, each on a connection of its own, begun evenly."""

    async def once(_: int) -> None:
        async with Connection(bootstrap) as connection:
            await connection.be_refused(user)

    await once(0)
    await asyncio.to_thread(ready)
    return await paced(logins, seconds, once)


async def security_metadata(
    bootstrap: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str | None,
    topics: int,
    connections: int,
    seconds: float,
) -> Result:
    """Metadata of one topic, or of all (None), one request at a time on each connection.

    topics: how many have to be in an answer at least.
    """
    from bench.members import frame
    from gateway.kafka import codec

    version = 12  # librdkafka's
    Topic = codec.MetadataRequest.MetadataRequestTopic
    request = codec.MetadataRequest(
        topics=None if topic is None else [Topic(name=topic)], allow_auto_topic_creation=False
    )
    sent = bytes(frame(request, version))
    who = ScramUser(mechanism, user, password)

    async def check(connection: Connection) -> None:
        await connection.log_in(who)
        received = await connection.ask(sent)
        answer = codec.decode_message(codec.MetadataResponse, version, memoryview(received), 5)
        found = [each for each in answer.topics if not each.error_code]
        if len(found) < topics:
            raise RuntimeError(f"{len(found)} topics in the answer, not {topics}")

    async def until(connection: Connection, end: float) -> list[float]:
        taken = []
        while time.monotonic() < end:
            asked = time.perf_counter()
            await connection.ask(sent)
            taken.append(time.perf_counter() - asked)
        return taken

    async with AsyncExitStack() as stack:
        inside = [
            await stack.enter_async_context(Connection(bootstrap)) for _ in range(connections)
        ]
        for connection in inside:
            await check(connection)
        await asyncio.to_thread(ready)
        begun = time.monotonic()
        each = await asyncio.gather(*[until(connection, begun + seconds) for connection in inside])
        ended = time.monotonic()
    return counted(each, begun, ended)
