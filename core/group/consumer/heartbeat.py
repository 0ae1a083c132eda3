"""ConsumerGroupHeartbeat to a consumer group: finds its member and updates the member's row.

Kafka's GroupMetadataManager.consumerGroupHeartbeat and -Leave. A heartbeat that is refused changes
nothing. `membership` decides what follows for the group.
"""

from dataclasses import replace

from core.errors import Error, Refusal
from core.group.consumer.member import (
    CONSUMER,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STABLE,
    STATIC_LEAVE_EPOCH,
    Entrant,
    epoch_refusal,
    newcomer,
    note,
    speaks_classic,
    successor,
)
from core.group.consumer.membership import Membership
from core.group.consumer.request import heartbeat_refusal, tells_all
from core.group.consumer.timers import Timer
from core.group.records import MemberRow, Partitions
from core.group.subscribed_topics import InvalidRegularExpression
from core.group.values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Instant,
    Outcome,
)

_NOTHING = Outcome()

Answered = tuple[ConsumerHeartbeatResult, Outcome]


def heartbeat(membership: Membership, request: ConsumerHeartbeat, now: Instant) -> Answered:
    """A member joins, goes on, or leaves."""
    row = membership.roster.members.get(request.member_id)
    if row is not None and _is_steady(membership, request, row):
        membership.extend_session(row, now)
        return _result(membership, row), _NOTHING
    if refusal := heartbeat_refusal(request, membership.settings.consumer_assignors):
        return refused(refusal)
    if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
        return _leave(membership, request, now)
    entrant = _entrant(membership, request)
    if isinstance(entrant, Refusal):
        return refused(entrant)
    updated = _updated(entrant.row, request)
    if refusal := _expression_refusal(membership, updated.subscribed_topic_regex):
        return refused(refusal)
    return _go_on(membership, request, entrant, updated, now)


def refused(refusal: Refusal) -> Answered:
    """Nothing has changed."""
    return ConsumerHeartbeatResult(refusal.error, refusal.message), _NOTHING


def _is_steady(membership: Membership, request: ConsumerHeartbeat, row: MemberRow) -> bool:
    """Whether neither the member nor the group has news, as in nearly every heartbeat."""
    return (
        request.member_epoch == row.member_epoch == membership.group_epoch
        and membership.group_epoch == membership.assignment_epoch
        and row.state == STABLE
        and not membership.roster.subscribed.stale
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and (request.rack_id is None or request.rack_id == row.rack_id)
        and request.instance_id == row.group_instance_id
        and request.client.client_id == row.client_id
        and request.client.client_host == row.client_host
        and row.protocol == CONSUMER
    )


def _entrant(membership: Membership, request: ConsumerHeartbeat) -> Entrant | Refusal:
    """The member that sent the heartbeat, or the new one that it makes."""
    member_id, instance_id = request.member_id, request.instance_id
    joins = request.member_epoch == JOIN_EPOCH
    row = membership.roster.members.get(member_id)
    static = None if instance_id is None else membership.roster.static_member(instance_id)
    # Replacing a static member does not enlarge the group (Kafka refuses it all the same).
    if row is None and membership.is_full and not (joins and static):
        return membership.full()
    if joins:
        if static is not None:
            return _static_entrant(static, member_id)
        return Entrant(row or newcomer(member_id, CONSUMER))
    member = membership.member(member_id, instance_id)
    if isinstance(member, Refusal):
        return member
    return epoch_refusal(member, request.member_epoch, request.owned) or Entrant(member)


def _static_entrant(static: MemberRow, member_id: str) -> Entrant | Refusal:
    """A static member (re)joins: as itself, or with a new member id after a restart."""
    if static.member_id == member_id:
        # The answer to its join was lost. (Kafka says UNRELEASED_INSTANCE_ID, which is fatal.)
        return Entrant(static)
    if not speaks_classic(static) and static.member_epoch != STATIC_LEAVE_EPOCH:
        return Refusal(
            Error.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {static.group_instance_id} cannot join "
            f"the group because the instance id is owned by {static.member_id} member.",
        )
    return successor(static, member_id)


def _updated(row: MemberRow, request: ConsumerHeartbeat) -> MemberRow:
    """The row after a heartbeat. None and -1 in the heartbeat: as before."""
    names, expression = row.subscribed_topic_names, row.subscribed_topic_regex
    if request.subscribed_topic_names is not None:
        told = tuple(sorted(set(request.subscribed_topic_names)))
        names = names if told == names else told
    if request.subscribed_topic_regex is not None:
        expression = request.subscribed_topic_regex or None
    timeout_ms = request.rebalance_timeout_ms
    updated = replace(
        row,
        protocol=CONSUMER,
        protocols=(),
        session_timeout_ms=0,
        group_instance_id=request.instance_id or row.group_instance_id,
        client_id=request.client.client_id,
        client_host=request.client.client_host,
        rack_id=request.rack_id or row.rack_id,
        rebalance_timeout_ms=row.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        subscribed_topic_names=names,
        subscribed_topic_regex=expression,
        server_assignor=request.server_assignor or row.server_assignor,
    )
    return row if updated == row else updated


def _expression_refusal(membership: Membership, expression: str | None) -> Refusal | None:
    if expression is None:
        return None
    try:
        membership.roster.subscribed.check(expression)
    except InvalidRegularExpression as invalid:
        return Refusal(
            Error.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {invalid}.",
        )
    return None


def _go_on(
    membership: Membership,
    request: ConsumerHeartbeat,
    entrant: Entrant,
    updated: MemberRow,
    now: Instant,
) -> Answered:
    notes = membership.arrival_notes(entrant)
    row = membership.advance(entrant, updated, request.owned, now)
    if isinstance(row, Refusal):
        # Only in a state that this release does not know: the member must join again.
        return ConsumerHeartbeatResult(row.error, row.message), membership.outcome(now, notes=notes)
    membership.extend_session(row, now)
    tell = tells_all(request) or row.assigned != entrant.row.assigned
    result = _result(membership, row, row.assigned if tell else None)
    return result, membership.outcome(now, notes=notes)


def _leave(membership: Membership, request: ConsumerHeartbeat, now: Instant) -> Answered:
    row = membership.member(request.member_id, request.instance_id)
    if isinstance(row, Refusal):
        return refused(row)
    result = ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.member_epoch == LEAVE_EPOCH:
        return result, membership.remove([(row, "it has left")], now)
    # It keeps its partitions until it returns or its session ends.
    membership.timers.cancel(Timer.REBALANCE, row.member_id)
    membership.roster.put(replace(row, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
    return result, membership.outcome(now, notes=(note("consumer_left_for_a_while", row),))


def _result(
    membership: Membership, row: MemberRow, assignment: Partitions | None = None
) -> ConsumerHeartbeatResult:
    return ConsumerHeartbeatResult(
        member_id=row.member_id,
        member_epoch=row.member_epoch,
        heartbeat_interval_ms=membership.settings.consumer_heartbeat_interval_ms,
        assignment=assignment,
    )
