"""Where each JoinGroup and ConsumerGroupHeartbeat enters: finds, makes or converts its group.

If a consumer that speaks KIP-848 joins a classic group, the group becomes a consumer group; its
other members stay. When the last such consumer leaves, it becomes a classic group again
(`group.consumer.migration.policy` allows either). Kafka's GroupMetadataManager
(getOrMaybeCreateConsumerGroup, convertToConsumerGroup, convertToClassicGroup). What concerns one
group alone is in its own class.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from core.errors import Error, Refusal
from core.group.classic.group import ClassicGroup
from core.group.classic.member import ClassicMember
from core.group.consumer.group import ConsumerGroup
from core.group.consumer.heartbeat import refused
from core.group.consumer.member import (
    CLASSIC,
    CONSUMER,
    JOIN_EPOCH,
    STABLE,
    UNREVOKED_PARTITIONS,
    is_reconciled,
    union,
)
from core.group.consumer.protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Malformed,
    Subscription,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from core.group.consumer.request import heartbeat_refusal
from core.group.records import GroupEffects, GroupRow, MemberRow, Partitions, StoredGroup
from core.group.subscribed_topics import OTHER_TOPICS_HASH, Resolve, SubscribedTopics
from core.group.values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    GroupSettings,
    Instant,
    JoinRequest,
    Outcome,
    Topics,
    Waiter,
)

Group = ClassicGroup | ConsumerGroup


# --- events that may find the wrong kind of group, or none ---


def consumer_heartbeat(
    group_id: str,
    group: Group | None,
    request: ConsumerHeartbeat,
    topics: Topics,
    resolve: Resolve,
    settings: GroupSettings,
    now: Instant,
) -> tuple[ConsumerHeartbeatResult, Outcome, Group | None]:
    """ConsumerGroupHeartbeat to any group, or none. The last result is the group from now on.

    topics: for a group made here; an existing consumer group has been shown them already.
    """
    if isinstance(group, ConsumerGroup):
        result, outcome = group.consumer_heartbeat(request, now)
        return result, *downgrade_if_due(group, outcome, now)
    found = heartbeat_refusal(request, settings.consumer_assignors) or _joined_group(
        group_id, group, request, topics, resolve, settings, now
    )
    if isinstance(found, Refusal):
        return *refused(found), group
    found.on_metadata_changed(topics, resolve)
    result, outcome = found.consumer_heartbeat(request, now)
    if result.error is not Error.NONE:
        return result, Outcome(), group
    if group is not None:
        # Members that wait for the classic group's generation join again, the consumer group.
        outcome = merged(group.unload(Error.REBALANCE_IN_PROGRESS, now), outcome)
    return result, outcome, found


def join(
    group_id: str,
    group: Group | None,
    request: JoinRequest,
    waiter: Waiter,
    settings: GroupSettings,
    now: Instant,
) -> tuple[Outcome, Group | None]:
    """JoinGroup to any group, or none. The second result is the group from now on."""
    if isinstance(group, ConsumerGroup) and not group.is_empty:
        return downgrade_if_due(group, group.join(request, waiter, now), now)
    if isinstance(group, ClassicGroup):
        return group.join(request, waiter, now), group
    if group is None:
        classic = ClassicGroup.create(group_id, settings, now)
    else:
        # Without members it may take either protocol; it keeps counting its generations.
        row = GroupRow(
            group_id,
            CLASSIC,
            PROTOCOL_TYPE,
            generation_id=group.group_epoch,
            state_timestamp=now.timestamp_ms,
        )
        classic = ClassicGroup.load(StoredGroup(row), settings, now)
    outcome = classic.join(request, waiter, now)
    return outcome, group if classic.is_idle else classic


def downgrade_if_due(group: ConsumerGroup, outcome: Outcome, now: Instant) -> tuple[Outcome, Group]:
    """Downgrades a consumer group if an event removed its last member of KIP-848.

    Call it after leave and expire; consumer_heartbeat and join do it themselves.
    """
    if not group.wants_downgrade or not may_downgrade(group):
        return outcome, group
    downgraded, classic = downgrade(group, now)
    return merged(outcome, downgraded), classic


def merged(first: Outcome, second: Outcome) -> Outcome:
    """Merges two outcomes of one event: stored together or not at all."""
    return Outcome(
        first.replies + second.replies,
        _merged_effects(first.effects, second.effects),
        first.notes + second.notes,
    )


def _merged_effects(first: GroupEffects | None, second: GroupEffects | None) -> GroupEffects | None:
    if first is None or second is None:
        return first or second
    put = {row.member_id: row for row in first.put_members + second.put_members}
    deleted = dict.fromkeys(first.delete_members)
    for member_id in second.delete_members:
        put.pop(member_id, None)
        deleted[member_id] = None
    for row in second.put_members:
        deleted.pop(row.member_id, None)
    return GroupEffects(
        first.group_id,
        second.group or first.group,
        tuple(put.values()),
        tuple(deleted),
        lazy=first.lazy and second.lazy,
    )


# --- classic to consumer ---

# In a cooperative-sticky group, librdkafka's leader sends each member that member's own data back
# (generation, partitions): nothing is lost when the server assigns. Kafka 4.1 takes it for a custom
# assignor's data and refuses the upgrade, which is fatal for the client that asked for it.
_STICKY: Final = frozenset({"cooperative-sticky", "sticky"})


def _joined_group(
    group_id: str,
    group: ClassicGroup | None,
    request: ConsumerHeartbeat,
    topics: Topics,
    resolve: Resolve,
    settings: GroupSettings,
    now: Instant,
) -> ConsumerGroup | Refusal:
    """The consumer group for a heartbeat, made or converted; only a joining one does that."""
    if group is None:
        if request.member_epoch == JOIN_EPOCH:
            return ConsumerGroup.create(group_id, settings, now)
        what = "Group" if request.member_epoch < JOIN_EPOCH else "Consumer group"
        return Refusal(Error.GROUP_ID_NOT_FOUND, f"{what} {group_id} not found.")
    if request.member_epoch != JOIN_EPOCH:
        return Refusal(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    if group.is_empty:
        return ConsumerGroup.create(group_id, settings, now, epoch=group.generation_id)
    return upgrade_refusal(group) or upgrade(group, topics, resolve, now)


def upgrade_refusal(group: ClassicGroup) -> Refusal | None:
    """Why a classic group with members may not become a consumer group, as far as is known."""
    if not group.settings.upgrade_allowed:
        return _no_upgrade(group, "online upgrade is disabled")
    if group.protocol_type != PROTOCOL_TYPE:
        return _no_upgrade(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > group.settings.consumer_max_size:
        return _no_upgrade(group, "the group size exceeds the consumer group maximum size")
    return None


def _no_upgrade(group: ClassicGroup, why: str) -> Refusal:
    return Refusal(
        Error.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {why}.",
    )


def upgrade(
    group: ClassicGroup, topics: Topics, resolve: Resolve, now: Instant
) -> ConsumerGroup | Refusal:
    """A classic group as a consumer group; its generation becomes the epoch.

    Changes nothing: the classic group stays until a member has joined the consumer group.
    """
    parsed: dict[str, tuple[Subscription, Assignment]] = {}
    for member in group.members.values():
        said = _parsed(group, member)
        if isinstance(said, str):
            return _no_upgrade(group, said)
        parsed[member.member_id] = said
    held = _holdings(parsed, topics, resolve)
    generation = group.generation_id
    current = group.stored()
    rows = []
    for row in current.members:
        subscription, _assignment = parsed[row.member_id]
        assigned, revoking = held[row.member_id]
        rows.append(
            replace(
                row,
                rack_id=subscription.rack_id,
                assignment=b"",
                member_epoch=generation,
                previous_member_epoch=generation,
                state=UNREVOKED_PARTITIONS if revoking else STABLE,
                subscribed_topic_names=tuple(sorted(set(subscription.topics))),
                assigned=assigned,
                revoking=revoking,
                target=assigned,
            )
        )
    upgraded = GroupRow(
        group.group_id,
        CONSUMER,
        PROTOCOL_TYPE,
        generation_id=generation,
        assignment_epoch=generation,
        state_timestamp=now.timestamp_ms,
        # A static member may join with the same subscription as its predecessor; even then the
        # server has to compute the target.
        metadata_hash=OTHER_TOPICS_HASH,
    )
    return ConsumerGroup(
        StoredGroup(upgraded, tuple(rows)), group.settings, now, in_store=group.in_store()
    )


def _parsed(group: ClassicGroup, member: ClassicMember) -> tuple[Subscription, Assignment] | str:
    """A member's subscription and assignment, or why they are unreadable."""
    protocol_name = group.protocol_name or member.protocols[0].name
    subscription = parse_subscription(member.metadata(protocol_name))
    assignment = parse_assignment(member.assignment) if member.assignment else Assignment(0)
    if isinstance(subscription, Malformed) or isinstance(assignment, Malformed):
        return "the embedded consumer protocol is malformed"
    if assignment.user_data and protocol_name not in _STICKY:
        # A custom assignor's data for its members would be lost.
        return (
            "an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade"
        )
    return subscription, assignment


