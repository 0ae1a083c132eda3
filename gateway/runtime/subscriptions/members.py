"""A consumer of a subscription, and a subscription in memory, as the runtime has them.

Permits are passed on in small numbers, and only while the consumer takes what is written: so one
that gives many and never reads costs a buffer, not its backlog. Knows no storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from core.ports.subscriptions import CursorWrite
from core.subscription.cursor import CursorEffects
from core.subscription.values import MAX_PERMITS, ConsumerStatus, Delivery
from core.transaction.values import OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.errors import Error
    from core.ports.leases import Lease
    from core.subscription.dispatch import Changes
    from core.subscription.subscription import Subscription
    from core.subscription.values import SubscriptionType
    from core.transaction.key import TransactionKey
    from core.transaction.values import ProducerIdAndEpoch
    from core.types import Payload
    from gateway.runtime.subscriptions.partition import OwnedPartition
    from gateway.runtime.subscriptions.values import Receiver

_WINDOW_BYTES: Final = 512 * 1024
_WINDOW_MESSAGES: Final = 1_000
_FIRST_GUESS_BYTES: Final = 128 * 1024  # of a message, before any was seen


class LiveSubscription:
    """A subscription in memory. subscription_id: None where it is not durable.

    stored_type: as the database has it. is_dropped: it is not this broker's any more, or deleted.
    on_refused: called where the database refuses its cursor.
    """

    def __init__(
        self,
        lease: Lease,
        name: str,
        core: Subscription,
        subscription_id: int | None = None,
        stored_type: SubscriptionType | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        on_refused: Callable[[], None],
    ) -> None:
        self.refuse = on_refused
        self.lease = lease
        self.name = name
        self.core = core
        self.subscription_id = subscription_id
        self.stored_type = stored_type
        self.properties = dict(properties or {})
        self.members: dict[Member, None] = {}
        self.is_dropped = False
        # Committed transactions whose acknowledgements the cursor has: those whose rows are still
        # to be deleted; and all of which there may be rows, by the look at rows before.
        self.taken_in: set[OpenTransaction] = set()
        self.applied: dict[OpenTransaction, int] = {}
        self.removal: asyncio.TimerHandle | None = None

    @property
    def is_durable(self) -> bool:
        """Whether it is stored."""
        return self.subscription_id is not None

    def pending_up_to(self, producer_id: int) -> int | None:
        """Below which offset the producer's open transaction acknowledges all; None: nothing so."""
        for owner in self.core.pending_owners:
            if isinstance(owner, OpenTransaction) and owner.producer_id == producer_id:
                return self.core.pending_of(owner)[1]
        return None

    def take(self) -> CursorWrite | None:
        """See Writable."""
        if self.subscription_id is None:
            return None
        cursor, dispatcher = self.core.cursor, self.core.dispatcher
        effects = cursor.take_effects()
        kind = None
        if dispatcher is not None and dispatcher.type is not self.stored_type:
            kind = self.stored_type = dispatcher.type
        taken_in: tuple[OpenTransaction, ...] = ()
        if self.taken_in and cursor.is_wholly_stored:  # else their rows are all there is of some
            taken_in, self.taken_in = tuple(self.taken_in), set()
        if effects is None and kind is None and not taken_in:
            return None
        effects = effects or CursorEffects(cursor.mark_delete)
        return CursorWrite(self.subscription_id, effects, kind, taken_in)


