"""Pulsar's transactions by clients on the wire: they write, acknowledge, commit, abort, forget.

No client of Pulsar's for Python has transactions. Each transaction goes into a TxnHistory and each
acknowledgement and delivery into a Consumption. A client that has no answer asks again: an END_TXN
until it is told, with the same action; whatever else fails, it aborts. Some are left to their time
to live, some end just then, and some of their commands come once more after the end. Must not know
what is being broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from gateway.pulsar.commands import AckType, CommandType, ServerError, SubType, TxnAction
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandAddPartitionToTxn,
    CommandCloseConsumer,
    CommandEndTxn,
    CommandFlow,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
)
from gateway.pulsar.entries import encode_entry
from gateway.pulsar.ids import unacknowledged_words
from tests.faults.consumption import (
    AckAnomaly,
    AckFlaw,
    Consumed,
    Consumption,
    Delivery,
    Place,
)
from tests.faults.txn_history import Ending, TxnHistory, Value
from tests.faults.workers import Workers
from tests.pulsar_wire import CONNECT, Wire, closing_all, delivered_by, entry_of

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign-partition-{}"
COORDINATOR_COUNT = 16
TTL_MS = 20_000
SHORT_TTL_MS = 600
ANSWER_S = 6.0
END_WITHIN_S = 60.0
SILENT_S = 1.2
"""After which a connection is given up, well before another broker may have its topics."""
LOOK_S = SILENT_S / 4
"""A silent connection is asked for a word so often."""
PERMITS = 60
LATE = 1_000
"""Added to the index of a record that is sent after its transaction's end."""
SHARED = "shared"

_ANSWERS = {
    CommandType.SUCCESS,
    CommandType.ERROR,
    CommandType.PRODUCER_SUCCESS,
    CommandType.LOOKUP_RESPONSE,
    CommandType.NEW_TXN_RESPONSE,
    CommandType.ADD_PARTITION_TO_TXN_RESPONSE,
    CommandType.END_TXN_RESPONSE,
    CommandType.ACK_RESPONSE,
}
_ENDED = {ServerError.INVALID_TXN_STATUS, ServerError.TRANSACTION_NOT_FOUND}


class Lost(Exception):
    """The connection is, or an answer."""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{ServerError(code).name}: {reason}"[:120])
        self.code = ServerError(code)


