"""Transactions of both protocols: what is open, what it has written, and whom it holds back."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from core.transaction.key import TransactionKey, TransactionKind
from core.transaction.shown_ids import shown_id


@dataclass(frozen=True, slots=True)
class NamedTransaction:
    """A transaction's name, for lists. kind: of its key."""

    producer_id: int
    kind: int
    name: str

    @property
    def key(self) -> TransactionKey:
        """Its key."""
        return TransactionKey(TransactionKind(self.kind), self.name)

    @property
    def is_pulsars(self) -> bool:
        """Whether it is named by a TxnID."""
        return self.key.kind is TransactionKind.TXN_ID

    @property
    def shown_id(self) -> str:
        """What people call it, and by what rights are asked for."""
        return shown_id(self.key)


@dataclass(frozen=True, slots=True)
class TransactionRow(NamedTransaction):
    """A transaction as it is now. age, left: None where nothing is open. version: V1 or V2."""

    producer_epoch: int
    state: str
    version: str
    started_at: datetime | None
    changed_at: datetime
    age: timedelta | None
    left: timedelta | None
    timeout: timedelta
    client_id: str | None
    client_host: str | None
    owner: str | None

    @property
    def is_open(self) -> bool:
        """Whether it may still be aborted."""
        return self.started_at is not None


@dataclass(frozen=True, slots=True)
class TransactionPlace:
    """A partition that an open transaction has joined. first_offset: of what it has written there;
    None: nothing yet. waiting: records that readers of committed data are not given because of it;
    None: an older one of another producer holds them back, or nothing does."""

    producer_id: int
    topic: str
    partition: int
    first_offset: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True)
class TransactionParticipant:
    """What else takes part: a group (topic is None) with pending offsets, or a subscription with
    pending acknowledgements. pending: how many."""

    producer_id: int
    name: str
    topic: str | None
    partition: int | None
    pending: int


@dataclass(frozen=True, slots=True)
class WrittenThere:
    """What an open transaction has written to a partition. is_more: it was not counted to the
    end."""

    topic: str
    partition: int
    records: int
    last_offset: int
    is_more: bool


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Who has read all that he may, up to an open transaction: a group, or a subscription."""

    name: str
    is_group: bool
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """What a producer has open in a partition though no coordinator knows of it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    since: datetime


@dataclass(frozen=True, slots=True)
class AbortedStretch:
    """A transaction of a producer that was aborted: its first record, and its marker."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    aborted_at: datetime | None


class TransactionReads(Protocol):
    """Of transactions."""

    async def names(self, search: str, most: int, *, is_open: bool) -> Sequence[NamedTransaction]:
        """Open ones, or all: the open ones first, by age, then those that changed last. search: in
        the id, the client's id, its host and the owner; empty: all. most: so many at most."""

    async def rows(self, producer_ids: Collection[int]) -> Sequence[TransactionRow]:
        """Those that these producers have, in their order."""

    async def find(self, name: str) -> TransactionRow | None:
        """By a transactional id, as Kafka's producers have it."""

    async def places(self, producer_ids: Collection[int]) -> Sequence[TransactionPlace]:
        """Where open transactions write: those that hold back others first, the first thousands."""

    async def participants(self, producer_ids: Collection[int]) -> Sequence[TransactionParticipant]:
        """What else takes part in open transactions: groups first, by name, the first thousands."""

    async def written(self, producer_id: int) -> Sequence[WrittenThere]:
        """What a producer's open transaction has written, by topic and partition."""

    async def held_back(self, producer_id: int) -> Sequence[HeldBack]:
        """Who waits for a producer's open transaction, by name, the first hundreds."""

    async def hanging(self, producer_id: int | None = None) -> Sequence[HangingTransaction]:
        """Of a producer, or all; the oldest first, the first hundreds."""

    async def aborted(self, producer_id: int) -> Sequence[AbortedStretch]:
        """Those of a producer that were aborted last, the newest first, some dozens."""