def _holdings(
    parsed: Mapping[str, tuple[Subscription, Assignment]], topics: Topics, resolve: Resolve
) -> dict[str, tuple[Partitions, Partitions]]:
    """Each member's partitions, and those it still has to give back. No partition is in two.

    A cooperative member that does not know its last assignment yet may own more than that. If it
    owned a partition when it joined, and no member got it, it counts as revoked only when the
    member says so. (Kafka looks only at the assignment.)
    """
    picture = SubscribedTopics()
    picture.show(topics, resolve)
    taken: set[tuple[str, int]] = set()

    def take(partitions: Partitions) -> dict[str, tuple[int, ...]]:
        got = {}
        for topic_id, each in partitions.items():
            free = tuple(p for p in each if (topic_id, p) not in taken)
            taken.update((topic_id, p) for p in free)
            if free:
                got[topic_id] = free
        return got

    assigned = {
        member_id: take(picture.by_id(assignment.partitions))
        for member_id, (_subscription, assignment) in parsed.items()
    }
    return {
        member_id: (assigned[member_id], take(picture.by_id(subscription.owned_partitions)))
        for member_id, (subscription, _assignment) in parsed.items()
    }


# --- consumer to classic ---


def may_downgrade(group: ConsumerGroup) -> bool:
    """Whether a group of classic members only may become a classic group."""
    return group.settings.downgrade_allowed and len(group.roster.members) <= group.settings.max_size


