"""ConsumerGroupDescribe (key 69): consumer groups with their members and assignments (KIP-848).

Behavior: topics that are gone are left out of assignments. A classic group is GROUP_ID_NOT_FOUND.

Versions: v1 tells which members speak the classic protocol (KIP-1099).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import UUID

from core.errors import Error, Refusal
from core.group.records import Partitions
from core.group.values import DescribedConsumer, DescribedConsumerGroup
from core.security.acls import ResourceType
from core.security.operations import REQUIREMENTS
from core.topic.topic import Topic
from gateway.kafka.acl_codes import NOT_ASKED
from gateway.kafka.api import api
from gateway.kafka.codec import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import COORDINATOR_AWAY

_Group = ConsumerGroupDescribeResponse.DescribedGroup
_Member = _Group.Member
_Assignment = _Member.Assignment
_CLASSIC, _CONSUMER = 0, 1  # member types
_NO_GROUP_ID: Final = Refusal(Error.INVALID_GROUP_ID)
_DESCRIBE, _DESCRIBE_TOPIC = REQUIREMENTS["ConsumerGroupDescribe"]

Topics = Mapping[str, Topic]


def _unavailable(
    request: ConsumerGroupDescribeRequest, ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[_refused(group_id, COORDINATOR_AWAY) for group_id in request.group_ids]
    )


@api(69, versions=range(2), unavailable=_unavailable)
async def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, ctx: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe each group."""
    if not ctx.configs.offers_group_protocol("consumer"):
        refusal = Refusal(Error.UNSUPPORTED_VERSION)
        return ConsumerGroupDescribeResponse(
            groups=[_refused(group_id, refusal) for group_id in request.group_ids]
        )
    found = [await _find(group_id, ctx) for group_id in request.group_ids]
    topics = await _topics_of(found, ctx)
    # Each of them once, so that the log has one line for each.
    hidden = {key for key, each in topics.items() if not ctx.may(_DESCRIBE_TOPIC, each.name)}
    found = [_no_topic_of(hidden, each) for each in found]
    return ConsumerGroupDescribeResponse(
        groups=[
            _refused(group_id, each)
            if isinstance(each, Refusal)
            else _group(group_id, each, topics, _operations(group_id, request, ctx))
            for group_id, each in zip(request.group_ids, found, strict=True)
        ]
    )


async def _find(group_id: str, ctx: RequestContext) -> DescribedConsumerGroup | Refusal:
    if not ctx.may(_DESCRIBE, group_id):
        return Refusal(Error.GROUP_AUTHORIZATION_FAILED)
    return await ctx.groups.describe_consumer(group_id) if group_id else _NO_GROUP_ID


def _no_topic_of(
    hidden: Collection[str], found: DescribedConsumerGroup | Refusal
) -> DescribedConsumerGroup | Refusal:
    """Refused as a whole where a member has, or will have, a topic that is hidden."""
    if isinstance(found, Refusal) or not any(
        topic_id in hidden for each in found.members for topic_id in (*each.assigned, *each.target)
    ):
        return found
    return Refusal(
        Error.TOPIC_AUTHORIZATION_FAILED,
        "The group has described topic(s) that the client is not authorized to describe.",
    )


def _operations(group_id: str, request: ConsumerGroupDescribeRequest, ctx: RequestContext) -> int:
    if not request.include_authorized_operations:
        return NOT_ASKED
    return ctx.authorized_operations(ResourceType.GROUP, group_id)


async def _topics_of(found: list[DescribedConsumerGroup | Refusal], ctx: RequestContext) -> Topics:
    ids = {
        UUID(topic_id)
        for group in found
        if not isinstance(group, Refusal)
        for member in group.members
        for topic_id in (*member.assigned, *member.target)
    }
    topics = await ctx.topics.get_many_by_id(ids)
    return {str(topic_id): topic for topic_id, topic in topics.items()}


def _group(group_id: str, group: DescribedConsumerGroup, topics: Topics, operations: int) -> Any:
    return _Group(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(each, topics) for each in group.members],
        authorized_operations=operations,
    )


def _member(member: DescribedConsumer, topics: Topics) -> Any:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client.client_id,
        client_host=member.client.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        # Kafka 4.1 says "" where there is none, whatever the schema says of null
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(member.target, topics),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(partitions: Partitions, topics: Topics) -> Any:
    return _Assignment(
        topic_partitions=[
            _Assignment.TopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.name, partitions=list(numbers)
            )
            for topic_id, numbers in partitions.items()
            if (topic := topics.get(topic_id))
        ]
    )


def _refused(group_id: str, refusal: Refusal) -> Any:
    return _Group(
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
        authorized_operations=NOT_ASKED,
    )
