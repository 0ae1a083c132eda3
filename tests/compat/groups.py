"""Members of consumer groups for tests: librdkafka consumers that are polled in threads.

Knows confluent-kafka and waiting; must not know what a test expects of its members.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

WAIT = 30.0  # seconds until something that must happen is taken for lost

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
}

# A way to be in a group: the settings that choose it.
CLASSIC = {"group.protocol": "classic", "heartbeat.interval.ms": 300, "session.timeout.ms": 10_000}
RANGE = {**CLASSIC, "partition.assignment.strategy": "range"}
COOPERATIVE = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
CONSUMER = {"group.protocol": "consumer"}
WAYS = {"range": RANGE, "cooperative-sticky": COOPERATIVE, "consumer": CONSUMER}

Owned = frozenset[tuple[str, int]]
Answer = TypeVar("Answer")


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


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a member got it."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Member:
    """A subscribed consumer with a thread that polls it; it remembers what it got and was told.

    The thread alone speaks to the consumer, as an application does (some of confluent-kafka's
    calls keep Python's lock while they wait, so that two threads can wait for each other).
    """

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], settings: dict[str, Any]
    ) -> None:
        """settings: librdkafka's, beside those that every member of these tests has."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )
        self.owned: Owned = frozenset()  # what it is assigned, as the client says
        self.events: list[Event] = []
        self.records: list[Read] = []
        self.errors: list[KafkaError] = []
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._polls = True
        self._closed = False
        self._subscribe(topics)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(
            list(topics),
            on_assign=lambda _, found: self._told("assigned", found),
            on_revoke=lambda _, found: self._told("revoked", found),
            on_lost=lambda _, found: self._told("lost", found),
        )

    def _told(self, kind: str, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(Event(kind, owned(partitions)))

    def _run(self) -> None:
        while not self._closed:
            while not self._asked.empty():
                self._asked.get()()
            if self._polls:
                self._poll()
            else:
                time.sleep(0.02)
            self.owned = owned(self._consumer.assignment())
        self._consumer.close()
        self.owned = frozenset()

    def _poll(self) -> None:
        message = self._consumer.poll(0.05)
        if message is None:
            return
        if error := message.error():
            self.errors.append(error)
            return
        self.records.append(
            Read(message.topic(), message.partition(), message.offset(), message.value())
        )

    def ask(self, question: Callable[[Consumer], Answer]) -> Answer:
        """What `question` returns or raises, called between two polls."""
        future: Future[Answer] = Future()

        def answer() -> None:
            try:
                future.set_result(question(self._consumer))
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
        self.ask(lambda _: self._subscribe(topics))

    def commit(self, offsets: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """Commits where it is (or `offsets`), and waits for the answer; KafkaException if not."""
        chosen = {"offsets": list(offsets)} if offsets else {}
        found = self.ask(lambda consumer: consumer.commit(asynchronous=False, **chosen))
        for partition in found:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return found

    def committed(self, topic: str, partitions: int) -> list[int]:
        """What its group has committed, by partition."""
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        found = self.ask(lambda consumer: consumer.committed(wanted, timeout=WAIT))
        return [partition.offset for partition in found]

    def close(self) -> None:
        """Leaves the group."""
        self._closed = True
        self._thread.join(WAIT)
        assert not self._thread.is_alive(), "Consumer.close() does not return"


def owned(partitions: Sequence[TopicPartition]) -> Owned:
    return frozenset((found.topic, found.partition) for found in partitions)


class Group:
    """The members of one group over one topic; makes them, asks them, closes them."""

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.members: list[Member] = []
        self._left: list[Member] = []

    def join(self, settings: dict[str, Any], topics: Sequence[str] | None = None) -> Member:
        """One more member; it has joined when `settle` says so."""
        member = Member(self.bootstrap, self.name, topics or [self.topic], settings)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self._left.append(member)
        member.close()

    def settle(self, among: Sequence[Member] | None = None, partitions: int | None = None) -> None:
        """Waits until every partition has exactly one owner, and all have about as many."""
        members = self.members if among is None else among
        wanted = {(self.topic, number) for number in range(partitions or self.partitions)}

        def settled() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            return (
                sum(sizes) == len(wanted)
                and frozenset().union(*shares) == wanted
                and max(sizes) - min(sizes) <= 1
            )

        eventually(settled, f"{len(members)} members share {len(wanted)} partitions")

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
def groups(bootstrap: str) -> Iterator[Callable[[str, str, int], Group]]:
    """A factory of groups, closed afterwards."""
    made: list[Group] = []

    def make(name: str, topic: str, partitions: int) -> Group:
        group = Group(bootstrap, name, topic, partitions)
        made.append(group)
        return group

    try:
        yield make
    finally:
        for group in made:
            group.close()
