"""Three processes with Pulsar's client work on what a Kafka client wrote; one is killed half-way.

They share one subscription by tail number (Key_Shared): each airplane's flights go to one worker at
a time, in their order. Each hands a flight to this process and acknowledges it, one by one. What
must come out: every flight is worked on, each airplane's in order; what the killed worker had not
acknowledged is worked on again, by others; and SQL finds nothing left. Knows clients, as any user
does; must not know the server.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import psycopg

PATIENCE_S = 60.0  # without any progress for so long, the workers have failed
WORKERS = ("first", "second", "third")
SUBSCRIPTION = "workers"
_HANDED_OVER = 200  # flights at most, before the starter is told

Place = tuple[int, int]  # partition, offset


class WorkersFailed(Exception):
    """The workers do not go on; the message is for the person who started them."""


# --- a worker: what runs in each of the three processes ---


@dataclass(slots=True)
class Worker:
    """A worker's end of the pipe to the process that started it. stop: set when all is done."""

    name: str
    service_url: str
    topic: str
    pipe: Connection
    stop: Any


def run_worker(worker: Worker) -> None:
    """The whole life of a worker's process."""
    import pulsar

    try:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(worker.service_url, logger=logger)
        consumer = client.subscribe(
            worker.topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=worker.name,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        while not worker.stop.is_set():
            _work(consumer, worker, pulsar.Timeout)
        client.close()
    except Exception as failed:  # noqa: BLE001 - told by the process that started this one
        worker.pipe.send(("failed", f"{type(failed).__name__}: {failed}"))


def _work(consumer: Any, worker: Worker, timeout: type[Exception]) -> None:
    """Takes flights until there are none for a moment, or enough to tell of."""
    done = []
    try:
        while len(done) < _HANDED_OVER:
            message = consumer.receive(100)
            found = message.message_id()
            key = message.partition_key() or None
            at = found.entry_id() + max(found.batch_index(), 0)
            place = (max(found.partition(), 0), at)
            done.append((place, time.monotonic(), key, message.data(), message))
    except timeout:
        pass
    if done:
        # Told first: whoever dies in between has worked, and it is worked on again.
        worker.pipe.send(("done", [each[:4] for each in done]))
        for each in done:
            consumer.acknowledge(each[4])


# --- the process that started them ---


@dataclass(slots=True)
class Worked:
    """What the workers did.

    flights: by place, as first worked on: when (seconds), key and value. again: how often one was
    worked on once more. by: how many each has worked on. killed: who, after how many. left:
    messages that SQL finds unacknowledged.
    """

    flights: dict[Place, tuple[float, str | None, bytes]] = field(default_factory=dict)
    again: int = 0
    by: Counter[str] = field(default_factory=Counter)
    killed: tuple[str, int] | None = None
    left: int | None = None

    def take(self, name: str, place: Place, at: float, key: str | None, value: bytes) -> None:
        """One flight was worked on."""
        self.by[name] += 1
        if place in self.flights:
            self.again += 1
        else:
            self.flights[place] = (at, key, value)

    @property
    def records(self) -> list[tuple[bytes | None, bytes]]:
        """Keys and values, in the order of their places."""
        return [
            (None if key is None else key.encode(), value)
            for _, (_, key, value) in sorted(self.flights.items(), key=lambda each: each[0])
        ]

    def disorder(self) -> int:
        """How many airplanes' flights were begun in another order than they have."""
        begun: dict[str, list[tuple[Place, float]]] = defaultdict(list)
        for place, (at, key, _) in self.flights.items():
            if key is not None:
                begun[key].append((place, at))
        by_place = ([at for _, at in sorted(each)] for each in begun.values())
        return sum(times != sorted(times) for times in by_place)

    def problems(self, total: int) -> Iterator[str]:
        """What is wrong."""
        if len(self.flights) != total:
            yield f"{len(self.flights):,} of {total:,} were worked on"
        if disorder := self.disorder():
            yield f"{disorder:,} airplanes' flights out of order"
        if self.left:
            yield f"{self.left:,} not acknowledged"
        if self.killed is None:
            yield "nobody was killed"

    def told(self) -> str:
        """In a few words."""
        name, count = self.killed or ("nobody", 0)
        return f"order kept; {name} worker killed after {count:,}; {self.again:,} worked on again"


@dataclass(slots=True)
class _Running:
    name: str
    process: Any
    pipe: Connection


@contextmanager
def _running(service_url: str, topic: str) -> Iterator[tuple[list[_Running], Any]]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers: list[_Running] = []
    try:
        for name in WORKERS:
            ours, theirs = context.Pipe(duplex=False)
            worker = Worker(name, service_url, topic, theirs, stop)
            process = context.Process(target=run_worker, args=(worker,), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Running(name, process, ours))
        yield workers, stop
    finally:
        for running in workers:
            running.process.kill()
            running.process.join()
            running.pipe.close()


def work_by_key(
    service_url: str,
    database_url: str | None,
    topic: str,
    total: int,
    advance: Callable[[int], None],
) -> Worked:
    """Lets three workers work on `total` flights; kills the busiest when half are done."""
    done = Worked()
    with _running(service_url, topic) as (workers, stop):
        pipes = {running.pipe: running for running in workers}
        last_progress = time.monotonic()
        while len(done.flights) < total:
            before = len(done.flights)
            _hear(pipes, done, 1.0)
            advance(len(done.flights) - before)
            if done.killed is None and len(done.flights) >= total // 2:
                _kill_busiest(pipes, done)
            if len(done.flights) > before:
                last_progress = time.monotonic()
            elif time.monotonic() - last_progress > PATIENCE_S:
                raise WorkersFailed(f"the workers have done nothing for {PATIENCE_S:.0f} s")
        if database_url is not None:
            # What the killed one had done and not acknowledged is worked on again.
            deadline = time.monotonic() + PATIENCE_S
            while (
                left := left_of(database_url, topic, SUBSCRIPTION)
            ) and time.monotonic() < deadline:
                _hear(pipes, done, 0.2)
            done.left = left
        stop.set()
        for running in workers:
            running.process.join(PATIENCE_S)
    return done


def _hear(pipes: dict[Connection, _Running], done: Worked, seconds: float) -> None:
    for pipe in wait(list(pipes), seconds):
        assert isinstance(pipe, Connection)
        running = pipes[pipe]
        try:
            kind, what = pipe.recv()
        except (EOFError, OSError):
            del pipes[pipe]
            if done.killed is None or done.killed[0] != running.name:
                raise WorkersFailed(f"the {running.name} worker ended by itself") from None
            continue
        if kind != "done":
            raise WorkersFailed(f"the {running.name} worker: {what}")
        for place, at, key, value in what:
            done.take(running.name, place, at, key, value)


def _kill_busiest(pipes: dict[Connection, _Running], done: Worked) -> None:
    name, count = done.by.most_common(1)[0]
    victim = next(running for running in pipes.values() if running.name == name)
    victim.process.kill()
    done.killed = (name, count)


def left_of(database_url: str, topic: str, subscription: str) -> int:
    """What PostgreSQL says that the subscription has not acknowledged."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(backlog), 0)::bigint FROM penstock.v_subscription_backlog"
            " WHERE topic = %s AND subscription = %s",
            (topic, subscription),
        ).fetchone()
    assert row is not None  # a sum is always a row
    return int(row[0])
