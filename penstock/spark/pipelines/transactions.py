"""The transactions of topics, as the database remembers them: sizes, durations, outcomes.

Records do not say which transaction they belong to; the index of batches (`v_record_batch`) does: a
producer's batches in a partition up to its marker are one transaction's part, and parts whose
marker is the same stored batch are one transaction. Read in pages, so that no snapshot is held
open for long. Knows Penstock's views; must not know Spark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.broker import PartitionEnds
from penstock.spark.pipelines.options import PipelineFailed, WrongArgument

if TYPE_CHECKING:
    import psycopg

_PAGE: Final = 20_000

_BATCHES: Final = """
SELECT base_offset, last_offset, offsets, bytes, newest_record, producer_id, producer_epoch, kind,
       (payload_table, payload_id, position)::text AS payload
FROM penstock.v_record_batch
WHERE topic = %(topic)s AND partition = %(partition)s
  AND last_offset >= %(from)s AND last_offset < %(end)s
ORDER BY last_offset LIMIT %(page)s
"""
_ABORTED: Final = """
SELECT last_offset FROM penstock.v_aborted_transaction
WHERE topic = %(topic)s AND partition = %(partition)s AND last_offset < %(end)s
"""
_IDS: Final = "SELECT producer_id, transactional_id FROM penstock.v_transaction"

# As libpq has it: user and password end at the first "@" before any "/"; no other "@" may follow.
_AFTER_THE_SCHEME: Final = re.compile(r"(?:[^@/]*@)?+[^@?]*(?:\?.*)?")


@dataclass(slots=True)
class Transaction:
    """One that has ended. started: the newest record of its first batch, by the producer's clock.
    ended: its marker, by the broker's clock."""

    producer_id: int
    producer_epoch: int
    is_aborted: bool
    records: int = 0
    bytes: int = 0
    partitions: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    transactional_id: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long it was open; None if that is not known."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, (self.ended - self.started).total_seconds())


@dataclass(slots=True)
class Markers:
    """What the index says of a partition. records: written outside of any transaction.
    is_whole: no batch is missing between its offsets."""

    control: int = 0
    plain: int = 0
    transactional: int = 0
    missing: int = 0


@dataclass(slots=True)
class Transactions:
    """All that have ended, how many have not, and what each partition holds."""

    ended: list[Transaction] = field(default_factory=list)
    open: int = 0
    markers: dict[tuple[str, int], Markers] = field(default_factory=dict)
    producers: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Part:
    """What a producer has written to a partition since its last marker."""

    records: int = 0
    bytes: int = 0
    started: datetime | None = None


class _Reading:
    """The batches of one partition after the other."""

    def __init__(self) -> None:
        self.ended: dict[tuple[int, str], Transaction] = {}
        self.open: set[tuple[int, int]] = set()  # producer, epoch
        self.markers: dict[tuple[str, int], Markers] = {}

    def read(self, at: PartitionEnds, batches: Iterator[dict[str, Any]], aborted: set[int]) -> None:
        parts: dict[tuple[int, int], _Part] = {}
        found = self.markers[at.topic, at.partition] = Markers()
        expected = at.start
        for batch in batches:
            found.missing += max(0, batch["base_offset"] - expected)
            expected = batch["last_offset"] + 1
            # Of a batch that begins before the log start, only the rest can be read.
            count = min(batch["offsets"], expected - at.start)
            producer = (batch["producer_id"], batch["producer_epoch"])
            if batch["kind"] == "control":
                found.control += count
                self._end(batch, self._taken(parts, producer), batch["last_offset"] in aborted)
            elif batch["kind"] == "transactional":
                found.transactional += count
                part = parts.setdefault(producer, _Part())
                part.records += count
                part.bytes += batch["bytes"]
                if part.started is None:
                    part.started = batch["newest_record"]
            else:
                found.plain += count
        found.missing += max(0, at.end - expected)
        self.open |= parts.keys()

    @staticmethod
    def _taken(parts: dict[tuple[int, int], _Part], producer: tuple[int, int]) -> _Part:
        """A marker may have a later epoch than what it ends (KIP-890)."""
        whole = _Part()
        for each in [at for at in parts if at[0] == producer[0] and at[1] <= producer[1]]:
            part = parts.pop(each)
            whole.records += part.records
            whole.bytes += part.bytes
            starts = [start for start in (whole.started, part.started) if start]
            whole.started = min(starts, default=None)
        return whole

    def _end(self, marker: dict[str, Any], part: _Part, is_aborted: bool) -> None:
        key = (marker["producer_id"], marker["payload"])
        ended = self.ended.setdefault(
            key, Transaction(marker["producer_id"], marker["producer_epoch"], is_aborted)
        )
        ended.is_aborted |= is_aborted
        ended.records += part.records
        ended.bytes += part.bytes
        ended.partitions += 1
        ended.ended = marker["newest_record"]
        if part.started and (ended.started is None or part.started < ended.started):
            ended.started = part.started


def check_database_url(url: str) -> None:
    """WrongArgument where libpq cannot read the URL, or not as it was meant.

    The text has no part of the URL: libpq quotes what it cannot read, which may be the password.
    The server does the same for its own, in a room that a user's process does not have
    (storage/connection/url.py).
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        ports = str(conninfo_to_dict(url).get("port") or "").split(",")
    except psycopg.Error:
        is_meant = False
    else:
        is_url_meant = _AFTER_THE_SCHEME.fullmatch(url.partition("://")[2]) is not None
        is_meant = is_url_meant and all(not port or port.isdigit() for port in ports)
    if not is_meant:
        raise WrongArgument(
            "--database-url cannot be read: in a user or password write special characters with a "
            "%, as in %40 for @, %2F for / and %25 for %."
        )


def read_transactions(
    database_url: str, ends: Sequence[PartitionEnds], advance: Callable[[int, int], None]
) -> Transactions:
    """Of these partitions. advance: told how many offsets of how many are read. PipelineFailed."""
    import psycopg
    from psycopg.rows import dict_row

    check_database_url(database_url)
    reading, total, done = _Reading(), sum(each.end - each.start for each in ends), 0
    try:
        with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
            for at in ends:
                where = {"topic": at.topic, "partition": at.partition, "end": at.end}
                aborted = {int(row["last_offset"]) for row in connection.execute(_ABORTED, where)}
                base = done

                def told(offset: int, base: int = base, start: int = at.start) -> None:
                    advance(base + offset - start, total)

                reading.read(at, _pages(connection, at, told), aborted)
                done += at.end - at.start
            ids = {row["producer_id"]: row["transactional_id"] for row in connection.execute(_IDS)}
    except psycopg.Error as error:
        raise PipelineFailed(f"The database does not tell of transactions: {error}") from None
    found = Transactions(list(reading.ended.values()), len(reading.open), reading.markers)
    for each in found.ended:
        each.transactional_id = ids.get(each.producer_id)
        found.producers[each.transactional_id or f"producer {each.producer_id}"] += 1
    return found


def _pages(
    connection: psycopg.Connection[dict[str, Any]],
    at: PartitionEnds,
    told: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    start = at.start
    while True:
        page = connection.execute(
            _BATCHES,
            {
                "topic": at.topic,
                "partition": at.partition,
                "from": start,
                "end": at.end,
                "page": _PAGE,
            },
        ).fetchall()
        yield from page
        if len(page) < _PAGE:
            return
        start = page[-1]["last_offset"] + 1
        told(start)
