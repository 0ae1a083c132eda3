"""Records that wait in the inbox, and how far they are published: values only.

A *bite* is what one commit publishes: whole transactions, in the order of their stamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from core.log.effects import IncomingBatch

NOTHING = "1:1:"
"""A snapshot before all transactions, as text."""
EVERYTHING = "9223372036854775807:9223372036854775807:"
"""One behind them all."""


@dataclass(frozen=True, slots=True)
class InboxPosition:
    """How far the inbox is published.

    version: rises with each move. era: of transactions' ids; another cluster's are of another one.
    published: a snapshot: all transactions that it shows as ended are. target: while a backlog is
    worked off, the snapshot that comes next; of its transactions, those with a stamp up to
    after_stamp are done.
    """

    version: int
    era: int
    published: str
    target: str | None = None
    after_stamp: int = 0


class WaitingRecord(NamedTuple):
    """A record in the inbox; a tuple, since thousands are made a second.

    stamp: its transaction's place in the order of commits; number: the order of calls within.
    partition: None where the broker is to choose. committed_at: by the database's clock, in
    seconds.
    """

    stamp: int
    number: int
    transaction: str
    topic_id: UUID
    topic: str
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    committed_at: float

    @property
    def size(self) -> int:
        """Bytes of its key and value."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the inbox found.

    snapshot: of the look. era: of what is written now. records: in the order in which they are to
    be published, cut off where there were too many; is_cut says so. is_crowded: there are too many
    transactions to be ordered at once, and no records are here. read_at: by the database's clock,
    in seconds. last_stamp: of the last transaction that was looked at, with records or without.
    """

    snapshot: str
    era: int
    records: tuple[WaitingRecord, ...]
    is_cut: bool
    is_crowded: bool
    read_at: float
    last_stamp: int = 0


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """Records that cannot be published, and why."""

    topic: str
    partition: int | None
    records: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class BiteBatch:
    """A batch of a bite, and the partition it goes to."""

    topic: str
    partition: int
    partition_id: int
    incoming: IncomingBatch


@dataclass(frozen=True, slots=True)
class InboxMove:
    """The position's next value, and what is left out; the store refuses it unless `expected` is
    the version that counts.

    looked_at: before the first look that it rests on, by the process's clock, in seconds. What was
    seen before a crash of the database, or at another one, may not have happened: so the store
    refuses it as well on a connection that was opened later.
    """

    expected: int
    position: InboxPosition
    looked_at: float
    refused: tuple[RefusedRecords, ...] = ()
