"""Three processes with three stock clients share a group; one is killed (SIGKILL) half-way.

Each member takes a batch, processes it (hands it to this process), commits it, and takes the next.
What must come out: every record is processed, and the offsets committed are exact: no batch is
committed twice, none is skipped, and at the end the group is where the log ends. What the killed
member had processed and not yet committed is processed again, as in any Kafka. Knows clients, as
any user does; must not know the server.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

PATIENCE_S = 60.0  # without any progress for so long, the group has failed
BATCH = 500  # records at most between two commits

# How soon a member that is gone is noticed: Kafka's least session timeout.
SESSION_MS = 6_000
HEARTBEAT_MS = 1_000

Place = tuple[int, int]  # partition, offset
Record = tuple[bytes | None, bytes]  # key, value


class GroupFailed(Exception):
    """The group does not go on; the message is for the person who started it."""


# --- a member: what runs in each of the three processes ---


@dataclass(slots=True)
class Member:
    """A member's end of the pipe to the process that started it. stop: set when all is done."""

    bootstrap: str
    topic: str
    group: str
    pipe: Connection
    stop: Any

    def process(self, records: Sequence[tuple[int, int, bytes | None, bytes]]) -> None:
        """Hands over (partition, offset, key, value) of each record: they are processed now."""
        self.pipe.send(("processed", records))

    def committed(self) -> None:
        """The broker has acknowledged the commit of what was processed last."""
        self.pipe.send(("committed", None))


def with_confluent_kafka(member: Member) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": member.bootstrap,
            "group.id": member.group,
            "client.id": "confluent-kafka",
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )
    consumer.subscribe([member.topic])
    while not member.stop.is_set():
        messages = [found for found in consumer.consume(BATCH, timeout=0.2) if not found.error()]
        if not messages:
            continue
        member.process([(m.partition(), m.offset(), m.key(), m.value()) for m in messages])
        ends = {message.partition(): message.offset() + 1 for message in messages}
        offsets = [TopicPartition(member.topic, number, end) for number, end in ends.items()]
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:  # the partitions have moved on: somebody else reads this again
            continue
        member.committed()
    consumer.close()


def with_kafka_python(member: Member) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        member.topic,
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        client_id="kafka-python",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=BATCH,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    while not member.stop.is_set():
        polled = consumer.poll(timeout_ms=2000)  # a shorter one may lose a rebalance
        if not polled:
            continue
        records = [record for found in polled.values() for record in found]
        member.process([(r.partition, r.offset, r.key, r.value) for r in records])
        ends = {at: OffsetAndMetadata(found[-1].offset + 1, "", -1) for at, found in polled.items()}
        try:
            consumer.commit(ends)
        except KafkaError:
            continue
        member.committed()
    consumer.close()


def with_aiokafka(member: Member) -> None:
    asyncio.run(_with_aiokafka(member))


