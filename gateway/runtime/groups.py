"""Consumer groups, as handlers ask for them: this broker's share of them, in memory.

load → decide (core) → persist (store) → answer. Only the holder of a shard's lease touches its
groups, and no answer leaves before everything that the group decided earlier is committed. Knows no
wire, no SQL and no rule of a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import Error, Refusal
from core.group.records import CommittedOffset
from core.group.values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
    DescribedGroup,
    GroupType,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from core.types import BrokerEndpoint


@dataclass(frozen=True, slots=True)
class OffsetsWanted:
    """What OffsetFetch asks of one group. partition_ids: None is all that is committed.

    member_id, member_epoch: None and -1 where the asker does not say who it is.
    """

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    partition_ids: Sequence[int] | None = None
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group in ListGroups. state: Kafka's word ("Stable")."""

    group_id: str
    protocol_type: str
    state: str
    type: GroupType


class Groups:
    """The groups this broker coordinates. One per process.

    Refusals are part of the answers: NOT_COORDINATOR where another broker has the group's lease,
    COORDINATOR_NOT_AVAILABLE where what was decided could not be stored. Every method may raise
    StoreUnavailable where the database has to be read and cannot be.
    """

    async def find_coordinator(self, group_id: str) -> BrokerEndpoint:
        """The broker to ask about a group: the live holder of its lease, else who may take it."""
        raise NotImplementedError

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup. Waits until the group's members are there, or the group gives up."""
        raise NotImplementedError

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """SyncGroup. Waits for the leader's assignment."""
        raise NotImplementedError

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> Error:
        """Heartbeat of a member that speaks the classic protocol."""
        raise NotImplementedError

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        """LeaveGroup."""
        raise NotImplementedError

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> ConsumerHeartbeatResult:
        """ConsumerGroupHeartbeat (KIP-848): joins, goes on, leaves."""
        raise NotImplementedError

    async def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        offsets: Sequence[CommittedOffset],
    ) -> Error:
        """Commits offsets; one verdict for all of them, NONE once they are durable.

        GROUP_ID_NOT_FOUND where there is no such group and a generation was given (OffsetCommit
        before v9 calls that ILLEGAL_GENERATION).
        """
        raise NotImplementedError

    async def fetch_offsets(
        self, requests: Sequence[OffsetsWanted]
    ) -> list[Error | Mapping[int, CommittedOffset]]:
        """Per request: what is committed, by partition id (what is not, lacks), or a refusal."""
        raise NotImplementedError

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> Error | Mapping[int, Error]:
        """Deletes offsets of (topic name, partition id); by partition id, what became of each."""
        raise NotImplementedError

    async def delete_groups(self, group_ids: Sequence[str]) -> list[Error]:
        """Deletes groups that have no members, with their offsets."""
        raise NotImplementedError

    async def list_groups(self) -> Error | list[GroupOverview]:
        """The groups that this broker coordinates."""
        raise NotImplementedError

    async def describe_classic(self, group_id: str) -> DescribedGroup | Refusal:
        """A classic group. GROUP_ID_NOT_FOUND where there is none, or it is of the other type."""
        raise NotImplementedError

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup | Refusal:
        """A consumer group. GROUP_ID_NOT_FOUND where there is none, or it is of the other type."""
        raise NotImplementedError
