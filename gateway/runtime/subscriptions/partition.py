"""One partition whose subscriptions this broker dispatches: who is there, and the loop that reads.

A loop runs while there are consumers. It reads up to the last stable offset, each stretch once for
all subscriptions that are at the same place, and offers what it found; control batches and aborted
ones are gaps. What a subscription decides counts at once; the lease of the partition's shard makes
that right. Knows no protocol, no SQL, and no rule of dispatch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import Error, Refusal
from core.ports.log import CommitUnknown, EffectRefused, StoreUnavailable, VersionMismatch
from core.ports.subscriptions import NewSubscription, StoredSubscription, SubscriptionStore
from core.subscription.cursor import Cursor
from core.subscription.subscription import Subscription
from core.subscription.values import (
    Delivery,
    DispatchSettings,
    Entry,
    Joining,
    Refused,
    SubscriptionType,
)
from core.types import IsolationLevel
from gateway.runtime.log.partitions import Found, Want
from gateway.runtime.subscriptions.extents import Extents
from gateway.runtime.subscriptions.members import LiveSubscription, Member, tell
from gateway.runtime.subscriptions.pieces import Pieces
from gateway.runtime.subscriptions.values import Describe, Receiver, StartPosition, Subscribing

if TYPE_CHECKING:
    from core.log.partition_log import PartitionState
    from core.ports.leases import Lease
    from core.ports.log import StoredBatch
    from core.subscription.dispatch import Dispatcher
    from core.transaction.key import TransactionKey
    from core.transaction.values import OpenTransaction, ProducerIdAndEpoch
    from core.types import Payload
    from gateway.runtime.log.partitions import Partitions
    from gateway.runtime.log.translation import Translator
    from gateway.runtime.subscriptions.pending_acks import PendingAckTracker
    from gateway.runtime.subscriptions.writes import CursorWriter

log = structlog.get_logger(__name__)

READ_BYTES: Final = 1024 * 1024
"""What is read at once, or one batch."""
_AGAIN_BYTES: Final = 256 * 1024
_AGAIN_AT_ONCE: Final = 100
_KEPT_AFTER_SEEK_S: Final = 60.0
_AFTER_FAILURE_S: Final = 0.5
_MOST_STEPS_BACK: Final = 10_000
NOT_OWNED = Refusal(
    Error.NOT_LEADER_OR_FOLLOWER, "This broker does not dispatch the topic now; look it up again"
)

NO_SUBSCRIPTION = Refusal(Error.GROUP_ID_NOT_FOUND, "Subscription does not exist")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions share. on_lost: the lease may be another's, or writes are in doubt."""

    store: SubscriptionStore
    partitions: Partitions
    translator: Translator
    describe: Describe
    pieces: Pieces
    writer: CursorWriter
    pending_acks: PendingAckTracker
    clock: Callable[[], int]
    settings: DispatchSettings
    is_valid: Callable[[Lease], bool]
    on_lost: Callable[[Lease, bool], None]
    on_dropped: Callable[[OwnedPartition], None]