def downgrade(group: ConsumerGroup, now: Instant) -> tuple[Outcome, ClassicGroup]:
    """A consumer group of classic members as a classic group.

    Its generation is the epoch that its members have reached. So they stay, and are asked to join
    again by REBALANCE_IN_PROGRESS rather than removed by ILLEGAL_GENERATION. If all of them have
    their target, none needs to join.
    """
    members = group.roster.members.values()
    generation = max(row.member_epoch for row in members)
    draft = StoredGroup(
        GroupRow(
            group.group_id,
            CLASSIC,
            PROTOCOL_TYPE,
            generation_id=max(generation, 1),
            state="Stable",
            state_timestamp=now.timestamp_ms,
        ),
        tuple(_classic_row(group, row) for row in members),
    )
    # The classic group chooses its protocol and its leader.
    stored = ClassicGroup.load(draft, group.settings, now).stored()
    classic = ClassicGroup.load(stored, group.settings, now)
    outcome = Outcome(
        effects=GroupEffects(group.group_id, group=stored.group, put_members=stored.members),
        notes=(("group_downgraded", {"generation": generation, "members": len(members)}),),
    )
    if group.group_epoch == generation and all(is_reconciled(row, generation) for row in members):
        return outcome, classic
    reason = f"Downgrade group {group.group_id} from consumer to classic."
    return merged(outcome, classic.prepare_rebalance(reason, now)), classic


def _classic_row(group: ConsumerGroup, row: MemberRow) -> MemberRow:
    """Partitions it still has to give back count as assigned: no other member may get them yet."""
    subscription = parse_subscription(row.protocols[0][1])
    version = 0 if isinstance(subscription, Malformed) else subscription.version
    held = group.roster.subscribed.by_name(union(row.assigned, row.revoking))
    return MemberRow(
        row.member_id,
        CLASSIC,
        group_instance_id=row.group_instance_id,
        client_id=row.client_id,
        client_host=row.client_host,
        session_timeout_ms=row.session_timeout_ms,
        rebalance_timeout_ms=row.rebalance_timeout_ms,
        protocols=row.protocols,
        assignment=encode_assignment(Assignment(version, held)),
        subscribed_topic_names=row.subscribed_topic_names,
        assigned=held,
    )
