"""Four stock clients with one face: producers, and consumers of what they write.

Settings have Kafka's names, with dots or underscores. Each client keeps its own exceptions: a test
says by name which it expects (`Client.name_of`). Knows the clients and waiting; must not know what
a test expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError as PythonError

from compat.java import tools

WAIT = 30.0  # seconds until something that must happen is taken for lost
CLIENTS_IN_JAVA = Path(tools.__file__).with_name("Clients.java")
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
TRANSACTION_TIMEOUT_MS = 60_000

Offsets = Mapping[int, int]  # of a topic, by partition
Owned = frozenset[tuple[str, int]]
Told = Callable[[str, Owned], None]  # assigned, revoked or lost


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a consumer got it. is_append_time: `timestamp` is the broker's.

    Java's consumer tells nothing of what stands behind the value.
    """

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = -1
    is_append_time: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a record: where it is and its time, or the name of the client's error."""

    offset: int = -1
    timestamp: int = -1
    error: str = ""


class Reader(Protocol):
    """A consumer of one topic, subscribed or assigned. It commits nothing by itself."""

    client: Any
    topic: str
    group: str | None

    def poll(self, seconds: float = 0.5) -> list[Read]:
        """What has come."""

    def member(self) -> Any:
        """Who it is in its group now, for `Producer.send_offsets`."""

    def owned(self) -> set[int]:
        """The partitions it has."""

    def seek(self, partition: int, offset: int) -> None: ...
    def position(self, partition: int) -> int: ...
    def end(self, partition: int) -> int:
        """Where the partition ends for this isolation level."""

    def committed(self, partition: int) -> int | None: ...
    def close(self) -> None: ...


class PythonReader(Reader, Protocol):
    """What the clients in Python can do beside that: confluent-kafka, aiokafka, kafka-python."""

    def assignment(self) -> Owned: ...
    def seek_to_beginning(self) -> None:
        """In partition 0."""

    def seek_to_end(self) -> None: ...
    def beginning(self) -> int:
        """Where partition 0 begins."""

    def offset_at(self, time_ms: int) -> int | None:
        """In partition 0: the first record of that time or later."""

    def noted(self) -> tuple[int, str, int | None]:
        """What is committed for partition 0: offset, metadata, and epoch if the client tells."""

    def commit(self, offsets: Sequence[ConfluentTopicPartition] = ()) -> object:
        """Commits where it is (or `offsets`), and waits; the client's error if it is refused."""


class Producer(Protocol):
    """A transactional producer that has its id and epoch."""

    def begin(self) -> None: ...
    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        """Hands records over; `flush` or the end of the transaction sends them."""

    def flush(self) -> None:
        """Waits for their acknowledgement; raises if one was refused."""

    def send_offsets(self, topic: str, offsets: Offsets, member: Any) -> None:
        """Offsets of a group, by partition of `topic`. member: of a reader of the same client."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None:
        """Gone without a word to the broker, as if its process had been killed."""


class Client(Protocol):
    """A stock client.

    fenced: what it raises in a producer whose transactional id somebody else has taken over.
    timed_out: what its commit raises of a transaction that the broker has aborted meanwhile.
    gone: what it raises for offsets of one who is no member of the group (KIP-447); None if it does
    not say who commits them.
    """

    name: str
    fenced: frozenset[str]
    timed_out: str
    gone: str | None

    def producer(self, transactional_id: str, timeout_ms: int = ..., **settings: Any) -> Producer:
        """A producer after init_transactions(). settings: the client's own."""

    def reader(
        self,
        topic: str,
        partitions: int | None = 1,
        *,
        group: str | None = None,
        start: int = 0,
        isolation: str = READ_COMMITTED,
        **settings: Any,
    ) -> Reader:
        """Assigned to `partitions` partitions from `start` on; None: subscribed in its group."""

    def name_of(self, error: BaseException) -> str:
        """The name of an error's class or code, as this client has it."""

    def close(self) -> None:
        """Closes all that it has made."""


class _Closing:
    """Closes what it has made and nobody has closed."""

    def __init__(self) -> None:
        self._made: list[Callable[[], None]] = []

    def _closed_later(self, close: Callable[[], None]) -> None:
        self._made.append(close)

    def close(self) -> None:
        for close in reversed(self._made):
            with contextlib.suppress(Exception):  # closed already
                close()


