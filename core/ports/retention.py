"""What retention asks of the store. Every call may raise `core.ports.log.StoreUnavailable`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """A partition's extent. size_bytes: payload of all batches whose index rows are there."""

    partition_id: int
    topic_name: str
    log_start_offset: int
    next_offset: int
    size_bytes: int


class RetentionStore(Protocol):
    """Deletes what has expired."""

    async def usage(self) -> list[PartitionUsage]:
        """Every partition."""

    async def first_young_batch(self, partition_id: int, start: int, timestamp: int) -> int | None:
        """Base offset of the first batch, from `start` on, that is not older than `timestamp` (ms);
        None if all are older."""

    async def first_within_size(
        self, partition_id: int, start: int, retention_bytes: int
    ) -> int | None:
        """Base offset of the first batch, from `start` on, that is kept if as many as possible are
        deleted and `retention_bytes` are left; None if all are deleted."""

    async def acknowledged_up_to(self, partition_id: int) -> int | None:
        """Up to where all durable subscriptions of a partition have acknowledged everything; None
        where it has none."""

    async def delete_rows(self, partition_id: int) -> int:
        """Deletes some index rows wholly before the log start; returns how many."""

    async def clean_deleted_partitions(self) -> int:
        """Deletes the rows of deleted topics' partitions; returns how many partitions."""

    async def expire_producers(self, idle_s: float) -> int:
        """Forgets producers that have not written for `idle_s` seconds; returns how many."""

    async def touch_names(self, names: Sequence[tuple[int, str]]) -> None:
        """These (partition, name) pairs are in use."""

    async def expire_names(self, idle_s: float, deduplicated: Sequence[int]) -> int:
        """Forgets producers by name that have not been in use for `idle_s` seconds, and those in
        partitions that are not `deduplicated` any more; returns how many."""

    async def expire_tokens(self) -> int:
        """Drops expired tokens, with what is staged under them; returns how many."""

    async def forget_published(self, idle_s: float) -> int:
        """Forgets queries that have published nothing for `idle_s` seconds; returns how many."""

    async def seal_segments(self, segment_bytes: int) -> None:
        """Seals segments that have grown to `segment_bytes`, or old, or unused; new payload then
        goes to others."""

    def forget_segments(self) -> None:
        """Reads the open segments again: another broker may have sealed one."""

    async def drop_unused_segments(self) -> list[int]:
        """Drops sealed segments that no live or staged batch points into; returns their ids."""
