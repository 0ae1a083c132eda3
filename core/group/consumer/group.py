"""A consumer group of KIP-848: every event it may meet, its offsets, and what others see of it.

A pure state machine: an event changes it at once and returns what must be stored and what may then
be answered. Kafka's ConsumerGroup, and the parts of GroupMetadataManager that concern one such
group. Knows no clock, no wire and no other group. Members and epochs are in `membership`; requests
of members in `heartbeat` and `classic_members`, which know that and not the group.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from core.errors import Error
from core.group.consumer import classic_members, heartbeat
from core.group.consumer.member import CONSUMER, described, offset_refusal, speaks_classic
from core.group.consumer.membership import Membership
from core.group.consumer.protocol import PROTOCOL_TYPE
from core.group.consumer.timers import NEVER, Timer
from core.group.offsets import BY_COMMIT_TIMESTAMP, OffsetExpiration
from core.group.records import GroupEffects, GroupRow, StoredGroup
from core.group.subscribed_topics import Resolve
from core.group.target import preferred_assignor
from core.group.values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
    GroupSettings,
    GroupType,
    Instant,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    Outcome,
    SyncRequest,
    Topics,
    Waiter,
)


class ConsumerGroup:
    """One group. Before its first event it must be shown the topics (`on_metadata_changed`)."""

    type = GroupType.CONSUMER

    def __init__(
        self,
        stored: StoredGroup,
        settings: GroupSettings,
        now: Instant,
        in_store: StoredGroup | None = None,
    ) -> None:
        """in_store: what the store has, if anything; the first effects store the difference."""
        self.group_id = stored.group.group_id
        self._membership = Membership(stored, settings, now, in_store)
        self.roster = self._membership.roster

    @classmethod
    def create(cls, group_id: str, settings: GroupSettings, now: Instant, epoch: int = 0) -> Self:
        """A group that nobody has joined yet. It is stored with its first member.

        epoch: the generation of the classic group that it replaces, offsets included.
        """
        row = GroupRow(
            group_id, CONSUMER, PROTOCOL_TYPE, generation_id=epoch, assignment_epoch=epoch
        )
        return cls(StoredGroup(row), settings, now)

    @classmethod
    def load(cls, stored: StoredGroup, settings: GroupSettings, now: Instant) -> Self:
        """A group as it was stored. All sessions start again (Kafka's onLoaded)."""
        return cls(stored, settings, now, in_store=stored)

    def stored(self) -> StoredGroup:
        """The rows as they would be written now."""
        return self._membership.stored()

    def on_metadata_changed(self, topics: Topics, resolve: Resolve) -> None:
        """Shows the group the topics; members learn of a change with their next heartbeats.

        topics: all that members may subscribe to. resolve: the topics that an expression matches;
        raises InvalidRegularExpression.
        """
        self.roster.subscribed.show(topics, resolve)

    # --- reading ---

    @property
    def settings(self) -> GroupSettings:
        """As they are now; they may be changed."""
        return self._membership.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self._membership.settings = settings

    @property
    def state(self) -> str:
        """As Kafka names it."""
        return self._membership.state

    @property
    def group_epoch(self) -> int:
        """It rises with each change of members, subscriptions or topics."""
        return self._membership.group_epoch

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self._membership.is_empty

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped from memory and loaded again without loss."""
        return self.is_empty

    @property
    def wants_downgrade(self) -> bool:
        """Whether only members of the classic protocol are left (see `downgrade_if_due`)."""
        return 0 < self.roster.classic_members == len(self.roster.members)

    @property
    def expressions(self) -> Collection[str]:
        """The regular expressions members subscribe with."""
        return self.roster.subscribed.expressions

    @property
    def deadline_ms(self) -> int | None:
        """The earliest time at which `expire` may have work."""
        next_ms = self._membership.timers.next_ms
        return None if next_ms == NEVER else next_ms

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Whether any member subscribes to the topic."""
        return self.roster.subscribed.is_subscribed_to(topic_name)

    def describe(self) -> DescribedConsumerGroup:
        """As ConsumerGroupDescribe shows it."""
        return DescribedConsumerGroup(
            state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self._membership.assignment_epoch,
            assignor=preferred_assignor(self.roster.votes, self.settings.consumer_assignors),
            members=tuple(described(row) for row in self.roster.members.values()),
        )

    # --- offsets and deletion ---

    def offset_expiration(self) -> OffsetExpiration:
        """How offsets expire: each by its own commit, except those of subscribed topics."""
        return BY_COMMIT_TIMESTAMP

    def commit_refusal(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        now: Instant,
        *,
        is_transactional: bool = False,
        knows_member_epochs: bool = True,
    ) -> Error:
        """Whether offsets may be committed. NONE: they may.

        A non-member may, with a negative epoch, while the group has no members. Transactional
        commits of old clients name no member: their producer's epoch fences (Kafka 4.1). Otherwise
        instance ids make no difference. Only heartbeats renew sessions. A request version without
        member epochs cannot come from a member that has one (ConsumerGroup.validateOffsetCommit).
        """
        is_anonymous = member_id == "" and group_instance_id is None
        if generation_or_epoch < 0 and (self.is_empty or (is_transactional and is_anonymous)):
            return Error.NONE
        row = self.roster.members.get(member_id)
        if row is None:
            return Error.UNKNOWN_MEMBER_ID
        if not knows_member_epochs and not speaks_classic(row):
            return Error.UNSUPPORTED_VERSION
        return offset_refusal(row, generation_or_epoch)

    def fetch_refusal(self, member_id: str | None, member_epoch: int) -> Error:
        """Whether offsets may be fetched. A caller that names no member always may."""
        if member_id is None and member_epoch < 0:
            return Error.NONE
        row = None if member_id is None else self.roster.members.get(member_id)
        return Error.UNKNOWN_MEMBER_ID if row is None else offset_refusal(row, member_epoch)

    def delete_offsets_refusal(self) -> Error:
        """Whether offsets may be deleted, unless the group `is_subscribed_to` their topic."""
        return Error.NONE

    def delete_refusal(self) -> Error:
        """Whether the group may be deleted."""
        return Error.NONE if self.is_empty else Error.NON_EMPTY_GROUP

    def delete(self, now: Instant) -> Outcome:
        """The group goes, with its offsets. Only where `delete_refusal` is NONE."""
        return Outcome(effects=GroupEffects(self.group_id, deleted=True))

    def unload(self, error: Error, now: Instant) -> Outcome:
        """The object is discarded. No request waits for it."""
        return Outcome()

    # --- members of either protocol ---

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, now: Instant
    ) -> tuple[ConsumerHeartbeatResult, Outcome]:
        """ConsumerGroupHeartbeat: joins, goes on, leaves."""
        return heartbeat.heartbeat(self._membership, request, now)

    def join(self, request: JoinRequest, waiter: Waiter, now: Instant) -> Outcome:
        """JoinGroup. Answered at once: no member waits for another."""
        return classic_members.join(self._membership, request, waiter, now)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Instant) -> Outcome:
        """SyncGroup. Answered at once."""
        return classic_members.sync(self._membership, request, waiter, now)

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Instant
    ) -> tuple[Error, Outcome]:
        """Heartbeat."""
        return classic_members.heartbeat(
            self._membership, member_id, group_instance_id, generation_id, now
        )

    def leave(self, members: Sequence[LeavingMember], now: Instant) -> tuple[LeaveResult, Outcome]:
        """LeaveGroup, for members of either protocol: administrators use it, too."""
        return classic_members.leave(self._membership, members, now)

    def expire(self, now: Instant) -> Outcome:
        """Removes the members that have missed a deadline."""
        members = self.roster.members
        late = self._membership.timers.due(now.monotonic_ms)
        removed = [(members[each], _TOO_LATE[timer]) for each, timer in late]
        return self._membership.remove(removed, now)


_TOO_LATE: Mapping[Timer, str] = {
    Timer.SESSION: "the member session expired",
    Timer.REBALANCE: "it failed to revoke its partitions within the rebalance timeout",
    Timer.JOIN: "the classic member failed to join within the rebalance timeout",
    Timer.SYNC: "the member failed to sync within the rebalance timeout",
}