def read_until(
    reader: Reader, done: Callable[[list[Read]], bool], within_s: float = WAIT
) -> list[Read]:
    """Polls until what has come is enough."""
    found: list[Read] = []
    deadline = time.monotonic() + within_s
    while not done(found):
        assert time.monotonic() < deadline, f"got only {found[-20:]} ({len(found)})"
        found += reader.poll()
    return found


def read_to_end(
    client: Client,
    topic: str,
    partitions: int = 1,
    *,
    start: int = 0,
    isolation: str = READ_COMMITTED,
) -> list[Read]:
    """Every record up to each partition's end (for this isolation), by partition and offset."""
    with contextlib.closing(
        client.reader(topic, partitions, start=start, isolation=isolation)
    ) as reader:
        ends = {number: reader.end(number) for number in range(partitions)}
        found = read_until(
            reader, lambda _: all(reader.position(n) >= max(end, start) for n, end in ends.items())
        )
    return sorted(found, key=lambda read: (read.partition, read.offset))


def refusal(client: Client, act: Callable[[], object]) -> str:
    """The name of what `act` raises; nothing if it does not."""
    try:
        act()
    except Exception as raised:  # noqa: BLE001 - each client has its own
        return client.name_of(raised)
    return ""


def values(records: Sequence[Read]) -> list[str]:
    return [record.value.decode() for record in records]


# --- confluent-kafka ---


@contextmanager
def fatal_errors_raised(client: ConfluentProducer) -> Iterator[None]:
    """A fatal error is thrown out of whatever call serves callbacks, as no regular exception.

    It is a KafkaError itself, or, where a callback ran after it, the cause of a SystemError; or it
    is lost on the way (a call that "returned NULL without setting an exception"). Then the client
    is asked: what is fatal is the answer to any call about transactions.
    """
    try:
        yield
    except KafkaError as fatal:
        raise KafkaException(fatal) from None
    except SystemError as raised:
        if isinstance(raised.__cause__, KafkaError):
            raise KafkaException(raised.__cause__) from None
        if isinstance(raised.__cause__, KafkaException):
            raise raised.__cause__ from None
        try:
            client.begin_transaction()
        except KafkaException as told:
            if told.args[0].fatal():
                raise told from None
        raise


class _ConfluentProducer:
    def __init__(self, client: ConfluentProducer) -> None:
        self._client = client
        self._refused: list[KafkaError] = []

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._refused.append(error)

    def begin(self) -> None:
        self._refused.clear()
        self._client.begin_transaction()

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        with fatal_errors_raised(self._client):
            for value in values:
                self._client.produce(topic, value, partition=partition, on_delivery=self._delivered)
            self._client.poll(0)

    def flush(self) -> None:
        with fatal_errors_raised(self._client):
            assert self._client.flush(WAIT) == 0
        if self._refused:
            raise KafkaException(self._refused[0])

    def send_offsets(self, topic: str, offsets: Offsets, member: Any) -> None:
        places = [ConfluentTopicPartition(topic, number, at) for number, at in offsets.items()]
        self._client.send_offsets_to_transaction(places, member, WAIT)

    def commit(self) -> None:
        self._client.commit_transaction(WAIT)

    def abort(self) -> None:
        self._client.abort_transaction(WAIT)

    def close(self) -> None:
        self._client.close()

    def abandon(self) -> None:
        del self._client  # close() would abort what is open


