"""Groups, their members, and how far they have come."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from core.group.progress import HeldPartition

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in a list. protocol: 'classic' or 'consumer'. behind: offsets behind the logs' ends
    of the topics that were asked for, None where it has committed nothing there."""

    group_id: str
    protocol: str
    protocol_type: str | None
    state: str
    members: int
    behind: int | None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group. generation: or its epoch (KIP-848). leader, waiting_for: ids of members; the latter
    only the first ones, if there are many. coordinator: its address, None where there is none."""

    group_id: str
    protocol: str
    protocol_type: str | None
    state: str
    since: datetime | None
    assignor: str | None
    generation: int
    assignment_epoch: int | None
    leader: str | None
    waiting_for: Sequence[str]
    coordinator: str | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member. assigned, revoking, target: topic → partitions that it may read now, that it must
    still give back, where it is going. subscribed, regex: to topics by name, and by expression."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol: str
    state: str | None
    epoch: int
    is_leader: bool
    session_timeout_s: float
    assigned: Mapping[str, Sequence[int]]
    revoking: Mapping[str, Sequence[int]]
    target: Mapping[str, Sequence[int]]
    subscribed: Sequence[str]
    regex: str | None


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A partition that a group has committed an offset of, or one of its members has.

    pending_offset: what an open transaction (pending_id, None where it is forgotten, of producer
    pending_producer_id) will have committed there.
    """

    topic: str
    partition: int
    committed_offset: int | None
    log_start_offset: int
    last_stable_offset: int
    end_offset: int
    committed_at: datetime | None
    metadata: str | None
    pending_offset: int | None
    pending_id: str | None
    pending_producer_id: int | None


class GroupReads(Protocol):
    """Of groups."""

    async def ids(self, search: str) -> list[str]:
        """Of groups that have this text in their ids, by id."""

    async def ids_by_lag(self, search: str, topics: Collection[str] | None) -> list[str]:
        """The same, those most behind in these topics first; None: in all topics."""

    async def rows(
        self, group_ids: Collection[str], topics: Collection[str] | None
    ) -> list[GroupRow]:
        """These groups, in the same order; those that are gone are left out. topics: in which it is
        looked how far they are behind; None: in all."""

    async def facts(self, group_id: str) -> GroupFacts | None:
        """None where there is no such group."""

    async def members(self, group_id: str) -> list[GroupMember]:
        """By id."""

    async def places(self, group_id: str, assigned: Collection[Place]) -> list[GroupPlace]:
        """Where it has offsets, and the partitions that are assigned."""

    async def lags(self, group_id: str, topics: Collection[str]) -> Mapping[Place, int]:
        """Records that it has not read, exactly, of partitions where it has committed."""

    async def held(self, topics: Collection[str]) -> list[HeldPartition]:
        """Where open transactions hold up readers of these topics."""
