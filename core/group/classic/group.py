"""The classic group protocol: what each request does to a group in each of its states.

Each event changes the group at once and returns an `Outcome`; its answers may be sent once its
effects are stored. Knows no wire, store or clock. Rules: Kafka's GroupMetadataManager.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.errors import Error
from core.group.classic.deadlines import ClassicDeadlines
from core.group.classic.event import NOTHING, ClassicEvent
from core.group.classic.member import ClassicMember
from core.group.classic.rebalance import ClassicRebalance
from core.group.classic.roster import ClassicRoster
from core.group.classic.rows import ClassicRows
from core.group.classic.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
)
from core.group.offsets import BY_COMMIT_TIMESTAMP, OffsetExpiration, empty_group_expiration
from core.group.records import GroupEffects, GroupRow, StoredGroup
from core.group.values import (
    NO_MEMBER_ID,
    DescribedGroup,
    GroupSettings,
    GroupType,
    Instant,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Outcome,
    SyncRequest,
    SyncResult,
    Waiter,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first answer (Kafka's classicGroupNewMemberJoinTimeoutMs).
Its client may have given up and joined again under another id: the group stops waiting for it."""

_MAX_REASON_LENGTH = 255  # KIP-800's; clients cut there

_HeartbeatAnswer = tuple[Error, Outcome]
_ALIVE: _HeartbeatAnswer = (Error.NONE, NOTHING)
_REBALANCE: _HeartbeatAnswer = (Error.REBALANCE_IN_PROGRESS, NOTHING)


def _reason(reason: str | None) -> str:
    return reason[:_MAX_REASON_LENGTH] if reason else "not provided"


