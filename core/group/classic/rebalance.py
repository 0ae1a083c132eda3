"""From one generation of a classic group to the next, and the requests that wait for one.

Knows no requests, only their results (`group` has the events). Rules: Kafka's
GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expire…) and ClassicGroup.

Every wait has an end: a join waits for the rebalance timeout at most (`join_by`), a sync until all
must have synced (`sync_by`), which is the rebalance timeout again.
"""

from collections.abc import Mapping

from core.errors import Error
from core.group.classic.deadlines import ClassicDeadlines, is_due
from core.group.classic.event import ClassicEvent
from core.group.classic.member import ClassicMember
from core.group.classic.roster import ClassicRoster
from core.group.classic.rows import ClassicRows
from core.group.classic.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    VALID_PREVIOUS_STATES,
)
from core.group.records import GroupRow, MemberRow, StoredGroup
from core.group.values import NO_MEMBER_ID, GroupSettings, Instant, JoinResult, SyncResult

MAX_GENERATION = 2**31 - 1

NOBODY_JOINED_RETRY_MS = 1_000
"""The shortest time until a rebalance that nobody has joined is checked again."""

SHOWN_EVERY_MS = 1_000
"""How often the list of members that a rebalance waits for is updated for psql."""
SHOWN_MEMBERS = 100


