"""The memory that flushes decide on: partitions, producers, transactions, as last read or written.

It may be older than the store, which guards all decisions. Reads what is missing, or, under a
flush's locks, all that the flush touches. Decides nothing; knows no protocol and no SQL.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from core.log.named_sequences import NamedSequence
from core.log.partition_log import PartitionLog
from core.log.producer_state import ProducerState
from core.ports.log import Flush, Loaded, Locked, LogStore, RowLocked, StoreUnavailable, ToLock
from core.transaction.values import StoredTransaction
from core.types import NO_PRODUCER_ID
from gateway.runtime.flush.work import (
    Place,
    QueuedAppend,
    QueuedBite,
    QueuedPublication,
    QueuedTransition,
    QueuedWork,
    appends,
    bites,
    publications,
    transitions,
)

LOAD_ATTEMPTS = 20
TRANSACTIONS_IN_MEMORY = 10_000


class FlushMemory:
    """logs: by partition id; fetches read them, too. transactions: by producer id, None if no
    transaction has this producer."""

    def __init__(self, store: LogStore, logs: dict[int, PartitionLog]) -> None:
        self._store = store
        self.logs = logs
        self.transactions: OrderedDict[int, StoredTransaction | None] = OrderedDict()

    def ending(self, work: Sequence[QueuedWork]) -> list[StoredTransaction] | None:
        """The transactions that this work ends, from memory; None if one is missing there."""
        known: list[StoredTransaction] = []
        for queued in transitions(work):
            if queued.producer_id is None:
                return None
            stored = self.transactions.get(queued.producer_id)
            if stored is None or stored.metadata.key != queued.key:
                return None
            known.append(stored)
        return known

    async def load_missing(
        self,
        work: Sequence[QueuedWork],
        ending: Sequence[StoredTransaction],
        absent: set[int],
    ) -> None:
        """Reads what a decision needs and memory does not have.

        Reads again if a notification has meanwhile shown that a partition changed, which forgets
        its producers. Adds partitions that do not exist to `absent`.
        """
        unknown = {i for i in transactional_producers(work) if i not in self.transactions}
        await self.reload_transactions(unknown)
        wanted = [queued.place for queued in appends(work)]
        wanted += [(i, NO_PRODUCER_ID, None) for bite in bites(work) for i in bite.partition_ids]
        wanted += [
            (partition_id, _asked_of(each), None)
            for each in ending
            for partition_id in each.partitions
        ]
        for _ in range(LOAD_ATTEMPTS):
            missing = [
                (partition_id, producer_id, name)
                for partition_id, producer_id, name in wanted
                if partition_id not in absent
                and (
                    (known := self.logs.get(partition_id)) is None
                    or known.missing_producers((producer_id,))
                    or (name is not None and known.is_name_missing(name))
                )
            ]
            if not missing:
                return
            absent |= await self.reload(missing)
        raise StoreUnavailable("partitions move faster than they can be read")

    async def reload(self, touched: Sequence[Place]) -> set[int]:
        """Reads partitions with their producers; returns partitions that do not exist."""
        if not touched:
            return set()
        pairs = {(i, producer_id) for i, producer_id, _ in touched if producer_id != NO_PRODUCER_ID}
        names = {(i, name) for i, _, name in touched if name is not None}
        ids = sorted({partition_id for partition_id, _, _ in touched})
        loaded = await self._store.load(ids, sorted(pairs), sorted(names))
        self._take_over(ids, pairs, names, loaded)
        return set(ids) - set(loaded.partitions)

    async def reload_transactions(self, producer_ids: Iterable[int]) -> None:
        """Reads the transactions of producers."""
        if wanted := sorted(producer_ids):
            found = await self._store.load_transactions(wanted)
            self.remember({producer_id: found.get(producer_id) for producer_id in wanted})

    def remember(self, transactions: Mapping[int, StoredTransaction | None]) -> None:
        """Takes over transactions that were read, unless memory is newer.

        A join does not change the version, so of one version the larger set is newer.
        """
        for producer_id, stored in transactions.items():
            known = self.transactions.get(producer_id)
            if known is not None and stored is not None:
                if stored.metadata.version < known.metadata.version:
                    continue
                if stored.metadata.version == known.metadata.version:
                    stored = _larger(stored, known)
            self.transactions[producer_id] = stored
            self.transactions.move_to_end(producer_id)

    def trim(self) -> None:
        """Forgets the least recently used transactions; between flushes, never under a draft."""
        while len(self.transactions) > TRANSACTIONS_IN_MEMORY:
            self.transactions.popitem(last=False)

    def _take_over(
        self,
        ids: Iterable[int],
        pairs: Iterable[tuple[int, int]],
        names: Iterable[tuple[int, str]],
        loaded: Loaded,
    ) -> None:
        """Remembers what was read of `ids`; a deleted partition is forgotten."""
        read: dict[int, dict[int, ProducerState | None]] = {}
        for partition_id, producer_id in pairs:
            of_partition = read.setdefault(partition_id, {})
            of_partition[producer_id] = loaded.producers.get((partition_id, producer_id))
        named: dict[int, dict[str, NamedSequence | None]] = {}
        for partition_id, name in names:
            of_names = named.setdefault(partition_id, {})
            of_names[name] = loaded.names.get((partition_id, name))
        for partition_id in ids:
            state = loaded.partitions.get(partition_id)
            if state is None:
                self.logs.pop(partition_id, None)
                continue
            known = self.logs.setdefault(partition_id, PartitionLog(state))
            known.load(state, read.get(partition_id, {}), named.get(partition_id, {}))

    async def load_under_lock(
        self, flush: Flush, work: list[QueuedWork], *, skip_locked: bool
    ) -> tuple[list[QueuedWork], list[QueuedWork], Locked]:
        """Loads all that the work touches, under its locks.

        Returns the work that may be decided on, the work with a row held by another broker, and
        what was read. Raises RowLocked, StoreUnavailable.
        """
        pairs = _producer_pairs(appends(work))
        names = _names(appends(work))
        ids = sorted(self._written_by(work))
        producer_ids = transactional_producers(work)
        keys = sorted({queued.key for queued in transitions(work)})
        guards = {queued.publication.guard for queued in publications(work)}
        wanted = ToLock(
            ids,
            pairs,
            keys,
            producer_ids,
            list(guards),
            sorted(_tokens(publications(work))),
            names,
        )
        try:
            locked = await flush.lock(wanted, skip_locked=skip_locked)
        except RowLocked:
            locked = await flush.lock(wanted, skip_locked=True)
        absent = [partition_id for partition_id in ids if partition_id not in locked.partitions]
        held = set((await self._store.load(absent))[0]) if absent else set()
        known_pairs = {*pairs, *locked.producers}
        # Other joined partitions of a transaction that is only written to are not locked or read.
        joined = {
            (partition_id, each.metadata.producer_id)
            for each in locked.transactions
            if each.metadata.key in keys
            for partition_id in each.partitions
        }
        # A joined partition that was deleted is forgotten and gets no marker. Batches staged for a
        # deleted partition get no offset.
        staged = {each.partition_id for held_by in locked.tokens.values() for each in held_by}
        everything = {*ids, *locked.partitions, *(i for i, _ in joined), *staged} - held
        loaded = Loaded(locked.partitions, locked.producers, locked.names)
        self._take_over(everything, known_pairs | joined, names, loaded)
        by_producer = {each.metadata.producer_id: each for each in locked.transactions}
        read = {i: by_producer.get(i) for i in producer_ids if i not in locked.held_producers}
        read |= by_producer
        for producer_id in read:
            # The read is the truth, even if memory seems newer: a crash may have undone a join.
            self.transactions.pop(producer_id, None)
        self.remember(read)
        for publication in publications(work):
            publication.partition_ids |= staged
        free: list[QueuedWork] = []
        away: list[QueuedWork] = []
        for queued in work:
            (away if _is_held(queued, held, locked) else free).append(queued)
        return free, away, locked

    def touched_by(self, work: Sequence[QueuedWork]) -> set[int]:
        """The partitions that the work will write to, as far as memory knows."""
        touched = self._written_by(work)
        for queued in transitions(work):
            if queued.producer_id is not None:
                stored = self.transactions.get(queued.producer_id)
                touched |= stored.partitions if stored else frozenset()
        return touched

    def _written_by(self, work: Sequence[QueuedWork]) -> set[int]:
        """The partitions of batches."""
        written = {queued.partition_id for queued in appends(work)}
        return written.union(*(bite.partition_ids for bite in bites(work)))

    def forget(self, work: Sequence[QueuedWork]) -> None:
        """Drops the work's partitions and transactions; the next flush reads them again."""
        for partition_id in self._written_by(work):
            self.logs.pop(partition_id, None)
        for publication in publications(work):
            for partition_id in publication.partition_ids:
                self.logs.pop(partition_id, None)
        # First transactions that end, with their partitions; an append may be of the same one.
        keys = {queued.key for queued in transitions(work)}
        for producer_id, stored in list(self.transactions.items()) if keys else ():
            if stored is not None and stored.metadata.key in keys:
                del self.transactions[producer_id]
                for partition_id in stored.partitions:
                    self.logs.pop(partition_id, None)
        for producer_id in transactional_producers(work):
            self.transactions.pop(producer_id, None)