class _ConfluentReader:
    def __init__(self, client: Consumer, topic: str, group: str | None) -> None:
        self.client = client
        self.topic = topic
        self.group = group
        # librdkafka's own position is behind what it skips at a partition's end.
        self._ends: dict[int, int] = {}
        self._error: KafkaError | None = None  # came behind records

    def poll(self, seconds: float = 0.5) -> list[Read]:
        found: list[Read] = []
        message = None if self._error else self.client.poll(seconds)
        while message is not None:
            number, offset = message.partition(), message.offset()
            if error := message.error():
                if error.code() != KafkaError._PARTITION_EOF:
                    self._error = error
                    break
                self._ends[number] = offset
            else:
                kind, stamp = message.timestamp()
                found.append(
                    Read(
                        message.topic(),
                        number,
                        offset,
                        message.value(),
                        message.key(),
                        tuple(message.headers() or ()),
                        stamp,
                        kind == TIMESTAMP_LOG_APPEND_TIME,
                    )
                )
            message = self.client.poll(0)
        if self._error and not found:
            error, self._error = self._error, None
            raise KafkaException(error)
        return found

    def member(self) -> Any:
        return self.client.consumer_group_metadata()

    def _at(self, partition: int, offset: int = -1001) -> ConfluentTopicPartition:
        return ConfluentTopicPartition(self.topic, partition, offset)

    def assignment(self) -> Owned:
        return _places(self.client.assignment())

    def owned(self) -> set[int]:
        return {partition for _, partition in self.assignment()}

    def seek(self, partition: int, offset: int) -> None:
        self._ends.pop(partition, None)
        self.client.seek(self._at(partition, offset))

    def seek_to_beginning(self) -> None:
        self.seek(0, OFFSET_BEGINNING)

    def seek_to_end(self) -> None:
        self.seek(0, OFFSET_END)

    def position(self, partition: int) -> int:
        [found] = self.client.position([self._at(partition)])
        return max(int(found.offset), self._ends.get(partition, 0))

    def beginning(self) -> int:
        return int(self.client.get_watermark_offsets(self._at(0), timeout=WAIT)[0])

    def end(self, partition: int) -> int:
        return int(self.client.get_watermark_offsets(self._at(partition), timeout=WAIT)[1])

    def offset_at(self, time_ms: int) -> int | None:
        [found] = self.client.offsets_for_times([self._at(0, time_ms)], timeout=WAIT)
        return int(found.offset) if found.offset >= 0 else None

    def committed(self, partition: int) -> int | None:
        [found] = self.client.committed([self._at(partition)], timeout=WAIT)
        return int(found.offset) if found.offset >= 0 else None

    def noted(self) -> tuple[int, str, int | None]:
        [found] = self.client.committed([self._at(0)], timeout=WAIT)
        return found.offset, found.metadata, found.leader_epoch

    def subscribe(self, topics: Sequence[str], told: Told | None = None) -> None:
        self.client.subscribe(list(topics), **_listening(told))

    def commit(self, offsets: Sequence[ConfluentTopicPartition] = ()) -> object:
        chosen = {"offsets": list(offsets)} if offsets else {}
        found = self.client.commit(asynchronous=False, **chosen)
        for partition in found:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return found

    def close(self) -> None:
        self.client.close()


def _places(partitions: Iterable[Any]) -> Owned:
    return frozenset((found.topic, found.partition) for found in partitions)


class _ConfluentPlainProducer:
    def __init__(self, client: ConfluentProducer) -> None:
        self._client = client
        self._sent: list[Sent] = []

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        sent = Sent(error=error.name()) if error else Sent(message.offset(), message.timestamp()[1])
        self._sent.append(sent)

    def send(self, topic: str, value: bytes | None, **record: Any) -> None:
        self._client.produce(topic, value, on_delivery=self._delivered, **record)

    def flush(self) -> list[Sent]:
        assert self._client.flush(WAIT) == 0
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        self._client.close()


# When it has lost the only broker there is, librdkafka 2.16 begins anew with its bootstrap servers,
# and now and then never finds its transaction coordinator again (Kafka's as well).
_LOSES_CONNECTIONS = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 200}


# What the clients in Python call otherwise.
_OF_LIBRDKAFKA = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as librdkafka has them; callbacks as they are."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        dotted = name if callable(value) else name.replace("_", ".")
        is_strict = (dotted, value) == ("auto.offset.reset", "none")
        found[_OF_LIBRDKAFKA.get(dotted, dotted)] = "error" if is_strict else value
    return found


