"""What the runtime asks of the store for groups: leases of coordinators, groups, offsets.

Implemented by `storage`; knows no SQL. Failures are those of `core.ports.log`: StoreUnavailable,
CommitUnknown, VersionMismatch and EffectRefused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from core.group.records import CommittedOffset, GroupEffects, GroupRow, OffsetEffects, StoredGroup


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to coordinate the groups of a shard, while the holder's session lasts.

    generation: rises whenever the lease changes hands; it guards every write of the shard's groups.
    """

    shard: int
    generation: int


class LeaseStore(Protocol):
    """Who coordinates which shard. A lease is free while its holder has no live session."""

    async def acquire(self, shard: int, broker_id: int, incarnation: UUID) -> Lease | int:
        """The lease, if it was this broker's or free; else the live broker that has it.

        Locks the holder's broker row before it looks at the session, as a renewal does, so that
        the two cannot both believe that they have it. The generation rises also where the lease was
        this broker's already: whoever acquires is about to read the groups, and a write of unknown
        outcome that is still on its way (CommitUnknown) must not come in after that.
        Raises StoreUnavailable also where this broker's own session has run out.
        """

    async def holders(self, shards: Sequence[int]) -> Mapping[int, int]:
        """The live holders of shards; a free shard lacks."""

    async def free(self) -> list[int]:
        """Shards that had a holder once and have no live one now."""

    async def release(self, broker_id: int, incarnation: UUID) -> None:
        """Gives up every lease of this broker's: it stops. They are free at once."""


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