def _is_held(queued: QueuedWork, partitions: set[int], locked: Locked) -> bool:
    """Whether another broker holds one of its rows."""
    if isinstance(queued, QueuedTransition):
        return queued.key in locked.held_elsewhere
    if isinstance(queued, QueuedPublication):
        is_held = queued.publication.guard in locked.held_guards
        return is_held or not locked.held_tokens.isdisjoint(_tokens([queued]))
    if isinstance(queued, QueuedBite):
        return not partitions.isdisjoint(queued.partition_ids)
    batch = queued.batch
    return queued.partition_id in partitions or (
        batch.is_transactional and batch.producer_id in locked.held_producers
    )


def _asked_of(ended: StoredTransaction) -> int:
    """The producer that partitions must know to end its transaction; -1 if they need not."""
    metadata = ended.metadata
    return NO_PRODUCER_ID if metadata.key.kind.is_used_once else metadata.producer_id


def _larger(one: StoredTransaction, other: StoredTransaction) -> StoredTransaction:
    """The same transaction with all that has joined by either."""
    if one.partitions >= other.partitions and one.participants >= other.participants:
        return one
    partitions = one.partitions | other.partitions
    return replace(one, partitions=partitions, participants=one.participants | other.participants)


def _tokens(work: Iterable[QueuedPublication]) -> set[UUID]:
    return {wanted.token for each in work for wanted in each.publication.tokens}


def transactional_producers(work: Iterable[QueuedWork]) -> list[int]:
    return sorted({p.batch.producer_id for p in appends(work) if p.batch.is_transactional})


def _names(work: Iterable[QueuedAppend]) -> list[tuple[int, str]]:
    return sorted({(p.partition_id, p.sequenced.name) for p in work if p.sequenced is not None})


def _producer_pairs(work: Iterable[QueuedAppend]) -> list[tuple[int, int]]:
    return sorted(
        {
            (queued.partition_id, queued.batch.producer_id)
            for queued in work
            if queued.batch.has_sequence
        }
    )