class _Offered:
    """Entries in order, and their bytes by base offset."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.payloads: dict[int, Payload] = {}

    def add(self, entry: Entry, payload: Payload) -> None:
        """One more, behind all others."""
        self.entries.append(entry)
        self.payloads[entry.base_offset] = payload


class OwnedPartition:
    """A partition under a lease; `is_dropped` once that is over."""

    def __init__(
        self,
        partition_id: int,
        lease: Lease,
        around: Surroundings,
        found: Sequence[StoredSubscription],
    ) -> None:
        self.partition_id = partition_id
        self.lease = lease
        self.is_dropped = False
        self._around = around
        self._settings = around.settings
        self._extents = Extents()
        self.log_end = 0  # as far as it has been seen
        self._is_terminated = False  # as far as it has been seen
        self._changing = asyncio.Lock()  # while subscriptions are made, moved or deleted
        self._stored = {each.name: each for each in found}  # nobody has asked for them yet
        self._subscriptions: dict[str, LiveSubscription] = {}
        self._task: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- consumers ---

    async def subscribe(
        self, wanted: Subscribing, receiver: Receiver
    ) -> Member | Refused | Refusal:
        """Takes a consumer in, making its subscription if there is none. Raises StoreUnavailable.

        Whether it is active it hears later, but before it gets anything.
        """
        async with self._changing:
            if self.is_dropped:
                return NOT_OWNED
            subscription = self._find(wanted)
            if subscription is None:
                if wanted.is_durable and not wanted.may_make:
                    return NO_SUBSCRIPTION
                made = await self._make(wanted)
                if not isinstance(made, LiveSubscription):
                    return made
                subscription = made
            if subscription.is_dropped:
                return NOT_OWNED
            if subscription.is_durable != wanted.is_durable:
                kind = "durable" if subscription.is_durable else "not durable"
                reason = f"Subscription {wanted.name} is there, and {kind}"
                return Refusal(Error.INVALID_REQUEST, reason)
            if wanted.limits is not None:
                self.limit(wanted.limits())
            return self._join(subscription, wanted, receiver)

    def _join(
        self, subscription: LiveSubscription, wanted: Subscribing, receiver: Receiver
    ) -> Member | Refused:
        member = Member(self, subscription, receiver)
        member.epoch = wanted.epoch
        joining = Joining(
            member,
            wanted.type,
            wanted.consumer_name,
            wanted.priority_level,
            wanted.epoch,
            wanted.hash_ranges,
            wanted.key_sharing,
        )
        answer = subscription.core.add_consumer(joining)
        if isinstance(answer, Refused):
            for each in subscription.members:
                each.receiver.probe()
            self._forget_if_passing(subscription)
            return answer
        if subscription.removal is not None:
            subscription.removal.cancel()
            subscription.removal = None
        subscription.members[member] = None
        tell(answer)
        if subscription.stored_type is not wanted.type and subscription.is_durable:
            self._around.writer.later(subscription)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return member

    async def ensure(self, wanted: Subscribing) -> Refusal | None:
        """The durable subscription is there, or is made now. Raises StoreUnavailable."""
        async with self._changing:
            if self.is_dropped:
                return NOT_OWNED
            if self._find(wanted) is None:
                if not wanted.may_make:
                    return NO_SUBSCRIPTION
                made = await self._make(wanted, is_joined=False)
                return None if isinstance(made, LiveSubscription) else made
        return None

    def _find(self, wanted: Subscribing) -> LiveSubscription | None:
        subscription = self._load(wanted.name)
        if subscription is not None:
            subscription.core.set_topic(wanted.partition_index, wanted.topic_name)
        return subscription

    def id_of(self, name: str) -> int | None:
        """A durable subscription's id, if there is one of this name in memory."""
        known = self._subscriptions.get(name) or self._stored.get(name)
        return None if known is None else known.subscription_id

    def _load(self, name: str) -> LiveSubscription | None:
        """The subscription, in memory."""
        subscription = self._subscriptions.get(name)
        if subscription is None and (stored := self._stored.pop(name, None)) is not None:
            subscription = self._add(
                Subscribing(name, stored.type or SubscriptionType.EXCLUSIVE),
                Cursor.load(stored.cursor),
                stored.subscription_id,
                stored.type,
            )
            subscription.properties = dict(stored.properties)
            self._around.pending_acks.load(self, subscription, stored.pending)
        return subscription

    async def _make(
        self, wanted: Subscribing, *, is_joined: bool = True
    ) -> LiveSubscription | Refusal:
        kind = wanted.type if is_joined else None
        start = await self._start_of(wanted)
        if start is None:
            return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "The topic has been deleted")
        if not wanted.is_durable:
            return self._add(wanted, Cursor(start, max_stored_ranges=0), None, None)
        new = NewSubscription(self.partition_id, wanted.name, start, kind, wanted.properties)
        try:
            made = await self._around.store.create(self.lease, new)
        except VersionMismatch:
            self._around.on_lost(self.lease, True)
            return NOT_OWNED
        except EffectRefused as refused:
            # There may be one of this name that memory does not know: read all of it again.
            log.warning("subscription_not_made", reason=str(refused))
            self._around.on_lost(self.lease, True)
            return Refusal(Error.KAFKA_STORAGE_ERROR, str(refused))
        except CommitUnknown:
            self._around.on_lost(self.lease, True)
            raise
        if made is None:
            return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "The topic has been deleted")
        return self._add(wanted, Cursor(start), made, kind)

    def _add(
        self,
        wanted: Subscribing,
        cursor: Cursor,
        subscription_id: int | None,
        stored_type: SubscriptionType | None,
    ) -> LiveSubscription:
        core = Subscription(
            cursor,
            self._settings,
            partition=wanted.partition_index,
            topic_name=wanted.topic_name,
        )
        made = LiveSubscription(
            self.lease,
            wanted.name,
            core,
            subscription_id,
            stored_type,
            wanted.properties,
            on_refused=self.drop,
        )
        made.is_dropped = self.is_dropped
        self._subscriptions[wanted.name] = made
        return made

    async def _start_of(self, wanted: Subscribing) -> int | None:
        """Where a new subscription begins; None where the partition is gone."""
        partitions = self._around.partitions
        state = (await partitions.refresh([self.partition_id])).get(self.partition_id)
        if state is None:
            return None
        if wanted.rollback_ms > 0:
            return await self.offset_of_time(self._around.clock() - wanted.rollback_ms)
        match wanted.start:
            case StartPosition.EARLIEST:
                return state.log_start_offset
            case StartPosition.LATEST:
                return state.next_offset
            case offset:
                return max(state.log_start_offset, min(offset, state.next_offset))

    async def offset_of_time(self, timestamp: int) -> int | None:
        """Where the first batch begins that is not older, or the log's end; None where the
        partition is gone. Raises StoreUnavailable."""
        partitions = self._around.partitions
        state = (await partitions.refresh([self.partition_id])).get(self.partition_id)
        if state is None:
            return None
        found = await partitions.find_timestamp(
            self.partition_id, timestamp, state.log_start_offset
        )
        return state.next_offset if found is None else found.base_offset

    def leave(self, member: Member) -> None:
        """The consumer is gone."""
        if not member.is_gone:
            self._take_out(member)
            self._forget_if_passing(member.subscription)
            self.wake()

    def _take_out(self, member: Member) -> None:
        member.is_gone = True
        subscription = member.subscription
        subscription.members.pop(member, None)
        if subscription.core.dispatcher is not None:
            tell(subscription.core.dispatcher.remove_consumer(member))

    def _forget_if_passing(self, subscription: LiveSubscription) -> None:
        """A subscription that is not durable goes with its last consumer."""
        if not subscription.is_durable and not subscription.members:
            self._forget(subscription)

    def _forget(self, subscription: LiveSubscription) -> None:
        subscription.is_dropped = True
        if subscription.removal is not None:
            subscription.removal.cancel()
        if self._subscriptions.get(subscription.name) is subscription:
            del self._subscriptions[subscription.name]

    async def seek(self, subscription: LiveSubscription, offset: int) -> Refusal | None:
        """Begins anew from an offset, which may be any. Its consumers are closed, and come again.
        Raises StoreUnavailable."""
        async with self._changing:
            partitions = self._around.partitions
            state = (await partitions.refresh([self.partition_id])).get(self.partition_id)
            # What was committed before is not to be acknowledged again behind it.
            await self._around.pending_acks.take_in(subscription.subscription_id)
            if self.is_dropped or subscription.is_dropped or state is None:
                return NOT_OWNED
            self._close_consumers(subscription)
            if not subscription.is_durable:
                loop = asyncio.get_running_loop()
                subscription.removal = loop.call_later(
                    _KEPT_AFTER_SEEK_S, self._forget, subscription
                )
            start = max(state.log_start_offset, min(offset, state.next_offset))
            subscription.core.seek(start)
            # Others wait for the same: who gives up waiting here must not end it for them.
            return None if await asyncio.shield(self.stored(subscription)) else NOT_OWNED

    def _close_consumers(self, subscription: LiveSubscription) -> None:
        for member in list(subscription.members):
            self._take_out(member)
            member.receiver.on_closed()

    async def unsubscribe(self, member: Member, *, force: bool) -> Refusal | None:
        """Deletes the member's subscription. force: also where others are there, who are closed.
        Raises StoreUnavailable."""
        subscription = member.subscription
        async with self._changing:
            if self.is_dropped or subscription.is_dropped or member.is_gone:
                return NOT_OWNED
            if len(subscription.members) > 1 and not force:
                reason = "Other consumers are connected to the subscription"
                return Refusal(Error.NON_EMPTY_GROUP, reason)
            self._take_out(member)
            return await self._delete(subscription)

    async def _delete(self, subscription: LiveSubscription) -> Refusal | None:
        """Under `_changing`."""
        self._close_consumers(subscription)
        self._forget(subscription)
        if subscription.subscription_id is None:
            return None
        try:
            await self._around.store.delete(self.lease, subscription.subscription_id)
        except VersionMismatch:
            self._around.on_lost(self.lease, True)
            return NOT_OWNED
        except StoreUnavailable:
            self._around.on_lost(self.lease, True)  # memory has forgotten what may be there
            raise
        return None

    async def terminate(self) -> PartitionState | None:
        """No record is added any more, by anybody; the partition as it is then, None where it is
        gone. Raises StoreUnavailable."""
        state = await self._around.partitions.terminate(self.partition_id)
        if state is not None:
            self._see(state)
            self.wake()
        return state

    def _see(self, state: PartitionState) -> None:
        self.log_end = max(self.log_end, state.next_offset)
        self._is_terminated = self._is_terminated or state.is_terminated

    # --- administering ---

    @property
    def subscriptions(self) -> list[LiveSubscription]:
        """Those that somebody has asked for since the partition was loaded."""
        return list(self._subscriptions.values())

    @property
    def names(self) -> list[str]:
        """Its subscriptions, those that are not durable as well."""
        return sorted({*self._stored, *self._subscriptions})

    async def open(self, name: str) -> LiveSubscription | None:
        """The subscription of this name, if there is one."""
        async with self._changing:
            return None if self.is_dropped else self._load(name)

    async def delete(self, subscription: LiveSubscription, *, force: bool) -> Refusal | None:
        """Deletes it. force: also where it has consumers, who are closed. Raises
        StoreUnavailable."""
        async with self._changing:
            if self.is_dropped or subscription.is_dropped:
                return NOT_OWNED
            if subscription.members and not force:
                reason = f"Subscription {subscription.name} has active connected consumers"
                return Refusal(Error.NON_EMPTY_GROUP, reason)
            return await self._delete(subscription)

    async def skip(
        self, subscription: LiveSubscription, count: int | None = None
    ) -> Refusal | None:
        """Acknowledges the next so many messages, or all. Raises StoreUnavailable."""
        state = await self.look()
        if state is None or subscription.is_dropped:
            return NOT_OWNED
        if count is None:
            subscription.core.acknowledge_up_to(self.log_end, self.log_end)
        else:
            subscription.core.skip(count, self.log_end)
        return await self._wait_stored(subscription)

    async def expire(self, subscription: LiveSubscription, end: int) -> Refusal | None:
        """Acknowledges all below `end`, as far as there is a log. Raises StoreUnavailable."""
        state = await self.look()
        if state is None or subscription.is_dropped:
            return NOT_OWNED
        subscription.core.acknowledge_up_to(end, self.log_end)
        return await self._wait_stored(subscription)

    async def expire_for_all(self, end: int) -> None:
        """Acknowledges all below `end` for every durable subscription, as far as transactions have
        ended; it is stored soon. Raises StoreUnavailable."""
        async with self._changing:
            state = await self.look()
            if state is None:
                return
            for name in self.names:
                subscription = self._load(name)
                if subscription is not None and subscription.is_durable:
                    self.acknowledge_up_to(subscription, min(end, state.last_stable_offset))

    async def _wait_stored(self, subscription: LiveSubscription) -> Refusal | None:
        self.wake()
        return None if await asyncio.shield(self.stored(subscription)) else NOT_OWNED

    async def look(self) -> PartitionState | None:
        """The partition as it is now; None where it is not this broker's any more."""
        state = (await self._around.partitions.refresh([self.partition_id])).get(self.partition_id)
        if state is None or self.is_dropped:
            return None
        self._see(state)
        return state

    async def unacknowledged(
        self, subscription: LiveSubscription, position: int
    ) -> StoredBatch | None:
        """The entry at this position, from 1 on, of those that are not acknowledged, translated;
        None where there are fewer. Raises StoreUnavailable."""
        if await self.look() is None:
            return None
        cursor = subscription.core.cursor
        offset = cursor.mark_delete
        while offset < self.log_end:
            found = await self._read(offset, READ_BYTES)
            for batch in found.batches:
                end = batch.last_offset + 1
                is_left = cursor.count_unacknowledged(batch.base_offset, end)
                if batch.last_offset < offset or _is_gap(batch, found) or not is_left:
                    continue
                position -= 1
                if position == 0:
                    return await self._around.translator.translated(self.partition_id, batch)
            if not found.batches:
                return None
            offset = found.batches[-1].last_offset + 1
        return None

    async def entry_at(self, offset: int) -> StoredBatch | None:
        """The entry that has this offset or, where it is a gap, the next one; translated. Raises
        StoreUnavailable."""
        while True:
            found = await self._read(offset, READ_BYTES)
            for batch in found.batches:
                if not _is_gap(batch, found):
                    return await self._around.translator.translated(self.partition_id, batch)
            if not found.batches:
                return None
            offset = found.batches[-1].last_offset + 1

    async def unload(self) -> None:
        """Sends its consumers to look for it again, once what they have acknowledged is stored."""
        self.close_consumers()
        waiting = [asyncio.shield(self.stored(each)) for each in self._subscriptions.values()]
        await asyncio.gather(*waiting)
        self.drop()

    # --- acknowledging ---

    def end_of(self, base_offset: int, *, is_by_key: bool = False) -> int | None:
        """Where the entry that begins here ends, as far as it is known: else `look_up_end`.

        is_by_key: for consumers that share out by keys, who may be given less of a batch.
        """
        return self._extents.end_of(base_offset, is_by_key=is_by_key)

    async def look_up_end(self, base_offset: int, *, is_by_key: bool = False) -> int:
        """The same, from the log. Raises StoreUnavailable."""
        found = await self._read(base_offset, 1)
        if found.state is not None:
            self.log_end = max(self.log_end, found.state.next_offset)
        for batch in found.batches:
            if batch.base_offset == base_offset and not (is_by_key and await self._is_split(batch)):
                return batch.last_offset + 1
        return base_offset + 1

    async def _is_split(self, batch: StoredBatch) -> bool:
        translated = await self._around.translator.translated(self.partition_id, batch)
        return bool(self._around.pieces.of(self.partition_id, batch, translated))

    def acknowledge(
        self, subscription: LiveSubscription, ranges: Iterable[tuple[int, int]]
    ) -> None:
        """Acknowledges ranges of offsets."""
        core = subscription.core
        for start, end in ranges:
            core.acknowledge(start, end, self.log_end)
        self.acknowledged(subscription)

    def acknowledge_up_to(self, subscription: LiveSubscription, end: int) -> None:
        """Acknowledges all below `end`."""
        subscription.core.acknowledge_up_to(end, self.log_end)
        self.acknowledged(subscription)

    async def acknowledge_in_transaction(
        self,
        subscription: LiveSubscription,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        ids: Sequence[Sequence[tuple[int, int]]],
        cumulative_end: int | None = None,
        transaction: OpenTransaction | None = None,
        is_heard: Callable[[], bool] = lambda: True,
    ) -> Error:
        """See PendingAckTracker.acknowledge."""
        return await self._around.pending_acks.acknowledge(
            self, subscription, key, producer, ids, cumulative_end, transaction, is_heard
        )

    def limit(self, settings: DispatchSettings) -> None:
        """Other limits of dispatch, from now on."""
        self._settings = settings
        for subscription in self._subscriptions.values():
            subscription.core.limit(settings)
        self.wake()

    def acknowledged(self, subscription: LiveSubscription) -> None:
        """Something of it is acknowledged now, or not pending any more."""
        if subscription.is_durable and not subscription.is_dropped:
            self._around.writer.later(subscription)
        self.wake()

    def stored(self, subscription: LiveSubscription) -> asyncio.Future[bool]:
        """Done once what it has acknowledged is stored (True), or has failed. Not to be
        cancelled: see `CursorWriter.put`."""
        if subscription.is_durable and not subscription.is_dropped:
            return self._around.writer.put(subscription)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(not subscription.is_dropped)
        return done

    # --- asking ---

    async def last_entry(self) -> StoredBatch | None:
        """The last entry that can be read, translated; None where there is none. Raises
        StoreUnavailable."""
        partitions = self._around.partitions
        state = (await partitions.refresh([self.partition_id])).get(self.partition_id)
        if state is None:
            return None
        offset = state.last_stable_offset - 1
        for _ in range(_MOST_STEPS_BACK):
            if offset < state.log_start_offset:
                return None
            found = await self._read(offset, 1)
            if not found.batches:
                return None
            batch = found.batches[0]
            if not _is_gap(batch, found):
                translator = self._around.translator
                return await translator.translated(self.partition_id, batch)
            offset = batch.base_offset - 1
        return None

    # --- the loop ---

    def wake(self) -> None:
        """Something has changed: the loop looks again."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def _run(self) -> None:
        while not self.is_dropped:
            self._woken = asyncio.get_running_loop().create_future()
            live = [each for each in self._subscriptions.values() if each.members]
            if not live:
                self._extents = Extents()  # nobody is likely to ask
                return
            if not self._around.is_valid(self.lease):  # before anybody could tell
                self._task = None
                self.drop()
                return
            try:
                has_more, seen = await self._go_round(live)
            except StoreUnavailable as away:
                log.debug("dispatch_waits", partition=self.partition_id, reason=str(away))
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            except Exception:  # a bug of one partition must not keep its clients waiting for ever
                log.exception("dispatch_failed", partition=self.partition_id)
                self._task = None
                self.drop()
                return
            if has_more:
                await asyncio.sleep(0)
            else:
                await self._wait(live, seen)

    async def _wait(
        self, live: Sequence[LiveSubscription], seen: tuple[Want, Found] | None
    ) -> None:
        """Until something changes, or an entry's time has come."""
        deadlines = [
            deadline
            for each in live
            if each.core.dispatcher and (deadline := each.core.dispatcher.deadline_ms) is not None
        ]
        timeout = None
        if deadlines:
            timeout = max(min(deadlines) - self._around.clock(), 0) / 1000 + 0.001
        if seen is None:
            await asyncio.wait((self._woken,), timeout=timeout)
            return
        want, found = seen
        partitions = self._around.partitions
        timeout = 30.0 if timeout is None else timeout
        await partitions.wait_for_more([want], [found], timeout, self._woken)

    async def _go_round(
        self, live: Sequence[LiveSubscription]
    ) -> tuple[bool, tuple[Want, Found] | None]:
        """Gives what can be given; whether there may be more, and else what was seen of the log."""
        has_more = False
        wanting: dict[int, list[tuple[LiveSubscription, Dispatcher]]] = defaultdict(list)
        now = self._around.clock()
        for subscription in live:
            dispatcher = subscription.core.dispatcher
            if dispatcher is None:
                continue
            deadline = dispatcher.deadline_ms
            if deadline is not None and deadline <= now:
                dispatcher.expire(now)
            waiting = dispatcher.dispatch(_AGAIN_AT_ONCE)
            if waiting:
                has_more = True
                await self._deliver_again(subscription, dispatcher, waiting)
            elif dispatcher.wanted > 0:
                wanting[dispatcher.read_position].append((subscription, dispatcher))
        seen: tuple[Want, Found] | None = None
        for position, those in wanting.items():
            want = self._want(position, READ_BYTES)
            found = await self._found(want)
            has_come_further = await self._offer(position, those, found)
            has_more = has_more or has_come_further
            seen = want, found
        if self._is_terminated and not has_more:
            self._tell_of_end(live)
        return has_more, seen

    def _tell_of_end(self, live: Sequence[LiveSubscription]) -> None:
        """Tells consumers, once, that all is acknowledged and nothing will follow, as Pulsar does
        (PersistentDispatcherMultipleConsumers.readEntriesFailed)."""
        for subscription in live:
            if subscription.core.cursor.backlog(self.log_end) == 0:
                for member in subscription.members:
                    if not member.is_at_end:
                        member.is_at_end = True
                        member.receiver.on_end()

    async def _offer(
        self,
        position: int,
        those: Sequence[tuple[LiveSubscription, Dispatcher]],
        found: Found,
    ) -> bool:
        """Offers what was found at the position to those that are there; whether any has moved."""
        state = found.state
        if state is None:
            log.info("dispatched_partition_gone", partition=self.partition_id)
            self.drop()
            return False
        self._see(state)
        if position < state.log_start_offset:
            for subscription, _ in those:
                self.acknowledge_up_to(subscription, state.log_start_offset)
            return True
        if found.error is not Error.NONE or not found.batches:
            return False
        has_moved = await self._give_in_slices(position, those, found)
        self._give_back(found.batches, {each.read_position for _, each in those})
        return has_moved

    async def _give_in_slices(
        self,
        position: int,
        those: Sequence[tuple[LiveSubscription, Dispatcher]],
        found: Found,
    ) -> bool:
        """Gives what was found, as far as it is wanted; whether any has moved.

        Permits come in small numbers, and a stretch of small entries has thousands: so no more of
        them are looked at than there are permits for, and then again.
        """
        shared = [each for _, each in those if not each.type.has_one_active]
        has_keys = any(each.type is SubscriptionType.KEY_SHARED for each in shared)
        has_moved = False
        at = 0
        while those and at < len(found.batches):
            behind = _behind(found.batches, at, max(each.wanted for _, each in those))
            whole, by_key = _Offered(), _Offered()
            for batch in found.batches[at:behind]:
                if _is_gap(batch, found):
                    continue
                translated = await self._around.translator.translated(self.partition_id, batch)
                base = translated.base_offset
                self._extents.add(base, translated.last_offset)
                if shared:
                    entry = self._around.describe(translated, has_to_have_key=has_keys)
                else:
                    entry = Entry(base, translated.last_offset)
                whole.add(entry, translated.payload)
                if not has_keys:
                    continue
                pieces = self._around.pieces.of(self.partition_id, batch, translated)
                if not pieces:
                    by_key.add(entry, translated.payload)
                    continue
                self._extents.split(base)
                for piece in pieces:
                    if piece.entry.base_offset >= position:
                        by_key.add(*piece)
            if not self._around.is_valid(self.lease):
                return has_moved
            end = found.batches[behind - 1].last_offset + 1
            self._extents.read(min(position, found.batches[at].base_offset), end)
            going_on: list[tuple[LiveSubscription, Dispatcher]] = []
            now = self._around.clock()
            for subscription, dispatcher in those:
                if subscription.is_dropped or subscription.core.dispatcher is not dispatcher:
                    has_moved = True
                    continue
                mark_delete = subscription.core.cursor.mark_delete
                offered = by_key if dispatcher.type is SubscriptionType.KEY_SHARED else whole
                self._give_all(dispatcher, position, offered, end, now)
                has_moved = has_moved or dispatcher.read_position != position
                if dispatcher.read_position == end and dispatcher.wanted > 0:
                    going_on.append((subscription, dispatcher))
                if subscription.core.cursor.mark_delete != mark_delete and subscription.is_durable:
                    self._around.writer.later(subscription)
            those, position, at = going_on, end, behind
        return has_moved

    def _give_back(self, batches: Sequence[StoredBatch], positions: Iterable[int]) -> None:
        """What was read for more than there are permits for is needed again soon."""
        for position in positions:
            if batches[0].last_offset < position <= batches[-1].last_offset:
                rest = [each for each in batches if each.last_offset >= position]
                self._around.partitions.give_back(self.partition_id, position, rest)

    def _give_all(
        self,
        dispatcher: Dispatcher,
        position: int,
        offered: _Offered,
        end: int,
        now_ms: int,
    ) -> None:
        """Offers again what was left as long as some is taken: permits come in small numbers."""
        entries, payloads = offered.entries, offered.payloads
        while True:
            for delivery in dispatcher.offer(position, entries, end, now_ms):
                self._give(delivery, payloads[delivery.entry.base_offset])
            reached = dispatcher.read_position
            if not position < reached < end or dispatcher.wanted <= 0:
                return
            position = reached
            entries = [each for each in entries if each.last_offset >= reached]

    async def _deliver_again(
        self,
        subscription: LiveSubscription,
        dispatcher: Dispatcher,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Reads entries that were read before, and gives them."""
        payloads: dict[int, Payload] = {}
        is_by_key = dispatcher.type is SubscriptionType.KEY_SHARED
        wanted = sorted(each.entry for each in deliveries)
        try:
            for place, entry in enumerate(wanted):
                if entry.base_offset in payloads:
                    continue
                following = wanted[place + 1].base_offset if place + 1 < len(wanted) else -1
                is_followed = following == entry.last_offset + 1
                found = await self._read(entry.base_offset, _AGAIN_BYTES if is_followed else 1)
                for batch in found.batches:
                    made = await self._around.translator.translated(self.partition_id, batch)
                    pieces = (
                        self._around.pieces.of(self.partition_id, batch, made) if is_by_key else ()
                    )
                    payloads |= {each.entry.base_offset: each.payload for each in pieces}
                    if not pieces:
                        payloads[batch.base_offset] = made.payload
        except StoreUnavailable:
            for delivery in deliveries:
                dispatcher.take_back(delivery)
                member = delivery.consumer_id
                assert isinstance(member, Member)
                member.give_back_permits(delivery)
            raise
        if not self._around.is_valid(self.lease):
            return
        for delivery in deliveries:
            payload = payloads.get(delivery.entry.base_offset)
            if payload is not None:
                self._give_what_is_left(dispatcher, delivery, payload)
            else:  # it has been deleted meanwhile
                entry = delivery.entry
                self.acknowledge(subscription, [(entry.base_offset, entry.last_offset + 1)])
                member = delivery.consumer_id
                assert isinstance(member, Member)
                member.give_back_permits(delivery)

    def _give_what_is_left(
        self, dispatcher: Dispatcher, delivery: Delivery, payload: Payload
    ) -> None:
        """What was acknowledged or given back while its bytes were read is not given any more."""
        remaining, count = dispatcher.left_of(delivery)
        if remaining != delivery.remaining:
            member = delivery.consumer_id
            assert isinstance(member, Member)
            member.give_back_permits(delivery, count)
            delivery = delivery._replace(remaining=remaining)
        if count:
            self._give(delivery, payload)

    def _give(self, delivery: Delivery, payload: Payload) -> None:
        member = delivery.consumer_id
        assert isinstance(member, Member)
        if not member.is_gone:
            member.deliver(delivery, payload)

    def _want(self, offset: int, max_bytes: int) -> Want:
        return Want(self.partition_id, offset, max_bytes, IsolationLevel.READ_COMMITTED)

    async def _found(self, want: Want) -> Found:
        (found,) = await self._around.partitions.read([want], want.max_bytes)
        return found

    async def _read(self, offset: int, max_bytes: int) -> Found:
        return await self._found(self._want(offset, max_bytes))

    # --- its end ---

    def drop(self) -> None:
        """It is not this broker's any more, or has to be read again: everything leaves memory."""
        if self.is_dropped:
            return
        self.is_dropped = True
        for subscription in list(self._subscriptions.values()):
            self._forget(subscription)
            for member in list(subscription.members):
                member.is_gone = True
                member.receiver.on_closed()
            subscription.members.clear()
        self._stored.clear()
        self.wake()
        self._around.on_dropped(self)

    def close_consumers(self) -> None:
        """The broker stops: clients are to look for another one."""
        for subscription in self._subscriptions.values():
            self._close_consumers(subscription)
        self.wake()

    async def close(self) -> None:
        """Ends the loop."""
        self.drop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _behind(batches: Sequence[StoredBatch], first: int, messages: int) -> int:
    """The index behind the batches that have so many messages, from the first on; at least one."""
    end = batches[first].base_offset + messages
    behind = first + 1
    while behind < len(batches) and batches[behind].base_offset < end:
        behind += 1
    return behind


def _is_gap(batch: StoredBatch, found: Found) -> bool:
    """Whether nobody is given this: it ends a transaction, or is of one that was aborted."""
    if not found.aborted:
        return batch.is_control
    return batch.is_control or any(
        each.holds(batch.producer_id, batch.base_offset) for each in found.aborted
    )
