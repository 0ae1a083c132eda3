"""Acknowledgements in transactions: on their way into the database, and what becomes of them.

A transaction is told from all others, of the same producer too. A subscription in memory decides
who may acknowledge what (`core.subscription.pending_acks`); then the rows are written under the
partition's lease and the transaction's version. Any broker may end the transaction: the same commit
marks the rows, or deletes them. Whoever ends one here tells; other brokers send word; and once a
second all that is pending is looked at. So the rows are the truth, and news only saves time. Knows
no rule and no SQL.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.errors import Error
from core.ports.log import CommitUnknown, EffectRefused, StoreUnavailable
from core.transaction.values import OpenTransaction

if TYPE_CHECKING:
    from core.ports.leases import Lease
    from core.ports.subscriptions import StoredAck, SubscriptionStore
    from core.transaction.key import TransactionKey
    from core.transaction.values import ProducerIdAndEpoch
    from gateway.runtime.subscriptions.members import LiveSubscription
    from gateway.runtime.subscriptions.partition import OwnedPartition

log = structlog.get_logger(__name__)

_LOOK_INTERVAL_S: Final = 1.0


class Transactions(Protocol):
    """What is asked of the coordinator; see there."""

    def known_open(
        self, key: TransactionKey, producer: ProducerIdAndEpoch
    ) -> OpenTransaction | None: ...

    def find_open(
        self, key: TransactionKey, producer: ProducerIdAndEpoch
    ) -> Awaitable[OpenTransaction | Error]: ...

    def acknowledge(
        self,
        lease: Lease,
        subscription_id: int,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        transaction: OpenTransaction,
        ranges: Sequence[tuple[int, int]],
        cumulative_end: int | None = None,
    ) -> Awaitable[Error]: ...


class _LiveParticipant:
    """A subscription in memory, with pending acknowledgements. By transaction: under_way: writes
    that are not answered yet; begun: all that were. doubtful: transactions of which memory may have
    more than the store has."""

    def __init__(self, partition: OwnedPartition, subscription: LiveSubscription) -> None:
        self.partition = partition
        self.subscription = subscription
        self.under_way: Counter[OpenTransaction] = Counter()
        self.begun: Counter[OpenTransaction] = Counter()
        self.doubtful: set[OpenTransaction] = set()

    def begin(self, owner: OpenTransaction) -> None:
        self.under_way[owner] += 1
        self.begun[owner] += 1

    @property
    def answered(self) -> Counter[OpenTransaction]:
        """Those that are answered, of all that were begun."""
        return self.begun - self.under_way

    def finish(self, owner: OpenTransaction) -> None:
        self.under_way[owner] -= 1
        if not self.under_way[owner]:
            del self.under_way[owner]

    def forget(self, owner: OpenTransaction) -> None:
        self.doubtful.discard(owner)
        del self.begun[owner]


class PendingAckTracker:
    """All pending acknowledgements of this process: written, and what became of them."""

    def __init__(
        self,
        store: SubscriptionStore,
        transactions: Transactions,
        on_lost: Callable[[Lease, bool], None],
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._on_lost = on_lost
        self._participants: dict[int, _LiveParticipant] = {}
        self._under_way: dict[int, set[asyncio.Future[None]]] = {}  # by partition
        self._wanted: set[int] = set()
        self._looking = asyncio.Lock()
        self._looks = 0
        self._wake = asyncio.Event()

    async def wait_for_writes(self, partition_id: int) -> None:
        """Returns when no write of the partition is under way: what is read then is all."""
        if waiting := self._under_way.get(partition_id):
            await asyncio.wait(list(waiting))

    async def acknowledge(
        self,
        partition: OwnedPartition,
        subscription: LiveSubscription,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        ids: Sequence[Sequence[tuple[int, int]]],
        cumulative_end: int | None,
        transaction: OpenTransaction | None,
        is_heard: Callable[[], bool],
    ) -> Error:
        """Acknowledges in a transaction: the offsets that each id names or, unless it is None, all
        below cumulative_end. transaction: in no other one of the producer's, and exactly; to be
        told where it has more than one. is_heard: whether the client can be told, in the end; else
        the same again is no conflict. Not to be cancelled.

        CONCURRENT_TRANSACTIONS: they are acknowledged, or another transaction has them, or this one
        has and was told so. INVALID_REQUEST: the subscription is not durable.
        NOT_LEADER_OR_FOLLOWER: it is not this broker's any more. Else why the transaction is not
        open. Raises StoreUnavailable.
        """
        subscription_id = subscription.subscription_id
        if subscription_id is None:
            return Error.INVALID_REQUEST
        owner = transaction or self._transactions.known_open(key, producer)
        if owner is None:
            found = await self._transactions.find_open(key, producer)
            if isinstance(found, Error):
                return found
            owner = found
        if subscription.is_dropped:
            return Error.NOT_LEADER_OR_FOLLOWER
        core, log_end = subscription.core, partition.log_end
        if cumulative_end is None:
            is_accepted = core.pend(owner, ids, log_end, is_exact=transaction is not None)
        else:
            is_accepted = core.pend_up_to(owner, cumulative_end, log_end)
        if not is_accepted:
            return Error.CONCURRENT_TRANSACTIONS
        ranges = [each for named in ids for each in named]
        participant = self._enter(partition, subscription, subscription_id)
        participant.begin(owner)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        under_way = self._under_way.setdefault(partition.partition_id, set())
        under_way.add(done)
        error = Error.UNKNOWN_SERVER_ERROR
        try:
            error = await self._transactions.acknowledge(
                subscription.lease, subscription_id, key, producer, owner, ranges, cumulative_end
            )
        except EffectRefused as refused:
            log.error("pending_ack_refused_by_database", of=subscription_id, reason=str(refused))
            error = Error.KAFKA_STORAGE_ERROR
        except CommitUnknown:
            self._on_lost(subscription.lease, True)
            raise
        except StoreUnavailable:
            self._on_lost(subscription.lease, False)
            raise
        finally:
            done.set_result(None)
            under_way.discard(done)
            if not under_way and self._under_way.get(partition.partition_id) is under_way:
                del self._under_way[partition.partition_id]
            participant.finish(owner)
            if error is not Error.NONE:
                participant.doubtful.add(owner)
            if (error is not Error.NONE or not is_heard()) and core.is_pending(owner):
                core.leave_unanswered(owner, ranges, cumulative_end)
            if owner in participant.doubtful:
                self.look_again([subscription_id])
        if error is Error.NOT_COORDINATOR:
            self._on_lost(subscription.lease, True)
            return Error.NOT_LEADER_OR_FOLLOWER
        return error

    def load(
        self,
        partition: OwnedPartition,
        subscription: LiveSubscription,
        stored: Sequence[StoredAck],
    ) -> None:
        """What the store has of a subscription that is loaded now."""
        if not stored or subscription.subscription_id is None:
            return
        participant = self._enter(partition, subscription, subscription.subscription_id)
        self._take_over_all(participant, {each.transaction for each in stored}, stored)

    def _enter(
        self, partition: OwnedPartition, subscription: LiveSubscription, subscription_id: int
    ) -> _LiveParticipant:
        known = self._participants.get(subscription_id)
        if known is None or known.subscription is not subscription:
            known = self._participants[subscription_id] = _LiveParticipant(partition, subscription)
        return known

    # What becomes of them.

    def on_ended(
        self, owner: OpenTransaction, is_commit: bool, subscription_ids: Iterable[int]
    ) -> None:
        """A transaction has ended here."""
        for subscription_id in subscription_ids:
            participant = self._participants.get(subscription_id)
            if participant is None:
                continue
            is_known = participant.subscription.core.is_pending(owner)
            if owner in participant.under_way or owner in participant.doubtful or not is_known:
                participant.doubtful.add(owner)
                self.look_again([subscription_id])
            else:
                self._resolve(participant, owner, is_commit=is_commit)
                self._leave_out(subscription_id, participant)

    def look_again(self, subscription_ids: Iterable[int]) -> None:
        """Transactions with acknowledgements of these may have ended, at any broker."""
        self._wanted.update(each for each in subscription_ids if each in self._participants)
        if self._wanted:
            self._wake.set()

    async def run(self) -> None:
        """Looks at what has ended elsewhere, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                self._wanted.update(self._participants)
            self._wake.clear()
            wanted, self._wanted = self._wanted, set()
            if not wanted:
                continue
            try:
                await self._look(wanted)
            except StoreUnavailable as away:
                log.debug("pending_acks_not_read", reason=str(away))
                self._wanted |= wanted
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def take_in(self, subscription_id: int | None) -> None:
        """What has been committed before is acknowledged when this returns; writes under way are
        left alone. Raises StoreUnavailable."""
        if subscription_id in self._participants:
            await self._look({subscription_id})

    async def _look(self, subscription_ids: Iterable[int]) -> None:
        async with self._looking:  # or an older read might come last
            self._looks += 1
            before = {
                each: (participant, participant.answered)
                for each in subscription_ids
                if (participant := self._participants.get(each)) is not None
            }
            found = await self._store.read_pending(sorted(before))
            for subscription_id, (participant, answered) in before.items():
                # Else it was loaded since, and is newer.
                if self._participants.get(subscription_id) is participant:
                    self._compare(
                        subscription_id, participant, answered, found.get(subscription_id, ())
                    )

    def _compare(
        self,
        subscription_id: int,
        participant: _LiveParticipant,
        answered: Counter[OpenTransaction],
        stored: Sequence[StoredAck],
    ) -> None:
        """What is in memory becomes what the store has. Transactions with a write that the read may
        have missed are left alone until the next look. answered: the writes that it has not
        missed."""
        applied = participant.subscription.applied
        owners = {each.transaction for each in stored} | participant.doubtful
        for each in [e for e, look in applied.items() if look < self._looks and e not in owners]:
            del applied[each]  # it has no rows any more
        for owner in participant.subscription.core.pending_owners:
            assert isinstance(owner, OpenTransaction)
            owners.add(owner)
        # A write may have been under way when the read began, and be answered by now.
        sure = {each for each in owners if participant.begun[each] == answered[each]}
        self._take_over_all(participant, sure, stored)
        if participant.doubtful - participant.under_way.keys():
            self.look_again([subscription_id])
        self._leave_out(subscription_id, participant)

    def _take_over_all(
        self,
        participant: _LiveParticipant,
        owners: Iterable[OpenTransaction],
        stored: Sequence[StoredAck],
    ) -> None:
        """What is in memory of transactions becomes what the store has."""
        rows: dict[OpenTransaction, list[StoredAck]] = defaultdict(list)
        for each in stored:
            rows[each.transaction].append(each)
        for owner in owners:
            self._take_over(participant, owner, rows.get(owner, ()))

    def _take_over(
        self, participant: _LiveParticipant, owner: OpenTransaction, rows: Sequence[StoredAck]
    ) -> None:
        subscription, core = participant.subscription, participant.subscription.core
        if owner in subscription.applied:  # a seek may have been behind it
            participant.forget(owner)
            return
        committed = [each for each in rows if each.is_committed]
        if committed:
            self._note_applied(subscription, owner)
            for each in committed:
                if each.is_cumulative:
                    core.acknowledge_up_to(each.end, each.end)
                else:
                    core.acknowledge(each.start, each.end, each.end)
        ranges = [(e.start, e.end) for e in rows if not e.is_committed and not e.is_cumulative]
        ends = [each.end for each in rows if not each.is_committed and each.is_cumulative]
        core.keep_pending(owner, ranges, max(ends, default=None))
        participant.doubtful.discard(owner)
        if not core.is_pending(owner):
            participant.forget(owner)
        participant.partition.acknowledged(subscription)

    def _note_applied(self, subscription: LiveSubscription, owner: OpenTransaction) -> None:
        subscription.taken_in.add(owner)
        subscription.applied[owner] = self._looks

    def _resolve(
        self, participant: _LiveParticipant, owner: OpenTransaction, *, is_commit: bool
    ) -> None:
        core = participant.subscription.core
        participant.forget(owner)
        if is_commit:
            core.commit_pending(owner)
            self._note_applied(participant.subscription, owner)
        else:
            core.abort_pending(owner)
        participant.partition.acknowledged(participant.subscription)

    def _leave_out(self, subscription_id: int, participant: _LiveParticipant) -> None:
        """Nothing of it is pending any more."""
        subscription = participant.subscription
        is_over = subscription.is_dropped or not subscription.core.pends_anything
        known = self._participants.get(subscription_id)
        if is_over and not participant.under_way and known is participant:
            del self._participants[subscription_id]
