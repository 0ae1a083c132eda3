"""The transaction coordinator of this process: any broker can coordinate any transaction.

Core's decisions on a transaction go to the store with the log's flushes; joins go by themselves.
Only the store has the truth: the row's version guards each decision. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from core.errors import Error
from core.group.records import CommittedOffset
from core.log.producer_state import ProducerState
from core.ports.leases import Lease
from core.ports.log import CommitUnknown, LogStore, StoreUnavailable, VersionMismatch
from core.ports.transactions import (
    AckingSubscription,
    OpenTransactions,
    PendingAcks,
    PendingOffsets,
    TransactionJoin,
    TransactionStore,
)
from core.transaction import single_use
from core.transaction.coordinator import (
    check_room,
    prepare_end,
    prepare_expiry,
    prepare_external_marker,
    prepare_init_producer_id,
    prepare_join,
    prepare_timeout,
    verify_joined,
    verify_write,
)
from core.transaction.key import (
    Participant,
    ParticipantKind,
    TransactionKey,
    TransactionKind,
)
from core.transaction.single_use import Begin, prepare_begin
from core.transaction.values import (
    EndTransaction,
    InitProducerId,
    Joining,
    Marker,
    OpenTransaction,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    Transition,
    TransitionAnswer,
)
from core.types import NO_PRODUCER_ID, NO_TIMESTAMP
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.transactions.coalescing import CoalescedWrites
from gateway.runtime.transactions.producer_ids import ProducerIds

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 0.5
"""How often overdue transactions are looked for; they end within a second of their deadline."""
AT_ONCE: Final = 100
_FENCED: Final = frozenset({Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH})
JOIN_ATTEMPTS: Final = 20
OPENING_S: Final = 0.02
"""How long a transaction that was begun waits for its first join, to be stored together with it."""
_OPENING_AGAIN_S: Final = 1.0
_REMEMBERED_MS: Final = 10 * 60_000
"""How long the end of a transaction is known whose key is used once: clients ask again after a lost
answer, for some seconds or minutes."""
_FORGET_INTERVAL_S: Final = 10.0
_FORGET_AT_ONCE: Final = 20_000
_NAME_LOGGED: Final = 100  # characters; a transactional id may have 32,767

Prepare = Callable[[TransactionMetadata | None, int], Transition]
"""A decision, given the stored row and an unused producer id."""
PrepareOnAll = Callable[[StoredTransaction | None, int], Transition]
"""The same, for decisions that depend on the participants."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction that this broker has ended.

    why: "client", "fenced", "timeout" or "marker". seconds: that the commit took. open_ms: for how
    long the transaction was open before.
    """

    kind: TransactionKind
    is_commit: bool
    why: str
    seconds: float
    open_ms: int


@dataclass(slots=True)
class _Opening:
    """A transaction that was begun here and has no row yet. written: while it is written."""

    put: TransactionMetadata
    timer: asyncio.TimerHandle
    written: asyncio.Future[None] | None = None


OnEnded = Callable[[Ended], None]

OnAcksEnded = Callable[[OpenTransaction, bool, Sequence[int]], None]
"""(which one, whether it is committed, ids of subscriptions with acknowledgements in it)."""


class Transactions:
    """The coordinator. `run` in the background; every other method may raise StoreUnavailable.

    is_alone: whether no other broker is live, so that all of a transaction's writes come here.
    """

    def __init__(
        self,
        store: TransactionStore,
        log_store: LogStore,
        flusher: Flusher,
        producer_ids: ProducerIds,
        *,
        max_timeout_ms: Callable[[], int],
        expiration_ms: Callable[[], int],
        expiration_interval_ms: Callable[[], int],
        is_alone: Callable[[], bool],
    ) -> None:
        self._store = store
        self._log_store = log_store
        self._flusher = flusher
        self._producer_ids = producer_ids
        self._max_timeout_ms = max_timeout_ms
        self._expiration_ms = expiration_ms
        self._expiration_interval_ms = expiration_interval_ms
        self._is_alone = is_alone
        self._on_ended: OnEnded = lambda ended: None
        self._openings: dict[int, _Opening] = {}  # by producer id, not stored yet
        self._opening_tasks: set[asyncio.Task[None]] = set()
        self._gathering = flusher.gathering
        wait_s = self._gathering.wait_s
        self._joins = CoalescedWrites(store.join, wait_s)
        self._offsets = CoalescedWrites(store.put_pending, wait_s)
        self._acks = CoalescedWrites(store.put_pending_acks, wait_s)
        self._on_acks_ended: OnAcksEnded = lambda *ended: None
        self._open = OpenTransactions(-1, ())
        self._fenced = 0
        self._begun = 0

    def on_ended(self, listener: OnEnded) -> None:
        """Registers a listener; it is called after each end."""
        self._on_ended = listener

    def on_acks_ended(self, listener: OnAcksEnded) -> None:
        """Registers who is told of each end here of a transaction with acknowledgements."""
        self._on_acks_ended = listener

    @property
    def open_count(self) -> int:
        """Transactions open at the last look, whichever broker began them."""
        return self._open.open_count

    @property
    def open_single_use_count(self) -> int:
        """Those of them whose key is used once."""
        return self._open.single_use_count

    @property
    def begun(self) -> int:
        """Transactions that `begin` has opened here."""
        return self._begun

    @property
    def oldest_s(self) -> float:
        """For how long the oldest of them has been open."""
        return self._open.oldest_ms / 1000

    @property
    def fenced(self) -> int:
        """Requests refused because their producer has been fenced; see `Flusher.fenced` too."""
        return self._fenced

    def _counted(self, error: Error) -> Error:
        self._fenced += error in _FENCED
        return error

    # Changes of a transaction's row.

    async def init_producer_id(self, request: InitProducerId) -> TransitionAnswer | Unconfirmed:
        """A producer starts or recovers; the same commit aborts its key's open transaction."""
        limit = self._max_timeout_ms()

        def prepare(known: TransactionMetadata | None, fresh: int) -> Transition:
            return prepare_init_producer_id(known, request, fresh, _now(), limit)

        return await self._decide(request.key, prepare, "fenced")

    async def begin(
        self,
        name: Callable[[int], TransactionKey],
        timeout_ms: int,
        client_id: str,
        client_host: str,
        owner: str = "",
    ) -> TransitionAnswer:
        """Opens a transaction with a key that no other one has: `name` makes it of its producer
        id. owner: see TransactionMetadata.

        Nothing is stored yet when it returns: the row is written with the first join, or
        `OPENING_S` later, or before the transaction's end. Visible to every broker once anything
        has joined; durable with what is written in it.
        """
        producer_id = await self._producer_ids.next_rising_id()
        request = Begin(name(producer_id), producer_id, timeout_ms, client_id, client_host, owner)
        transition = prepare_begin(request, _now(), self._max_timeout_ms())
        put = transition.put
        if put is None:
            self._producer_ids.give_back(producer_id)
            return transition.answer
        self._gathering.note(producer_id)
        self._begun += 1
        timer = asyncio.get_running_loop().call_later(OPENING_S, self._open_by_itself, producer_id)
        self._openings[producer_id] = _Opening(put, timer)
        return transition.answer

    def _open_by_itself(self, producer_id: int) -> None:
        task = asyncio.create_task(self._try_to_open(producer_id))
        self._opening_tasks.add(task)
        task.add_done_callback(self._opening_tasks.discard)

    async def _try_to_open(self, producer_id: int) -> None:
        try:
            await self._opened(producer_id)
        except StoreUnavailable as away:
            log.debug("transaction_not_opened", producer_id=producer_id, reason=str(away))

    async def _opened(self, producer_id: int) -> None:
        """Returns when the transaction has its row, if `begin` has opened it here. Raises
        StoreUnavailable."""
        while (opening := self._openings.get(producer_id)) is not None:
            if opening.written is None:
                await self._write_opening(opening)
            else:
                await asyncio.wait([opening.written])

    async def _write_opening(self, opening: _Opening, partition_ids: Sequence[int] = ()) -> None:
        """The row, with what joins at once. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        put = opening.put
        opening.timer.cancel()
        written = opening.written = loop.create_future()
        is_kept = False
        try:
            join = TransactionJoin(put.key, 0, put, tuple(partition_ids))
            version = await self._joins.write(join)
            stored = StoredTransaction(replace(put, version=version), frozenset(partition_ids))
            self._flusher.note_transaction(stored)
        except CommitUnknown:
            raise  # whoever asks next reads what has become of it
        except StoreUnavailable:
            is_kept = put.started_at + put.timeout_ms > _now()
            raise
        finally:
            opening.written = None
            if is_kept:
                opening.timer = loop.call_later(
                    _OPENING_AGAIN_S, self._open_by_itself, put.producer_id
                )
            else:
                del self._openings[put.producer_id]
            written.set_result(None)

    async def close(self) -> None:
        """Stores what was begun and waits for its first join."""
        waiting = [self._try_to_open(each) for each in list(self._openings)]
        await asyncio.gather(*waiting, *self._opening_tasks)
        for opening in self._openings.values():
            opening.timer.cancel()

    async def end_single(
        self, key: TransactionKey, producer_id: int, *, is_commit: bool
    ) -> TransitionAnswer | Unconfirmed:
        """Ends a transaction that `begin` has opened, here or at another broker: markers,
        acknowledgements and state in one commit."""

        def prepare(known: TransactionMetadata | None, fresh: int) -> Transition:
            return single_use.prepare_end(known, is_commit=is_commit, now=_now())

        await self._opened(producer_id)
        return await self._decide(key, prepare, "client", producer_id)

    async def end(
        self, key: TransactionKey, request: EndTransaction
    ) -> TransitionAnswer | Unconfirmed:
        """Markers, offsets, state and the next epoch, in one commit.

        COORDINATOR_NOT_AVAILABLE for a request of V1 if another broker ended its transaction before
        its turn, and the next one is open, which looks the same.
        """
        producer_id = request.producer.producer_id
        stored = self._flusher.known_transaction(producer_id)
        is_open = stored is not None and stored.metadata.state is TransactionState.ONGOING
        if request.open_version is None and is_open:
            assert stored is not None
            request = replace(request, open_version=stored.metadata.version)

        found: TransactionMetadata | None = None

        def prepare(known: TransactionMetadata | None, fresh: int) -> Transition:
            nonlocal found
            found = known
            return prepare_end(known, request, fresh, _now())

        answer = await self._decide(key, prepare, "client", producer_id)
        if not isinstance(answer, Unconfirmed) and answer.error is not Error.NONE:
            log.info(
                "transaction_end_refused",
                transactional_id=key.name[:_NAME_LOGGED],
                reason=answer.error.name,
                is_commit=request.is_commit,
                producer_id=producer_id,
                producer_epoch=request.producer.producer_epoch,
                stored_state=found.state.value if found else None,
                stored_epoch=found.producer_epoch if found else None,
            )
        return answer

    async def write_marker(
        self,
        marker: Marker,
        partition_ids: Sequence[int],
        version: TransactionVersion = TransactionVersion.V1,
    ) -> Mapping[int, Error | Unconfirmed]:
        """A marker from outside (WriteTxnMarkers), for partitions of one producer.

        An abort of a transaction coordinated here ends all of it; a commit is refused. If no
        transaction has this producer, none can be open: no error, and no effect.
        """
        pairs = [(partition_id, marker.producer_id) for partition_id in partition_ids]
        producers = (await self._log_store.load(partition_ids, pairs)).producers
        errors: dict[int, Error | Unconfirmed] = {}
        for partition_id in partition_ids:
            known = producers.get((partition_id, marker.producer_id))
            known = known or ProducerState(marker.producer_id)
            refusal = known.marker_refusal(marker, raises_epoch=version.end_raises_epoch)
            errors[partition_id] = refusal[0] if refusal else Error.NONE
        accepted = [each for each in errors if errors[each] is Error.NONE]
        found = await self._log_store.load_transactions([marker.producer_id])
        stored = found.get(marker.producer_id)
        if stored is None or not accepted:
            return errors

        def prepare(stored: StoredTransaction | None, fresh: int) -> Transition:
            known, joined = _parts(stored)
            has_joined = not joined.isdisjoint(accepted)
            return prepare_external_marker(known, marker, fresh, _now(), has_joined=has_joined)

        answer = await self._decide_on_all(stored.metadata.key, prepare, "marker")
        verdict = answer if isinstance(answer, Unconfirmed) else answer.error
        return errors | dict.fromkeys(accepted, verdict)

    async def _decide(
        self, key: TransactionKey, prepare: Prepare, why: str, producer_id: int | None = None
    ) -> TransitionAnswer | Unconfirmed:
        def prepare_on_all(stored: StoredTransaction | None, fresh: int) -> Transition:
            return prepare(stored.metadata if stored else None, fresh)

        return await self._decide_on_all(key, prepare_on_all, why, producer_id)

    async def _decide_on_all(
        self,
        key: TransactionKey,
        prepare: PrepareOnAll,
        why: str,
        producer_id: int | None = None,
    ) -> TransitionAnswer | Unconfirmed:
        begun = time.perf_counter()
        fresh = await self._producer_ids.next_id()
        marker: Marker | None = None
        started_at = NO_TIMESTAMP
        ended = OpenTransaction(NO_PRODUCER_ID, 0)
        subscriptions: Sequence[int] = ()
        is_used = False

        def decide(stored: StoredTransaction | None) -> Transition:
            nonlocal ended, is_used, marker, started_at, subscriptions
            transition = prepare(stored, fresh)
            if transition.put is not None and transition.put.producer_id == fresh:
                is_used = True
            marker = transition.marker
            started_at = stored.metadata.started_at if stored else NO_TIMESTAMP
            subscriptions = _subscriptions_of(stored) if marker and stored else ()
            if subscriptions and stored:
                ended = OpenTransaction(stored.metadata.producer_id, stored.metadata.version)
            return transition

        answer = await self._flusher.transition(key, decide, producer_id)
        if not is_used:
            self._producer_ids.give_back(fresh)
        if isinstance(answer, Unconfirmed):
            return answer
        if marker is not None and answer.error is Error.NONE:
            open_ms = max(_now() - started_at, 0) if started_at != NO_TIMESTAMP else 0
            seconds = time.perf_counter() - begun
            self._on_ended(Ended(key.kind, marker.is_commit, why, seconds, open_ms))
            if subscriptions:
                self._on_acks_ended(ended, marker.is_commit, subscriptions)
        self._counted(answer.error)
        return answer

    # Joins.

    async def add_partitions(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        partition_ids: Sequence[int],
        version: TransactionVersion = TransactionVersion.V1,
    ) -> Error:
        """AddPartitionsToTxn: all partitions join, or none."""
        opening = self._openings.get(producer.producer_id)
        if opening is not None and opening.put.key == key:
            if opening.written is None:
                self._gathering.note(producer.producer_id)
                await self._write_opening(opening, tuple(dict.fromkeys(partition_ids)))
                return Error.NONE
            await self._opened(producer.producer_id)

        def join(stored: StoredTransaction | None) -> tuple[Joining, TransactionJoin]:
            known, joined = _parts(stored)
            new = tuple(i for i in dict.fromkeys(partition_ids) if i not in joined)
            joining = prepare_join(known, producer, version, _now(), is_joined=not new)
            expected = known.version if known else 0
            if known is not None and known.state is not TransactionState.ONGOING:
                new = tuple(dict.fromkeys(partition_ids))
            return joining, TransactionJoin(key, expected, joining.put, new)

        error = await self._join(key, producer, join)
        if error is Error.NONE and not version.joins_with_write and self._is_alone():
            self._flusher.expect_writes(key, producer.producer_id, partition_ids)
        return error

    async def add_participant(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        participant: Participant,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> Error:
        """AddOffsetsToTxn: the group joins, so that its offsets may be committed."""

        def join(stored: StoredTransaction | None) -> tuple[Joining, TransactionJoin]:
            known, _ = _parts(stored)
            participants = stored.participants if stored is not None else frozenset()
            is_joined = participant in participants
            joining = prepare_join(known, producer, version, _now(), is_joined=is_joined)
            joining = check_room(joining, participant, participants)
            expected = known.version if known else 0
            new = (participant,) if joining.joins else ()
            return joining, TransactionJoin(key, expected, joining.put, participants=new)

        return await self._join(key, producer, join)

    async def commit_offsets(
        self,
        lease: Lease,
        group_id: str,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        offsets: Sequence[CommittedOffset],
    ) -> Error:
        """TxnOffsetCommit, after the group has accepted it under its coordinator's lease.

        NOT_COORDINATOR if another broker has that lease now. Reads the transaction first: any
        broker may have begun it and made the group join.
        """

        def write(join: TransactionJoin) -> Awaitable[None]:
            pending = PendingOffsets(lease, join, producer.producer_id, group_id, offsets)
            return self._offsets.write(pending)

        group = Participant.of_group(group_id)
        return await self._put_pending(key, producer, version, group, write)

    async def acknowledge(
        self,
        lease: Lease,
        subscription_id: int,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        transaction: OpenTransaction,
        ranges: Sequence[tuple[int, int]],
        cumulative_end: int | None = None,
    ) -> Error:
        """Acknowledgements that count if this transaction commits, after the subscription has
        accepted them under its partition's lease; durable when it returns. The subscription joins
        with them.

        NOT_COORDINATOR if another broker has that lease now, or the subscription is gone.
        INVALID_TXN_STATE, or what else its producer is told, once the transaction has ended.
        """

        def write(join: TransactionJoin) -> Awaitable[None]:
            return self._acks.write(
                PendingAcks(lease, join, transaction, subscription_id, ranges, cumulative_end)
            )

        await self._opened(producer.producer_id)
        subscription = Participant.of_subscription(subscription_id)
        known = self._known(key, producer)
        version = TransactionVersion.V2  # it joins with the write
        return await self._put_pending(
            key, producer, version, subscription, write, known, transaction
        )

    async def _put_pending(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        participant: Participant,
        write: Callable[[TransactionJoin], Awaitable[None]],
        known_here: StoredTransaction | None = None,
        only: OpenTransaction | None = None,
    ) -> Error:
        """Writes what is pending together with the participant's join. known_here: from memory,
        which may be old. only: in no other transaction of the producer's."""
        self._gathering.note(producer.producer_id)
        stored, is_fresh = known_here, False
        for _ in range(JOIN_ATTEMPTS):
            if stored is None:
                stored, is_fresh = (await self._store.load([key])).get(key), True
            known, _ = _parts(stored)
            participants = stored.participants if stored is not None else frozenset()
            is_joined = participant in participants
            joining = verify_write(known, producer, version, _now(), is_joined=is_joined)
            joining = check_room(joining, participant, participants)
            error = joining.error
            if error is Error.NONE and only is not None and not _is(only, known):
                error = Error.INVALID_TXN_STATE
            if error is not Error.NONE:
                if is_fresh:
                    return self._counted(error)
                stored = None
                continue
            assert stored is not None and known is not None, "an unknown producer may not write"
            join = TransactionJoin(key, known.version, joining.put, participants=(participant,))
            try:
                await write(join)
            except VersionMismatch:
                stored = (await self._store.load([key])).get(key)
                if stored is not None and stored.metadata.version == known.version:
                    return Error.NOT_COORDINATOR  # then the lease has changed
                is_fresh = True
                continue
            self._note(stored, join, known.version + (join.put is not None))
            return Error.NONE
        return Error.CONCURRENT_TRANSACTIONS

    def _known(self, key: TransactionKey, producer: ProducerIdAndEpoch) -> StoredTransaction | None:
        """The transaction in memory, if this broker knows it."""
        stored = self._flusher.known_transaction(producer.producer_id)
        return stored if stored is not None and stored.metadata.key == key else None

    async def check(self, key: TransactionKey, producer: ProducerIdAndEpoch) -> Error:
        """Whether the transaction is open, so that something may join it, at any broker."""
        await self._opened(producer.producer_id)
        found = self.known_open(key, producer) or await self.find_open(key, producer)
        return found if isinstance(found, Error) else Error.NONE

    async def find_owner(self, key: TransactionKey, producer_id: int) -> str | None:
        """Whose it is: of a key that is used once, that never changes. None where there is no such
        transaction."""
        opening = self._openings.get(producer_id)
        if opening is not None and opening.put.key == key:
            return opening.put.owner
        stored = self._flusher.known_transaction(producer_id)
        if stored is None or stored.metadata.key != key:
            stored = (await self._store.load([key])).get(key)
        return None if stored is None else stored.metadata.owner

    def known_open(
        self, key: TransactionKey, producer: ProducerIdAndEpoch
    ) -> OpenTransaction | None:
        """The producer's open transaction as this broker remembers it: it may have ended
        elsewhere. None: ask `find_open`."""
        found = _open(self._known(key, producer), producer)
        return found if isinstance(found, OpenTransaction) else None

    async def find_open(
        self, key: TransactionKey, producer: ProducerIdAndEpoch
    ) -> OpenTransaction | Error:
        """The producer's open transaction, by a fresh read; or why nothing may join it."""
        await self._opened(producer.producer_id)
        return _open((await self._store.load([key])).get(key), producer)

    async def find_joined(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        participant: Participant,
        version: TransactionVersion,
    ) -> OpenTransaction | Error:
        """The producer's open transaction with this participant, for a write in it: V2 joins now,
        V1 must have joined. Never by memory alone."""
        if version.joins_with_write:
            error = await self.add_participant(key, producer, participant, version)
            if error is not Error.NONE:
                return Error.INVALID_PRODUCER_EPOCH if error is Error.PRODUCER_FENCED else error
            if (joined := self.known_open(key, producer)) is not None:
                return joined
        stored = (await self._store.load([key])).get(key)
        known, _ = _parts(stored)
        is_joined = stored is not None and participant in stored.participants
        joining = verify_write(known, producer, version, _now(), is_joined=is_joined)
        if joining.error is not Error.NONE:
            return self._counted(joining.error)
        return _open(stored, producer)

    async def unstable_partitions(self, group_ids: Sequence[str]) -> list[frozenset[int]]:
        """Per group: partitions with an offset that an open transaction may still change."""
        return await self._store.pending_partitions(group_ids)

    async def _join(
        self,
        key: TransactionKey,
        producer: ProducerIdAndEpoch,
        prepare: Callable[[StoredTransaction | None], tuple[Joining, TransactionJoin]],
    ) -> Error:
        self._gathering.note(producer.producer_id)
        stored = self._known(key, producer)
        is_fresh = False
        for _ in range(JOIN_ATTEMPTS):
            joining, join = prepare(stored)
            is_refused = joining.error is not Error.NONE
            if is_fresh and is_refused:
                return self._counted(joining.error)
            if not is_refused:
                try:
                    version = await self._joins.write(join)
                except VersionMismatch:
                    pass
                else:
                    assert stored is not None, "an unknown producer may not join"
                    self._note(stored, join, version)
                    return Error.NONE
            stored = (await self._store.load([key])).get(key)
            is_fresh = True
        return Error.CONCURRENT_TRANSACTIONS

    def _note(self, stored: StoredTransaction, join: TransactionJoin, version: int) -> None:
        metadata = stored.metadata
        partitions, participants = stored.partitions, stored.participants
        if join.put is not None:
            metadata = replace(join.put, version=version)
            partitions, participants = frozenset(), frozenset()
        self._flusher.note_transaction(
            StoredTransaction(
                metadata,
                partitions | set(join.partitions),
                participants | set(join.participants),
            )
        )

    async def verify(
        self, key: TransactionKey, producer: ProducerIdAndEpoch, partition_ids: Sequence[int]
    ) -> Mapping[int, Error]:
        """AddPartitionsToTxn, verify only: whether each partition is in the open transaction."""
        stored = (await self._store.load([key])).get(key)
        known, joined = _parts(stored)
        return {
            partition_id: verify_joined(known, producer, is_joined=partition_id in joined)
            for partition_id in partition_ids
        }

    # For people.

    async def describe(
        self, keys: Sequence[TransactionKey]
    ) -> Mapping[TransactionKey, StoredTransaction]:
        """A fresh read; missing ids are omitted."""
        for each in [each for each, of in self._openings.items() if of.put.key in keys]:
            await self._opened(each)
        return await self._store.load(keys)

    async def list_all(self) -> tuple[int, Sequence[TransactionMetadata]]:
        """All transactions, and the time by the database's clock (ms). Of those whose key is used
        once only the open ones."""
        for each in list(self._openings):
            await self._opened(each)
        return await self._store.list_all()

    async def newest_producer_id(self) -> int:
        """The highest producer id that a transaction has, or had some minutes ago; -1: none."""
        return await self._store.newest_producer_id()

    async def subscriptions_of(self, producer_ids: Sequence[int]) -> Sequence[AckingSubscription]:
        """Those that take part in these producers' open transactions, by partition and name."""
        return await self._store.subscriptions_of(producer_ids)

    # Timeouts.

    async def run(self) -> None:
        """Aborts overdue transactions and forgets idle ones, until cancelled."""
        expire_at = forget_at = time.monotonic()
        is_away = False
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.abort_overdue()
                if time.monotonic() >= expire_at:
                    await self.expire_idle()
                    expire_at = time.monotonic() + self._expiration_interval_ms() / 1000
                if time.monotonic() >= forget_at:
                    await self._store.forget_ended(_REMEMBERED_MS, _FORGET_AT_ONCE)
                    forget_at = time.monotonic() + _FORGET_INTERVAL_S
            except StoreUnavailable as error:
                if not is_away:
                    log.info("transactions_not_looked_at", reason=str(error))
                is_away = True
            else:
                is_away = False

    async def abort_overdue(self) -> int:
        """Aborts overdue transactions and fences their producers; returns how many it tried."""
        overdue = self._open = await self._store.overdue(AT_ONCE)

        def prepare(known: TransactionMetadata | None, fresh: int) -> Transition:
            # By the database's clock at the read: a transaction begun since then is not overdue.
            return prepare_timeout(known, fresh, overdue.now_ms) or Transition(TransitionAnswer())

        for key in overdue.keys:
            log.info("transaction_timed_out", transactional_id=key.name)
        await asyncio.gather(*(self._decide(key, prepare, "timeout") for key in overdue.keys))
        return len(overdue.keys)

    async def expire_idle(self) -> int:
        """Forgets ids idle for `transactional.id.expiration.ms`; returns how many it tried."""
        expiration_ms = self._expiration_ms()
        idle = await self._store.idle(expiration_ms, AT_ONCE)

        def prepare(known: TransactionMetadata | None, fresh: int) -> Transition:
            return prepare_expiry(known, idle.now_ms, expiration_ms) or Transition(
                TransitionAnswer()
            )

        await asyncio.gather(*(self._decide(key, prepare, "expired") for key in idle.keys))
        return len(idle.keys)


def _open(
    stored: StoredTransaction | None, producer: ProducerIdAndEpoch
) -> OpenTransaction | Error:
    known, _ = _parts(stored)
    joining = prepare_join(known, producer, TransactionVersion.V2, _now(), is_joined=True)
    if joining.error is not Error.NONE:
        return joining.error
    if known is None or known.state is not TransactionState.ONGOING:
        return Error.INVALID_TXN_STATE
    return OpenTransaction(known.producer_id, known.version)


def _is(transaction: OpenTransaction, known: TransactionMetadata | None) -> bool:
    return (
        known is not None
        and known.state is TransactionState.ONGOING
        and transaction == (known.producer_id, known.version)
    )


def _subscriptions_of(stored: StoredTransaction) -> Sequence[int]:
    """Ids of the subscriptions that take part."""
    kind = ParticipantKind.SUBSCRIPTION
    return [int(each.name) for each in stored.participants if each.kind is kind]


def _parts(
    stored: StoredTransaction | None,
) -> tuple[TransactionMetadata | None, frozenset[int]]:
    return (stored.metadata, stored.partitions) if stored else (None, frozenset())


def _now() -> int:
    return time.time_ns() // 1_000_000
