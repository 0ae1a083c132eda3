"""The states of a classic group: every transition, and the requests that wait for one.

Knows no requests, only their results (`group` has the events). Rules: Kafka's
GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expire…) and ClassicGroup.

Every wait has an end: a join waits for the rebalance timeout at most (`_join_deadline_ms`), a sync
until all must have synced (`_sync_deadline_ms`), which is the rebalance timeout again.
"""

from collections.abc import Mapping
from typing import Final

from core.errors import Error
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
from core.group.values import (
    NO_MEMBER_ID,
    Answer,
    GroupSettings,
    Instant,
    JoinResult,
    Outcome,
    Reply,
    SyncResult,
    Waiter,
)

MAX_GENERATION = 2**31 - 1

NOBODY_JOINED_RETRY_MS = 1_000
"""The shortest time until a rebalance that nobody has joined is checked again."""

SHOWN_EVERY_MS = 1_000
"""How often the list of members that a rebalance waits for is updated for psql."""
SHOWN_MEMBERS = 100

NOTED_MEMBERS = 10
"""The most names in one line of the log."""

NOTHING: Final = Outcome()


class ClassicState:
    """A group's state, its members, and the effects of the present event so far.

    deadline_ms: a lower bound of when `_expire` has work; it may be early.
    """

    def __init__(self, stored: StoredGroup, settings: GroupSettings, now: Instant) -> None:
        row = stored.group
        self.group_id = row.group_id
        self.settings = settings
        self.state: str = EMPTY
        self.generation_id = row.generation_id
        self.protocol_name = row.protocol_name
        self.deadline_ms: int | None = None
        self._state_timestamp = row.state_timestamp
        self._roster = ClassicRoster(row.protocol_type, None)
        self._rows = ClassicRows(stored)
        self._pending_sync: set[str] = set()
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._shown_deadline_ms: int | None = None
        self._is_initial_rebalance = False
        self._initial_remaining_ms = 0
        self._new_member_added = False
        self._replies: list[Reply] = []
        self._notes: list[tuple[str, Mapping[str, object]]] = []
        self._load_members(stored, now)
        self._subscribed_topics = self._roster.subscribed_topics(self.protocol_name)

    def _load_members(self, stored: StoredGroup, now: Instant) -> None:
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
                self._renew(member, now)
        if len(roster.members) > self.settings.max_size:
            self._prepare_rebalance("the loaded group is larger than group.max.size", now)
        if stored.group.state != self.state:
            self._show_by(now.monotonic_ms)

    # --- an event's outcome ---

    def _answer(self, waiter: Waiter | None, answer: Answer) -> None:
        if waiter is not None:
            self._replies.append(Reply(waiter, answer))

    def _note(self, event: str, **fields: object) -> None:
        self._notes.append((event, fields))

    def _note_members(self, event: str, member_ids: list[str]) -> None:
        self._note(event, members=len(member_ids), some=member_ids[:NOTED_MEMBERS])

    def _outcome(self) -> Outcome:
        """All effects since the last outcome."""
        effects = self._rows.take()
        if effects is None and not self._replies and not self._notes:
            return NOTHING
        outcome = Outcome(tuple(self._replies), effects, tuple(self._notes))
        self._replies, self._notes = [], []
        return outcome

    def _row(self) -> GroupRow:
        return GroupRow(
            self.group_id,
            "classic",
            protocol_type=self._roster.protocol_type,
            protocol_name=self.protocol_name,
            leader=self._roster.leader,
            generation_id=self.generation_id,
            state=self.state,
            state_timestamp=self._state_timestamp,
        )

    def _member_rows(self) -> list[MemberRow]:
        before = self._rows.members.get
        return [
            member.row(self._roster.protocol_type, self.protocol_name, before(member.member_id))
            for member in self._roster.members.values()
        ]

    def _store(self) -> None:
        """The whole generation must be durable before any answer."""
        self._rows.store(self._row(), self._member_rows())
        self._shown_deadline_ms = None

    def _show(self, now: Instant) -> None:
        """Shows psql the state and the missing members; shows it again after a while."""
        waiting_for: list[str] = []
        if self.state == PREPARING_REBALANCE:
            members = self._roster.members.values()
            waiting_for = [m.member_id for m in members if m.awaiting_join is None]
            waiting_for += self._roster.pending
        elif self.state == COMPLETING_REBALANCE:
            waiting_for = sorted(self._pending_sync)
        self._rows.show(self.state, self._state_timestamp, tuple(waiting_for[:SHOWN_MEMBERS]))
        self._shown_deadline_ms = None
        if self.state in (PREPARING_REBALANCE, COMPLETING_REBALANCE):
            self._show_by(now.monotonic_ms + SHOWN_EVERY_MS)

    # --- deadlines ---

    def _schedule(self, at_ms: int) -> None:
        if self.deadline_ms is None or at_ms < self.deadline_ms:
            self.deadline_ms = at_ms

    def _show_by(self, at_ms: int) -> None:
        self._shown_deadline_ms = at_ms
        self._schedule(at_ms)

    def _complete_join_by(self, at_ms: int) -> None:
        self._join_deadline_ms = at_ms
        self._schedule(at_ms)

    def _renew(self, member: ClassicMember, now: Instant, timeout_ms: int | None = None) -> None:
        """The member's session starts again."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = now.monotonic_ms + timeout_ms
        self._schedule(member.deadline_ms)

    def _expire(self, now: Instant) -> None:
        """Ends all that is due: ids without a join, sessions, missing syncs and joins."""
        self._expire_members(now)
        sync_deadline_ms = self._sync_deadline_ms
        if sync_deadline_ms is not None and sync_deadline_ms <= now.monotonic_ms:
            self._sync_deadline_ms = None
            self._expire_syncs(now)
        join_deadline_ms = self._join_deadline_ms
        if join_deadline_ms is not None and join_deadline_ms <= now.monotonic_ms:
            self._expire_join(now)
        shown_deadline_ms = self._shown_deadline_ms
        if shown_deadline_ms is not None and shown_deadline_ms <= now.monotonic_ms:
            self._show(now)
        self._reset_deadline()

    def _reset_deadline(self) -> None:
        deadlines = [m.deadline_ms for m in self._roster.members.values() if m.is_watched]
        deadlines += self._roster.pending.values()
        others = (self._join_deadline_ms, self._sync_deadline_ms, self._shown_deadline_ms)
        deadlines += [each for each in others if each is not None]
        self.deadline_ms = min(deadlines, default=None)

    def _expire_members(self, now: Instant) -> None:
        now_ms = now.monotonic_ms
        pending = self._roster.pending
        forgotten = [
            member_id for member_id, deadline_ms in pending.items() if deadline_ms <= now_ms
        ]
        expired = [
            member.member_id
            for member in self._roster.members.values()
            if member.deadline_ms <= now_ms and member.is_watched
        ]
        for member_id in forgotten + expired:
            self._remove(member_id)
        if forgotten:
            self._note_members("group_pending_members_expired", forgotten)
        if expired:
            self._note_members("group_members_expired", expired)
            self._rebalance_or_complete_join(f"sessions of {len(expired)} members have ended", now)
        elif forgotten:
            self._maybe_complete_join(now)

    def _expire_syncs(self, now: Instant) -> None:
        """Members that have not asked for an assignment in time are removed (expirePendingSync)."""
        missing = sorted(self._pending_sync)
        if missing:
            for member_id in missing:
                self._remove(member_id)
            self._note_members("group_members_have_not_synced", missing)
            self._prepare_rebalance(f"{len(missing)} members have not synced in time", now)

    def _expire_join(self, now: Instant) -> None:
        """Ends the join, except that an initial rebalance waits longer while members arrive."""
        if self._is_initial_rebalance and self._new_member_added and self._initial_remaining_ms:
            delay_ms = min(self.settings.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self._new_member_added = False
            self._complete_join_by(now.monotonic_ms + delay_ms)
        else:
            self._complete_join(now)

    # --- transitions ---

    def _transition(self, state: str, now: Instant) -> None:
        assert self.state in VALID_PREVIOUS_STATES[state], f"{self.state} to {state}"
        self.state = state
        self._state_timestamp = now.timestamp_ms

    def _rebalance_or_complete_join(self, reason: str, now: Instant) -> None:
        """After a change: begins a rebalance, or completes the present one if all have joined."""
        if self.state == PREPARING_REBALANCE:
            self._maybe_complete_join(now)
        else:
            self._prepare_rebalance(reason, now)

    def _prepare_rebalance(self, reason: str, now: Instant) -> None:
        if self.state == COMPLETING_REBALANCE:
            for member in self._roster.members.values():
                member.assignment = b""
            self._answer_syncs(Error.REBALANCE_IN_PROGRESS, now)
        self._pending_sync.clear()
        self._sync_deadline_ms = None
        self._is_initial_rebalance = self.state == EMPTY
        self._transition(PREPARING_REBALANCE, now)
        self._note(
            "group_rebalance_started",
            generation=self.generation_id,
            members=len(self._roster.members),
            reason=reason,
        )
        if self._is_initial_rebalance and self.settings.initial_rebalance_delay_ms > 0:
            self._begin_initial_delay(now)
        elif self._is_initial_rebalance or not self._roster.members or self._roster.all_joined():
            self._complete_join(now)
        else:
            self._complete_join_by(now.monotonic_ms + self._roster.rebalance_timeout_ms())
        if self.state == PREPARING_REBALANCE:
            self._show(now)

    def _begin_initial_delay(self, now: Instant) -> None:
        """Delays an empty group's first rebalance, so that its first members share one."""
        delay_ms = self.settings.initial_rebalance_delay_ms
        self._new_member_added = False
        self._initial_remaining_ms = max(self._roster.rebalance_timeout_ms() - delay_ms, 0)
        self._complete_join_by(now.monotonic_ms + delay_ms)

    def _maybe_complete_join(self, now: Instant) -> None:
        """Completes the join if all members have joined; an initial rebalance waits its delay."""
        if (
            self.state == PREPARING_REBALANCE
            and not self._is_initial_rebalance
            and self._roster.all_joined()
        ):
            self._complete_join(now)

    def _complete_join(self, now: Instant) -> None:
        """The next generation: members that joined, and static members even if they did not."""
        self._join_deadline_ms = None
        roster = self._roster
        missing = [
            member.member_id
            for member in roster.members.values()
            if member.awaiting_join is None and member.group_instance_id is None
        ]
        if missing:
            for member_id in missing:
                self._remove(member_id)
            self._note_members("group_members_have_not_joined", missing)
        if not roster.members:
            self._become_empty(now)
        elif roster.elect_joined_leader():
            self._begin_generation(now)
        else:
            # Only static members are left and none has joined: wait until their sessions end.
            retry_ms = max(roster.rebalance_timeout_ms(), NOBODY_JOINED_RETRY_MS)
            self._complete_join_by(now.monotonic_ms + retry_ms)

    def _next_generation(self) -> None:
        """Generations are positive (negative means none): 1 follows the greatest."""
        self.generation_id = self.generation_id % MAX_GENERATION + 1
        self.protocol_name = self._roster.select_protocol()
        self._subscribed_topics = self._roster.subscribed_topics(self.protocol_name)

    def _become_empty(self, now: Instant) -> None:
        self._next_generation()
        self._transition(EMPTY, now)
        self._note("group_empty", generation=self.generation_id)
        self._store()

    def _begin_generation(self, now: Instant) -> None:
        self._next_generation()
        self._transition(COMPLETING_REBALANCE, now)
        roster = self._roster
        self._note(
            "group_generation_started",
            generation=self.generation_id,
            members=len(roster.members),
            protocol=self.protocol_name,
            leader=roster.leader,
        )
        for member in roster.members.values():
            self._answer(roster.await_join(member, None), self._join_result(member))
            member.is_new = False
            self._renew(member, now)
        self._pending_sync = set(roster.members)
        self._sync_deadline_ms = now.monotonic_ms + roster.rebalance_timeout_ms()
        self._schedule(self._sync_deadline_ms)
        self._show(now)

    def _become_stable(self, assignments: Mapping[str, bytes], now: Instant) -> None:
        """Takes over the leader's assignments. Members that the leader left out get nothing."""
        for member in self._roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._transition(STABLE, now)
        self._note("group_stable", generation=self.generation_id)
        self._store()
        self._answer_syncs(Error.NONE, now)

    def _die(self, error: Error, now: Instant) -> None:
        """Answers all that wait; every later event is answered COORDINATOR_NOT_AVAILABLE."""
        for member in self._roster.members.values():
            refused = JoinResult(error, member_id=member.member_id)
            self._answer(self._roster.await_join(member, None), refused)
            self._answer_sync(member, SyncResult(error))
        self._transition(DEAD, now)
        self.deadline_ms = self._join_deadline_ms = None
        self._sync_deadline_ms = self._shown_deadline_ms = None

    # --- waiting requests ---

    def _join_result(self, member: ClassicMember) -> JoinResult:
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

    def _sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(
            protocol_type=self._roster.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_sync(self, member: ClassicMember, answer: SyncResult) -> None:
        self._answer(member.awaiting_sync, answer)
        member.awaiting_sync = None

    def _answer_syncs(self, error: Error, now: Instant) -> None:
        """Answers all waiting SyncGroups; their sessions, not watched meanwhile, start again."""
        for member in self._roster.members.values():
            if member.awaiting_sync is not None:
                is_refused = error is not Error.NONE
                answer = SyncResult(error) if is_refused else self._sync_result(member)
                self._answer_sync(member, answer)
                self._renew(member, now)

    def _remove(self, member_id: str) -> None:
        """Removes a member; if it waits, it is told so and may join again as a new one."""
        member = self._roster.remove(member_id)
        self._pending_sync.discard(member_id)
        if member is not None:
            self._answer(member.awaiting_join, JoinResult(Error.UNKNOWN_MEMBER_ID))
            self._answer(member.awaiting_sync, SyncResult(Error.UNKNOWN_MEMBER_ID))
