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

    What is in `groups` comes before what is in `offsets`.
    """

    lease: Lease
    groups: tuple[GroupEffects, ...] = ()
    offsets: tuple[OffsetEffects, ...] = ()


class GroupFlush(Protocol):
    """A session of one's own for writes; one call at a time, one round trip each."""

    async def commit(self, effects: Sequence[GuardedEffects]) -> None:
        """All or nothing, durable when it returns; a group's effects in the order given.

        Raises VersionMismatch where a lease has another generation (which of them is not told: then
        each shard can be tried alone); RowLocked, EffectRefused, StoreUnavailable, CommitUnknown.
        """

    async def close(self) -> None:
        """Gives the connection back for good."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group of which nothing but its row is known. has_members: stored ones."""

    group: GroupRow
    has_members: bool


@dataclass(frozen=True, slots=True)
class AgedOffset:
    """A committed offset that may have to go. topic_name: None where the topic is gone."""

    group_id: str
    topic_name: str | None
    offset: CommittedOffset


class GroupStore(Protocol):
    """Groups and their offsets. Every method may raise StoreUnavailable."""

    def open_flush(self) -> GroupFlush:
        """A flush of one's own; it connects when it is first used."""

    async def load_shard(self, shard: int) -> list[StoredGroup]:
        """The shard's groups that have members."""

    async def load_group(self, group_id: str) -> StoredGroup | None:
        """A group, or None."""

    async def list_groups(self, shards: Sequence[int]) -> list[ListedGroup]:
        """All groups of shards."""

    async def fetch_offsets(
        self, requests: Sequence[tuple[str, Sequence[int] | None]]
    ) -> list[Mapping[int, CommittedOffset]]:
        """Per (group id, partition ids or None for all): what is committed; what is not lacks.

        One round trip, one snapshot. Partitions of deleted topics are left out.
        """

    async def aged_offsets(
        self, shards: Sequence[int], older_than: int, limit: int, after: AgedOffset | None = None
    ) -> list[AgedOffset]:
        """Offsets of the shards' groups that may have to go: committed before `older_than` (ms), or
        with a time of their own to expire, or of a topic that is gone. At most `limit`, those that
        follow `after` in an order of the store's own (the last one of the page before)."""

    async def groups_without_offsets(self, shards: Sequence[int], limit: int) -> list[str]:
        """Groups of the shards that have neither members nor offsets."""
