"""Consumers of sessions: between Pulsar's ids and the offsets that the runtime speaks of.

Decides nothing about who gets what; knows no SQL.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from core.errors import Error
from core.ports.log import StoreUnavailable
from core.subscription.values import SubscriptionType
from gateway.pulsar.commands import AckType, ProtocolVersion, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandReachedEndOfTopic,
)
from gateway.pulsar.framing import encode_ack_receipt, encode_message
from gateway.pulsar.ids import (
    AFTER_ALL,
    BEFORE_ALL,
    acknowledged_ranges,
    entry_offset,
    unacknowledged_words,
)
from gateway.pulsar.session import UNASKED
from gateway.pulsar.transactions import Failed, failed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from core.subscription.values import Delivery
    from core.types import Payload
    from gateway.pulsar.commands_pb2 import CommandAck, MessageIdData
    from gateway.pulsar.session import Session
    from gateway.pulsar.topics import NamedPartition
    from gateway.pulsar.transactions import TxnId
    from gateway.runtime.subscriptions.members import Member


# What clients call themselves that do not know REACHED_END_OF_TOPIC, and close their connection at
# it: with all that is on it, and again when they come again. C++'s is Python's and Node's as well.
# (Seen of 4.2.0 and 0.19.0; Apache Pulsar tells them.)
_CLOSING_AT_THE_END: Final = ("Pulsar-CPP", "Pulsar-Go")


class Consumer:
    """One consumer of a session. `Attached`, and the runtime's `Receiver`.

    member: the same as the runtime has it; None before it was taken in. connected_at: ms since the
    epoch.
    """

    def __init__(
        self,
        session: Session,
        consumer_id: int,
        place: NamedPartition,
        subscription: str,
        kind: SubscriptionType,
    ) -> None:
        self.session = session
        self.consumer_id = consumer_id
        self.place = place
        self.subscription = subscription
        self.type = kind
        self.member: Member | None = None
        self.connected_at = session.services.clock()
        self._under_way: set[asyncio.Task[None]] = set()
        # Requests whose acknowledgements are on their way into the store.
        self._receipts: dict[asyncio.Future[bool], list[int]] = {}

    @property
    def _is_by_key(self) -> bool:
        return self.type is SubscriptionType.KEY_SHARED

    def enter(self, member: Member) -> None:
        """The runtime has taken it in."""
        self.member = member
        self.session.consumers[self.consumer_id] = self
        self.session.closed_consumers.discard(self.consumer_id)
        self.session.on_writable.add(member.resume)

    # What the runtime asks and tells: Receiver.

    @property
    def address(self) -> str:
        """See Receiver."""
        return self.session.peer

    @property
    def client(self) -> str:
        """See Receiver."""
        return self.session.client_version

    @property
    def is_writable(self) -> bool:
        """See Receiver."""
        return self.session.outlet.is_writable

    def deliver(self, delivery: Delivery, payload: Payload) -> None:
        """See Receiver."""
        entry = delivery.entry
        ack_set: Sequence[int] = ()
        if delivery.remaining is not None:
            ack_set = _words_of(delivery)
        assert self.member is not None
        epoch = self.member.epoch if self.type.has_one_active else 0
        self.session.outlet.deliver(
            *encode_message(
                self.consumer_id,
                self.place.partition_id,
                entry.base_offset,
                payload,
                partition=self.place.name.partition,
                redelivery_count=delivery.redelivery_count,
                ack_set=ack_set,
                consumer_epoch=epoch or None,
            )
        )

    def on_active(self, *, is_active: bool) -> None:
        """See Receiver. Only Failover's consumers are told."""
        if (
            self.type is SubscriptionType.FAILOVER
            and self.session.protocol_version >= ProtocolVersion.LAST_MESSAGE_ID
        ):
            self.session.send(
                CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=is_active)
            )

    def on_end(self) -> None:
        """See Receiver. Those who would not understand are not told."""
        session = self.session
        if session.client_version.startswith(_CLOSING_AT_THE_END):
            return
        if session.protocol_version >= ProtocolVersion.END_OF_TOPIC:
            self.session.send(CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def on_closed(self) -> None:
        """See Receiver."""
        if self.session.consumers.get(self.consumer_id) is self:
            self._forget()
            self._tell_closed()

    def probe(self) -> None:
        """See Receiver."""
        self.session.outlet.probe()

    # Its end.

    def closing(self) -> CommandCloseConsumer:
        """See Attached."""
        return CommandCloseConsumer(consumer_id=self.consumer_id, request_id=UNASKED)

    def close(self) -> None:
        """The broker closes it; its client comes again."""
        if self.session.consumers.get(self.consumer_id) is self:
            self.detach()
            self._tell_closed()

    def _tell_closed(self) -> None:
        self.session.closed_consumers.add(self.consumer_id)
        self.session.send(self.closing())

    def detach(self) -> None:
        """See Attached."""
        self._forget()
        if self.member is not None:
            self.member.leave()

    def _forget(self) -> None:
        if self.session.consumers.get(self.consumer_id) is self:
            del self.session.consumers[self.consumer_id]
        if self.member is not None:
            self.session.on_writable.discard(self.member.resume)

    # Acknowledging.

    def acknowledge(self, command: CommandAck, txn: TxnId | None = None) -> None:
        """Takes the acknowledgement, and answers once it is stored where an answer is wanted. txn:
        of whose end it depends."""
        member = self.member
        assert member is not None
        if txn is not None:
            self._begin(self._acknowledge_in(txn, command))
            return
        is_cumulative = command.ack_type == AckType.CUMULATIVE
        unknown: list[MessageIdData] = []
        ranges: list[tuple[int, int]] = []
        for each in command.message_id:
            found = self._ranges(each, is_cumulative, None)
            if found is None:
                unknown.append(each)
            else:
                ranges += found
        self._apply(ranges, is_cumulative)
        request_id = command.request_id if command.HasField("request_id") else None
        if unknown:
            self._begin(self._look_up(unknown, is_cumulative, request_id))
        elif request_id is not None:
            self._answer_when_stored(request_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _acknowledge_in(self, txn: TxnId, command: CommandAck) -> None:
        member = self.member
        assert member is not None
        is_cumulative = command.ack_type == AckType.CUMULATIVE
        trouble: Failed | None = None
        ids: list[list[tuple[int, int]]] = []
        self.session.outlet.begin(1)
        try:
            for each in command.message_id:
                found = self._ranges(each, is_cumulative, None)
                if found is None:
                    base = entry_offset(each, self.place.partition_id)
                    end = await member.partition.look_up_end(base, is_by_key=self._is_by_key)
                    found = self._ranges(each, is_cumulative, end) or []
                ids.append(found)
            ranges = [each for found in ids for each in found]
            if ranges:
                up_to = max(end for _, end in ranges) if is_cumulative else None
                error = await member.acknowledge_in_transaction(
                    txn.key,
                    txn.producer,
                    () if is_cumulative else ids,
                    up_to,
                    lambda: not self.session.is_lost,
                )
                trouble = None if error is Error.NONE else failed(error, txn)
        except StoreUnavailable as away:
            trouble = Failed(ServerError.SERVICE_NOT_READY, f"The database is away: {away}")
        finally:
            self.session.outlet.begin(-1)
        if command.HasField("request_id") and not self.session.is_lost:
            answer = CommandAckResponse(
                consumer_id=self.consumer_id,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                request_id=command.request_id,
            )
            if trouble is not None:
                answer.error, answer.message = trouble
            self.session.send(answer)

    def _apply(self, ranges: list[tuple[int, int]], is_cumulative: bool) -> None:
        assert self.member is not None
        if not ranges:
            return
        if is_cumulative:
            self.member.acknowledge_up_to(max(end for _, end in ranges))
        else:
            self.member.acknowledge(ranges)

    def _ranges(
        self,
        found: MessageIdData,
        is_cumulative: bool,
        end: int | None,
    ) -> list[tuple[int, int]] | None:
        """The offsets that an id acknowledges. None: the entry's end has to be looked up."""
        base = entry_offset(found, self.place.partition_id)
        if base in (BEFORE_ALL, AFTER_ALL):
            return []
        assert self.member is not None
        if end is None:
            end = self.member.partition.end_of(base, is_by_key=self._is_by_key)
        if end is None:
            return None
        if not found.ack_set:
            return [(base, end)]
        inside = acknowledged_ranges(found.ack_set, end - base)
        if is_cumulative:  # all before the first that is not
            reached = inside[0].stop if inside and inside[0].start == 0 else 0
            return [(base, base + reached)]
        return [(base + each.start, base + each.stop) for each in inside]

    async def _look_up(
        self,
        ids: Sequence[MessageIdData],
        is_cumulative: bool,
        request_id: int | None,
    ) -> None:
        """Of entries that were not read lately; one after the other, since that is rare."""
        assert self.member is not None
        self.session.outlet.begin(1)
        try:
            for each in ids:
                base = entry_offset(each, self.place.partition_id)
                partition = self.member.partition
                end = await partition.look_up_end(base, is_by_key=self._is_by_key)
                self._apply(self._ranges(each, is_cumulative, end) or [], is_cumulative)
        except StoreUnavailable as away:
            if request_id is not None:
                self._answer(request_id, f"The database is away: {away}")
            return
        finally:
            self.session.outlet.begin(-1)
        if request_id is not None:
            self._answer_when_stored(request_id)

    def _answer_when_stored(self, request_id: int) -> None:
        assert self.member is not None
        stored = self.member.stored()
        self.session.outlet.begin(1)
        waiting = self._receipts.get(stored)
        if waiting is not None:
            waiting.append(request_id)
            return
        self._receipts[stored] = [request_id]
        if stored.done():
            self._on_stored(stored)
        else:
            stored.add_done_callback(self._on_stored)

    def _on_stored(self, stored: asyncio.Future[bool]) -> None:
        """Answers all that waited for this."""
        reason = "The broker could not store it, or is not the one any more"
        trouble = None if stored.result() else reason
        for request_id in self._receipts.pop(stored):
            self.session.outlet.begin(-1)
            self._answer(request_id, trouble)

    def _answer(self, request_id: int, trouble: str | None) -> None:
        if trouble is None:
            self.session.outlet.write(encode_ack_receipt(self.consumer_id, request_id))
            return
        self.session.send(
            CommandAckResponse(
                consumer_id=self.consumer_id,
                request_id=request_id,
                error=ServerError.SERVICE_NOT_READY,
                message=trouble,
            )
        )


def _words_of(delivery: Delivery) -> Sequence[int]:
    """ack_set of what is left of an entry."""
    entry, remaining = delivery.entry, delivery.remaining or ()
    base, count = entry.base_offset, entry.last_offset + 1 - entry.base_offset
    acknowledged = []
    at = base
    for start, end in remaining:
        acknowledged.append(range(at - base, start - base))
        at = end
    acknowledged.append(range(at - base, count))
    return unacknowledged_words(acknowledged, count)
