"""Producers of sessions: who may write to a partition, what is on its way, receipts in order.

`Producers` is of the whole process, a `Producer` of one session. Decides nothing about who may
write (`core/topic/writers.py`) nor about batches; knows no SQL.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import structlog

from core.errors import Error
from core.log.named_sequences import NO_CHUNK, NO_CLAIM, NO_SEQUENCE_ID, SequencedBatch
from core.log.validation import refuse_size
from core.ports.log import StoreUnavailable, VersionMismatch
from core.topic.writers import (
    MOVED,
    REPLACED,
    Admitted,
    Denied,
    PartitionWriters,
    Waiting,
    Writer,
)
from core.types import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchFormat,
    RecordBatch,
)
from gateway.pulsar.commands import CommandType, ServerError, signed
from gateway.pulsar.commands_pb2 import CommandCloseProducer, CommandSendError
from gateway.pulsar.errors import ending, log_error, send_error
from gateway.pulsar.framing import encode_send_receipt
from gateway.pulsar.ids import NO_ID
from gateway.pulsar.session import UNASKED
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.flush.work import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.ports.leases import Lease
    from core.topic.topic import Topic
    from gateway.pulsar.commands_pb2 import CommandSend
    from gateway.pulsar.entries import Entry
    from gateway.pulsar.session import Session
    from gateway.pulsar.topics import NamedPartition
    from gateway.pulsar.transactions import TxnId
    from gateway.runtime.cluster.leases import ShardLeases
    from gateway.runtime.cluster.membership import Cluster
    from gateway.runtime.flush.work import AppendResult
    from gateway.runtime.log.partitions import Partitions
    from gateway.runtime.subscriptions.subscriptions import Subscriptions

log = structlog.get_logger(__name__)

# Another topic has the name by now, another producer, or the broker stops: the client has to come
# again.
_OVER: Final = (
    Error.NOT_LEADER_OR_FOLLOWER,
    Error.UNKNOWN_TOPIC_OR_PARTITION,
    Error.UNKNOWN_TOPIC_ID,
    Error.PRODUCER_FENCED,
)


class Producers:
    """All of this process: names and access modes by partition.

    The holder of a partition's lease takes its producers in, from the topic epoch on that is
    stored; when the lease is lost they are closed, and come again where LOOKUP sends them. Each
    batch bears the epoch that its producer was told, so nothing of one that was replaced at another
    broker meanwhile enters the log.
    """

    def __init__(
        self,
        cluster: Cluster,
        leases: ShardLeases,
        subscriptions: Subscriptions,
        partitions: Partitions,
    ) -> None:
        self._owned: dict[int, _Owned] = {}
        self._told: dict[Writer, Callable[[Admitted | Denied], None]] = {}
        self._cluster = cluster
        self._leases = leases
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._numbers = count()
        leases.on_lost(self._on_lost)

    def make_name(self) -> str:
        """A name that no producer has, here or at another broker, now or ever."""
        incarnation = self._cluster.incarnation.hex[:12]
        return f"penstock-{self._cluster.broker_id}-{incarnation}-{next(self._numbers)}"

    async def own(self, partition_id: int) -> bool:
        """Whether this broker takes the partition's producers in; `admit` may be called then, at
        once. Raises StoreUnavailable."""
        lease = await self._subscriptions.claim(partition_id)
        if lease is None:
            return False
        owned = self._owned.get(partition_id)
        if owned is None or owned.lease is not lease:
            # The first batch needs the partition in memory, too.
            state = (await self._partitions.refresh([partition_id])).get(partition_id)
            if state is None or not self._leases.is_valid(lease):
                return False
            owned = self._owned.get(partition_id)
            if owned is None or owned.lease is not lease:
                self._owned[partition_id] = _Owned(lease, state.topic_epoch)
        return True

    def admit(
        self, partition_id: int, writer: Writer, on_verdict: Callable[[Admitted | Denied], None]
    ) -> Admitted | Waiting | Denied:
        """Takes a writer in, and lets go of who is ejected for it. on_verdict: told what becomes of
        it later: that its turn has come, or that it is out. Before it is told that it may write
        `keep_epoch` must have stored the verdict's epoch."""
        verdict = self._owned[partition_id].writers.admit(writer)
        if isinstance(verdict, Denied):
            return verdict
        self._told[writer] = on_verdict
        if isinstance(verdict, Admitted):
            for each in verdict.ejected:
                if told := self._told.pop(each, None):
                    told(REPLACED)
        return verdict

    async def keep_epoch(self, partition_id: int, writer: Writer, topic_epoch: int) -> bool:
        """Has the epoch stored by which a writer was admitted; False where the writer is out, or
        another broker has the partition. Raises StoreUnavailable."""
        if writer not in self._told:
            return False
        owned = self._owned[partition_id]
        if topic_epoch > owned.stored_epoch:
            try:
                await self._partitions.raise_topic_epoch(owned.lease, partition_id, topic_epoch)
            except VersionMismatch:
                self._leases.give_up(owned.lease)
                return False
            owned.stored_epoch = max(owned.stored_epoch, topic_epoch)
        return writer in self._told

    def of(self, partition_id: int) -> PartitionWriters:
        """Who writes to a partition, and who waits to."""
        owned = self._owned.get(partition_id)
        return PartitionWriters() if owned is None else owned.writers

    def remove(self, partition_id: int, writer: Writer) -> None:
        """The writer has gone; those who wait for it are told."""
        owned = self._owned.get(partition_id)
        if owned is None or self._told.pop(writer, None) is None:
            return
        for following, verdict in owned.writers.remove(writer):
            if told := self._told.get(following):
                if isinstance(verdict, Denied):
                    del self._told[following]
                told(verdict)

    def close_all(self, partition_id: int) -> None:
        """None of a partition's producers may write any more: each is closed, once what it has sent
        is answered, and its client comes again."""
        for writer in self.of(partition_id).all:
            session: Any = writer.connection
            producer = session.producers.get(writer.number)
            if producer is not None and producer.writer is writer:
                producer.leave()

    def _on_lost(self, lease: Lease) -> None:
        for partition_id, owned in list(self._owned.items()):
            if owned.lease is lease:
                del self._owned[partition_id]
                for writer in owned.writers.all:
                    if told := self._told.pop(writer, None):
                        told(MOVED)


