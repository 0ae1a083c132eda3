"""Members of consumer groups for tests: a stock client's consumers, polled in threads.

Knows `clients.py` and waiting; must not know what a test expects of its members.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AIORange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AIORoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from tests.compat.clients import WAIT, Client, Confluent, Owned, PythonReader, Read

# How a broker is set up for these tests: nothing waits longer than it must. Kafka's names; a peer
# under test has to be started with the same (compat/README.md).
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "10000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Tests write records of long ago: no round of retention is to delete them.
    "log.retention.check.interval.ms": "86400000",
}

# Whoever is no longer a member may not commit: the code depends on what the client still hopes.
FENCED = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._STATE,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
}

# A way to be in a group: the settings that choose it.
CLASSIC = {"group.protocol": "classic", "heartbeat.interval.ms": 300, "session.timeout.ms": 10_000}
RANGE = {**CLASSIC, "partition.assignment.strategy": "range"}
COOPERATIVE = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
CONSUMER = {"group.protocol": "consumer"}
POLL_S = 0.05
# A poll of kafka-python that ends while its member rejoins for new partitions loses the rebalance,
# and never with two seconds (compat/kafka-python/FINDINGS.md, 6).
LONGER_POLL_S = {"kafka-python": 2.0}


@dataclass(frozen=True, slots=True)
class Way:
    """A client, and the settings that choose a protocol and an assignor."""

    client: str
    how: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.client}-{self.how}".removesuffix("-")


def _assigned_by(client: str, *assignors: Any) -> list[Way]:
    name = "partition.assignment.strategy"
    return [Way(client, assignor.name, {name: [assignor]}) for assignor in assignors]


AIOKAFKA, KAFKA_PYTHON = Way("aiokafka"), Way("kafka-python")
LIBRDKAFKA = [
    Way("confluent", "range", RANGE),
    Way("confluent", "cooperative", COOPERATIVE),
    Way("confluent", "consumer", CONSUMER),
]
# Each client with each assignor that it has.
EVERY_WAY = [
    *LIBRDKAFKA,
    *_assigned_by("aiokafka", AIORange, AIORoundRobin, StickyPartitionAssignor),
    *_assigned_by("kafka-python", RangePartitionAssignor, RoundRobinPartitionAssignor),
    *_assigned_by("kafka-python", CooperativeStickyAssignor),
]

Result = TypeVar("Result")


def eventually(condition: Callable[[], object], what: str = "", within: float = WAIT) -> None:
    """Waits until `condition` holds; the test fails if that takes too long."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what or condition}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Event:
    """What a member was told of its assignment. kind: assigned, revoked or lost."""

    kind: str
    partitions: Owned


