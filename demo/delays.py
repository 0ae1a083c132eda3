"""Adds up how late each carrier's flights arrive: consume, transform, produce, exactly once.

A process reads the flights in a group, and for each batch writes, in one transaction, what the
batch adds to each carrier's total, together with the group's offsets. It is killed (SIGKILL) in the
middle of a transaction several times and started again. What must come out: the totals that plain
Python counts. Knows clients, as any user does; must not know the server.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from demo.group import Record, committed_offsets

PATIENCE_S = 60.0  # without any progress for so long, it has failed
BATCH = 500  # flights at most in a transaction; fewer if there are few
KILLS = 5
PARTITIONS = 4  # of the topic with the delays
NO_CARRIER = "no carrier"  # of a record that is no flight


class DelaysFailed(Exception):
    """The totals cannot be had; the message is for the person who started it."""


@dataclass(slots=True)
class Totals:
    """flights and minutes: of each carrier. A flight that never arrived has no minutes."""

    flights: Counter[str] = field(default_factory=Counter)
    minutes: Counter[str] = field(default_factory=Counter)

    def add(self, value: bytes) -> None:
        """One flight."""
        try:
            flight = json.loads(value)
        except ValueError:
            flight = {"carrier": NO_CARRIER, "arr_delay": None}
        self.flights[flight["carrier"]] += 1
        self.minutes[flight["carrier"]] += round(flight["arr_delay"] or 0)

    def records(self) -> Iterator[tuple[str, bytes]]:
        """A record for each carrier."""
        for carrier, count in self.flights.items():
            added = {"flights": count, "minutes": self.minutes[carrier]}
            yield carrier, json.dumps(added).encode()

    def take(self, carrier: str, value: bytes) -> None:
        """What `records` gave."""
        added = json.loads(value)
        self.flights[carrier] += added["flights"]
        self.minutes[carrier] += added["minutes"]


# --- the process that is killed ---


@dataclass(frozen=True, slots=True)
class Job:
    """From where, to where, as whom, and how much at once. service_url: where Pulsar's clients
    find the broker, if one reads."""

    bootstrap: str
    source: str
    target: str
    group: str
    batch: int
    service_url: str = ""


def add_up(job: Job, pipe: Connection) -> None:
    """Until it is killed. Tells before each commit how many flights are in the transaction."""
    logging.disable(logging.CRITICAL)
    try:
        _add_up(job, pipe)
    except KafkaException as failed:
        pipe.send(failed.args[0].str())


def _add_up(job: Job, pipe: Connection) -> None:
    producer = Producer({"bootstrap.servers": job.bootstrap, "transactional.id": job.group})
    producer.init_transactions(PATIENCE_S)  # what a killed predecessor left open is aborted
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group,
            "group.instance.id": "the only one",  # it comes back to its partitions at once
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([job.source])
    while True:
        messages = consumer.consume(job.batch, timeout=0.2)
        totals, offsets = Totals(), {}
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            totals.add(message.value())
            offsets[message.partition()] = message.offset() + 1
        if messages:
            producer.begin_transaction()
            for carrier, value in totals.records():
                producer.produce(job.target, value, carrier)
            producer.send_offsets_to_transaction(
                [TopicPartition(job.source, number, offset) for number, offset in offsets.items()],
                consumer.consumer_group_metadata(),
            )
            producer.flush()
            pipe.send(len(messages))
            producer.commit_transaction()
        else:
            pipe.send(0)


# --- the process that started it ---


@dataclass(frozen=True, slots=True)
class Delays:
    """What came out. killed: how often. taken_back: flights in records that were aborted."""

    totals: Totals
    killed: int
    taken_back: int

    def problems(self, records: Sequence[Record]) -> Iterator[str]:
        expected = Totals()
        for _, value in records:
            expected.add(value)
        for what in ("flights", "minutes"):
            right, found = getattr(expected, what), getattr(self.totals, what)
            wrong = [carrier for carrier in {*right, *found} if right[carrier] != found[carrier]]
            if wrong:
                yield f"{what} of {', '.join(sorted(wrong))} are wrong"
        if self.killed < KILLS:
            yield f"killed only {self.killed} times"

    def told(self) -> str:
        """How it went, in a few words, where there is no problem."""
        return (
            f"totals of {len(self.totals.flights)} carriers exact; killed {self.killed} times;"
            f" {self.taken_back:,} flights taken back"
        )


def delays_of(
    bootstrap: str, source: str, ends: dict[int, int], advance: Callable[[int], None]
) -> Delays:
    """Has them added up from `source`, whose partitions end at `ends`; DelaysFailed."""
    total = sum(ends.values())
    job = Job(bootstrap, source, f"{source}-delays", f"{source}-adder", batch_of(total))
    make_topic(bootstrap, job.target)
    killed = run_and_kill(
        job, add_up, total, lambda: committed_offsets(bootstrap, job.group) == ends, advance
    )
    return what_came_out(job, killed)


def batch_of(total: int) -> int:
    """How many flights go into a transaction, so that there are enough to be killed in."""
    return max(1, min(BATCH, total // (4 * KILLS)))


def what_came_out(job: Job, killed: int) -> Delays:
    """The totals that are committed, and what was taken back."""
    committed = read(job, "read_committed")
    everything = read(job, "read_uncommitted")
    return Delays(committed, killed, (everything.flights - committed.flights).total())


def make_topic(bootstrap: str, name: str) -> None:
    """The topic anew, and nothing in it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        if name in admin.list_topics(timeout=PATIENCE_S).topics:
            admin.delete_topics([name], operation_timeout=30)[name].result(PATIENCE_S)
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_S)
    except KafkaException as refused:
        raise DelaysFailed(f"{name}: {refused.args[0].str()}") from None