class Confluent(_Closing):
    """librdkafka, which speaks V1 of transactions."""

    name = "confluent"
    small_batches = {"batch.num.messages": 10}  # noqa: RUF012 - not changed
    smallest_fetch = {  # noqa: RUF012
        "message.max.bytes": 1000,
        "fetch.max.bytes": 1000,
        "max.partition.fetch.bytes": 1,
    }
    fenced = frozenset({"_FENCED"})
    timed_out = "_FENCED"
    gone = "UNKNOWN_MEMBER_ID"

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap

    def producer(
        self, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS, **settings: Any
    ) -> _ConfluentProducer:
        client = ConfluentProducer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                **_LOSES_CONNECTIONS,
                **_dotted(settings),
            }
        )
        client.init_transactions(WAIT)
        made = _ConfluentProducer(client)
        self._closed_later(made.abandon)
        return made

    def plain_producer(self, **settings: Any) -> _ConfluentPlainProducer:
        every = {"bootstrap.servers": self._bootstrap, "linger.ms": 0, **_dotted(settings)}
        made = _ConfluentPlainProducer(ConfluentProducer(every))
        self._closed_later(made.close)
        return made

    def reader(
        self,
        topic: str,
        partitions: int | None = 1,
        *,
        group: str | None = None,
        start: int = 0,
        isolation: str = READ_COMMITTED,
        topics: Sequence[str] = (),
        told: Told | None = None,
        **settings: Any,
    ) -> _ConfluentReader:
        if settings.get("group.protocol") != "consumer":
            settings.setdefault("heartbeat.interval.ms", 300)
        client = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group or "unused",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                **_LOSES_CONNECTIONS,
                **_dotted(settings),
            }
        )
        if partitions is None:
            client.subscribe(list(topics) or [topic], **_listening(told))
        else:
            at = start or OFFSET_BEGINNING
            client.assign([ConfluentTopicPartition(topic, n, at) for n in range(partitions)])
        self._closed_later(client.close)
        return _ConfluentReader(client, topic, group)

    def name_of(self, error: BaseException) -> str:
        return str(error.args[0].name()) if isinstance(error, KafkaException) else repr(error)


def _listening(told: Told | None) -> dict[str, Any]:
    """The callbacks of librdkafka's `subscribe`."""
    if told is None:
        return {}
    return {
        "on_assign": lambda _, found: told("assigned", _places(found)),
        "on_revoke": lambda _, found: told("revoked", _places(found)),
        "on_lost": lambda _, found: told("lost", _places(found)),
    }


# --- aiokafka and kafka-python ---


class _Listener(aiokafka.ConsumerRebalanceListener, ConsumerRebalanceListener):
    def __init__(self, told: Told) -> None:
        self._told = told
        self.owned: Owned = frozenset()  # as far as it was told

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.owned -= _places(revoked)
        self._told("revoked", _places(revoked))

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.owned |= _places(assigned)
        self._told("assigned", _places(assigned))


class _PythonReader:
    """Their consumers have the same methods; aiokafka's are coroutines (`_call`)."""

    _polled = "poll"
    _place: Any = TopicPartition

    def __init__(
        self, client: Any, topic: str, group: str | None, listener: _Listener | None = None
    ) -> None:
        self.client = client
        self.topic = topic
        self.group = group
        self._listener = listener

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.client, method)(*arguments, **options)

    def start(self) -> None:
        """After it is subscribed, before it is assigned; aiokafka's only."""

    def at(self, partition: int) -> Any:
        return self._place(self.topic, partition)

    def poll(self, seconds: float = 0.5) -> list[Read]:
        return [
            Read(
                at.topic,
                at.partition,
                record.offset,
                record.value,
                record.key,
                tuple(record.headers),
                record.timestamp,
                record.timestamp_type == 1,
            )
            for at, records in self.call(self._polled, timeout_ms=int(seconds * 1000)).items()
            for record in records
        ]

    def assignment(self) -> Owned:
        return _places(self.client.assignment())

    def owned(self) -> set[int]:
        return {partition for _, partition in self.assignment()}

    def seek(self, partition: int, offset: int) -> None:
        self.call("seek", self.at(partition), offset)

    def seek_to_beginning(self) -> None:
        self.call("seek_to_beginning", self.at(0))

    def seek_to_end(self) -> None:
        self.call("seek_to_end", self.at(0))

    def position(self, partition: int) -> int:
        return int(self.call("position", self.at(partition)))

    def beginning(self) -> int:
        return int(self.call("beginning_offsets", [self.at(0)])[self.at(0)])

    def end(self, partition: int) -> int:
        at = self.at(partition)
        return int(self.call("end_offsets", [at])[at])

    def offset_at(self, time_ms: int) -> int | None:
        found = self.call("offsets_for_times", {self.at(0): time_ms})[self.at(0)]
        if found is None:
            return None
        assert found.timestamp >= time_ms
        return int(found.offset)

    def committed(self, partition: int) -> int | None:
        found = self.call("committed", self.at(partition))
        return None if found is None else int(found)

    def commit(self, offsets: Sequence[ConfluentTopicPartition] = ()) -> object:
        chosen = {self._place(at.topic, at.partition): self._offset(at) for at in offsets}
        return self.call("commit", chosen or None)

    def _offset(self, chosen: ConfluentTopicPartition) -> Any:
        raise NotImplementedError