class Member:
    """A subscribed consumer with a thread that polls it; it remembers what it got and was told.

    The thread alone speaks to the consumer, as an application does (some of confluent-kafka's
    calls keep Python's lock while they wait, so that two threads can wait for each other).
    Whatever the client, partitions and offsets are confluent-kafka's.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        settings: Mapping[str, Any],
        poll_s: float,
    ) -> None:
        """settings: the client's, beside those that every member of these tests has."""
        self.owned: Owned = frozenset()  # what it is assigned, as the client says
        self.events: list[Event] = []
        self.records: list[Read] = []
        self.errors: list[Any] = []
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._polls = True
        self._poll_s = poll_s
        self._closed = False
        self._reader: PythonReader = client.reader(
            topics[0],
            None,
            group=group,
            topics=topics,
            told=lambda kind, partitions: self.events.append(Event(kind, partitions)),
            **{"metadata.max.age.ms": 500, **settings},
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            while not self._asked.empty():
                self._asked.get()()
            if self._polls:
                self._poll()
            else:
                time.sleep(0.02)
            self.owned = self._reader.assignment()
        self._reader.close()
        self.owned = frozenset()

    def _poll(self) -> None:
        try:
            self.records += self._reader.poll(self._poll_s)
        except KafkaException as raised:
            self.errors.append(raised.args[0])

    def ask(self, question: Callable[[Any], Result]) -> Result:
        """What `question` about the client's consumer returns or raises, between two polls."""
        return self.ask_reader(lambda reader: question(reader.client))

    def ask_reader(self, question: Callable[[PythonReader], Result]) -> Result:
        """The same, whatever the client."""
        future: Future[Result] = Future()

        def answer() -> None:
            try:
                future.set_result(question(self._reader))
            except Exception as raised:  # noqa: BLE001 - handed to whoever asked
                future.set_exception(raised)

        self._asked.put(answer)
        return future.result(WAIT)

    def told(self, kind: str) -> list[Owned]:
        """The partitions of every event of a kind that named any, in order."""
        return [told.partitions for told in self.events if told.kind == kind and told.partitions]

    def stop_polling(self) -> None:
        """As an application does that is busy for too long."""
        self._polls = False

    def go_on_polling(self) -> None:
        self._polls = True

    def subscribe(self, topics: Sequence[str]) -> None:
        """librdkafka's only."""
        self.ask_reader(lambda reader: reader.subscribe(topics))

    def commit(self, offsets: Sequence[TopicPartition] = ()) -> None:
        """Commits where it is (or `offsets`), and waits; the client's error if it is refused."""
        self.ask_reader(lambda reader: reader.commit(offsets))

    def committed(self, partitions: int) -> list[int]:
        """What its group has committed, by partition of its (first) topic."""
        found = [
            self.ask_reader(lambda reader, n=n: reader.committed(n)) for n in range(partitions)
        ]
        return [OFFSET_INVALID if offset is None else offset for offset in found]

    def close(self) -> None:
        """Leaves the group."""
        self._closed = True
        self._thread.join(WAIT)
        assert not self._thread.is_alive(), "the consumer's close() does not return"


class Group:
    """The members of one group over one topic; makes them, asks them, closes them."""

    def __init__(
        self, client: Client, bootstrap: str, name: str, topic: str, partitions: int
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.members: list[Member] = []
        self._client = client
        self._left: list[Member] = []

    def join(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str] | None = None,
    ) -> Member:
        """One more member; it has joined when `wait_stable` says so."""
        poll_s = LONGER_POLL_S.get(self._client.name, POLL_S)
        member = Member(self._client, self.name, topics or [self.topic], settings, poll_s)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self._left.append(member)
        member.close()

    def wait_stable(
        self, among: Sequence[Member] | None = None, partitions: int | None = None
    ) -> None:
        """Waits until every partition has exactly one owner, and all have about as many."""
        members = self.members if among is None else among
        wanted = {(self.topic, number) for number in range(partitions or self.partitions)}

        def is_stable() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            return (
                sum(sizes) == len(wanted)
                and frozenset().union(*shares) == wanted
                and max(sizes) - min(sizes) <= 1
            )

        eventually(is_stable, f"{len(members)} members share {len(wanted)} partitions")

    def read(self) -> Counter[bytes]:
        """The values all members got, those that have left too, with how often."""
        everybody = (*self._left, *self.members)
        return Counter(record.value for member in everybody for record in member.records)

    def read_twice(self) -> dict[bytes, int]:
        """Which values came more than once."""
        return {value: count for value, count in self.read().items() if count > 1}

    def close(self) -> None:
        """All leave at once."""
        threads = [threading.Thread(target=member.close) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        self.members.clear()


MakeGroup = Callable[..., Group]


@contextmanager
def groups(bootstrap: str) -> Iterator[MakeGroup]:
    """A factory of groups, closed afterwards; of librdkafka's members unless told otherwise."""
    made: list[Group] = []

    def make(name: str, topic: str, partitions: int, client: Client | None = None) -> Group:
        group = Group(client or Confluent(bootstrap), bootstrap, name, topic, partitions)
        made.append(group)
        return group

    try:
        yield make
    finally:
        for group in made:
            group.close()


def set_group_config(group: Group, name: str, value: str) -> None:
    """One setting of a group (KIP-848)."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(WAIT)
