"""ConsumerGroupHeartbeat: joining, going on, leaving; and Kafka's sentences for what is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.kafka.codec import ConsumerGroupHeartbeatRequest
from tests.captures import group_requests
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.grouping import (
    consumer,
    consumer_heartbeat_request,
    heartbeat,
    joined,
    stable,
    subject,
    topic_of,
)
from tests.gateway.kafka.handlers.producing import create
from tests.kafka_codes import Code

Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


def going_on(epoch: int, **fields: Any) -> Any:
    """The short heartbeat of a member: nothing has changed."""
    nothing = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    return consumer_heartbeat_request(member_epoch=epoch, **{**nothing, **fields})


def assigned(answer: Any) -> dict[Any, list[int]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", range(2))
async def test_a_member_alone_gets_everything(group_broker: Broker, version: int) -> None:
    topic = await topic_of(group_broker)
    request = consumer_heartbeat_request(member_id="m" if version else "")
    answer = await group_broker.ask(request, version)
    assert (answer.error_code, answer.error_message) == (Code.NONE, None)
    assert answer.member_epoch == 1
    assert answer.heartbeat_interval_ms == 5_000
    assert assigned(answer) == {topic.topic_id: [0, 1]}
    if version:
        assert answer.member_id == "m"
    else:  # made here, as Kafka's Uuid is written
        assert re.fullmatch(r"[\w][\w-]{21}", answer.member_id)


async def test_member_goes_on_leaves_and_is_forgotten(group_broker: Broker) -> None:
    topic = await topic_of(group_broker)
    member = await consumer(group_broker)
    owned = [Owned(topic_id=topic.topic_id, partitions=[1, 0])]
    for request in (going_on(1), going_on(1, topic_partitions=owned), going_on(1)):
        answer = await group_broker.ask(request, 1)
        assert (answer.error_code, answer.member_epoch) == (Code.NONE, member.generation)
        assert assigned(answer) is None, "nothing has changed"
    left = await group_broker.ask(going_on(-1), 1)
    assert (left.error_code, left.member_epoch) == (Code.NONE, -1)
    gone = await group_broker.ask(going_on(1), 1)
    assert gone.error_code == Code.UNKNOWN_MEMBER_ID


async def test_regular_expression_subscribes_to_matching_topics(group_broker: Broker) -> None:
    topics = [await create(group_broker, name) for name in ("logs-a", "logs-b", "other")]
    request = consumer_heartbeat_request(
        subscribed_topic_names=None, subscribed_topic_regex="logs-.*"
    )
    answer = await group_broker.ask(request, 1)
    for _ in range(100):  # it may be evaluated behind the first answer, as in Kafka
        if assigned(answer):
            break
        request = going_on(answer.member_epoch, topic_partitions=[])
        answer = await group_broker.ask(request, 1)
    assert answer.error_code == Code.NONE
    assert assigned(answer) == {each.topic_id: [0] for each in topics[:2]}


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"group": ""}, Code.INVALID_REQUEST, "GroupId can't be empty."),
        ({"member_id": ""}, Code.INVALID_REQUEST, "MemberId can't be empty."),
        ({"instance_id": ""}, Code.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, Code.INVALID_REQUEST, "RackId can't be empty."),
        (
            {"rebalance_timeout_ms": -1},
            Code.INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {"topic_partitions": None},
            Code.INVALID_REQUEST,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            Code.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
        ({"member_epoch": -3}, Code.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, Code.INVALID_REQUEST, "InstanceId can't be null."),
        (
            {"server_assignor": "nope"},
            Code.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor nope is not supported. Supported assignors: uniform, range.",
        ),
        ({"member_epoch": 5}, Code.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
        ({"member_epoch": -1}, Code.GROUP_ID_NOT_FOUND, "Group g not found."),
    ],
)
async def test_invalid_request_is_refused_with_kafkas_message(
    group_broker: Broker, fields: dict[str, Any], code: Code, message: str
) -> None:
    await topic_of(group_broker)
    answer = await group_broker.ask(consumer_heartbeat_request(**fields), 1)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
    assert answer.heartbeat_interval_ms == 0


async def test_broken_regular_expression_is_refused(group_broker: Broker) -> None:
    request = consumer_heartbeat_request(subscribed_topic_names=None, subscribed_topic_regex="(")
    answer = await group_broker.ask(request, 1)
    assert answer.error_code == Code.INVALID_REGULAR_EXPRESSION
    says = "SubscribedTopicRegex `(` is not a valid regular expression: missing )"
    assert answer.error_message.startswith(says)


async def test_a_member_of_version_0_needs_its_id_once_it_has_one(group_broker: Broker) -> None:
    await topic_of(group_broker)
    answer = await group_broker.ask(going_on(1, member_id=""), 0)
    assert (answer.error_code, answer.error_message) == (
        Code.INVALID_REQUEST,
        "MemberId can't be empty.",
    )


async def test_future_epoch_and_unknown_member_are_fenced(group_broker: Broker) -> None:
    await topic_of(group_broker)
    await consumer(group_broker)
    ahead = await group_broker.ask(going_on(7), 1)
    assert ahead.error_code == Code.FENCED_MEMBER_EPOCH
    stranger = await group_broker.ask(going_on(1, member_id="x"), 1)
    assert stranger.error_code == Code.UNKNOWN_MEMBER_ID


async def test_names_of_any_character(group_broker: Broker) -> None:
    topic = await topic_of(group_broker)
    request = consumer_heartbeat_request(
        group="ü" * 16_000,
        member_id="m\0",
        instance_id="i\0␀",
        rack_id="r\0",
        subscribed_topic_names=["t", "no\0topic"],
    )
    answer = await group_broker.ask(request, 1, client_id="c\0")
    assert (answer.error_code, answer.member_id) == (Code.NONE, "m\0")
    assert assigned(answer) == {topic.topic_id: [0, 1]}


async def test_a_classic_group_is_taken_over(group_broker: Broker) -> None:
    topic = await topic_of(group_broker)
    classic = await joined(group_broker)
    everything = group_requests.sync(subject(topic), classic.member_id, classic.generation)
    assert (await group_broker.ask(everything, 3)).error_code == Code.NONE
    answer = await group_broker.ask(consumer_heartbeat_request(), 1)
    assert (answer.error_code, answer.member_epoch) == (Code.NONE, 2)
    assert assigned(answer) == {}, "the other member has everything still"
    assert await heartbeat(group_broker, classic) == Code.REBALANCE_IN_PROGRESS


async def test_classic_group_with_unreadable_assignment_is_not_taken_over(
    group_broker: Broker,
) -> None:
    await topic_of(group_broker)
    await stable(group_broker)  # its assignment is of no consumer's making
    answer = await group_broker.ask(consumer_heartbeat_request(), 1)
    assert answer.error_code == Code.GROUP_ID_NOT_FOUND


async def test_disabled_protocol_is_refused(make_broker: MakeBroker) -> None:
    broker = await make_broker({"group.coordinator.rebalance.protocols": "classic"})
    answer = await broker.ask(consumer_heartbeat_request(), 1)
    assert answer.error_code == Code.UNSUPPORTED_VERSION