class ClassicGroup:
    """One group. `expire` ends sessions and gives the answers that had to wait.

    Its parts: `_roster` has the members, `_rebalance` the state and the generation, `_rows` what is
    stored and to be stored, `_deadlines` when there is work, `_event` the present event's answers.
    """

    type = GroupType.CLASSIC

    def __init__(self, stored: StoredGroup, settings: GroupSettings, now: Instant) -> None:
        row = stored.group
        self.group_id = row.group_id
        self._roster = ClassicRoster(row.protocol_type, None)
        self._rows = ClassicRows(stored)
        self._deadlines = ClassicDeadlines(self._roster)
        self._event = ClassicEvent()
        self._rebalance = ClassicRebalance(
            row, settings, self._roster, self._rows, self._deadlines, self._event
        )
        self._rebalance.load(stored, now)

    @classmethod
    def create(cls, group_id: str, settings: GroupSettings, now: Instant) -> "ClassicGroup":
        """A group that is not stored yet; it need not be kept while it `is_idle`."""
        row = GroupRow(group_id, "classic", state_timestamp=now.timestamp_ms)
        return cls(StoredGroup(row), settings, now)

    @classmethod
    def load(cls, stored: StoredGroup, settings: GroupSettings, now: Instant) -> "ClassicGroup":
        """The group as it was stored: Stable with these members, or Empty; sessions start again.

        `stored` may be an empty group of the other protocol: it becomes a classic one and keeps
        counting its generations.
        """
        return cls(stored, settings, now)

    # --- reading ---

    @property
    def settings(self) -> GroupSettings:
        """As they are now; they may be changed."""
        return self._rebalance.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self._rebalance.settings = settings

    @property
    def state(self) -> str:
        """As Kafka names it."""
        return self._rebalance.state

    @property
    def generation_id(self) -> int:
        """The number of the last generation."""
        return self._rebalance.generation_id

    @property
    def protocol_name(self) -> str | None:
        """The protocol that the last generation's members have chosen."""
        return self._rebalance.protocol_name

    @property
    def deadline_ms(self) -> int | None:
        """A lower bound of when `expire` has work: perhaps early, never late."""
        return self._deadlines.next_ms

    @property
    def protocol_type(self) -> str:
        """The type of the members' bytes, mostly "consumer"; "" if there never were members."""
        return self._roster.protocol_type

    @property
    def members(self) -> Mapping[str, ClassicMember]:
        """The members by id; to be read only."""
        return self._roster.members

    @property
    def is_empty(self) -> bool:
        """Whether it has no members (clients that were only given an id do not count)."""
        return self.state == EMPTY

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped from memory and loaded again without loss."""
        return self.state == EMPTY and not self._roster.pending_join_members

    def stored(self) -> StoredGroup:
        """Rows as they would be written now."""
        return self._rebalance.stored()

    def in_store(self) -> StoredGroup:
        """Rows as the store has them once all effects so far are stored: perhaps of an earlier
        generation."""
        return StoredGroup(self._rows.group, tuple(self._rows.members.values()))

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Whether consumers read this topic; True if a consumer's subscription is unreadable."""
        topics = self._rebalance.subscribed_topics
        return self._roster.is_for_consumers if topics is None else topic_name in topics

    def offset_expiration(self) -> OffsetExpiration | None:
        """How offsets expire just now; None: not at all (Kafka's offsetExpirationCondition)."""
        if not self.protocol_type:
            return BY_COMMIT_TIMESTAMP
        if self.state == EMPTY:
            timestamp = self._rebalance.state_timestamp
            return empty_group_expiration("classic", self.protocol_type, timestamp)
        if self.state == STABLE and self._rebalance.subscribed_topics is not None:
            return BY_COMMIT_TIMESTAMP
        return None

    def describe(self) -> DescribedGroup:
        """As DescribeGroups shows it; protocol and metadata only while it is stable."""
        protocol_name = self.protocol_name if self.state == STABLE else None
        return DescribedGroup(
            self.state,
            self.protocol_type,
            protocol_name or "",
            tuple([member.describe(protocol_name) for member in self._roster.members.values()]),
        )

    # --- joining ---

    def join(self, request: JoinRequest, waiter: Waiter, now: Instant) -> Outcome:
        """JoinGroup: answered now, or when all have joined or the time for it is over."""
        error = self._join_refusal(request)
        if error is Error.NONE:
            if request.member_id == NO_MEMBER_ID:
                self._join_new(request, waiter, now)
            else:
                self._join_known(request, waiter, now)
        elif error is Error.GROUP_MAX_SIZE_REACHED:
            self._refuse_join(waiter, error, NO_MEMBER_ID)
            self._rebalance.remove(request.member_id)
            self._rebalance.maybe_complete_join(now)
        else:
            self._refuse_join(waiter, error, request.member_id)
        return self._outcome()

    def _join_refusal(self, request: JoinRequest) -> Error:
        settings = self.settings
        if not (
            settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            return Error.INVALID_SESSION_TIMEOUT
        if not self._has_room(request):
            return Error.GROUP_MAX_SIZE_REACHED
        if self.state == DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if not self._roster.supports(request.protocol_type, request.protocols):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        return Error.NONE

    def _has_room(self, request: JoinRequest) -> bool:
        """Kafka's acceptJoiningMember; unlike there, a static member may restart in a full group.

        While members join, the first to join stay, whatever the group's size was: it may exceed a
        maximum that was lowered.
        """
        roster = self._roster
        known = roster.members.get(request.member_id)
        if request.member_id == NO_MEMBER_ID and request.group_instance_id is not None:
            current_id = roster.static_members.get(request.group_instance_id, NO_MEMBER_ID)
            known = roster.members.get(current_id)
        if self.state == PREPARING_REBALANCE:
            has_joined = known is not None and known.awaiting_join is not None
            return has_joined or roster.awaiting_join_count < self.settings.max_size
        if self.state in (COMPLETING_REBALANCE, STABLE):
            return known is not None or len(roster.members) < self.settings.max_size
        return True

    def _refuse_join(self, waiter: Waiter, error: Error, member_id: str) -> None:
        self._event.answer(waiter, JoinResult(error, member_id=member_id))

    def _join_new(self, request: JoinRequest, waiter: Waiter, now: Instant) -> None:
        instance_id = request.group_instance_id
        if instance_id is not None and instance_id in self._roster.static_members:
            self._replace_static_member(instance_id, request, waiter, now)
        elif instance_id is None and request.requires_known_member_id:
            # KIP-394: a client that never learns its id never joins, so the group does not wait.
            deadline_ms = now.monotonic_ms + request.session_timeout_ms
            self._deadlines.forget_by(request.new_member_id, deadline_ms)
            self._refuse_join(waiter, Error.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._add_member(request.new_member_id, request, waiter, now)

    def _join_known(self, request: JoinRequest, waiter: Waiter, now: Instant) -> None:
        roster = self._roster
        if request.member_id in roster.pending_join_members and request.group_instance_id is None:
            self._add_member(request.member_id, request, waiter, now)
            return
        refusal = roster.refusal(request.member_id, request.group_instance_id)
        if refusal is not Error.NONE:
            self._refuse_join(waiter, refusal, request.member_id)
            return
        member = roster.members[request.member_id]
        is_leader = roster.leader == member.member_id
        is_changed = member.protocols != request.protocols
        if self.state == PREPARING_REBALANCE:
            self._join_again(member, request, waiter, "joins", now)
        elif is_changed:
            self._join_again(member, request, waiter, "has other metadata", now)
        elif is_leader and self.state == STABLE:
            # Its metadata is the same, yet its assignment may differ: a topic may have grown.
            self._join_again(member, request, waiter, "joins, being the leader", now)
        else:
            self._event.answer(waiter, self._rebalance.join_result(member))
            self._deadlines.renew(member, now)

    def _add_member(
        self, member_id: str, request: JoinRequest, waiter: Waiter, now: Instant
    ) -> None:
        member = ClassicMember.joining(member_id, request)
        member.awaiting_join = waiter
        self._rebalance.new_member_added = True
        self._roster.add(member, request.protocol_type)
        if member.group_instance_id is not None:
            # It may have been a member before; the last stored generation then still has it.
            self._rows.rename(member.group_instance_id, member_id, request.client)
        self._deadlines.renew(member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._event.note(
            "group_member_added",
            member=member_id,
            group_instance_id=request.group_instance_id,
            reason=_reason(request.reason),
        )
        reason = f"new member; client's: {_reason(request.reason)}"
        self._rebalance.prepare_or_complete_join(reason, now)

    def _join_again(
        self, member: ClassicMember, request: JoinRequest, waiter: Waiter, what: str, now: Instant
    ) -> None:
        self._roster.update(member, request)
        # Its client gave up the earlier request, or runs twice: that request is told to retry.
        earlier = self._roster.await_join(member, waiter)
        refused = JoinResult(Error.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        self._event.answer(earlier, refused)
        reason = f"member {member.member_id} {what}; client's: {_reason(request.reason)}"
        self._rebalance.prepare_or_complete_join(reason, now)

    def _replace_static_member(
        self, instance_id: str, request: JoinRequest, waiter: Waiter, now: Instant
    ) -> None:
        """A static member has restarted: its new id replaces the old one, which is fenced.

        KIP-345. The new id is stored at once, so that no crash can bring the old one back.
        """
        old_id, old_leader = self._roster.static_members[instance_id], self._roster.leader
        member = self._roster.members[old_id]
        fenced = JoinResult(Error.FENCED_INSTANCE_ID, member_id=old_id)
        self._event.answer(self._roster.await_join(member, None), fenced)
        self._rebalance.answer_sync(member, SyncResult(Error.FENCED_INSTANCE_ID))
        self._rebalance.rename(member, request.new_member_id)
        member.client = request.client
        self._roster.update(member, request)
        self._deadlines.renew(member, now)
        self._rows.rename(instance_id, member.member_id, request.client)
        self._event.note(
            "group_static_member_replaced",
            group_instance_id=instance_id,
            member=member.member_id,
            replaced=old_id,
            reason=_reason(request.reason),
        )
        is_same = self._roster.select_protocol() == self.protocol_name
        fits = self._bytes_to_store() <= self.settings.max_metadata_bytes
        if self.state == STABLE and is_same and fits:
            self._rebalance.store()
            self._event.answer(waiter, self._static_join_result(member, request, old_leader))
            return
        self._roster.await_join(member, waiter)
        reason = f"static member {instance_id} replaced; client's: {_reason(request.reason)}"
        self._rebalance.prepare_or_complete_join(reason, now)

    def _static_join_result(
        self, member: ClassicMember, request: JoinRequest, old_leader: str | None
    ) -> JoinResult:
        """The generation and its assignment stay: the leader must not assign again.

        KIP-814: from v9 on the answer tells it so. Before v9 the answer names its old id as the
        leader, so that it takes itself for a follower.
        """
        result = self._rebalance.join_result(member)
        if not request.supports_skip_assignment:
            return replace(result, leader=old_leader or NO_MEMBER_ID, members=())
        return replace(result, skip_assignment=member.member_id == self._roster.leader)

    # --- syncing ---

    def sync(self, request: SyncRequest, waiter: Waiter, now: Instant) -> Outcome:
        """SyncGroup: the leader sends all assignments, the others wait for theirs."""
        error = self._sync_refusal(request)
        if error is not Error.NONE:
            self._event.answer(waiter, SyncResult(error))
            return self._outcome()
        member = self._roster.members[request.member_id]
        self._rebalance.has_synced(member.member_id)
        if self.state == STABLE:
            self._event.answer(waiter, self._rebalance.sync_result(member))
            self._deadlines.renew(member, now)
            return self._outcome()
        # An earlier request of this member.
        self._rebalance.answer_sync(member, SyncResult(Error.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = waiter
        if member.member_id == self._roster.leader:
            self._sync_of_leader(request, now)
        return self._outcome()

    def _sync_refusal(self, request: SyncRequest) -> Error:
        if self.state == DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        refusal = self._roster.refusal(request.member_id, request.group_instance_id)
        if refusal is not Error.NONE:
            return refusal
        if request.generation_id != self.generation_id:
            return Error.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        if self.protocol_name is not None and request.protocol_name not in (
            None,
            self.protocol_name,
        ):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        return Error.REBALANCE_IN_PROGRESS if self.state == PREPARING_REBALANCE else Error.NONE

    def _sync_of_leader(self, request: SyncRequest, now: Instant) -> None:
        members = self._roster.members.values()
        size = self._bytes_to_store(request.assignments)
        if size > self.settings.max_metadata_bytes:
            # Kafka's answer to a GroupMetadata record that is too large for the offsets topic.
            self._event.note("group_assignment_too_large", leader=request.member_id, bytes=size)
            self._rebalance.answer_syncs(Error.UNKNOWN_SERVER_ERROR, now)
            self._rebalance.prepare("the assignment was too large", now)
            return
        left_out = [m.member_id for m in members if not request.assignments.get(m.member_id)]
        if left_out:
            self._event.note_members("group_members_without_assignment", left_out)
        self._rebalance.become_stable(request.assignments, now)

    def _bytes_to_store(self, assignments: Mapping[str, bytes] | None = None) -> int:
        """Of metadata and assignments. assignments: the new ones; None: the present ones."""
        members = self._roster.members.values()
        if assignments is None:
            assignments = {member.member_id: member.assignment for member in members}
        size = sum([member.metadata_size for member in members])
        return size + sum([len(assignment) for assignment in assignments.values()])

    # --- staying and leaving ---

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Instant
    ) -> _HeartbeatAnswer:
        """Heartbeat: renews the session; REBALANCE_IN_PROGRESS asks the member to join again."""
        rebalance = self._rebalance
        if rebalance.state == DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE, NOTHING
        refusal = self._roster.refusal(member_id, group_instance_id)
        if refusal is not Error.NONE:
            return refusal, NOTHING
        if generation_id != rebalance.generation_id:
            return Error.ILLEGAL_GENERATION, NOTHING
        self._deadlines.renew(self._roster.members[member_id], now)
        return _REBALANCE if rebalance.state == PREPARING_REBALANCE else _ALIVE

    def leave(self, members: Sequence[LeavingMember], now: Instant) -> tuple[LeaveResult, Outcome]:
        """LeaveGroup, for several members at once; a static one may go by its instance id alone."""
        if self.state == DEAD:
            return LeaveResult((), Error.COORDINATOR_NOT_AVAILABLE), NOTHING
        count = len(self._roster.members)
        result = LeaveResult(tuple([(each, self._leave(each)) for each in members]))
        if len(self._roster.members) < count:
            gone = count - len(self._roster.members)
            self._rebalance.prepare_or_complete_join(f"{gone} members have left", now)
        else:
            # A client that was only given an id may have left.
            self._rebalance.maybe_complete_join(now)
        return result, self._outcome()

    def _leave(self, leaving: LeavingMember) -> Error:
        roster = self._roster
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER_ID:
            if instance_id is None or instance_id not in roster.static_members:
                return Error.UNKNOWN_MEMBER_ID
            member_id = roster.static_members[instance_id]
        elif member_id not in roster.pending_join_members:
            refusal = roster.refusal(member_id, instance_id)
            if refusal is not Error.NONE:
                return refusal
        self._rebalance.remove(member_id)
        self._event.note("group_member_left", member=member_id, reason=_reason(leaving.reason))
        return Error.NONE

    def expire(self, now: Instant) -> Outcome:
        """Ends what is due: sessions, and waiting for joins and syncs."""
        if self.state != DEAD:
            self._expire_members(now)
            self._rebalance.expire(now)
            self._deadlines.reset()
        return self._outcome()

    def _expire_members(self, now: Instant) -> None:
        unused, ended = self._deadlines.unused_ids(now), self._deadlines.ended_sessions(now)
        for member_id in unused + ended:
            self._rebalance.remove(member_id)
        if unused:
            self._event.note_members("group_pending_members_expired", unused)
        if ended:
            self._event.note_members("group_members_expired", ended)
            reason = f"sessions of {len(ended)} members have ended"
            self._rebalance.prepare_or_complete_join(reason, now)
        elif unused:
            self._rebalance.maybe_complete_join(now)

    def prepare_rebalance(self, reason: str, now: Instant) -> Outcome:
        """Asks all members to join again, for the caller's reason (a downgrade)."""
        self._rebalance.prepare_or_complete_join(reason, now)
        return self._outcome()

    def unload(self, error: Error, now: Instant) -> Outcome:
        """The object is discarded: all waiting requests get `error`. Stores nothing."""
        self._rebalance.die(error, now)
        return Outcome(replies=self._outcome().replies)

    def delete(self, now: Instant) -> Outcome:
        """The group goes, with its offsets. Only where `delete_refusal` is NONE."""
        self._rebalance.die(Error.COORDINATOR_NOT_AVAILABLE, now)
        return Outcome(effects=GroupEffects(self.group_id, deleted=True))

    def _outcome(self) -> Outcome:
        """All effects since the last outcome."""
        return self._event.take(self._rows.take())

    # --- offsets ---

    def commit_refusal(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now: Instant,
        *,
        is_transactional: bool = False,
        knows_member_epochs: bool = True,
    ) -> Error:
        """Whether offsets may be committed. A member's commit renews its session.

        Without members, anybody may commit without naming a generation: a simple consumer, an
        admin client. A classic group has no member epochs, so knowing them does not matter.
        """
        rebalance = self._rebalance
        if rebalance.state == DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and rebalance.state == EMPTY:
            return Error.NONE
        if generation_id < 0 and member_id == NO_MEMBER_ID and group_instance_id is None:
            # Transactional commits of old clients name no member: their producer's epoch fences.
            return Error.NONE if is_transactional else Error.UNKNOWN_MEMBER_ID
        refusal = self._roster.refusal(member_id, group_instance_id)
        if refusal is not Error.NONE:
            return refusal
        if generation_id != rebalance.generation_id:
            return Error.ILLEGAL_GENERATION
        if is_transactional:
            return Error.NONE
        if rebalance.state == COMPLETING_REBALANCE:
            return Error.REBALANCE_IN_PROGRESS
        self._deadlines.renew(self._roster.members[member_id], now)
        return Error.NONE

    def fetch_refusal(self, member_id: str | None, member_epoch: int) -> Error:
        """Whether offsets may be read: anybody may read a classic group's."""
        return Error.GROUP_ID_NOT_FOUND if self.state == DEAD else Error.NONE

    def delete_offsets_refusal(self) -> Error:
        """Whether offsets may be deleted; consumers' own topics are `is_subscribed_to`."""
        if self.state == DEAD:
            return Error.GROUP_ID_NOT_FOUND
        if self.state != EMPTY and not self._roster.is_for_consumers:
            return Error.NON_EMPTY_GROUP
        return Error.NONE

    def delete_refusal(self) -> Error:
        """Whether the group may be deleted: only without members."""
        if self.state == DEAD:
            return Error.GROUP_ID_NOT_FOUND
        return Error.NONE if self.state == EMPTY else Error.NON_EMPTY_GROUP
