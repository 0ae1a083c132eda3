"""Records that wait in the inbox, and how far they are published: values only.

A *bite* is what one commit publishes: whole transactions, in the order of their stamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    """A record in the inbox; a tuple of what is stored, since thousands are made a second.

    stamp: its transaction's place in the order of commits; number: the order of calls within.
    topic_id: the 16 bytes of a UUID. partition: None where the broker is to choose.
    """

    stamp: int
    number: int
    transaction: int
    topic_id: bytes
    topic: str
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    header_names: Sequence[str] | None = None
    header_values: Sequence[bytes | None] | None = None

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values, in order."""
        return tuple(zip(self.header_names or (), self.header_values or (), strict=True))

    @property
    def size(self) -> int:
        """Bytes of its key and value."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the inbox found.

    snapshot: of the look. era: of what is written now. records: in the order in which they are to
    be published, cut off where there were too many; is_cut says so. is_crowded: there are too many
    transactions to be ordered at once, and no records are here. waited_s: since the oldest of
    their transactions was committed, in seconds. last_stamp: of the last transaction that was
    looked at, with records or without.
    """

    snapshot: str
    era: int
    records: tuple[WaitingRecord, ...]
    is_cut: bool
    is_crowded: bool
    waited_s: float
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