def run_and_kill(
    job: Job,
    work: Callable[[Job, Connection], None],
    total: int,
    is_done: Callable[[], bool],
    advance: Callable[[int], None],
) -> int:
    """Has a process work until all is done; how often it was killed on the way."""
    added = killed = 0
    deadline = time.monotonic() + PATIENCE_S
    while True:
        under_way = 0
        with running(job, work) as pipe:
            while (count := hear(pipe)) is not None:
                if time.monotonic() > deadline:
                    raise DelaysFailed(f"nothing has been added up for {PATIENCE_S:.0f} s")
                if under_way:  # whoever goes on has committed
                    added += under_way
                    advance(under_way)
                    deadline = time.monotonic() + PATIENCE_S
                under_way = count
                if not count and is_done():
                    advance(total - added)  # what was committed by a process as it was killed
                    return killed
                if count and killed < KILLS and added * KILLS >= total * killed:
                    killed += 1
                    break  # while it commits
            else:
                raise DelaysFailed("the process ended by itself")


@contextmanager
def running(job: Job, work: Callable[[Job, Connection], None]) -> Iterator[Connection]:
    """The process; killed afterwards."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def hear(pipe: Connection) -> int | None:
    """How many flights it is about to commit; None once it is gone. DelaysFailed if it says so."""
    if not pipe.poll(PATIENCE_S):
        raise DelaysFailed(f"nothing was heard for {PATIENCE_S:.0f} s")
    try:
        told: int | str = pipe.recv()
    except EOFError:
        return None
    if isinstance(told, str):
        raise DelaysFailed(told)
    return told


def read(job: Job, isolation_level: str) -> Totals:
    """What the topic with the delays adds up to, read with another client."""
    partitions = [KafkaPythonPartition(job.target, number) for number in range(PARTITIONS)]
    totals = Totals()
    with closing(
        KafkaConsumer(
            bootstrap_servers=job.bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
        )
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if time.monotonic() > deadline:
                raise DelaysFailed(f"{job.target} cannot be read to its end")
            for batch in consumer.poll(timeout_ms=500).values():
                for record in batch:
                    totals.take(record.key.decode(), record.value)
    return totals