class ClassicRebalance:
    """A group's state and generation; the only one to change them.

    subscribed_topics: of the generation, if its members are consumers whose bytes are readable.
    new_member_added: since an initial rebalance last began to wait for more.
    """

    def __init__(
        self,
        row: GroupRow,
        settings: GroupSettings,
        roster: ClassicRoster,
        rows: ClassicRows,
        deadlines: ClassicDeadlines,
        event: ClassicEvent,
    ) -> None:
        self.settings = settings
        self.state: str = EMPTY
        self.state_timestamp = row.state_timestamp
        self.generation_id = row.generation_id
        self.protocol_name = row.protocol_name
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_added = False
        self._group_id = row.group_id
        self._roster = roster
        self._rows = rows
        self._deadlines = deadlines
        self._event = event
        self._pending_sync_members: set[str] = set()
        self._is_initial = False
        self._initial_remaining_ms = 0

    def load(self, stored: StoredGroup, now: Instant) -> None:
        """Stable with these members, or Empty; sessions start again (Kafka's onLoaded)."""
        roster = self._roster
        for row in stored.members:
            roster.add(ClassicMember.load(row), stored.group.protocol_type)
        if roster.members:
            self.state = STABLE
            if stored.group.leader in roster.members:
                roster.leader = stored.group.leader
            if self.protocol_name is None:
                self.protocol_name = roster.select_protocol()
            for member in roster.members.values():
                self._deadlines.renew(member, now)
        if len(roster.members) > self.settings.max_size:
            self.prepare("the loaded group is larger than group.max.size", now)
        if stored.group.state != self.state:
            self._deadlines.show_by(now.monotonic_ms)
        self.subscribed_topics = roster.subscribed_topics(self.protocol_name)

    # --- rows ---

    def stored(self) -> StoredGroup:
        """Rows as they would be written now."""
        return StoredGroup(self._row(), tuple(self._member_rows()))

    def _row(self) -> GroupRow:
        return GroupRow(
            self._group_id,
            "classic",
            protocol_type=self._roster.protocol_type,
            protocol_name=self.protocol_name,
            leader=self._roster.leader,
            generation_id=self.generation_id,
            state=self.state,
            state_timestamp=self.state_timestamp,
        )

    def _member_rows(self) -> list[MemberRow]:
        before = self._rows.members.get
        return [
            member.row(self._roster.protocol_type, self.protocol_name, before(member.member_id))
            for member in self._roster.members.values()
        ]

    def store(self) -> None:
        """The whole generation must be durable before any answer."""
        self._rows.store(self._row(), self._member_rows())
        self._deadlines.shown_ms = None

    def _show(self, now: Instant) -> None:
        """Shows psql the state and the missing members; shows it again after a while."""
        waiting_for: list[str] = []
        if self.state == PREPARING_REBALANCE:
            members = self._roster.members.values()
            waiting_for = [m.member_id for m in members if m.awaiting_join is None]
            waiting_for += self._roster.pending_join_members
        elif self.state == COMPLETING_REBALANCE:
            waiting_for = sorted(self._pending_sync_members)
        self._rows.show(self.state, self.state_timestamp, tuple(waiting_for[:SHOWN_MEMBERS]))
        self._deadlines.shown_ms = None
        if self.state in (PREPARING_REBALANCE, COMPLETING_REBALANCE):
            self._deadlines.show_by(now.monotonic_ms + SHOWN_EVERY_MS)

    # --- what was not in time ---

    def expire(self, now: Instant) -> None:
        """Ends all that is due: missing syncs and joins. Sessions are the group's matter."""
        if is_due(self._deadlines.sync_ms, now):
            self._deadlines.sync_ms = None
            self._expire_syncs(now)
        if is_due(self._deadlines.join_ms, now):
            self._expire_join(now)
        if is_due(self._deadlines.shown_ms, now):
            self._show(now)

    def _expire_syncs(self, now: Instant) -> None:
        """Members that have not asked for an assignment in time are removed (expirePendingSync)."""
        missing = sorted(self._pending_sync_members)
        if missing:
            for member_id in missing:
                self.remove(member_id)
            self._event.note_members("group_members_have_not_synced", missing)
            self.prepare(f"{len(missing)} members have not synced in time", now)

    def _expire_join(self, now: Instant) -> None:
        """Ends the join, except that an initial rebalance waits longer while members arrive."""
        if self._is_initial and self.new_member_added and self._initial_remaining_ms:
            delay_ms = min(self.settings.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self.new_member_added = False
            self._deadlines.join_by(now.monotonic_ms + delay_ms)
        else:
            self._complete_join(now)

    # --- transitions ---

    def _transition(self, state: str, now: Instant) -> None:
        assert self.state in VALID_PREVIOUS_STATES[state], f"{self.state} to {state}"
        self.state = state
        self.state_timestamp = now.timestamp_ms

    def prepare_or_complete_join(self, reason: str, now: Instant) -> None:
        """After a change: begins a rebalance, or completes the present one if all have joined."""
        if self.state == PREPARING_REBALANCE:
            self.maybe_complete_join(now)
        else:
            self.prepare(reason, now)

    def prepare(self, reason: str, now: Instant) -> None:
        """Begins a rebalance: members are to join again."""
        if self.state == COMPLETING_REBALANCE:
            for member in self._roster.members.values():
                member.assignment = b""
            self.answer_syncs(Error.REBALANCE_IN_PROGRESS, now)
        self._pending_sync_members.clear()
        self._deadlines.sync_ms = None
        self._is_initial = self.state == EMPTY
        self._transition(PREPARING_REBALANCE, now)
        self._event.note(
            "group_rebalance_started",
            generation=self.generation_id,
            members=len(self._roster.members),
            reason=reason,
        )
        if self._is_initial and self.settings.initial_rebalance_delay_ms > 0:
            self._begin_initial_delay(now)
        elif self._is_initial or not self._roster.members or self._roster.all_joined():
            self._complete_join(now)
        else:
            self._deadlines.join_by(now.monotonic_ms + self._roster.rebalance_timeout_ms())
        if self.state == PREPARING_REBALANCE:
            self._show(now)

    def _begin_initial_delay(self, now: Instant) -> None:
        """Delays an empty group's first rebalance, so that its first members share one."""
        delay_ms = self.settings.initial_rebalance_delay_ms
        self.new_member_added = False
        self._initial_remaining_ms = max(self._roster.rebalance_timeout_ms() - delay_ms, 0)
        self._deadlines.join_by(now.monotonic_ms + delay_ms)

    def maybe_complete_join(self, now: Instant) -> None:
        """Completes the join if all members have joined; an initial rebalance waits its delay."""
        if self.state == PREPARING_REBALANCE and not self._is_initial and self._roster.all_joined():
            self._complete_join(now)

    def _complete_join(self, now: Instant) -> None:
        """The next generation: members that joined, and static members even if they did not."""
        self._deadlines.join_ms = None
        roster = self._roster
        missing = [
            member.member_id
            for member in roster.members.values()
            if member.awaiting_join is None and member.group_instance_id is None
        ]
        if missing:
            for member_id in missing:
                self.remove(member_id)
            self._event.note_members("group_members_have_not_joined", missing)
        if not roster.members:
            self._become_empty(now)
        elif roster.elect_joined_leader():
            self._begin_generation(now)
        else:
            # Only static members are left and none has joined: wait until their sessions end.
            retry_ms = max(roster.rebalance_timeout_ms(), NOBODY_JOINED_RETRY_MS)
            self._deadlines.join_by(now.monotonic_ms + retry_ms)

    def _next_generation(self) -> None:
        """Generations are positive (negative means none): 1 follows the greatest."""
        self.generation_id = self.generation_id % MAX_GENERATION + 1
        self.protocol_name = self._roster.select_protocol()
        self.subscribed_topics = self._roster.subscribed_topics(self.protocol_name)

    def _become_empty(self, now: Instant) -> None:
        self._next_generation()
        self._transition(EMPTY, now)
        self._event.note("group_empty", generation=self.generation_id)
        self.store()

    def _begin_generation(self, now: Instant) -> None:
        self._next_generation()
        self._transition(COMPLETING_REBALANCE, now)
        roster = self._roster
        self._event.note(
            "group_generation_started",
            generation=self.generation_id,
            members=len(roster.members),
            protocol=self.protocol_name,
            leader=roster.leader,
        )
        for member in roster.members.values():
            self._event.answer(roster.await_join(member, None), self.join_result(member))
            member.is_new = False
            self._deadlines.renew(member, now)
        self._pending_sync_members = set(roster.members)
        self._deadlines.sync_by(now.monotonic_ms + roster.rebalance_timeout_ms())
        self._show(now)

    def become_stable(self, assignments: Mapping[str, bytes], now: Instant) -> None:
        """Takes over the leader's assignments. Members that the leader left out get nothing."""
        for member in self._roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._transition(STABLE, now)
        self._event.note("group_stable", generation=self.generation_id)
        self.store()
        self.answer_syncs(Error.NONE, now)

    def die(self, error: Error, now: Instant) -> None:
        """Answers all that wait; every later event is answered COORDINATOR_NOT_AVAILABLE."""
        for member in self._roster.members.values():
            refused = JoinResult(error, member_id=member.member_id)
            self._event.answer(self._roster.await_join(member, None), refused)
            self.answer_sync(member, SyncResult(error))
        self._transition(DEAD, now)
        self._deadlines.cancel_all()

    # --- waiting requests ---

    def join_result(self, member: ClassicMember) -> JoinResult:
        """A member's answer about the generation; only the leader's lists the members."""
        is_leader = member.member_id == self._roster.leader
        return JoinResult(
            generation_id=self.generation_id,
            protocol_type=self._roster.protocol_type,
            protocol_name=self.protocol_name,
            leader=self._roster.leader or NO_MEMBER_ID,
            member_id=member.member_id,
            members=self._roster.joined(self.protocol_name) if is_leader else (),
        )

    def sync_result(self, member: ClassicMember) -> SyncResult:
        """A member's assignment."""
        return SyncResult(
            protocol_type=self._roster.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def answer_sync(self, member: ClassicMember, answer: SyncResult) -> None:
        """Answers its SyncGroup, if that waits."""
        self._event.answer(member.awaiting_sync, answer)
        member.awaiting_sync = None

    def answer_syncs(self, error: Error, now: Instant) -> None:
        """Answers all waiting SyncGroups; their sessions, not watched meanwhile, start again."""
        for member in self._roster.members.values():
            if member.awaiting_sync is not None:
                is_refused = error is not Error.NONE
                answer = SyncResult(error) if is_refused else self.sync_result(member)
                self.answer_sync(member, answer)
                self._deadlines.renew(member, now)

    def has_synced(self, member_id: str) -> None:
        """The member has asked for its assignment."""
        self._pending_sync_members.discard(member_id)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Gives a static member a new id."""
        if member.member_id in self._pending_sync_members:
            self._pending_sync_members.remove(member.member_id)
            self._pending_sync_members.add(member_id)
        self._roster.rename(member, member_id)

    def remove(self, member_id: str) -> None:
        """Removes a member; if it waits, it is told so and may join again as a new one."""
        member = self._roster.remove(member_id)
        self._pending_sync_members.discard(member_id)
        if member is not None:
            self._event.answer(member.awaiting_join, JoinResult(Error.UNKNOWN_MEMBER_ID))
            self._event.answer(member.awaiting_sync, SyncResult(Error.UNKNOWN_MEMBER_ID))