class Link:
    """A connection and what is expected on it; closed when it has been silent for silent_s, though
    it was asked for a word."""

    def __init__(self, wire: Wire, silent_s: float, answer_s: float) -> None:
        self.wire = wire
        self._silent_s = silent_s
        self._answer_s = answer_s
        self.is_over = False
        self.consumers: dict[int, Consumer] = {}
        self._expected: dict[object, asyncio.Future[Any]] = {}
        self._heard_at = time.monotonic()
        self._ids = itertools.count(1)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    @classmethod
    async def to(cls, port: int, silent_s: float = SILENT_S, answer_s: float = ANSWER_S) -> Link:
        """Raises Lost."""
        try:
            async with asyncio.timeout(2):
                wire = await Wire.open(port)
                try:
                    wire.say(CONNECT)
                    await wire.hear(CommandType.CONNECTED)
                except BaseException:
                    wire.close()
                    raise
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise Lost(f"no connection: {type(error).__name__}") from None
        return cls(wire, silent_s, answer_s)

    def next_id(self) -> int:
        """Of a producer or consumer."""
        return next(self._ids)

    async def ask(self, message: Any) -> Any:
        """Raises Lost and Refused."""
        message.request_id = next(self.wire.request_ids)
        answer = self.expect(message.request_id)
        self.wire.say(message)
        heard = await self.within(answer)
        if heard.DESCRIPTOR.name == "CommandError" or (
            "error" in heard.DESCRIPTOR.fields_by_name and heard.HasField("error")
        ):
            raise Refused(heard.error, heard.message)
        return heard

    async def within(self, answer: asyncio.Future[Any]) -> Any:
        """Raises Lost."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await answer
        except TimeoutError:
            self.end()
            raise Lost("no answer") from None

    def expect(self, what: object) -> asyncio.Future[Any]:
        """Raises Lost."""
        if self.is_over:
            raise Lost("over")
        made = self._expected[what] = asyncio.get_running_loop().create_future()
        return made

    def end(self) -> None:
        """Whoever waits for an answer gets Lost."""
        if self.is_over:
            return
        self.is_over = True
        self.wire.close()
        for task in self._tasks:
            task.cancel()
        for each in self._expected.values():
            if not each.done():
                each.set_exception(Lost("the connection"))
                each.exception()  # nobody need look

    async def _watch(self) -> None:
        """Counts looks, not seconds: where this process has stood still itself, that is one."""
        in_vain, heard_at = 0, self._heard_at
        while True:
            await asyncio.sleep(LOOK_S)
            if heard_at != self._heard_at:
                in_vain, heard_at = 0, self._heard_at
                continue
            in_vain += 1
            if in_vain * LOOK_S >= self._silent_s:
                self.end()
            else:
                self.wire.say(CommandPing())

    async def _read(self) -> None:
        try:
            while True:
                command, block = await self.wire.read()
                self._heard_at = time.monotonic()
                self._heard(command.type, command.message, block)
        except (OSError, asyncio.IncompleteReadError):
            self.end()

    def _heard(self, kind: CommandType, message: Any, block: memoryview | None) -> None:
        if kind in _ANSWERS:
            self._answer(message.request_id, message)
        elif kind in (CommandType.SEND_RECEIPT, CommandType.SEND_ERROR):
            self._answer((message.producer_id, message.sequence_id), message)
        elif kind is CommandType.MESSAGE:
            assert block is not None
            if (consumer := self.consumers.get(message.consumer_id)) is not None:
                consumer.deliver(message, block, self._heard_at)
        elif kind is CommandType.PING:
            self.wire.say(CommandPong())
        elif kind in (CommandType.CLOSE_CONSUMER, CommandType.CLOSE_PRODUCER):
            self.end()  # all of it again

    def _answer(self, what: object, message: Any) -> None:
        expected = self._expected.pop(what, None)
        if expected is not None and not expected.done():
            expected.set_result(message)


@dataclass(slots=True)
class Got:
    """An entry, and those of its messages that are to be consumed."""

    ledger: int
    entry: int
    size: int
    offsets: list[int]

    def id_of(self, offsets: Sequence[int], *, is_up_to: bool = False) -> MessageIdData:
        """The id that acknowledges these of its messages, or all up to the last of them."""
        found = MessageIdData(ledger_id=self.ledger, entry_id=self.entry)
        if self.size > 1 and len(offsets) < self.size:
            if is_up_to:
                done = [range(offsets[-1] - self.entry + 1)]
            else:
                done = [range(each - self.entry, each - self.entry + 1) for each in offsets]
            found.ack_set.extend(unacknowledged_words(done, self.size))
        return found


class Consumer:
    """Of one subscription in one partition, on a connection."""

    def __init__(
        self,
        link: Link,
        place: Place,
        consumption: Consumption,
        permits: int = PERMITS,
        *,
        is_greedy: bool = False,
    ) -> None:
        """is_greedy: all may come at once, also what nobody has taken out of the inbox."""
        self.link = link
        self._is_greedy = is_greedy
        self.place = place
        self.number = link.next_id()
        self.inbox: deque[Got] = deque()
        self._consumption = consumption
        self._permits = permits
        link.consumers[self.number] = self

    @property
    def is_over(self) -> bool:
        return self.link.is_over

    async def begin(self, topic: str, kind: SubType) -> None:
        """Raises Lost and Refused."""
        await self.link.ask(
            CommandSubscribe(
                topic=topic,
                subscription=self.place.subscription,
                sub_type=kind,
                consumer_id=self.number,
                durable=True,
                initial_position=1,
            )
        )
        self.allow(self._permits)

    def allow(self, permits: int) -> None:
        self.link.wire.say(CommandFlow(consumer_id=self.number, message_permits=permits))

    async def end(self) -> None:
        """Raises Lost."""
        self.link.consumers.pop(self.number, None)
        with contextlib.suppress(Refused):
            await self.link.ask(CommandCloseConsumer(consumer_id=self.number))

    def deliver(self, message: Any, block: memoryview, at: float) -> None:
        found = message.message_id
        offsets = []
        for each in delivered_by(found.entry_id, message.ack_set, block):
            offsets.append(each.offset)
            self._consumption.deliveries.append(Delivery(at, self.place, each.offset, each.value))
        size = entry_of(block).message_count
        if offsets:
            self.inbox.append(Got(found.ledger_id, found.entry_id, size, offsets))
        if self._is_greedy or not offsets:
            self.allow(max(1, len(offsets)))

    def take(self) -> Got:
        """The next of what has come; as many more may come."""
        got = self.inbox.popleft()
        self.allow(len(got.offsets))
        return got


@dataclass(slots=True)
class Producer:
    """Of one partition, on a connection."""

    link: Link
    number: int
    following: int = 0


@dataclass(slots=True)
class Transaction:
    """One that is under way. is_stored: something of it was answered that outlives a crash."""

    number: int
    ids: dict[str, int]
    coordinator: int
    ends_at: float
    begun_at: float = field(default_factory=time.monotonic)
    is_stored: bool = False
    consumed: list[Consumed] = field(default_factory=list)


class Client:
    """Transactions one after the other, on as many connections as there are brokers."""

    def __init__(self, load: PulsarTxnLoad, name: str, exclusive_partition: int) -> None:
        self.name = name
        self.exclusive = Place(f"{name} alone", exclusive_partition)
        self._load = load
        self._history = load.history
        self._consumption = load.consumption
        self._chance = random.Random(f"{load.seed}{name}")
        self._links: dict[int, Link] = {}
        self._owners: dict[str, int] = {}
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[Place, Consumer] = {}
        self._number = 0

    async def run(self) -> None:
        while not self._load.is_stopping:
            await self._transact()
            if self._chance.random() < 0.02:
                self.close()
        self.close()

    def close(self) -> None:
        """All connections."""
        for link in self._links.values():
            link.end()

    # --- connections ---

    async def _link(self, port: int) -> Link:
        link = self._links.get(port)
        if link is None or link.is_over:
            link = self._links[port] = await Link.to(port)
        return link

    async def _at(self, topic: str) -> Link:
        """A connection to the broker that has the topic. Raises Lost and Refused."""
        owner = self._owners.get(topic)
        if owner is None:
            link = await self._link(self._chance.choice(self._load.ports))
            found = await link.ask(CommandLookupTopic(topic=topic))
            if not found.broker_service_url:
                raise Lost(f"nobody has it: {found.message[:60]}")
            owner = int(found.broker_service_url.rsplit(":", 1)[1])
        try:
            link = await self._link(owner)
        except Lost:
            self._owners.pop(topic, None)
            raise
        self._owners[topic] = owner
        return link

    async def _producer(self, partition: int) -> Producer:
        known = self._producers.get(partition)
        if known is not None and not known.link.is_over:
            return known
        topic = self._load.topic_of(partition)
        link = await self._at(topic)
        made = Producer(link, link.next_id())
        name = f"{self.name}-{partition}-{self._chance.randrange(10**9)}"
        wanted = CommandProducer(topic=topic, producer_id=made.number, producer_name=name)
        try:
            await link.ask(wanted)
        except Refused:
            self._owners.pop(topic, None)
            raise
        self._producers[partition] = made
        return made

    async def _consumer(self, place: Place) -> Consumer:
        known = self._consumers.get(place)
        if known is not None and not known.is_over:
            return known
        topic = self._load.topic_of(place.partition)
        link = await self._at(topic)
        made = Consumer(link, place, self._consumption)
        kind = SubType.SHARED if place.subscription == SHARED else SubType.EXCLUSIVE
        try:
            await made.begin(topic, kind)
        except Refused:
            link.consumers.pop(made.number, None)
            self._owners.pop(topic, None)
            raise
        self._consumers[place] = made
        return made

    async def _ask_coordinator(self, number: int, message: Message) -> Any:
        """Raises Lost and Refused."""
        topic = COORDINATORS.format(number)
        link = await self._at(topic)
        try:
            return await link.ask(message)
        except Refused as refused:
            if refused.code is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND:
                self._owners.pop(topic, None)
                raise Lost(str(refused)) from None
            raise
        except Lost:
            self._owners.pop(topic, None)
            raise

    # --- a transaction ---

    async def _transact(self) -> None:
        chance = self._chance
        self._number += 1
        count = chance.choice((0, 1, 2, 4, 8))
        chosen = chance.sample(range(self._load.partitions), chance.randint(1, 3))
        partitions = sorted(chance.choice(chosen) for _ in range(count))
        is_short = chance.random() < 0.2
        sent_at = time.monotonic()
        ttl_ms = SHORT_TTL_MS if is_short else TTL_MS
        self._history.begin(self.name, self._number, partitions, False)
        coordinator = chance.randrange(COORDINATOR_COUNT)
        try:
            wanted = CommandNewTxn(tc_id=coordinator, txn_ttl_seconds=ttl_ms)
            begun = await self._ask_coordinator(coordinator, wanted)
        except (Lost, Refused) as error:
            self._note(error)
            self._history.end(self.name, self._number, Ending.ABORTED)
            await asyncio.sleep(chance.uniform(0.02, 0.1))
            return
        ids = {"txnid_most_bits": coordinator, "txnid_least_bits": begun.txnid_least_bits}
        txn = Transaction(self._number, ids, coordinator, sent_at + ttl_ms / 1000)
        is_commit = chance.random() < 0.75
        try:
            await self._write(txn, partitions)
            await self._acknowledge(txn)
        except (Lost, Refused) as error:
            self._note(error)
            is_commit = False
        if is_short and chance.random() < 0.4:
            for each in txn.consumed:  # left to its time to live
                each.until = min(each.until, txn.ends_at)
            await self._begin_anew()
            return
        if is_short:  # just then
            await asyncio.sleep(max(0, txn.ends_at - time.monotonic() + chance.uniform(-0.3, 0.6)))
        ending = await self._end(txn, is_commit=is_commit)
        self._history.end(self.name, txn.number, ending)
        if ending is not Ending.COMMITTED:
            await self._begin_anew()
        if ending is not Ending.UNKNOWN and chance.random() < 0.3:
            with contextlib.suppress(Lost):
                await self._come_late(txn, ending)

    async def _begin_anew(self) -> None:
        """A subscription with one consumer delivers again only to the next."""
        known = self._consumers.pop(self.exclusive, None)
        if known is not None and not known.is_over:
            with contextlib.suppress(Lost):
                await known.end()

    async def _write(self, txn: Transaction, partitions: Sequence[int]) -> None:
        wanted = sorted(set(partitions))
        if not wanted:
            return
        topics = [self._load.topic_of(each) for each in wanted]
        join = CommandAddPartitionToTxn(partitions=topics, **txn.ids)
        await self._ask_coordinator(txn.coordinator, join)
        producers = {each: await self._producer(each) for each in wanted}
        receipts = [
            self._send(producers[each], Value(self.name, txn.number, index), txn)
            for index, each in enumerate(partitions)
        ]
        for receipt in receipts:
            link, answer = receipt
            heard = await link.within(answer)
            if heard.DESCRIPTOR.name == "CommandSendError":
                raise Refused(heard.error, heard.message)
            txn.is_stored = True

    def _send(
        self, producer: Producer, value: Value, txn: Transaction
    ) -> tuple[Link, asyncio.Future[Any]]:
        sequence_id = producer.following
        producer.following += 1
        answer = producer.link.expect((producer.number, sequence_id))
        metadata = MessageMetadata(
            producer_name=self.name,
            sequence_id=sequence_id,
            publish_time=int(time.time() * 1000),
            **txn.ids,
        )
        producer.link.wire.send(
            encode_entry(metadata, value.encode()),
            producer_id=producer.number,
            sequence_id=sequence_id,
            **txn.ids,
        )
        return producer.link, answer

    async def _acknowledge(self, txn: Transaction) -> None:
        chance = self._chance
        place = Place(SHARED, chance.randrange(self._load.partitions))
        consumer = await self._consumer(place)
        for _ in range(min(len(consumer.inbox), chance.randint(0, 6))):
            got = consumer.take()
            offsets = got.offsets
            if len(offsets) > 1 and chance.random() < 0.5:
                offsets = sorted(chance.sample(offsets, chance.randint(1, len(offsets) - 1)))
                rest = sorted(set(got.offsets) - set(offsets))
                consumer.inbox.append(Got(got.ledger, got.entry, got.size, rest))
            await self._ack(txn, consumer, got.id_of(offsets), AckType.INDIVIDUAL)
            now = time.monotonic()
            txn.consumed += [
                Consumed((self.name, txn.number), place, each, each + 1, now) for each in offsets
            ]
            self._consumption.consumed += txn.consumed[-len(offsets) :]
        if chance.random() < 0.5:
            return
        consumer = await self._consumer(self.exclusive)
        if consumer.inbox:
            taken = [consumer.take() for _ in range(min(len(consumer.inbox), 20))]
            got = taken[-1]
            found = got.id_of(got.offsets, is_up_to=True)
            await self._ack(txn, consumer, found, AckType.CUMULATIVE)
            consumed = Consumed(
                (self.name, txn.number),
                self.exclusive,
                0,
                got.offsets[-1] + 1,
                time.monotonic(),
                is_cumulative=True,
            )
            txn.consumed.append(consumed)
            self._consumption.consumed.append(consumed)

    async def _ack(
        self, txn: Transaction, consumer: Consumer, found: MessageIdData, kind: AckType
    ) -> None:
        wanted = CommandAck(
            consumer_id=consumer.number, ack_type=kind, message_id=[found], **txn.ids
        )
        try:
            await consumer.link.ask(wanted)
        except Refused as refused:
            self._note(refused, f"{kind.name} ")
            raise
        txn.is_stored = True

    async def _end(self, txn: Transaction, *, is_commit: bool) -> Ending:
        """Until it is told."""
        if not is_commit:
            now = time.monotonic()
            for each in txn.consumed:
                each.until = min(each.until, now, txn.ends_at)
        else:
            for each in txn.consumed:
                each.until = min(each.until, txn.ends_at)
        action = TxnAction.COMMIT if is_commit else TxnAction.ABORT
        deadline = time.monotonic() + END_WITHIN_S
        while time.monotonic() < deadline:
            try:
                wanted = CommandEndTxn(txn_action=action, **txn.ids)
                await self._ask_coordinator(txn.coordinator, wanted)
            except Lost as lost:
                self._note(lost)
                await asyncio.sleep(self._chance.uniform(0.02, 0.2))
            except Refused as refused:
                self._note(refused)
                if refused.code is ServerError.TRANSACTION_NOT_FOUND:
                    if txn.is_stored:
                        self._wrong(AckFlaw.FORGOTTEN, txn, refused)
                    return Ending.ABORTED
                if refused.code is ServerError.INVALID_TXN_STATUS:
                    if not is_commit:
                        self._wrong(AckFlaw.CONTRADICTED, txn, refused)
                    elif time.monotonic() < txn.ends_at and not self._load.may_be_aborted(txn):
                        self._wrong(AckFlaw.CONTRADICTED, txn, f"before its time: {refused}")
                    return Ending.ABORTED
                await asyncio.sleep(0.1)
            else:
                return Ending.COMMITTED if is_commit else Ending.ABORTED
        return Ending.UNKNOWN

    # --- what comes after the end ---

    async def _come_late(self, txn: Transaction, ending: Ending) -> None:
        """Raises Lost."""
        chance = self._chance
        same, other = TxnAction.COMMIT, TxnAction.ABORT
        if ending is Ending.ABORTED:
            same, other = other, same
        match chance.choice(("same", "other", "join", "send", "ack")):
            case "same":
                again = CommandEndTxn(txn_action=same, **txn.ids)
                may = {ServerError.TRANSACTION_NOT_FOUND} if not txn.is_stored else set()
                await self._expect(txn, None, again, may)
            case "other":
                again = CommandEndTxn(txn_action=other, **txn.ids)
                await self._expect(txn, _ENDED, again)
            case "join":
                topic = self._load.topic_of(chance.randrange(self._load.partitions))
                join = CommandAddPartitionToTxn(partitions=[topic], **txn.ids)
                await self._expect(txn, _ENDED, join)
            case "send":
                value = Value(self.name, txn.number, LATE)
                with contextlib.suppress(Refused):
                    producer = await self._producer(chance.randrange(self._load.partitions))
                    link, answer = self._send(producer, value, txn)
                    heard = await link.within(answer)
                    if heard.DESCRIPTOR.name != "CommandSendError":
                        self._wrong(AckFlaw.CONTRADICTED, txn, "a SEND after its end was taken")
            case "ack":
                with contextlib.suppress(Refused):
                    place = Place(SHARED, chance.randrange(self._load.partitions))
                    consumer = await self._consumer(place)
                    if consumer.inbox:
                        # It comes again, as what a transaction has let go of.
                        got = consumer.take()
                        found = got.id_of(got.offsets)
                        await self._ack(txn, consumer, found, AckType.INDIVIDUAL)
                        self._wrong(AckFlaw.CONTRADICTED, txn, "an ACK after its end was taken")

    async def _expect(
        self,
        txn: Transaction,
        codes: Collection[ServerError] | None,
        message: Message,
        may_be: Collection[ServerError] = (),
    ) -> None:
        """codes: of errors, one of which it must be; None: success. may_be: neither wrong."""
        try:
            await self._ask_coordinator(txn.coordinator, message)
        except Refused as refused:
            if refused.code not in (codes or ()) and refused.code not in may_be:
                self._wrong(AckFlaw.CONTRADICTED, txn, refused)
        else:
            if codes is not None:
                self._wrong(AckFlaw.CONTRADICTED, txn, f"late {message.DESCRIPTOR.name} succeeded")

    def _wrong(self, flaw: AckFlaw, txn: Transaction, what: object) -> None:
        where = f"{self.name}'s transaction {txn.number} {tuple(txn.ids.values())}: {what}"
        self._consumption.wrong.append(AckAnomaly(flaw, where))

    def _note(self, said: Exception, of: str = "") -> None:
        reason = re.sub(r"\(\d+,\d+\)", "(…)", str(said))
        self._load.answers[f"{of}{type(said).__name__}: {reason}"[:100]] += 1


class PulsarTxnLoad(Workers):
    """Clients with transactions on all partitions of a topic, until told to stop."""

    finish_within_s = END_WITHIN_S + 30

    def __init__(
        self, ports: Sequence[int], topic: str, partitions: int, seed: int, *, clients: int = 3
    ) -> None:
        super().__init__()
        self.ports = list(ports)
        self.partitions = partitions
        self.seed = seed
        self.history = TxnHistory()
        self.consumption = Consumption()
        self.answers: Counter[str] = Counter()
        self._failed_over_at = -math.inf
        self._topic = topic
        self._clients = [
            Client(self, f"pulsar-{number}", number % partitions) for number in range(clients)
        ]
        self._add("pulsar", lambda: asyncio.run(closing_all(self._run())))

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def places(self) -> list[Place]:
        """Of all subscriptions."""
        shared = [Place(SHARED, each) for each in range(self.partitions)]
        return [*shared, *(each.exclusive for each in self._clients)]

    def topic_of(self, partition: int) -> str:
        return f"{self._topic}-partition-{partition}"

    def failed_over(self, since: float) -> None:
        """The database has another history now, since a moment after `since`: what is open is
        aborted before its time, as it may lack what was lost."""
        self._failed_over_at = time.monotonic()
        for each in list(self.consumption.consumed):
            each.until = min(each.until, since)

    def may_be_aborted(self, txn: Transaction) -> bool:
        """Whether that was done to it."""
        return txn.begun_at < self._failed_over_at

    def done(self) -> Mapping[str, int]:
        return {
            each.name: self.history.count(Ending.COMMITTED, each.name) for each in self._clients
        }

    def told(self) -> object:
        return dict(self.answers)

    async def _run(self) -> None:
        tasks = [asyncio.create_task(each.run()) for each in self._clients]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in self._clients:
                each.close()


async def drain(
    load: PulsarTxnLoad, wanted: Mapping[Place, Collection[int]], within_s: float = 60.0
) -> dict[Place, set[int]]:
    """What the subscriptions deliver now, to consumers that acknowledge nothing: what is wanted,
    and what comes within a second after that, or after `within_s`."""
    found = {place: set[int]() for place in wanted}
    for place in wanted:
        deadline = time.monotonic() + within_s
        consumer = await _consumer_for_good(load, place, deadline)
        quiet_since = time.monotonic()
        while time.monotonic() < deadline:
            while consumer.inbox:
                found[place].update(consumer.inbox.popleft().offsets)
                quiet_since = time.monotonic()
            quiet_s = time.monotonic() - quiet_since
            if quiet_s > 20 or (quiet_s > 0.3 and found[place] >= set(wanted[place])):
                break
            if consumer.is_over:  # all that is not acknowledged comes again
                consumer = await _consumer_for_good(load, place, deadline)
                quiet_since = time.monotonic()
            await asyncio.sleep(0.02)
        consumer.link.end()
    return found


async def _consumer_for_good(load: PulsarTxnLoad, place: Place, deadline: float) -> Consumer:
    kind = SubType.SHARED if place.subscription == SHARED else SubType.EXCLUSIVE
    topic = load.topic_of(place.partition)
    client = Client(load, "drain", 0)
    while True:
        try:
            link = await client._at(topic)
            consumer = Consumer(link, place, load.consumption, 1_000, is_greedy=True)
            await consumer.begin(topic, kind)
        except (Lost, Refused):
            client._owners.clear()
            client.close()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return consumer