class _Python(_Closing):
    """What aiokafka and kafka-python have in common."""

    smallest_fetch = {"fetch.max.bytes": 1000, "max.partition.fetch.bytes": 1000}  # noqa: RUF012

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap

    def _consumer(self, settings: dict[str, Any], *known: Any) -> _PythonReader:
        """known: what the reader is told of its topic, group and listener."""
        raise NotImplementedError

    def reader(
        self,
        topic: str,
        partitions: int | None = 1,
        *,
        group: str | None = None,
        start: int = 0,
        isolation: str = READ_COMMITTED,
        topics: Sequence[str] = (),
        told: Told | None = None,
        **settings: Any,
    ) -> _PythonReader:
        """topics: all that are subscribed; one that begins with ^ is a pattern."""
        listener = _Listener(told) if told else None
        every = {
            "bootstrap_servers": self._bootstrap,
            "group_id": group,
            "isolation_level": isolation,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 100,
            "heartbeat_interval_ms": 300,
            **_underscored(settings),
        }
        made = self._consumer(every, topic, group, listener)
        if partitions is None:
            wanted = list(topics) or [topic]
            is_pattern = wanted[0].startswith("^")
            chosen = {"pattern": wanted[0]} if is_pattern else {"topics": wanted}
            made.call("subscribe", listener=listener, **chosen)
        made.start()
        self._closed_later(made.close)
        if partitions is not None:
            assigned = [made.at(number) for number in range(partitions)]
            made.call("assign", assigned)
            for at in assigned:
                if start:
                    made.call("seek", at, start)
                elif group is None:
                    made.call("seek_to_beginning", at)
        return made


