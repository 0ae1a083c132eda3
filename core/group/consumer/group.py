"""A consumer group of KIP-848: its members, its epochs, and the owner of each partition.

A pure state machine: an event changes it at once and returns what must be stored and what may then
be answered. Kafka's ConsumerGroup, and the parts of GroupMetadataManager that concern one such
group. Knows no clock, no wire and no other group; `classic_members` translates requests of the
classic protocol.

Three epochs. The *group epoch* rises whenever members, their subscriptions or their topics change.
The *assignment epoch* is the group epoch for which the target assignment was computed. A *member
epoch* is the one a member has reached; it fences the member. The next heartbeat after a change
computes the target; each member's own heartbeats lead it there (`reconciliation`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from core.errors import Error, Refusal
from core.group.consumer import classic_members, heartbeat
from core.group.consumer.member import (
    CONSUMER,
    UNREVOKED_PARTITIONS,
    Entrant,
    described,
    fenced_instance,
    note,
    offset_refusal,
    speaks_classic,
)
from core.group.consumer.protocol import PROTOCOL_TYPE
from core.group.consumer.roster import Roster
from core.group.consumer.timers import NEVER, Timer, Timers
from core.group.offsets import BY_COMMIT_TIMESTAMP, OffsetExpiration
from core.group.reconciliation import reconcile
from core.group.records import GroupEffects, GroupRow, MemberRow, Partitions, StoredGroup
from core.group.subscribed_topics import Resolve
from core.group.target import preferred_assignor, target_assignment
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
    Note,
    Outcome,
    Reply,
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
        row = stored.group
        self.group_id = row.group_id
        self.settings = settings
        self.group_epoch = row.generation_id
        self.assignment_epoch = row.assignment_epoch
        self.roster = Roster(
            stored.members, row.assignment_epoch, in_store.members if in_store else ()
        )
        self.timers = Timers()
        self._metadata_hash = row.metadata_hash
        self._assignor = row.protocol_name
        self._state_timestamp = row.state_timestamp
        self._row = in_store.group if in_store else None
        for member in stored.members:
            self.extend_session(member, now)
            if member.state == UNREVOKED_PARTITIONS and not speaks_classic(member):
                self._start_rebalance_timer(member, now)

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
        row = self._current_row(self._state_timestamp)
        return StoredGroup(row, tuple(self.roster.members.values()))

    def on_metadata_changed(self, topics: Topics, resolve: Resolve) -> None:
        """Shows the group the topics; members learn of a change with their next heartbeats.

        topics: all that members may subscribe to. resolve: the topics that an expression matches;
        raises InvalidRegularExpression.
        """
        self.roster.subscribed.show(topics, resolve)

    # --- reading ---

    @property
    def state(self) -> str:
        """As Kafka names it."""
        if self.is_empty:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        return "Reconciling" if self.roster.unreconciled else "Stable"

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.roster.members

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped from memory and loaded again without loss."""
        return self.is_empty

    @property
    def wants_downgrade(self) -> bool:
        """Whether only members of the classic protocol are left (see `coordinator.settle`)."""
        return 0 < self.roster.classic_members == len(self.roster.members)

    @property
    def expressions(self) -> Collection[str]:
        """The regular expressions members subscribe with."""
        return self.roster.subscribed.expressions

    @property
    def deadline_ms(self) -> int | None:
        """The earliest time at which `expire` may have work."""
        return None if self.timers.next_ms == NEVER else self.timers.next_ms

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Whether any member subscribes to the topic."""
        return self.roster.subscribed.is_subscribed_to(topic_name)

    def describe(self) -> DescribedConsumerGroup:
        """As ConsumerGroupDescribe shows it."""
        return DescribedConsumerGroup(
            state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
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
        return heartbeat.heartbeat(self, request, now)

    def join(self, request: JoinRequest, waiter: Waiter, now: Instant) -> Outcome:
        """JoinGroup. Answered at once: no member waits for another."""
        return classic_members.join(self, request, waiter, now)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Instant) -> Outcome:
        """SyncGroup. Answered at once."""
        return classic_members.sync(self, request, waiter, now)

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Instant
    ) -> tuple[Error, Outcome]:
        """Heartbeat."""
        return classic_members.heartbeat(self, member_id, group_instance_id, generation_id, now)

    def leave(self, members: Sequence[LeavingMember], now: Instant) -> tuple[LeaveResult, Outcome]:
        """LeaveGroup, for members of either protocol: administrators use it, too."""
        return classic_members.leave(self, members, now)

    def expire(self, now: Instant) -> Outcome:
        """Removes the members that have missed a deadline."""
        members = self.roster.members
        late = self.timers.due(now.monotonic_ms)
        return self.remove([(members[each], _TOO_LATE[timer]) for each, timer in late], now)

    # --- what the two protocols share ---

    def advance(
        self, entrant: Entrant, row: MemberRow, owned: Partitions | None, now: Instant
    ) -> MemberRow | Refusal:
        """Kafka's three steps: group epoch, target assignment, this member's reconciliation.

        row: the entrant's row, changed as its request says.
        """
        before = entrant.row
        if entrant.replaces is not None:
            self.timers.cancel_all(entrant.replaces)
            self.roster.remove(entrant.replaces)
        self.roster.put(row)
        self._update_epochs(
            subscription_changed=row.subscribed_topic_names != before.subscribed_topic_names
            or row.subscribed_topic_regex != before.subscribed_topic_regex
        )
        return self._reconcile(self.roster.members[row.member_id], owned, now)

    def _update_epochs(self, *, subscription_changed: bool) -> None:
        """After a change: a new group epoch, and a target assignment for it."""
        subscribed = self.roster.subscribed
        bump = subscription_changed or self.group_epoch == 0
        if not (bump or subscribed.stale or self.group_epoch > self.assignment_epoch):
            return
        subscribed.refresh()
        metadata_hash = subscribed.metadata_hash()
        if bump or (
            metadata_hash != self._metadata_hash and self.group_epoch == self.assignment_epoch
        ):
            self.group_epoch += 1
        self._metadata_hash = metadata_hash
        if self.group_epoch > self.assignment_epoch:
            self._assignor = preferred_assignor(self.roster.votes, self.settings.consumer_assignors)
            targets = target_assignment(self.roster.members.values(), subscribed, self._assignor)
            self.assignment_epoch = self.group_epoch
            self.roster.aim(targets, self.assignment_epoch)

    def _reconcile(
        self, row: MemberRow, owned: Partitions | None, now: Instant
    ) -> MemberRow | Refusal:
        def is_taken(topic_id: str, partition: int) -> bool:
            return self.roster.owner(topic_id, partition) not in (None, row.member_id)

        reconciled = reconcile(row, self.assignment_epoch, is_taken, owned)
        if isinstance(reconciled, Refusal) or reconciled is row:
            return reconciled
        self.roster.put(reconciled)
        # Classic members have deadlines for their joins and syncs instead.
        if reconciled.state == UNREVOKED_PARTITIONS and not speaks_classic(reconciled):
            self._start_rebalance_timer(reconciled, now)
        else:
            self.timers.cancel(Timer.REBALANCE, row.member_id)
        return reconciled

    def extend_session(self, row: MemberRow, now: Instant) -> None:
        """A member has sent something."""
        timeout_ms = (
            row.session_timeout_ms
            if speaks_classic(row)
            else self.settings.consumer_session_timeout_ms
        )
        self.timers.set(Timer.SESSION, row.member_id, now.monotonic_ms + timeout_ms)

    def _start_rebalance_timer(self, row: MemberRow, now: Instant) -> None:
        deadline_ms = now.monotonic_ms + row.rebalance_timeout_ms
        self.timers.set(Timer.REBALANCE, row.member_id, deadline_ms)

    def member(self, member_id: str, instance_id: str | None) -> MemberRow | Refusal:
        """The member of these names; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            return self.roster.members.get(member_id) or self.unknown_member(member_id)
        static = self.roster.static_member(instance_id)
        if static is None:
            return Refusal(Error.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        return static if static.member_id == member_id else fenced_instance(static, member_id)

    @property
    def is_full(self) -> bool:
        """Whether no further member may join (`group.consumer.max.size`)."""
        return len(self.roster.members) >= self.settings.consumer_max_size

    def full(self) -> Refusal:
        """The refusal then."""
        return Refusal(
            Error.GROUP_MAX_SIZE_REACHED,
            "The consumer group has reached its maximum capacity of "
            f"{self.settings.consumer_max_size} members.",
        )

    def unknown_member(self, member_id: str) -> Refusal:
        """The refusal for an unknown member."""
        return Refusal(
            Error.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {self.group_id}.",
        )

    def remove(self, members: Collection[tuple[MemberRow, str]], now: Instant) -> Outcome:
        """Removes members, each with a reason; frees their partitions, raises the group epoch."""
        if not members:
            return _NOTHING
        for row, _reason in members:
            self.timers.cancel_all(row.member_id)
            self.roster.remove(row.member_id)
        self.group_epoch += 1
        notes = tuple(note("consumer_removed", row, reason=reason) for row, reason in members)
        return self.outcome(now, notes=notes)

    def outcome(
        self, now: Instant, *, replies: tuple[Reply, ...] = (), notes: tuple[Note, ...] = ()
    ) -> Outcome:
        """The changes that the event made, for the store."""
        put, removed = self.roster.take_changes()
        was = self._row
        timestamp = self._state_timestamp
        if was is None or was.state != self.state:
            timestamp = now.timestamp_ms
        row = self._current_row(timestamp)
        if row == was and not put and not removed:
            return Outcome(replies, None, notes)
        self._row, self._state_timestamp = row, timestamp
        effects = GroupEffects(
            self.group_id,
            group=None if row == was else row,
            put_members=put,
            delete_members=removed,
        )
        return Outcome(replies, effects, notes)

    def _current_row(self, state_timestamp: int) -> GroupRow:
        return GroupRow(
            group_id=self.group_id,
            protocol=CONSUMER,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._assignor,
            generation_id=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            state=self.state,
            state_timestamp=state_timestamp,
            metadata_hash=self._metadata_hash,
        )

    def arrival_notes(self, entrant: Entrant) -> tuple[Note, ...]:
        """The log's note about a new member; none about one that is there already."""
        if entrant.replaces is not None:
            return (note("consumer_replaced", entrant.row, replaces=entrant.replaces),)
        if entrant.row.member_id not in self.roster.members:
            return (note("consumer_joined", entrant.row),)
        return ()


_NOTHING = Outcome()

_TOO_LATE: Mapping[Timer, str] = {
    Timer.SESSION: "the member session expired",
    Timer.REBALANCE: "it failed to revoke its partitions within the rebalance timeout",
    Timer.JOIN: "the classic member failed to join within the rebalance timeout",
    Timer.SYNC: "the member failed to sync within the rebalance timeout",
}
