"""Checks of ConsumerGroupHeartbeat that need no group (Kafka's GroupCoordinatorService).

The sentences are Kafka's: clients show them to people. Knows no group.
"""

from collections.abc import Sequence

from core.errors import Error, Refusal
from core.group.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from core.group.values import ConsumerHeartbeat


def heartbeat_refusal(request: ConsumerHeartbeat, assignors: Sequence[str]) -> Refusal | None:
    """Why the request is invalid, or None.

    The member id is always set: before v1 the caller makes one for a member without.
    """
    for value, name in (
        (request.member_id, "MemberId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            return _invalid(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if refusal := _join_refusal(request):
            return refusal
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            return _invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        return _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return Refusal(
            Error.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    return None


def _join_refusal(request: ConsumerHeartbeat) -> Refusal | None:
    if request.rebalance_timeout_ms == -1:
        return _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        return _invalid("TopicPartitions must be empty when (re-)joining.")
    # No topics at all are fine: such a member is in the group and gets nothing.
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )
    return None


def tells_all(request: ConsumerHeartbeat) -> bool:
    """Whether the heartbeat is complete: its answer then has the whole assignment.

    A member sends a complete one when it (re)joins, and after any error.
    """
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and request.owned is not None
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
    )


def _invalid(message: str) -> Refusal:
    return Refusal(Error.INVALID_REQUEST, message)
