"""What the runtime asks of the store for groups and their offsets.

Implemented by `storage`; knows no SQL. Failures are those of `core.ports.log`: StoreUnavailable,
CommitUnknown, VersionMismatch and EffectRefused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.group.records import CommittedOffset, GroupEffects, GroupRow, OffsetEffects, StoredGroup
from core.ports.leases import Lease


@dataclass(frozen=True, slots=True)
class GuardedEffects:
    """Effects of one shard's groups, and the lease they were decided under.

    `groups` come before `offsets`.
    """

    lease: Lease
    groups: tuple[GroupEffects, ...] = ()
    offsets: tuple[OffsetEffects, ...] = ()


class GroupFlush(Protocol):
    """A separate session for writes; one call at a time, one round trip each."""

    async def commit(self, effects: Sequence[GuardedEffects]) -> None:
        """All or nothing, durable when it returns; a group's effects in the order given.

        Raises VersionMismatch if a lease has another generation (it does not say which: try each
        shard alone); RowLocked, EffectRefused, StoreUnavailable, CommitUnknown.
        """

    async def close(self) -> None:
        """Gives the connection back for good."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group's row, without its members. has_members: whether any are stored."""

    group: GroupRow
    has_members: bool


@dataclass(frozen=True, slots=True)
class AgedOffset:
    """A committed offset that may have expired. topic_name: None if the topic is deleted."""

    group_id: str
    topic_name: str | None
    offset: CommittedOffset


class GroupStore(Protocol):
    """Groups and their offsets. Every method may raise StoreUnavailable."""

    def open_flush(self) -> GroupFlush:
        """A new flush; it connects when it is first used."""

    async def load_shard(self, shard: int) -> list[StoredGroup]:
        """The shard's groups that have members."""

    async def load_group(self, group_id: str) -> StoredGroup | None:
        """A group, or None."""

    async def list_groups(self, shards: Sequence[int]) -> list[ListedGroup]:
        """All groups of shards."""

    async def fetch_offsets(
        self, requests: Sequence[tuple[str, Sequence[int] | None]]
    ) -> list[Mapping[int, CommittedOffset]]:
        """Per (group id, partition ids or None for all): the committed offsets.

        One round trip, one snapshot. Partitions without one, or of deleted topics, are omitted.
        """

    async def aged_offsets(
        self, shards: Sequence[int], older_than: int, limit: int, after: AgedOffset | None = None
    ) -> list[AgedOffset]:
        """Offsets of the shards' groups that may have expired: committed before `older_than` (ms),
        or with an expiry time of their own, or of a deleted topic. At most `limit`, in the store's
        order, from behind `after` (the last one of the page before)."""

    async def groups_without_offsets(self, shards: Sequence[int], limit: int) -> list[str]:
        """Groups of the shards that have neither members nor offsets."""