class _Owned:
    """A partition whose producers are taken in here, under a lease. stored_epoch: at least this
    topic epoch is stored."""

    __slots__ = ("lease", "stored_epoch", "writers")

    def __init__(self, lease: Lease, topic_epoch: int) -> None:
        self.lease = lease
        self.stored_epoch = topic_epoch
        self.writers = PartitionWriters(topic_epoch)


class _Sent:
    """A SEND that has no receipt yet. appended: None where it is refused, by `code`."""

    __slots__ = ("appended", "code", "highest", "message", "received", "sequence_id", "size")

    def __init__(self, send: CommandSend, size: int, received: float) -> None:
        self.sequence_id: int = send.sequence_id
        self.highest: int = (
            send.highest_sequence_id if send.HasField("highest_sequence_id") else NO_ID
        )
        self.size = size
        self.received = received
        self.appended: asyncio.Future[AppendResult | Unconfirmed] | None = None
        self.code = ServerError.UNKNOWN_ERROR
        self.message = ""

    @property
    def is_decided(self) -> bool:
        return self.appended is None or self.appended.done()


class Producer:
    """One producer of a session.

    place: as it was when it came. schema_version: of what it brought, as the wire has it.
    is_ready: whether its turn has come. is_opening: whether its client has no answer yet;
    denied: why it is out, if that came meanwhile. topic_epoch: by which it was admitted, None
    before. connected_at: ms since the epoch. last_sequence_id: the highest that was stored
    under its name when it came; -1 if there is none, or no deduplication.
    """

    __slots__ = (
        "_claim",
        "_idle",
        "_is_broken",
        "_is_leaving",
        "_look_up",
        "_sent",
        "_stream",
        "_topic",
        "connected_at",
        "denied",
        "is_opening",
        "is_ready",
        "last_sequence_id",
        "place",
        "producer_id",
        "schema_version",
        "session",
        "topic_epoch",
        "turn",
        "writer",
    )

    def __init__(
        self,
        session: Session,
        producer_id: int,
        place: NamedPartition,
        writer: Writer,
        schema_version: bytes = b"",
    ) -> None:
        self.session = session
        self.producer_id = producer_id
        self.place = place
        self.writer = writer
        self.schema_version = schema_version
        self.connected_at = session.services.clock()
        self.is_ready = True
        self.is_opening = True
        self.denied: Denied | None = None
        self.topic_epoch: int | None = None
        self.turn: asyncio.Task[None] | None = None  # its turn has come, and is to be stored
        self.last_sequence_id = NO_SEQUENCE_ID
        self._claim = NO_CLAIM
        self._is_leaving = False  # it is closed once all that it has sent is answered
        self._sent: deque[_Sent] = deque()
        self._stream = Stream()
        self._is_broken = False  # nothing of it is queued or answered any more
        self._topic = place.topic
        self._look_up: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """Its name, given or made."""
        return self.writer.name

    # Deduplication.

    @property
    def is_deduplicated(self) -> bool:
        """Whether what it sends is stored once, as far as the topic's settings are known."""
        return self._topic.config.deduplication_enabled

    async def claim_name(self) -> None:
        """Finds out what is stored under its name, of which nothing more comes from elsewhere.
        Raises StoreUnavailable."""
        partitions, partition_id = self.session.services.partitions, self.place.partition_id
        claimed = await partitions.claim_name(partition_id, self.name)
        if claimed is not None:  # else the first SEND finds the topic gone
            self._claim, self.last_sequence_id = claimed.claim, claimed.highest_sequence_id
            partitions.use_name(partition_id, self.name, 1)

    async def keep_epoch(self) -> bool:
        """See Producers."""
        assert self.topic_epoch is not None, "it is let in"
        producers = self.session.services.producers
        return await producers.keep_epoch(self.place.partition_id, self.writer, self.topic_epoch)

    def _let_go_of_name(self) -> None:
        if self._claim != NO_CLAIM:
            self._claim = NO_CLAIM
            self.session.services.partitions.use_name(self.place.partition_id, self.name, -1)

    def _sequenced(self, send: CommandSend, entry: Entry) -> SequencedBatch:
        """By SEND's sequence ids, as in Pulsar, whatever the metadata has."""
        is_chunk, metadata = entry.is_chunk, entry.metadata
        return SequencedBatch(
            self.name,
            send.sequence_id,
            send.highest_sequence_id if send.HasField("highest_sequence_id") else NO_SEQUENCE_ID,
            metadata.chunk_id if is_chunk else NO_CHUNK,
            metadata.num_chunks_from_msg if is_chunk else NO_CHUNK,
            self._claim,
        )

    def leave(self) -> None:
        """Has the client come again, once it knows what became of all that was taken in: what it
        sends meanwhile is dropped, and it sends that again."""
        self._is_leaving = True
        if not self._sent:
            self.session.close_producer(self)

    # Sending.

    def send(
        self, command: CommandSend, entry: Entry, received: float, txn: TxnId | None = None
    ) -> None:
        """Queues an entry for the log at once. received: the loop's seconds. txn: the transaction
        that it is written in."""
        topic = self._current_topic()
        if topic is None or self._is_broken or self._is_leaving:
            return
        sequenced = None
        if topic.config.deduplication_enabled:
            if self._claim == NO_CLAIM:  # it was switched on meanwhile
                self.leave()
                return
            sequenced = self._sequenced(command, entry)
        else:
            self._let_go_of_name()
        metadata = entry.metadata
        size = len(entry.block)
        refusal = refuse_size(size, topic.config)
        if refusal is not None:
            self.refuse(command, send_error(refusal.error), refusal.message or "", received)
            return
        batch = RecordBatch(
            record_count=metadata.num_messages_in_batch,
            max_timestamp=_greatest_time(metadata.publish_time, metadata.event_time),
            size=size,
            format=BatchFormat.PULSAR,
            producer_id=NO_PRODUCER_ID if txn is None else txn.producer.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if txn is None else txn.producer.producer_epoch,
            is_transactional=txn is not None,
        )
        sent = _Sent(command, size, received)
        partition_id = self.place.partition_id
        services = self.session.services
        sent.appended = services.partitions.append(
            partition_id,
            topic.config,
            batch,
            entry.block,
            transaction=None if txn is None else txn.key,
            sequenced=sequenced,
            stream=self._stream,
            topic_epoch=self.topic_epoch,
        )
        self._await_turn(sent)
        if self._sent[0] is sent:
            self._wait_for(sent)

    def refuse(
        self, command: CommandSend, code: ServerError, message: str, received: float
    ) -> None:
        """SEND_ERROR, in the order of what was sent before."""
        if self._is_leaving:
            return
        sent = _Sent(command, 0, received)
        sent.code, sent.message = code, message
        self._await_turn(sent)
        if code is ServerError.CHECKSUM_ERROR and self._claim != NO_CLAIM:
            # It is sent again, and must not lie below what comes behind it.
            self._is_leaving = True
        self._answer()

    def _await_turn(self, sent: _Sent) -> None:
        self._sent.append(sent)
        self.session.outlet.begin(1)
        self.session.outlet.hold(sent.size)

    def _wait_for(self, first: _Sent) -> None:
        """Only the first is waited for: those behind it cannot be answered before."""
        assert first.appended is not None, "it is not decided"
        first.appended.add_done_callback(self._on_decided)

    def _on_decided(self, _: asyncio.Future[AppendResult | Unconfirmed]) -> None:
        self._answer()

    def _answer(self) -> None:
        """Answers what is decided, up to the first that is not, which is waited for."""
        waiting = self._sent
        first = waiting[0] if waiting else None
        while waiting and waiting[0].is_decided:
            sent = waiting.popleft()
            self._let_go(sent)
            if not self._is_broken and not self.session.is_lost:
                self._answer_one(sent)
        if waiting:
            if waiting[0] is not first:
                self._wait_for(waiting[0])
            return
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._is_leaving:
            self.session.close_producer(self)

    def _answer_one(self, sent: _Sent) -> None:
        if sent.appended is None:
            self._send_error(sent, sent.code, sent.message)
            return
        result = sent.appended.result()
        if isinstance(result, Unconfirmed):
            # Nobody knows the order of what comes next: the client sends all of it again.
            self._is_broken = True
            self._send_error(sent, send_error(log_error(result)), result.message)
            self.session.outlet.close_for(f"not stored, or perhaps not: {result.message}")
        elif result.error in _OVER:
            self._is_broken = True
            self.session.close_producer(self)
        elif result.error is not Error.NONE:
            self._send_error(sent, send_error(result.error), result.message or result.error.name)
        else:
            ledger_id, entry_id = self.place.partition_id, result.base_offset
            if entry_id == NO_OFFSET:  # a duplicate, of which it is not known where it lies
                ledger_id = entry_id = NO_ID
            receipt = encode_send_receipt(
                self.producer_id, sent.sequence_id, sent.highest, ledger_id, entry_id
            )
            outlet = self.session.outlet
            outlet.write(receipt)
            outlet.observe(CommandType.SEND, sent.received, sent.size, len(receipt))

    def _send_error(self, sent: _Sent, code: ServerError, message: str) -> None:
        size = self.session.send(
            CommandSendError(
                producer_id=self.producer_id,
                sequence_id=sent.sequence_id,
                error=ending(code, self.session.client_version),
                message=message,
            )
        )
        self.session.outlet.observe(CommandType.SEND, sent.received, sent.size, size)

    def _let_go(self, sent: _Sent) -> None:
        self.session.outlet.begin(-1)
        self.session.outlet.hold(-sent.size)

    async def all_answered(self) -> None:
        """Waits until all that was sent has its receipt."""
        if self._sent:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    # The topic.

    def _current_topic(self) -> Topic | None:
        """The topic with its settings of now, or of a moment ago; None if it is another one by now:
        then its client has to come again."""
        found = self.session.services.topics.cached(self._topic.name)
        if found is None:  # something has changed in the cluster, and is looked up meanwhile
            if self._look_up is None or self._look_up.done():
                self._look_up = asyncio.create_task(self._look_topic_up())
            return self._topic
        if found is not self._topic:
            if found.topic_id != self._topic.topic_id:
                self.session.close_producer(self)
                return None
            self._topic = found
        return found

    async def _look_topic_up(self) -> None:
        try:
            found = await self.session.services.topics.get(self._topic.name)
        except StoreUnavailable:
            return
        if found is None or found.topic_id != self._topic.topic_id:
            self.session.close_producer(self)
        else:
            self._topic = found  # settings of now, should it be forgotten again already

    # Its end.

    def detach(self) -> None:
        """See Attached."""
        self._is_broken = True
        self._let_go_of_name()
        if self._look_up is not None and self._look_up is not asyncio.current_task():
            self._look_up.cancel()
        self.session.services.producers.remove(self.place.partition_id, self.writer)
        self._answer()

    def closing(self) -> CommandCloseProducer:
        """See Attached."""
        return CommandCloseProducer(producer_id=self.producer_id, request_id=UNASKED)


def _greatest_time(publish_time: int, event_time: int) -> int:
    """Both are unsigned on the wire, and signed in Java, and in the log."""
    return max(signed(publish_time), signed(event_time))
