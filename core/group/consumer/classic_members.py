"""Members of the classic protocol in a consumer group, while the group migrates to KIP-848.

Translates JoinGroup, SyncGroup, Heartbeat and LeaveGroup (Kafka's classicGroupJoinToConsumerGroup
and its kin). The generation is the member epoch. There is no leader: the server assigns. No member
waits for another: heartbeats answer REBALANCE_IN_PROGRESS to a member that has to act.
"""

from collections.abc import Sequence
from dataclasses import replace

from core.errors import Error, Refusal
from core.group.consumer.member import (
    CLASSIC,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    Entrant,
    newcomer,
    speaks_classic,
    successor,
)
from core.group.consumer.membership import Membership
from core.group.consumer.protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Malformed,
    Subscription,
    encode_assignment,
    parse_subscription,
)
from core.group.consumer.timers import Timer
from core.group.records import MemberRow
from core.group.values import (
    NO_MEMBER_ID,
    Instant,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Outcome,
    Reply,
    SyncRequest,
    SyncResult,
    Waiter,
)

_NOTHING = Outcome()


# --- JoinGroup ---


def join(membership: Membership, request: JoinRequest, waiter: Waiter, now: Instant) -> Outcome:
    """A classic member (re)joins. Its answer has its new epoch as generation; no members."""
    member_id = request.member_id or request.new_member_id
    error = _join_refusal(membership, request, member_id)
    if error is Error.MEMBER_ID_REQUIRED:
        return _answered(waiter, JoinResult(error, member_id=member_id))
    understood = error or _understood(membership, request, member_id)
    if isinstance(understood, Error):
        return _answered(waiter, JoinResult(understood, member_id=request.member_id))
    entrant, subscription = understood
    notes = membership.arrival_notes(entrant)
    owned = membership.roster.subscribed.by_id(subscription.owned_partitions)
    row = membership.advance(entrant, _updated(entrant.row, request, subscription), owned, now)
    if isinstance(row, Refusal):
        # A state that this release does not know: as an unknown member it begins anew.
        result = JoinResult(Error.UNKNOWN_MEMBER_ID, member_id=request.member_id)
        return membership.outcome(now, replies=(Reply(waiter, result),), notes=notes)
    membership.timers.cancel(Timer.JOIN, member_id)
    membership.extend_session(row, now)
    membership.timers.set(Timer.SYNC, member_id, now.monotonic_ms + row.rebalance_timeout_ms)
    result = JoinResult(
        generation_id=row.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=row.protocols[0][0],
        member_id=member_id,
    )
    return membership.outcome(now, replies=(Reply(waiter, result),), notes=notes)


def _join_refusal(membership: Membership, request: JoinRequest, member_id: str) -> Error | None:
    settings = membership.settings
    instance_id = request.group_instance_id
    if not (
        settings.min_session_timeout_ms
        <= request.session_timeout_ms
        <= settings.max_session_timeout_ms
    ):
        return Error.INVALID_SESSION_TIMEOUT
    replaces = instance_id is not None and membership.roster.static_member(instance_id)
    if membership.is_full and member_id not in membership.roster.members and not replaces:
        return Error.GROUP_MAX_SIZE_REACHED
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != PROTOCOL_TYPE or not membership.roster.supports(names):
        return Error.INCONSISTENT_GROUP_PROTOCOL
    if request.member_id == NO_MEMBER_ID and instance_id is None:
        return Error.MEMBER_ID_REQUIRED if request.requires_known_member_id else None
    return None


def _entrant(membership: Membership, request: JoinRequest, member_id: str) -> Entrant | Error:
    known = Entrant(membership.roster.members.get(member_id) or newcomer(member_id, CLASSIC))
    if request.group_instance_id is None:
        return known
    static = membership.roster.static_member(request.group_instance_id)
    if request.member_id != NO_MEMBER_ID:
        member = membership.member(member_id, request.group_instance_id)
        return member.error if isinstance(member, Refusal) else Entrant(member)
    # KIP-345: a member without a member id takes over the instance id from any holder.
    return known if static is None else successor(static, member_id)


def _understood(
    membership: Membership, request: JoinRequest, member_id: str
) -> tuple[Entrant, Subscription] | Error:
    """The member that joins, and its subscription: what it wants and says it owns."""
    entrant = _entrant(membership, request, member_id)
    if isinstance(entrant, Error):
        return entrant
    # All protocols of a consumer say the same about its topics.
    subscription = parse_subscription(request.protocols[0].metadata)
    if isinstance(subscription, Malformed):
        return Error.INCONSISTENT_GROUP_PROTOCOL
    is_known = entrant.replaces is not None or member_id in membership.roster.members
    if request.member_id != NO_MEMBER_ID and not is_known and subscription.owned_partitions:
        # A member that was removed and has not noticed: others own its partitions by now, and it
        # could commit their offsets in its new generation. (Kafka lets it join all the same.)
        return Error.UNKNOWN_MEMBER_ID
    return entrant, subscription