async def _with_aiokafka(member: Member) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    async with AIOKafkaConsumer(
        member.topic,
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        client_id="aiokafka",
        partition_assignment_strategy=[RangePartitionAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    ) as consumer:
        while not member.stop.is_set():
            polled = await consumer.getmany(timeout_ms=200, max_records=BATCH)
            if not polled:
                continue
            records = [record for found in polled.values() for record in found]
            member.process([(r.partition, r.offset, r.key, r.value) for r in records])
            try:
                await consumer.commit({at: found[-1].offset + 1 for at, found in polled.items()})
            except KafkaError:
                continue
            member.committed()


CLIENTS: dict[str, Callable[[Member], None]] = {
    "confluent-kafka": with_confluent_kafka,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}


def run_member(client: str, member: Member) -> None:
    """The whole life of a member's process."""
    logging.disable(logging.CRITICAL)  # rebalances are told as warnings; here they are the point
    try:
        CLIENTS[client](member)
    except Exception as failed:  # noqa: BLE001 - told by the process that started this one
        member.pipe.send(("failed", f"{type(failed).__name__}: {failed}"))


# --- the process that started them ---


@dataclass(slots=True)
class Processed:
    """What the group did.

    records: by place, as first processed. again: how often a record was processed once more.
    killed: which client, and how many records it had processed by then. commits: how often the
    commit of each record was acknowledged. offsets: what is committed at the end, by partition.
    """

    records: dict[Place, Record] = field(default_factory=dict)
    again: int = 0
    killed: tuple[str, int] | None = None
    commits: Counter[Place] = field(default_factory=Counter)
    offsets: dict[int, int] = field(default_factory=dict)

    def ends(self) -> dict[int, int]:
        """Where each partition ends, by what was processed."""
        ends: dict[int, int] = {}
        for partition, offset in self.records:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def problems(self) -> Iterator[str]:
        """What is wrong with the offsets; what the records should be, the caller knows."""
        if twice := sum(count > 1 for count in self.commits.values()):
            yield f"{twice:,} records committed twice"
        for partition, end in sorted(self.ends().items()):
            if (at := self.offsets.get(partition)) != end:
                yield f"partition {partition} is committed up to {at}, not {end}"
        if self.killed is None:
            yield "nobody was killed"


@dataclass(slots=True)
class Running:
    """A member's process, as the one that started it sees it.

    batch: what it has processed last and not committed. count: how much it has processed.
    """

    client: str
    process: Any
    pipe: Connection
    batch: list[Place] = field(default_factory=list)
    count: int = 0


@contextmanager
def running_members(bootstrap: str, topic: str, group: str) -> Iterator[tuple[list[Running], Any]]:
    """Three processes, one for each client, and the event that ends them."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    members: list[Running] = []
    try:
        for client in CLIENTS:
            ours, theirs = context.Pipe(duplex=False)
            member = Member(bootstrap, topic, group, theirs, stop)
            process = context.Process(target=run_member, args=(client, member), daemon=True)
            process.start()
            theirs.close()
            members.append(Running(client, process, ours))
        yield members, stop
    finally:
        for running in members:
            running.process.kill()
            running.process.join()
            running.pipe.close()


class Readers:
    """The group at work: hears what its members say, and kills one of them half-way."""

    def __init__(self, members: Sequence[Running], total: int) -> None:
        self._members = {running.pipe: running for running in members}
        self._total = total
        self.done = Processed()

    def process_all(self, advance: Callable[[int], None]) -> None:
        """Until every record has been processed; GroupFailed if that comes to a halt."""
        last_progress = time.monotonic()
        while (before := len(self.done.records)) < self._total:
            self.hear(1.0)
            now = len(self.done.records)
            advance(now - before)
            if self.done.killed is None and now >= self._total // 2:
                self._kill_one()
            if now > before:
                last_progress = time.monotonic()
            elif time.monotonic() - last_progress > PATIENCE_S:
                raise GroupFailed(f"the group has processed nothing for {PATIENCE_S:.0f} s")

    def hear(self, seconds: float) -> None:
        """Takes a message of each member that has one, or waits for one."""
        for pipe in wait(list(self._members), seconds):
            running = next(found for found in self._members.values() if found.pipe is pipe)
            try:
                kind, what = running.pipe.recv()
            except (EOFError, OSError):
                self._is_gone(running)
                continue
            if kind == "processed":
                self._processed(running, what)
            elif kind == "committed":
                self.done.commits.update(running.batch)
                running.batch = []
            else:
                raise GroupFailed(f"{running.client}: {what}")

    def _processed(self, running: Running, records: Sequence[Any]) -> None:
        running.batch = [(partition, offset) for partition, offset, _, _ in records]
        running.count += len(records)
        for partition, offset, key, value in records:
            if (partition, offset) in self.done.records:
                self.done.again += 1
            else:
                self.done.records[partition, offset] = (key, value)

    def _is_gone(self, running: Running) -> None:
        del self._members[running.pipe]
        if self.done.killed is None or self.done.killed[0] != running.client:
            raise GroupFailed(f"{running.client} ended by itself")

    def _kill_one(self) -> None:
        """SIGKILL to whoever has done least, but something: others must take over the most."""
        busy = [running for running in self._members.values() if running.count]
        victim = min(busy, key=lambda running: running.count)
        victim.process.kill()
        self.done.killed = (victim.client, victim.count)


def process_in_group(
    bootstrap: str, topic: str, total: int, advance: Callable[[int], None]
) -> Processed:
    """Lets the group process and commit `total` records; kills a member when half are done."""
    group = f"{topic}-readers"
    with running_members(bootstrap, topic, group) as (members, stop):
        readers = Readers(members, total)
        readers.process_all(advance)
        done, deadline = readers.done, time.monotonic() + PATIENCE_S
        # What the killed member had not committed is still to be processed again and committed.
        while (offsets := committed_offsets(bootstrap, group)) != done.ends():
            if time.monotonic() > deadline:
                break
            readers.hear(0.2)
        done.offsets = offsets
        stop.set()
        for running in members:
            running.process.join(PATIENCE_S)
    return done


def committed_offsets(bootstrap: str, group: str) -> dict[int, int]:
    """What the group has committed, by partition, as an administrator sees it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(PATIENCE_S)
    return {partition.partition: partition.offset for partition in found.topic_partitions}