def _underscored(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


# --- aiokafka ---


class EventLoop:
    """An event loop in a thread, for coroutines that are waited for from outside."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT * 2)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)
        self._loop.close()


class _AIOKafkaProducer:
    def __init__(self, loop: EventLoop, client: AIOKafkaProducer) -> None:
        self._loop = loop
        self._client = client
        self._sent: list[asyncio.Future[Any]] = []

    def begin(self) -> None:
        self._loop.run(self._client.begin_transaction())

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        async def send() -> None:
            for value in values:
                future = await self._client.send(topic, value.encode(), partition=partition)
                future.add_done_callback(lambda done: done.exception())  # it is looked at
                self._sent.append(future)

        self._loop.run(send())

    def flush(self) -> None:
        async def wait() -> None:
            sent, self._sent = self._sent, []
            await asyncio.gather(*sent)

        self._loop.run(wait())

    def send_offsets(self, topic: str, offsets: Offsets, member: Any) -> None:
        places = {AIOTopicPartition(topic, number): at for number, at in offsets.items()}
        self._loop.run(self._client.send_offsets_to_transaction(places, member))

    def commit(self) -> None:
        self._loop.run(self._client.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._client.abort_transaction())

    def close(self) -> None:
        self._loop.run(self._client.stop())

    abandon = close  # an open transaction stays open


class _AIOKafkaReader(_PythonReader):
    _polled = "getmany"
    _place = AIOTopicPartition

    def __init__(self, loop: EventLoop, bootstrap: str, *known: Any) -> None:
        super().__init__(*known)
        self._loop = loop
        self._bootstrap = bootstrap

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            answer = getattr(self.client, method)(*arguments, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return self._loop.run(call())

    def start(self) -> None:
        self.call("start")

    def member(self) -> Any:
        return self.group

    def assignment(self) -> Owned:
        # The client has an assignment before it tells of it.
        return self._listener.owned if self._listener else super().assignment()

    def noted(self) -> tuple[int, str, int | None]:
        """Its consumers do not tell metadata; its administration does."""

        async def noted() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await admin.list_consumer_group_offsets(self.group)
            finally:
                await admin.close()

        found = self._loop.run(noted())[self.at(0)]
        return found.offset, found.metadata, None

    def _offset(self, chosen: ConfluentTopicPartition) -> Any:
        return (chosen.offset, chosen.metadata or "")

    def close(self) -> None:
        self._loop.run(self.client.stop())


class _AIOKafkaPlainProducer:
    def __init__(self, loop: EventLoop, client: AIOKafkaProducer) -> None:
        self._loop = loop
        self._client = client
        self._sent: list[Any] = []

    def send(
        self, topic: str, value: bytes | None, *, timestamp: int | None = None, **record: Any
    ) -> None:
        async def send() -> Any:
            return await self._client.send(topic, value, timestamp_ms=timestamp, **record)

        self._sent.append(self._loop.run(send()))

    def flush(self) -> list[Sent]:
        async def wait() -> list[Any]:
            sent, self._sent = self._sent, []
            return await asyncio.gather(*sent, return_exceptions=True)

        return [_sent(result) for result in self._loop.run(wait())]

    def close(self) -> None:
        self._loop.run(self._client.stop())


def _sent(result: Any) -> Sent:
    if isinstance(result, BaseException):
        return Sent(error=type(result).__name__)
    return Sent(result.offset, result.timestamp) if result is not None else Sent()  # acks=0


class AIOKafka(_Python):
    """aiokafka, which speaks old versions of V1: fencing has no code of its own there."""

    name = "aiokafka"
    small_batches = {"max.batch.size": 300}  # noqa: RUF012
    fenced = frozenset({"ProducerFenced"})
    timed_out = "ProducerFenced"
    gone = None

    def __init__(self, bootstrap: str, loop: EventLoop) -> None:
        super().__init__(bootstrap)
        self._loop = loop

    def producer(
        self, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS, **settings: Any
    ) -> _AIOKafkaProducer:
        async def start() -> AIOKafkaProducer:
            client = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                **_underscored(settings),
            )
            try:
                await asyncio.wait_for(client.start(), WAIT)
            except BaseException:
                await client.stop()
                raise
            return client

        made = _AIOKafkaProducer(self._loop, self._loop.run(start()))
        self._closed_later(made.close)
        return made

    def plain_producer(self, **settings: Any) -> _AIOKafkaPlainProducer:
        async def start() -> AIOKafkaProducer:
            known = _underscored(settings)
            client = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **known)
            await client.start()
            return client

        made = _AIOKafkaPlainProducer(self._loop, self._loop.run(start()))
        self._closed_later(made.close)
        return made

    def _consumer(self, settings: dict[str, Any], *known: Any) -> _AIOKafkaReader:
        async def made() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(**settings)

        return _AIOKafkaReader(self._loop, self._bootstrap, self._loop.run(made()), *known)

    def name_of(self, error: BaseException) -> str:
        return type(error).__name__


# --- kafka-python ---


class _KafkaPythonProducer:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._sent: list[Any] = []

    def begin(self) -> None:
        self._client.begin_transaction()

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        self._sent += [
            self._client.send(topic, value.encode(), partition=partition) for value in values
        ]

    def flush(self) -> None:
        self._client.flush(WAIT)
        sent, self._sent = self._sent, []
        for future in sent:
            future.get(WAIT)

    def send_offsets(self, topic: str, offsets: Offsets, member: Any) -> None:
        places = {
            TopicPartition(topic, number): OffsetAndMetadata(at, "", -1)
            for number, at in offsets.items()
        }
        self._client.send_offsets_to_transaction(places, member)

    def commit(self) -> None:
        self._client.commit_transaction()

    def abort(self) -> None:
        self._client.abort_transaction()

    def close(self) -> None:
        self._client.close(WAIT)

    abandon = close  # an open transaction stays open


class _KafkaPythonReader(_PythonReader):
    def member(self) -> Any:
        return self.client.group_metadata()

    def noted(self) -> tuple[int, str, int | None]:
        found = self.client.committed(self.at(0), metadata=True)
        return found.offset, found.metadata, found.leader_epoch

    def _offset(self, chosen: ConfluentTopicPartition) -> Any:
        epoch = -1 if chosen.leader_epoch is None else chosen.leader_epoch
        return OffsetAndMetadata(chosen.offset, chosen.metadata or "", epoch)

    def close(self) -> None:
        self.client.close()


class _KafkaPythonPlainProducer:
    def __init__(self, client: KafkaProducer) -> None:
        self._client = client
        self._sent: list[Any] = []

    def send(
        self, topic: str, value: bytes | None, *, timestamp: int | None = None, **record: Any
    ) -> None:
        self._sent.append(self._client.send(topic, value, timestamp_ms=timestamp, **record))

    def flush(self) -> list[Sent]:
        self._client.flush(WAIT)
        sent, self._sent = self._sent, []
        return [_sent(future.exception or future.value) for future in sent]

    def close(self) -> None:
        self._client.close(WAIT)


class KafkaPython(_Python):
    """kafka-python, which speaks V1."""

    name = "kafka-python"
    small_batches = {"batch.size": 300}  # noqa: RUF012
    fenced = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
    timed_out = "ProducerFencedError"
    gone = "CommitFailedError"

    def producer(
        self, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS, **settings: Any
    ) -> _KafkaPythonProducer:
        client = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(WAIT * 1000),
            reconnect_backoff_max_ms=200,
            **_underscored(settings),
        )
        try:
            client.init_transactions()
        except BaseException:
            client.close(0)
            raise
        self._closed_later(client.close)
        return _KafkaPythonProducer(client)

    def plain_producer(self, **settings: Any) -> _KafkaPythonPlainProducer:
        known = {"bootstrap_servers": self._bootstrap, **_underscored(settings)}
        made = _KafkaPythonPlainProducer(KafkaProducer(**known))
        self._closed_later(made.close)
        return made

    def _consumer(self, settings: dict[str, Any], *known: Any) -> _KafkaPythonReader:
        return _KafkaPythonReader(KafkaConsumer(**settings), *known)

    def name_of(self, error: BaseException) -> str:
        # Once it is in an error state, every call raises a KafkaError that tells why.
        name = str(error).rsplit(" ", 1)[-1] if type(error) is PythonError else ""
        return name or type(error).__name__


# --- Java ---


class JavaError(Exception):
    """What a Java client raised; name: the exception's class. cause: the class behind it."""

    def __init__(self, name: str, cause: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.cause = cause


class JavaShell:
    """Calls to the Java clients in one JVM (compat/java/Clients.java), one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._numbers = itertools.count(1)

    def new_name(self) -> str:
        return f"c{next(self._numbers)}"

    def call(self, call: str, name: str, *words: object) -> list[str]:
        """What came back; JavaError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\x1f".join([call, name, *map(str, words)]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the JVM is gone"
        kind, *answer = line.removesuffix("\n").split("\x1f")
        if kind == "error":
            raise JavaError(*answer)
        return answer


@contextmanager
def java_shell(*, own_session: bool = True) -> Iterator[JavaShell]:
    """own_session: out of reach of what is sent to our group. Raises JavaUnavailable."""
    with subprocess.Popen(
        tools.java_command(CLIENTS_IN_JAVA, log_level="off", jvm=("-XX:+UseSerialGC",)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=own_session,
    ) as process:
        try:
            yield JavaShell(process)
        finally:
            process.kill()


class _JavaProducer:
    def __init__(self, shell: JavaShell, name: str) -> None:
        self._shell = shell
        self._name = name

    def begin(self) -> None:
        self._shell.call("begin", self._name)

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        self._shell.call("send", self._name, f"{topic}:{partition}", *values)

    def flush(self) -> None:
        self._shell.call("flush", self._name)

    def send_offsets(self, topic: str, offsets: Offsets, member: Any) -> None:
        places = [f"{topic}:{number}:{at}" for number, at in offsets.items()]
        self._shell.call("offsets", self._name, member, *places)

    def commit(self) -> None:
        self._shell.call("commit", self._name)

    def abort(self) -> None:
        self._shell.call("abort", self._name)

    def close(self) -> None:
        self._shell.call("close", self._name)

    def abandon(self) -> None:
        self._shell.call("abandon", self._name)


class _JavaReader:
    def __init__(self, shell: JavaShell, name: str, topic: str, group: str | None) -> None:
        self._shell = shell
        self.name = name
        self.topic = topic
        self.group = group

    def poll(self, seconds: float = 0.5) -> list[Read]:
        words = iter(self._shell.call("poll", self.name, int(seconds * 1000)))
        return [
            Read(topic, int(partition), int(offset), value.encode())
            for topic, partition, offset, value in zip(words, words, words, words, strict=True)
        ]

    def member(self) -> Any:
        [name] = self._shell.call("member", self.name)
        return name

    def identity(self) -> list[str]:
        """In words: member, generation, instance."""
        return self._shell.call("identity", self.name)

    def owned(self) -> set[int]:
        return {int(at.split(":")[1]) for at in self._shell.call("assignment", self.name)}

    def _ask(self, call: str, partition: int) -> str:
        [answer] = self._shell.call(call, self.name, f"{self.topic}:{partition}")
        return answer

    def seek(self, partition: int, offset: int) -> None:
        self._shell.call("seek", self.name, f"{self.topic}:{partition}:{offset}")

    def position(self, partition: int) -> int:
        return int(self._ask("position", partition))

    def end(self, partition: int) -> int:
        return int(self._ask("end", partition))

    def lag(self, partition: int) -> int | None:
        """What the consumer knows by itself of how much there is to read."""
        answer = self._ask("lag", partition)
        return int(answer) if answer else None

    def committed(self, partition: int) -> int | None:
        answer = self._ask("committed", partition)
        return int(answer) if answer else None

    def close(self) -> None:
        self._shell.call("close", self.name)


class Java(_Closing):
    """Kafka's own clients, which speak V2 (KIP-890) with a broker that has it."""

    name = "java"
    fenced = frozenset({"ProducerFencedException", "InvalidProducerEpochException"})
    timed_out = "ProducerFencedException"
    gone = "CommitFailedException"

    def __init__(self, bootstrap: str, shell: JavaShell) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._shell = shell

    def producer(
        self, transactional_id: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS, **settings: Any
    ) -> _JavaProducer:
        name = self._shell.new_name()
        every = {
            "bootstrap.servers": self._bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "max.block.ms": int(WAIT * 1000),
            "reconnect.backoff.max.ms": 200,
            **settings,
        }
        self._shell.call("producer", name, *(f"{key}={value}" for key, value in every.items()))
        made = _JavaProducer(self._shell, name)
        self._closed_later(made.abandon)
        self._shell.call("init", name)
        return made

    def reader(
        self,
        topic: str,
        partitions: int | None = 1,
        *,
        group: str | None = None,
        start: int = 0,
        isolation: str = READ_COMMITTED,
        **settings: Any,
    ) -> _JavaReader:
        name = self._shell.new_name()
        every = {
            "bootstrap.servers": self._bootstrap,
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "fetch.max.wait.ms": 100,
            "max.poll.records": 100_000,
        }
        if group is not None:
            every["group.id"] = group
        every |= settings
        if group is not None and every.get("group.protocol") != "consumer":
            every["heartbeat.interval.ms"] = 300
        self._shell.call("consumer", name, *(f"{key}={value}" for key, value in every.items()))
        if partitions is None:
            self._shell.call("subscribe", name, topic)
        else:
            self._shell.call("assign", name, *(f"{topic}:{n}:{start}" for n in range(partitions)))
        made = _JavaReader(self._shell, name, topic, group)
        self._closed_later(made.close)
        return made

    def name_of(self, error: BaseException) -> str:
        if isinstance(error, JavaError):
            return (
                error.cause if error.name in ("KafkaException", "TimeoutException") else error.name
            )
        return repr(error)