def _updated(row: MemberRow, request: JoinRequest, subscription: Subscription) -> MemberRow:
    names = tuple(sorted(set(subscription.topics)))
    protocols = tuple((each.name, each.metadata) for each in request.protocols)
    return replace(
        row,
        protocol=CLASSIC,
        protocols=row.protocols if protocols == row.protocols else protocols,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        group_instance_id=request.group_instance_id or row.group_instance_id,
        client_id=request.client.client_id,
        client_host=request.client.client_host,
        rack_id=subscription.rack_id or row.rack_id,
        subscribed_topic_names=(
            row.subscribed_topic_names if names == row.subscribed_topic_names else names
        ),
        subscribed_topic_regex=None,
    )


def _answered(waiter: Waiter, answer: JoinResult | SyncResult) -> Outcome:
    return Outcome((Reply(waiter, answer),))


# --- SyncGroup ---


def sync(membership: Membership, request: SyncRequest, waiter: Waiter, now: Instant) -> Outcome:
    """Answers with the member's partitions; a leader's assignments are ignored."""
    row = _classic_member(membership, request.member_id, request.group_instance_id)
    error = row if isinstance(row, Error) else _sync_refusal(membership, row, request, now)
    if isinstance(row, Error) or error is not Error.NONE:
        return _answered(waiter, SyncResult(error))
    membership.timers.cancel(Timer.SYNC, row.member_id)
    membership.extend_session(row, now)
    result = SyncResult(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=_assignment(membership, row),
    )
    return _answered(waiter, result)


def _sync_refusal(
    membership: Membership, row: MemberRow, request: SyncRequest, now: Instant
) -> Error:
    if request.generation_id != row.member_epoch:
        return Error.ILLEGAL_GENERATION
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        row.protocols[0][0],
    ):
        return Error.INCONSISTENT_GROUP_PROTOCOL
    # A member that has to revoke has rejoined already; it goes on when it has revoked.
    if membership.group_epoch > row.member_epoch and row.state != UNREVOKED_PARTITIONS:
        _expect_join(membership, row, now)
        return Error.REBALANCE_IN_PROGRESS
    return Error.NONE


def _assignment(membership: Membership, row: MemberRow) -> bytes:
    """In the version of the member's subscription."""
    subscription = parse_subscription(row.protocols[0][1])
    version = 0 if isinstance(subscription, Malformed) else subscription.version
    assigned = membership.roster.subscribed.by_name(row.assigned)
    return encode_assignment(Assignment(version, assigned))


# --- Heartbeat ---


def heartbeat(
    membership: Membership,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    now: Instant,
) -> tuple[Error, Outcome]:
    """Answers REBALANCE_IN_PROGRESS as long as the member has to join again."""
    row = _classic_member(membership, member_id, instance_id)
    if isinstance(row, Error):
        return row, _NOTHING
    if generation_id != row.member_epoch:
        return Error.ILLEGAL_GENERATION, _NOTHING
    membership.extend_session(row, now)
    if (
        row.member_epoch < membership.group_epoch
        or row.state == UNREVOKED_PARTITIONS
        or (row.state == UNRELEASED_PARTITIONS and not _is_waiting(membership, row))
    ):
        _expect_join(membership, row, now)
        return Error.REBALANCE_IN_PROGRESS, _NOTHING
    return Error.NONE, _NOTHING


def _is_waiting(membership: Membership, row: MemberRow) -> bool:
    """Whether others still own partitions that the member is to get."""
    return any(
        membership.roster.owner(topic_id, partition) not in (None, row.member_id)
        for topic_id, target in row.target.items()
        for partition in target
    )


def _expect_join(membership: Membership, row: MemberRow, now: Instant) -> None:
    deadline_ms = now.monotonic_ms + row.rebalance_timeout_ms
    membership.timers.set_if_absent(Timer.JOIN, row.member_id, deadline_ms)


# --- LeaveGroup ---


def leave(
    membership: Membership, members: Sequence[LeavingMember], now: Instant
) -> tuple[LeaveResult, Outcome]:
    """Removes members. An administrator names an instance id without a member id."""
    answers: list[tuple[LeavingMember, Error]] = []
    leaving: dict[str, tuple[MemberRow, str]] = {}
    for member in members:
        row = _leaving_member(membership, member)
        if isinstance(row, Refusal):
            answers.append((member, row.error))
            continue
        answers.append((member, Error.NONE))
        leaving[row.member_id] = (row, f"it has left: {member.reason or 'not provided'}")
    return LeaveResult(tuple(answers)), membership.remove(leaving.values(), now)


def _leaving_member(membership: Membership, member: LeavingMember) -> MemberRow | Refusal:
    if member.group_instance_id is not None and member.member_id == NO_MEMBER_ID:
        static = membership.roster.static_member(member.group_instance_id)
        return static or membership.unknown_member(member.member_id)
    return membership.member(member.member_id, member.group_instance_id)


def _classic_member(
    membership: Membership, member_id: str, instance_id: str | None
) -> MemberRow | Error:
    row = membership.member(member_id, instance_id)
    if isinstance(row, Refusal):
        return row.error
    return row if speaks_classic(row) else Error.UNKNOWN_MEMBER_ID
