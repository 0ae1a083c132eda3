"""What retention asks of the store. Every call may raise `core.ports.log.StoreUnavailable`."""

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
    """Deleting what has had its time."""

    async def usage(self) -> list[PartitionUsage]:
        """Every partition."""

    async def first_young_batch(self, partition_id: int, start: int, timestamp: int) -> int | None:
        """Base offset of the first batch from `start` on before which all are older than
        `timestamp` (ms); None where all are."""

    async def first_within_size(
        self, partition_id: int, start: int, retention_bytes: int
    ) -> int | None:
        """Base offset of the first batch from `start` on that is kept, if those before it go as
        long as `retention_bytes` are left; None where all go."""

    async def delete_rows(self, partition_id: int) -> int:
        """Deletes some index rows wholly before the log start; how many."""

    async def clean_deleted_partitions(self) -> int:
        """Deletes the rows of partitions whose topic is gone; how many partitions."""

    async def expire_producers(self, idle_s: float) -> int:
        """Forgets producers that have not written for `idle_s` seconds; how many."""

    async def expire_tokens(self) -> int:
        """Drops tokens whose time is over, with what is staged under them; how many."""

    async def forget_published(self, idle_s: float) -> int:
        """Forgets queries that have published nothing for `idle_s` seconds; how many."""

    async def seal_segments(self, segment_bytes: int) -> None:
        """Ends what has grown to `segment_bytes`, or old, or out of use; new payload goes elsewhere
        from then on."""

    def forget_segments(self) -> None:
        """Looks again where new payload goes: another broker may have sealed something."""

    async def drop_unused_segments(self) -> list[int]:
        """Drops sealed segments no live or staged batch points into; their ids."""
