"""Continuous load by Pulsar's clients: stock producers and consumers, and consumers on the wire.

Stock ones (Python's, made of the C++ client) go as users' do. Those on the wire ask a receipt of
every acknowledgement, which Python's cannot, note what comes as it comes, and go on listening to a
broker that they have given up. All of it goes into a Ledger. Must not know what is being broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar
from pulsar import BatchingType, ConsumerType, InitialPosition

from gateway.pulsar.commands import AckType, CommandType, SubType
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandFlow,
    CommandPing,
    CommandPong,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    MessageIdData,
)
from gateway.pulsar.framing import DEFAULT_MAX_MESSAGE_SIZE
from gateway.pulsar.ids import unacknowledged_words
from tests.faults.pulsar_ledger import Delivery, Ledger, Name, Told, name_in
from tests.faults.workers import Workers
from tests.pulsar_wire import CONNECT, Wire, closing_all, delivered_by, entry_of

FINISH_WITHIN_S = 60.0
PENDING_MAX = 100
KEYS = 6
BEYOND_ONE_CHUNK = DEFAULT_MAX_MESSAGE_SIZE + 100_000
PERMITS = 20
QUIET_ROUNDS = 4
"""Of 0.2 s, until a stock consumer that may end believes that nothing comes again."""
IMPATIENT_S = 1.5
"""Of silence, after which a consumer on the wire looks for another broker."""
LISTENED_ON_S = 3.0

SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
"""Clients report every lost connection; here they are the point."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A subscription of consumers on the wire. share: of its acknowledgements, how many have a
    receipt."""

    name: str
    type: SubType
    consumers: int
    is_cumulative: bool = False
    given_back: float = 0.0

    @property
    def has_one_active(self) -> bool:
        return self.type in (SubType.EXCLUSIVE, SubType.FAILOVER)


TRACED = (
    Traced("exclusive", SubType.EXCLUSIVE, 1, is_cumulative=True),
    Traced("failover", SubType.FAILOVER, 2, is_cumulative=True),
    Traced("shared", SubType.SHARED, 2, given_back=0.05),
    Traced("by key", SubType.KEY_SHARED, 2, given_back=0.02),
)
SHARED = "stock shared"
STOCK = (("stock exclusive", ConsumerType.Exclusive), (SHARED, ConsumerType.Shared))


class PulsarLoad(Workers):
    """Producers and consumers of all `partitions` (full names of topics without partitions of their
    own), until told to stop; then `drain`.

    large: the partition that gets messages in chunks, which only stock consumers read. pace: what a
    producer sends a second, about.
    """

    finish_within_s = FINISH_WITHIN_S + 30
    progress = 10
    progress_s = 40.0

    def __init__(
        self, ports: Sequence[int], partitions: Sequence[str], seed: int, *, large: str, pace: float
    ) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.partitions = list(partitions)
        self.large = large
        self._ports = list(ports)
        self._url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        self._seed = seed
        self._pace = pace
        self._drained = threading.Event()
        self._sent: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._add("producers", self._produce)
        self._add("wire", self._run_wire)
        for name, kind in STOCK:
            read = (
                [*self.partitions, self.large] if kind is ConsumerType.Shared else self.partitions
            )
            for each in read:
                run = partial(self._consume, name, kind, each)
                self._add(f"{name} {each}", run)

    def done(self) -> dict[str, int]:
        """Receipts, by producer, and deliveries, by subscription."""
        with_receipts = self.ledger.with_receipts()
        counts = {each: len(with_receipts[each]) for each in self.partitions}
        deliveries = Counter(
            self.ledger.sessions[each.session].subscription for each in self.ledger.deliveries
        )
        return counts | {name: deliveries[name] for name in self.subscriptions}

    def told(self) -> object:
        return dict(self._answers)

    @property
    def subscriptions(self) -> list[str]:
        return [*(each.name for each in TRACED), *(name for name, _ in STOCK)]

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """As Workers have it; at the end everything is delivered and acknowledged."""
        with super().running():
            try:
                yield self
                self._stop.set()
                self._drain()
            finally:
                self._drained.set()

    def _drain(self) -> None:
        """Waits until all that has a receipt has come to all, and nothing is left to be stored."""
        deadline = time.monotonic() + FINISH_WITHIN_S
        self._threads[0].join(FINISH_WITHIN_S)
        while True:
            self._check()
            missing = self.missing()
            if not missing or time.monotonic() > deadline:
                return
            time.sleep(0.1)

    def missing(self) -> list[str]:
        """What has a receipt and has not come."""
        with_receipts = self.ledger.with_receipts()
        return [
            f"never delivered: {subscription} {each} {sorted(left)[:3]}, {len(left)} in all"
            for subscription in self.subscriptions
            for each in self.partitions
            if (left := with_receipts[each] - self.ledger.done(subscription, each))
        ]

    def is_quiet(self, broker: int, for_s: float = 0.5) -> bool:
        """Whether nothing has come from a broker, so that nothing is on its way any more."""
        last = max(
            (
                e.at
                for e in self.ledger.deliveries
                if self.ledger.sessions[e.session].broker == broker
            ),
            default=0.0,
        )
        return time.monotonic() - last > for_s

    # --- producers ---

    def _produce(self) -> None:
        chance = random.Random(self._seed)
        client = pulsar.Client(
            self._url, logger=SILENT, operation_timeout_seconds=60, connection_timeout_ms=2_000
        )
        common: dict[str, Any] = {
            "send_timeout_millis": int(FINISH_WITHIN_S * 1000),
            "max_pending_messages": 10 * PENDING_MAX,
            # Else a connection lost before the first receipt has it number two messages alike
            # (compat/pulsar/python/FINDINGS.md).
            "initial_sequence_id": 1,  # 0 passes for none
        }
        batched = common | {
            "batching_enabled": True,
            "batching_max_messages": 8,
            "batching_max_publish_delay_ms": 5,
        }
        by_key = batched | {"batching_type": BatchingType.KeyBased}
        producers = []
        for each in self.partitions:
            # Batches by key are not in order of sequence ids, so they cannot be deduplicated.
            kinds = {"one": common, "batch": batched} | ({} if "once" in each else {"key": by_key})
            for kind, settings in kinds.items():
                name = f"{kind}-{each}"
                made = client.create_producer(each, producer_name=name, **settings)
                producers.append(_Producer(self, made, name, each, b"", is_keyed=kind != "batch"))
        chunked = client.create_producer(
            self.large, producer_name="chunks", chunking_enabled=True, **common
        )
        filler = bytes(BEYOND_ONE_CHUNK)
        chunks = _Producer(self, chunked, "chunks", self.large, filler)
        next_chunks = time.monotonic()
        try:
            while not self._stop.is_set():
                for each in producers:
                    if each.pending < PENDING_MAX:
                        for _ in range(chance.randint(1, 6)):
                            each.send(chance.randrange(KEYS))
                if time.monotonic() > next_chunks and not chunks.pending:
                    next_chunks = time.monotonic() + 50 / self._pace
                    chunks.send(0)
                self._stop.wait(3.5 / self._pace)
            deadline = time.monotonic() + FINISH_WITHIN_S + 5
            while any(each.pending for each in (*producers, chunks)):
                assert time.monotonic() < deadline, "sends without an end"
                time.sleep(0.02)
        finally:
            client.close()

    # --- stock consumers ---

    def _consume(self, subscription: str, kind: ConsumerType, partition: str) -> None:
        client = pulsar.Client(self._url, logger=SILENT, connection_timeout_ms=2_000)
        try:
            consumer = self._subscribed(client, subscription, kind, partition)
            session = self.ledger.open(subscription, partition, 0, is_traced=False)
            chance = random.Random(f"{self._seed}{subscription}{partition}")
            quiet = 0
            while quiet < QUIET_ROUNDS or not self._drained.is_set():
                try:
                    message = consumer.receive(200)
                except pulsar.Timeout:
                    quiet += 1
                    continue
                quiet = 0
                value = message.data()
                found = message.message_id()
                offset = found.entry_id() + max(found.batch_index(), 0)
                self.ledger.deliveries.append(
                    Delivery(
                        time.monotonic(),
                        session,
                        offset,
                        name_in(value),
                        message.partition_key(),
                        message.redelivery_count(),
                    )
                )
                with contextlib.suppress(pulsar.PulsarException):  # it is not connected just now
                    if kind is ConsumerType.Exclusive:
                        consumer.acknowledge_cumulative(message)
                    elif chance.random() < 0.03:
                        consumer.negative_acknowledge(message)
                    else:
                        consumer.acknowledge(message)
            consumer.close()
        finally:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()

    def _subscribed(
        self, client: pulsar.Client, subscription: str, kind: ConsumerType, partition: str
    ) -> Any:
        deadline = time.monotonic() + FINISH_WITHIN_S
        while True:
            try:
                return client.subscribe(
                    partition,
                    subscription,
                    kind,
                    initial_position=InitialPosition.Earliest,
                    negative_ack_redelivery_delay_ms=200,
                    batch_index_ack_enabled=kind is ConsumerType.Shared,
                    receiver_queue_size=50,
                )
            except pulsar.PulsarException:
                if self._drained.is_set() or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    # --- consumers on the wire ---

    def _run_wire(self) -> None:
        asyncio.run(closing_all(self._consume_all()))

    async def _consume_all(self) -> None:
        consumers = [
            _WireConsumer(self.ledger, self._ports, traced, each, number, self._seed, self._answers)
            for traced in TRACED
            for each in self.partitions
            for number in range(traced.consumers)
        ]
        tasks = [asyncio.create_task(each.run()) for each in consumers]
        try:
            while not self._drained.is_set():
                began = time.monotonic()
                await asyncio.sleep(0.05)
                self.ledger.lag_s = max(self.ledger.lag_s, time.monotonic() - began - 0.05)
                for task in tasks:
                    if task.done():
                        task.result()
            for each in consumers:
                each.is_ending = True
            await asyncio.wait(tasks, timeout=20)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in consumers:
                each.close()


class _Producer:
    """A stock producer of one partition. filler: behind each message's name. is_keyed: then each of
    its keys counts as a producer, for it is by key that the order holds."""

    def __init__(
        self,
        load: PulsarLoad,
        producer: Any,
        name: str,
        partition: str,
        filler: bytes,
        *,
        is_keyed: bool = False,
    ) -> None:
        self._ledger = load.ledger
        self._answers = load._answers
        self._producer = producer
        self._name = name
        self._partition = partition
        self._filler = filler
        self._is_keyed = is_keyed
        self._following: Counter[str] = Counter()
        self.pending = 0
        self._lock = threading.Lock()

    def send(self, number: int) -> None:
        key = f"key-{number}" if self._is_keyed else None
        producer = f"{self._name}/{key}" if key else self._name
        name = Name(producer, self._following[producer])
        self._following[producer] += 1
        self._ledger.send(name, self._partition)
        with self._lock:
            self.pending += 1
        settings = {} if key is None else {"partition_key": key}
        self._producer.send_async(name.value + self._filler, partial(self._told, name), **settings)

    def _told(self, name: Name, result: Any, message_id: Any) -> None:
        sent = self._ledger.sent[name]
        if result == pulsar.Result.Ok:
            entry = message_id.entry_id()
            if not self._filler and 0 <= entry < 2**62:
                sent.offset = entry + max(message_id.batch_index(), 0)
            sent.has_receipt = True
        else:
            sent.trouble = str(result)
            self._answers[f"{self._name}: {result}"] += 1
        with self._lock:
            self.pending -= 1


class _Over(Exception):
    """The broker has closed the consumer, or refuses it for now."""


class _WireConsumer:
    """One consumer, session after session."""

    def __init__(
        self,
        ledger: Ledger,
        ports: Sequence[int],
        traced: Traced,
        partition: str,
        number: int,
        seed: int,
        answers: Counter[str],
    ) -> None:
        self._ledger = ledger
        self._ports = list(ports)
        self._traced = traced
        self._partition = partition
        self._name = f"{traced.name}-{number}"
        self._chance = random.Random(f"{seed}{partition}{self._name}")
        self._answers = answers
        self._given_up: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()
        self.is_ending = False

    def close(self) -> None:
        for each in self._given_up:
            each.cancel()
        for wire in self._wires:
            wire.close()

    async def run(self) -> None:
        while not self.is_ending:
            try:
                await self._session()
            except (_Over, OSError, asyncio.IncompleteReadError, TimeoutError) as over:
                self._answers[f"{self._traced.name}: {type(over).__name__} {over}"[:120]] += 1
                await asyncio.sleep(self._chance.uniform(0.02, 0.2))

    async def _open(self, port: int) -> Wire:
        async with asyncio.timeout(2):
            wire = await Wire.open(port)
            self._wires.add(wire)
            wire.say(CONNECT)
            await wire.hear(CommandType.CONNECTED)
            return wire

    def _drop(self, wire: Wire) -> None:
        wire.close()
        self._wires.discard(wire)

    async def _session(self) -> None:
        asked = await self._open(port := self._chance.choice(self._ports))
        wire = asked
        try:
            async with asyncio.timeout(3):
                owner = await asked.owner_of(self._partition)
                if owner is None:
                    raise _Over("nobody has it")
                if owner != port:
                    wire = await self._open(owner)
                    self._drop(asked)
                subscribe = CommandSubscribe(
                    topic=self._partition,
                    subscription=self._traced.name,
                    sub_type=self._traced.type,
                    consumer_id=1,
                    consumer_name=self._name,
                    durable=True,
                    initial_position=1,
                )
                answer = await wire.ask(subscribe, CommandType.SUCCESS, CommandType.ERROR)
                if answer.DESCRIPTOR.name == "CommandError":
                    raise _Over(answer.message[:60])
        except BaseException:
            self._drop(wire)
            self._drop(asked)
            raise
        session = _Session(self._ledger, self._traced, self._partition, wire, owner, self._chance)
        session.reading = asyncio.create_task(session.read())
        wire.say(CommandFlow(consumer_id=1, message_permits=PERMITS))
        try:
            await self._listen(session)
        except TimeoutError:
            # The broker may go on one day: what does it deliver then?
            task = asyncio.create_task(self._listen_on(session))
            self._given_up.add(task)
            raise
        except BaseException:
            self._ledger.end(session.number)
            self._drop(wire)
            raise
        self._ledger.end(session.number)
        self._drop(wire)

    async def _listen(self, session: _Session) -> None:
        """Until it is over, or the broker is silent: TimeoutError."""
        try:
            while True:
                done, _ = await asyncio.wait({session.reading}, timeout=IMPATIENT_S / 3)
                if done:
                    session.reading.result()
                silent_s = time.monotonic() - session.heard_at
                if silent_s < IMPATIENT_S / 3:
                    continue
                if self.is_ending and session.is_done:
                    session.reading.cancel()
                    return
                if silent_s > IMPATIENT_S:
                    raise TimeoutError("silence")
                session.wire.say(CommandPing())
                session.acknowledge_rest()
        finally:
            session.is_listening = False

    async def _listen_on(self, session: _Session) -> None:
        silent_since = session.heard_at
        try:
            while session.heard_at == silent_since:
                await asyncio.wait({session.reading}, timeout=0.2)
                if session.reading.done():
                    session.reading.result()
            # It goes on, and the consumer is there still if the broker has not lost the topic.
            await asyncio.wait({session.reading}, timeout=LISTENED_ON_S)
            session.reading.cancel()
            await session.reading
        except asyncio.CancelledError:
            pass
        except (_Over, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._ledger.end(session.number)
            self._drop(session.wire)


class _Session:
    """What a consumer on the wire does with what it hears."""

    def __init__(
        self,
        ledger: Ledger,
        traced: Traced,
        partition: str,
        wire: Wire,
        broker: int,
        chance: random.Random,
    ) -> None:
        self.wire = wire
        self.number = ledger.open(traced.name, partition, broker, is_traced=True)
        self.heard_at = time.monotonic()
        self.is_listening = True
        self.reading: asyncio.Task[None]
        self._ledger = ledger
        self._traced = traced
        self._chance = chance
        self._asked: dict[int, Told] = {}
        self._ids: dict[int, tuple[int, int, int]] = {}  # offset: ledger, entry, size of the batch
        self._since = 0  # deliveries that were not acknowledged cumulatively
        self._latest = -1

    async def read(self) -> None:
        """Whatever comes. Raises _Over, and what reading raises."""
        while True:
            command, block = await self.wire.read()
            self._heard(command.type, command.message, block)

    @property
    def is_done(self) -> bool:
        """All has come and is acknowledged, as far as it knows."""
        return not self._since and not self._asked

    def acknowledge_rest(self) -> None:
        """Where all is acknowledged up to some: what came since."""
        if self._since:
            self._since = 0
            self._acknowledge_up_to(self._latest)

    def _heard(self, kind: CommandType, message: Any, block: memoryview | None) -> None:
        self.heard_at = time.monotonic()
        if kind is CommandType.MESSAGE:
            assert block is not None
            self._deliver(message, block)
        elif kind is CommandType.ACK_RESPONSE:
            said = self._asked.pop(message.request_id)
            if not message.HasField("error"):
                self._ledger.receipts.append(said._replace(at=self.heard_at))
        elif kind is CommandType.ACTIVE_CONSUMER_CHANGE:
            if message.is_active:
                self._ledger.turns.append((self.heard_at, self.number))
        elif kind is CommandType.CLOSE_CONSUMER:
            raise _Over("closed")
        elif kind is CommandType.PING:
            self.wire.say(CommandPong())

    def _deliver(self, message: Any, block: memoryview) -> None:
        found = message.message_id
        size = entry_of(block).message_count
        of_entry = delivered_by(found.entry_id, message.ack_set, block)
        for each in of_entry:
            self._ids[each.offset] = (found.ledger_id, found.entry_id, size)
            self._ledger.deliveries.append(
                Delivery(
                    self.heard_at,
                    self.number,
                    each.offset,
                    name_in(each.value),
                    each.key,
                    message.redelivery_count,
                )
            )
        if not self.is_listening:
            return
        self.wire.say(CommandFlow(consumer_id=1, message_permits=len(of_entry)))
        offsets = [each.offset for each in of_entry]
        if self._traced.is_cumulative:
            self._since += 1
            self._latest = offsets[-1]
            if self._since >= self._chance.randint(1, 6):
                self.acknowledge_rest()
        elif self._chance.random() < self._traced.given_back:
            self._give_back(offsets)
        else:
            delay = self._chance.choice((0, 0, 0.005, 0.05))
            loop = asyncio.get_running_loop()
            if size > 1 and self._chance.random() < 0.5:  # one by one, in any order
                self._chance.shuffle(offsets)
                for offset in offsets:
                    loop.call_later(delay, self._acknowledge, [offset])
            else:
                loop.call_later(delay, self._acknowledge, offsets)

    def _say(self, ack: CommandAck, offsets: Sequence[int], below: int) -> None:
        said = Told(time.monotonic(), self.number, tuple(offsets), below)
        self._ledger.acknowledged.append(said)
        if below or self._chance.random() < 0.9:  # else without a receipt
            ack.request_id = next(self.wire.request_ids)
            self._asked[ack.request_id] = said
        self.wire.say(ack)

    def _acknowledge_up_to(self, offset: int) -> None:
        ledger_id, entry_id, _ = self._ids[offset]
        ack = CommandAck(consumer_id=1, ack_type=AckType.CUMULATIVE)
        ack.message_id.append(MessageIdData(ledger_id=ledger_id, entry_id=entry_id))
        self._say(ack, (), offset + 1)

    def _acknowledge(self, offsets: Sequence[int]) -> None:
        if not self.is_listening:
            return
        ack = CommandAck(consumer_id=1, ack_type=AckType.INDIVIDUAL)
        ledger_id, entry_id, size = self._ids[offsets[0]]
        found = MessageIdData(ledger_id=ledger_id, entry_id=entry_id)
        indexes = [offset - entry_id for offset in offsets]
        if size > 1:
            found.ack_set.extend(
                unacknowledged_words([range(each, each + 1) for each in indexes], size)
            )
        ack.message_id.append(found)
        self._say(ack, offsets, 0)

    def _give_back(self, offsets: Sequence[int]) -> None:
        ledger_id, entry_id, _ = self._ids[offsets[0]]
        again = CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        again.message_ids.append(MessageIdData(ledger_id=ledger_id, entry_id=entry_id))
        said = Told(time.monotonic(), self.number, tuple(offsets), 0)
        self._ledger.given_back.append(said)
        self.wire.say(again)
