"""The members of a consumer group and its epochs: how a change of one leads all to new partitions.

What members of both protocols share; their requests are in `heartbeat` and `classic_members`.
Knows no request and no clock.

Three epochs. The *group epoch* rises whenever members, their subscriptions or their topics change.
The *assignment epoch* is the group epoch for which the target assignment was computed. A *member
epoch* is the one a member has reached; it fences the member. The next heartbeat after a change
computes the target; each member's own heartbeats lead it there (`reconciliation`).
"""

from collections.abc import Collection

from core.errors import Error, Refusal
from core.group.consumer.member import (
    CONSUMER,
    UNREVOKED_PARTITIONS,
    Entrant,
    fenced_instance,
    note,
    speaks_classic,
)
from core.group.consumer.protocol import PROTOCOL_TYPE
from core.group.consumer.roster import Roster
from core.group.consumer.timers import Timer, Timers
from core.group.reconciliation import reconcile
from core.group.records import GroupEffects, GroupRow, MemberRow, Partitions, StoredGroup
from core.group.target import preferred_assignor, target_assignment
from core.group.values import GroupSettings, Instant, Note, Outcome, Reply


class Membership:
    """The members of one group, its epochs, and its rows."""

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
        """Whether there are no members."""
        return not self.roster.members

    def stored(self) -> StoredGroup:
        """The rows as they would be written now."""
        row = self._current_row(self._state_timestamp)
        return StoredGroup(row, tuple(self.roster.members.values()))

    # --- members ---

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

    # --- changes ---

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

    def remove(self, members: Collection[tuple[MemberRow, str]], now: Instant) -> Outcome:
        """Removes members, each with a reason; frees their partitions, raises the group epoch."""
        if not members:
            return Outcome()
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
        # With a member goes the group's row: whoever commits offsets in SQL holds that alone.
        effects = GroupEffects(
            self.group_id,
            group=row,
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
