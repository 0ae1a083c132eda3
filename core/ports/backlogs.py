"""What the runtime asks of the store for what subscriptions have left unacknowledged.

Implemented by `storage`; knows no SQL. Every call may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of a partition's slowest durable subscription, as it is stored.

    start: the first offset that it has not acknowledged. end: of the log. oldest_ms: timestamp of
    the first batch there that is no control batch; None if there is none. log_bytes: size of the
    whole log, so that of the backlog at most.
    """

    partition_id: int
    start: int
    end: int
    oldest_ms: int | None
    log_bytes: int


class BacklogStore(Protocol):
    """Backlogs of partitions."""

    async def backlogs(self, partition_ids: Sequence[int]) -> list[Backlog]:
        """Of those partitions that have durable subscriptions, one of which is behind."""

    async def size_of(self, backlog: Backlog, enough: int) -> int:
        """Its bytes: all batches from its start on, whatever of them is acknowledged. From `enough`
        on nobody minds how many there are."""

    async def first_young(self, backlog: Backlog, timestamp: int) -> int:
        """Where the first batch of it begins that is not older than `timestamp` (ms), nor after
        one that has no timestamp; else the log's end."""

    async def end_of_excess(self, backlog: Backlog, max_bytes: int) -> int:
        """The first offset from which on there are no more than so many bytes."""