class Member:
    """A consumer of a subscription, while it is there. The door that a front-end uses.

    epoch: the latest it has told, which deliveries bear. number: of this process's.
    """

    _numbers = count()

    def __init__(
        self, partition: OwnedPartition, subscription: LiveSubscription, receiver: Receiver
    ) -> None:
        self.partition = partition
        self.subscription = subscription
        self.receiver = receiver
        self.epoch = 0
        self.number = next(Member._numbers)
        self.is_gone = False
        self.is_at_end = False  # of a terminated topic, as it has been told
        self._held = 0  # permits that the dispatcher does not know yet
        self._passed_on = 0  # those that it knows and has not used
        self._message_bytes = _FIRST_GUESS_BYTES

    # --- permits and deliveries ---

    def flow(self, permits: int) -> None:
        """It takes so many more messages."""
        if not self.is_gone:
            self._held = min(self._held + permits, MAX_PERMITS)
            self.resume()

    def resume(self) -> None:
        """It takes what is written, again."""
        if self._pass_on():
            self.partition.wake()

    def _pass_on(self) -> bool:
        dispatcher = self.subscription.core.dispatcher
        if self.is_gone or not self._held or dispatcher is None:
            return False
        if not self.receiver.is_writable:  # so others may have what it cannot take now
            dispatcher.flow(self, 0)
            return False
        window = max(1, min(_WINDOW_MESSAGES, _WINDOW_BYTES // self._message_bytes))
        if self._passed_on > window // 2:
            return False
        number = min(self._held, window - self._passed_on)
        if number <= 0:
            return False
        self._held -= number
        self._passed_on += number
        dispatcher.flow(self, number, has_more=self._held > 0)
        return True

    def deliver(self, delivery: Delivery, payload: Payload) -> None:
        """Gives it an entry."""
        number = message_count(delivery)
        self._passed_on -= number
        size = max(len(payload) // number, 1)
        self._message_bytes = max(size, (7 * self._message_bytes + size) // 8)
        self.receiver.deliver(delivery, payload)
        self._pass_on()

    def give_back_permits(self, delivery: Delivery, given: int = 0) -> None:
        """The entry could not be given, but for so many of its messages."""
        dispatcher = self.subscription.core.dispatcher
        if dispatcher is not None:
            dispatcher.flow(self, message_count(delivery) - given, has_more=self._held > 0)

    # --- what it asks ---

    def acknowledge(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These offsets, from the first up to and without the second of each pair."""
        self.partition.acknowledge(self.subscription, ranges)

    def acknowledge_up_to(self, end: int) -> None:
        """All below `end`."""
        self.partition.acknowledge_up_to(self.subscription, end)

    async def acknowledge_in_transaction(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        ids: Sequence[Sequence[tuple[int, int]]],
        cumulative_end: int | None,
        is_heard: Callable[[], bool],
    ) -> Error:
        """The same if a transaction commits; see PendingAckTracker.acknowledge."""
        return await self.partition.acknowledge_in_transaction(
            self.subscription, key, producer, ids, cumulative_end, is_heard=is_heard
        )

    def stored(self) -> asyncio.Future[bool]:
        """Done once all that was acknowledged is stored (True), or has failed. Others may have the
        same future: it must not be cancelled."""
        return self.partition.stored(self.subscription)

    def redeliver(self, offsets: Sequence[int] | None, epoch: int) -> None:
        """Gives back the entries with these offsets, or all."""
        self.epoch = max(self.epoch, epoch)
        dispatcher = self.subscription.core.dispatcher
        if dispatcher is not None and not self.is_gone:
            dispatcher.redeliver(self, offsets, epoch)
            self.partition.wake()

    def leave(self) -> None:
        """It is gone, or wants to go."""
        self.partition.leave(self)

    @property
    def mark_delete(self) -> int:
        """The first offset that its subscription has not acknowledged."""
        return self.subscription.core.cursor.mark_delete

    @property
    def backlog(self) -> int:
        """How many messages its subscription has not acknowledged, as far as the log was read."""
        return self.subscription.core.cursor.backlog(self.partition.log_end)

    def status(self) -> ConsumerStatus | None:
        """As people are told of it."""
        dispatcher = self.subscription.core.dispatcher
        found = dispatcher.consumers() if dispatcher is not None else []
        return next((each for each in found if each.consumer_id is self), None)

    @property
    def permits(self) -> int:
        """How many more messages it takes."""
        return max(self._held + self._passed_on, 0)


def message_count(delivery: Delivery) -> int:
    """How many messages are delivered, which are as many permits."""
    entry, remaining = delivery.entry, delivery.remaining
    if remaining is None:
        return entry.last_offset + 1 - entry.base_offset
    return sum(end - start for start, end in remaining)


def tell(changes: Changes) -> None:
    """Tells consumers whether they are active; behind what is being answered now."""
    loop = asyncio.get_running_loop()
    for change in changes:
        member = change.consumer_id
        assert isinstance(member, Member)
        loop.call_soon(_tell_one, member, change.is_active)


def _tell_one(member: Member, is_active: bool) -> None:
    if not member.is_gone:
        member.receiver.on_active(is_active=is_active)
