"""Who lacks a right: each API asked as stock clients ask it, with what the one table says it needs.

Made from the table and the captures: without any right, with every right, and with all but one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pytest

from core.errors import Error
from core.security.acl_changes import AclBindingFilter
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from core.security.operations import REQUIREMENTS, Requirement, Without
from core.security.principal import Principal
from gateway.kafka import codec
from gateway.kafka.api import CLOSE_CONNECTION, LastResponse, load_handlers
from gateway.kafka.errors import kafka_code
from tests.batches import kafka_batch
from tests.captures import record
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.grouping import (
    commit,
    committed,
    consumer_heartbeat_request,
    errors_of,
    stable,
)
from tests.gateway.kafka.handlers.producing import create, produce, produce_request
from tests.gateway.kafka.handlers.staging import drop, publish, stage
from tests.gateway.kafka.handlers.transacting import describe, producer_of

ALICE = Principal("alice")
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
_ERRORS: Final = {
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.GROUP_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Error.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
CODES: Final = {kafka_code(each): each for each in _ERRORS}
# Those after it name topics by ids that nobody here has.
_LAST_BY_NAME: Final = {
    "DeleteTopics": 5,
    "Fetch": 6,  # and before sessions
    "Metadata": 11,
    "OffsetCommit": 9,
    "OffsetFetch": 9,
    "Produce": 12,
}
ASKING: Final = sorted(name for name, row in REQUIREMENTS.items() if row)
SERVED: Final = {each.name: each for each in load_handlers().table()}

# What the captured request does not bring with it: the tests below try each.
NOT_IN_THE_CAPTURE: Final = {
    ("AlterConfigs", 0),  # it is about topics only
    ("CreateDelegationToken", 0),  # it is for who asks; test_delegation_tokens.py
    ("DeleteTopics", 1),  # the topic is not there
    ("DescribeConfigs", 0),
    ("DropStaged", 0),  # its token holds nothing
    ("IncrementalAlterConfigs", 0),
    ("InitProducerId", 1),  # it has a transactional id
    ("Metadata", 2),  # nothing is to be made
    ("OffsetDelete", 1),  # the group is not there, which is said first
    ("Produce", 0),  # its batch is not transactional
    ("PublishStaged", 0),
    ("AddPartitionsToTxn", 0),  # its last version is the brokers'
    ("AddPartitionsToTxn", 1),
    ("ConsumerGroupDescribe", 1),  # nobody is in the group
    ("DescribeConfigs", 2),
    ("Fetch", 1),  # it is no replica
    ("FindCoordinator", 1),
    ("IncrementalAlterConfigs", 2),
    ("AlterConfigs", 2),
}


# They ask for nothing with their captured request.
BY_OTHERS: Final = {"CreateDelegationToken", "DropStaged"}


def request_of(name: str) -> tuple[Any, int]:
    """The captured request of the highest version, and that version."""
    served = SERVED[name]
    version = _LAST_BY_NAME.get(name, served.versions[-1])
    frame = memoryview((record.folder_of(served.key) / f"v{version}_request.bin").read_bytes())
    header = codec.decode_header(frame)
    return codec.decode_body(header, frame), version


def codes(value: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(value, dict):
        for key, each in value.items():
            if (
                key.endswith("error_code")
                and key != "topic_config_error_code"
                and isinstance(each, int)
            ):
                yield each
            yield from codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from codes(each)


async def refusals(broker: Broker, name: str) -> set[Error]:
    """By which the captured request was refused for lack of a right."""
    request, version = request_of(name)
    answer = await broker.handle(request, version, "tester")
    if isinstance(answer, LastResponse):
        answer = answer.response
    assert answer is not CLOSE_CONNECTION
    return {CODES[each] for each in codes(record.described(answer)) if each in CODES}


def binding(
    operation: Operation,
    kind: ResourceType,
    permission: Permission = Permission.ALLOW,
    name: str = "*",
) -> AclBinding:
    if kind is ResourceType.CLUSTER:
        name = "kafka-cluster"
    return AclBinding(kind, name, PatternType.LITERAL, str(ALICE), "*", operation, permission)


async def grant(broker: Broker, *bindings: AclBinding) -> None:
    answers = await broker.acls.create(bindings, principal=ALICE, peer="here")
    assert answers == [None] * len(bindings)


@pytest.fixture
async def broker(make_broker: MakeBroker) -> AsyncIterator[Broker]:
    made = (await make_broker(AUTHORIZER)).with_log()
    await made.with_groups()
    await made.acls.load()
    made.principal = ALICE
    yield made
    await made.groups.close()
    await made.close_log()


def told(row: tuple[Requirement, ...]) -> list[tuple[int, Requirement]]:
    return [(n, each) for n, each in enumerate(row) if each.without is not Without.LEFT_OUT]


def test_every_api_has_a_row_and_every_row_an_api() -> None:
    assert set(REQUIREMENTS) == set(SERVED)


@pytest.mark.parametrize(
    "name", [each for each in ASKING if told(REQUIREMENTS[each]) and each not in BY_OTHERS]
)
async def test_without_any_right(broker: Broker, name: str) -> None:
    found = await refusals(broker, name)
    errors = {each.error for _, each in told(REQUIREMENTS[name])}
    assert found and found <= errors
    assert {api for api, _ in broker.refused} == {name}


@pytest.mark.parametrize("name", ASKING)
async def test_with_every_right(broker: Broker, name: str) -> None:
    await grant(broker, *(binding(Operation.ALL, each) for each in list(ResourceType)[2:]))
    assert await refusals(broker, name) == set()
    assert broker.refused == []


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, number)
        for name in ASKING
        for number, _ in told(REQUIREMENTS[name])
        if (name, number) not in NOT_IN_THE_CAPTURE
    ],
)
async def test_with_all_rights_but_one(broker: Broker, name: str, number: int) -> None:
    """Taken away by a DENY, in whichever way it could be had."""
    await grant(broker, *(binding(Operation.ALL, each) for each in list(ResourceType)[2:]))
    requirement = REQUIREMENTS[name][number]
    for right in requirement.rights:
        await grant(broker, binding(right.operation, right.resource_type, Permission.DENY))
    assert requirement.error in await refusals(broker, name)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, number)
        for name in ASKING
        for number, each in told(REQUIREMENTS[name])
        if len(told(REQUIREMENTS[name])) == 1 and (name, number) not in NOT_IN_THE_CAPTURE
    ],
)
async def test_with_the_one_right_that_it_takes(broker: Broker, name: str, number: int) -> None:
    """Each way of having it, alone, is enough."""
    for right in REQUIREMENTS[name][number].rights:
        made = binding(right.operation, right.resource_type)
        await grant(broker, made)
        assert await refusals(broker, name) == set(), right
        broker.refused.clear()
        [gone] = await broker.acls.delete([_exactly(made)], principal=ALICE, peer="here")
        assert gone == [made]
        assert await refusals(broker, name) != set()


def _exactly(made: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        made.resource_type,
        made.name,
        made.pattern_type,
        made.principal,
        made.host,
        made.operation,
        made.permission,
    )


# What the captures do not bring with them.

NO_TOPIC = kafka_code(Error.TOPIC_AUTHORIZATION_FAILED)
NO_ID = kafka_code(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
NO_CLUSTER = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)


async def with_topics(broker: Broker, *names: str) -> None:
    for name in names:
        await create(broker, name)


def metadata(names: list[str] | None, **more: Any) -> Any:
    Topic = codec.MetadataRequest.MetadataRequestTopic
    topics = None if names is None else [Topic(topic_id=None, name=each) for each in names]
    return codec.MetadataRequest(topics=topics, **more)


async def test_a_name_is_not_given_away(broker: Broker) -> None:
    """Whether it exists or not, by each API that tells of topics."""
    await with_topics(broker, "there", "mine")
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.TOPIC, name="mine"))
    answer = await broker.ask(metadata(["there", "nowhere", "mine"]), 12)
    seen = {each.name: (each.error_code, each.topic_id, each.is_internal) for each in answer.topics}
    assert seen["there"] == seen["nowhere"] == (NO_TOPIC, None, False)
    assert seen["mine"][0] == 0
    assert [each.name for each in (await broker.ask(metadata(None), 12)).topics] == ["mine"]
    there = (await broker.topics.get("there")).topic_id
    Topic = codec.MetadataRequest.MetadataRequestTopic
    by_id = await broker.ask(codec.MetadataRequest(topics=[Topic(topic_id=there, name=None)]), 12)
    assert [(each.error_code, each.name) for each in by_id.topics] == [(NO_TOPIC, None)]
    Asked = codec.DescribeTopicPartitionsRequest.TopicRequest
    pages = await broker.ask(
        codec.DescribeTopicPartitionsRequest(
            topics=[Asked(name=each) for each in ("there", "nowhere", "mine")],
            response_partition_limit=10,
            cursor=None,
        ),
        0,
    )
    seen = {each.name: (each.error_code, each.topic_id) for each in pages.topics}
    assert seen["there"] == seen["nowhere"] == (NO_TOPIC, None)
    deleted = await broker.ask(codec.DeleteTopicsRequest(topic_names=["there", "nowhere"]), 5)
    assert {each.error_code for each in deleted.responses} == {NO_TOPIC}
    assert await broker.topics.get("there") is not None


async def test_a_topic_that_one_may_see_is_not_one_that_one_may_delete(broker: Broker) -> None:
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.TOPIC))
    deleted = await broker.ask(codec.DeleteTopicsRequest(topic_names=["flights", "nowhere"]), 5)
    assert {each.name: each.error_code for each in deleted.responses} == {
        "flights": NO_TOPIC,
        "nowhere": kafka_code(Error.UNKNOWN_TOPIC_OR_PARTITION),
    }
    topic_id = (await broker.topics.get("flights")).topic_id
    State = codec.DeleteTopicsRequest.DeleteTopicState
    by_id = codec.DeleteTopicsRequest(topics=[State(name=None, topic_id=topic_id)])
    [each] = (await broker.ask(by_id, 6)).responses
    assert (each.error_code, each.name) == (NO_TOPIC, "flights")
    broker.principal = Principal("bob")
    [each] = (await broker.ask(by_id, 6)).responses
    assert (each.error_code, each.name) == (NO_TOPIC, None)


async def test_a_topic_is_made_by_those_only_who_may(broker: Broker) -> None:
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.TOPIC))
    [each] = (await broker.ask(metadata(["new"], allow_auto_topic_creation=True), 12)).topics
    assert each.error_code == NO_TOPIC
    assert await broker.topics.get("new") is None
    await grant(broker, binding(Operation.CREATE, ResourceType.TOPIC, name="new"))
    [each] = (await broker.ask(metadata(["new"], allow_auto_topic_creation=True), 12)).topics
    assert each.error_code == 0


async def test_authorized_operations_tell_the_truth(broker: Broker) -> None:
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.READ, ResourceType.TOPIC))
    asked = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = await broker.ask(metadata(["flights"], **asked), 8)
    [topic] = answer.topics
    assert topic.authorized_operations == 1 << 3 | 1 << 8  # READ, and so DESCRIBE
    assert answer.authorized_operations == 0
    await grant(broker, binding(Operation.ALTER, ResourceType.CLUSTER))
    answer = await broker.ask(metadata(["flights"], **asked), 8)
    assert answer.authorized_operations == 1 << 7 | 1 << 8


async def test_settings_of_a_broker_are_the_clusters(broker: Broker) -> None:
    Asked = codec.DescribeConfigsRequest.DescribeConfigsResource
    request = codec.DescribeConfigsRequest(
        resources=[
            Asked(resource_type=4, resource_name="1", configuration_keys=None),
            Asked(resource_type=2, resource_name="flights", configuration_keys=None),
        ]
    )
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.ALTER_CONFIGS, ResourceType.TOPIC))
    answers = (await broker.ask(request, 4)).results
    assert [each.error_code for each in answers] == [NO_CLUSTER, 0]
    assert (answers[0].error_message, answers[0].configs) == ("Cluster authorization failed.", [])


@pytest.mark.parametrize("operation", [Operation.IDEMPOTENT_WRITE, Operation.WRITE])
async def test_an_idempotent_producer_needs_one_of_two(
    broker: Broker, operation: Operation
) -> None:
    request = codec.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    assert (await broker.ask(request, 4)).error_code == NO_CLUSTER
    kind = ResourceType.TOPIC if operation is Operation.WRITE else ResourceType.CLUSTER
    await grant(broker, binding(operation, kind, name="any"))
    assert (await broker.ask(request, 4)).error_code == 0


async def test_what_is_in_a_transaction_needs_the_id(broker: Broker) -> None:
    """Also without one in the request (CVE-2018-17196)."""
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.WRITE, ResourceType.TOPIC))
    batch = kafka_batch(producer=7, epoch=0, sequence=0, transactional=True)
    request = produce_request({0: batch}, name="flights")
    for name in (None, "payments"):
        request.transactional_id = name
        [topic] = (await broker.ask(request, 9)).responses
        assert [each.error_code for each in topic.partition_responses] == [NO_ID]
    assert (await produce(broker, kafka_batch(), name="flights")).error_code == 0


async def test_who_says_that_it_is_a_replica(broker: Broker) -> None:
    """CVE-2018-1288."""
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.READ, ResourceType.TOPIC))
    request = fetch_request({0: 0}, topic="flights")
    answer = await broker.ask(request, 6)
    assert answer.responses[0].partitions[0].error_code == 0
    request.replica_id = 1
    answer = await broker.ask(request, 6)
    assert answer.responses[0].partitions[0].error_code == NO_TOPIC


async def test_a_right_that_goes_during_a_long_poll(broker: Broker) -> None:
    """What was stored meanwhile is not given away."""
    await with_topics(broker, "flights")
    reading = binding(Operation.READ, ResourceType.TOPIC)
    await grant(broker, reading, binding(Operation.WRITE, ResourceType.TOPIC))
    waiting = asyncio.ensure_future(
        broker.ask(fetch_request({0: 0}, topic="flights", wait_ms=60_000), 6)
    )
    await asyncio.sleep(0.1)
    await broker.acls.delete([_exactly(reading)], principal=ALICE, peer="here")
    await produce(broker, kafka_batch(), name="flights")
    answer = await asyncio.wait_for(waiting, 20)
    [found] = answer.responses[0].partitions
    assert (found.error_code, bytes(found.records)) == (NO_TOPIC, b"")
    assert broker.refused == [("Fetch", "READ")]


async def everything(broker: Broker, but: AclBinding) -> None:
    """All rights, and one of them taken away."""
    await grant(broker, *(binding(Operation.ALL, each) for each in list(ResourceType)[2:]))
    await grant(broker, but)


async def test_a_fetch_by_id_is_refused_in_one_line(broker: Broker) -> None:
    topic = await create(broker, "flights", 2)
    answer = await broker.ask(fetch_request({0: 0, 1: 0}, topic=topic.topic_id), 13)
    [found] = answer.responses
    assert [each.error_code for each in found.partitions] == [NO_TOPIC, NO_TOPIC]
    assert broker.refused == [("Fetch", "READ")]


@pytest.mark.parametrize("kind", [ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC])
async def test_a_client_adds_what_it_may_write_to(broker: Broker, kind: ResourceType) -> None:
    """AddPartitionsToTxn as clients send it."""
    await with_topics(broker, "flights", "other")
    await grant(broker, binding(Operation.WRITE, ResourceType.TRANSACTIONAL_ID))
    await grant(broker, binding(Operation.WRITE, ResourceType.TOPIC))
    producer = await producer_of(broker)
    name = "flights" if kind is ResourceType.TOPIC else "*"
    await grant(broker, binding(Operation.WRITE, kind, Permission.DENY, name))
    found = await producer.add({"flights": (0,), "other": (0,)})
    if kind is ResourceType.TOPIC:
        skipped = kafka_code(Error.OPERATION_NOT_ATTEMPTED)
        assert found == {"flights": [NO_TOPIC], "other": [skipped]}
    else:
        assert found == {"flights": [NO_ID], "other": [NO_ID]}


@pytest.mark.parametrize("kind", [2, 4, 32])
async def test_settings_of_each_kind_have_their_right(broker: Broker, kind: int) -> None:
    """DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: topic, broker, group."""
    resource, name, error = {
        2: (ResourceType.TOPIC, "flights", Error.TOPIC_AUTHORIZATION_FAILED),
        4: (ResourceType.CLUSTER, "1", Error.CLUSTER_AUTHORIZATION_FAILED),
        32: (ResourceType.GROUP, "g", Error.GROUP_AUTHORIZATION_FAILED),
    }[kind]
    await with_topics(broker, "flights")
    await everything(broker, binding(Operation.ALTER_CONFIGS, resource, Permission.DENY))
    named = {"resource_type": kind, "resource_name": name}
    for request in (codec.AlterConfigsRequest, codec.IncrementalAlterConfigsRequest):
        changed = request.AlterConfigsResource(**named, configs=[])
        answer = await broker.ask(request(resources=[changed], validate_only=True), 1)
        assert [each.error_code for each in answer.responses] == [kafka_code(error)]
    await grant(broker, binding(Operation.DESCRIBE_CONFIGS, resource, Permission.DENY))
    asked = codec.DescribeConfigsRequest.DescribeConfigsResource(**named, configuration_keys=None)
    answer = await broker.ask(codec.DescribeConfigsRequest(resources=[asked]), 4)
    assert [each.error_code for each in answer.results] == [kafka_code(error)]


async def test_a_transactional_id_has_no_coordinator_for_strangers(broker: Broker) -> None:
    await everything(
        broker, binding(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, Permission.DENY)
    )
    request = codec.FindCoordinatorRequest(key_type=1, coordinator_keys=["payments"])
    [found] = (await broker.ask(request, 4)).coordinators
    assert (found.error_code, found.node_id) == (NO_ID, -1)


async def test_what_is_staged_is_published_and_dropped_by_who_may_write(broker: Broker) -> None:
    await with_topics(broker, "mine", "theirs")
    everywhere = binding(Operation.WRITE, ResourceType.TOPIC)
    await grant(broker, everywhere)
    mine, theirs = uuid4(), uuid4()
    for token, topic in ((mine, "mine"), (theirs, "theirs")):
        assert (await stage(broker, token, (topic, 0, kafka_batch()))).error_code == 0
    await broker.acls.delete([_exactly(everywhere)], principal=ALICE, peer="here")
    assert (await publish(broker, [])).error_code == NO_TOPIC  # it would move a query's guard
    await grant(broker, binding(Operation.WRITE, ResourceType.TOPIC, name="mine"))
    assert (await publish(broker, [(mine, 1), (theirs, 1)])).error_code == NO_TOPIC
    assert (await drop(broker, mine, theirs)).error_code == NO_TOPIC
    assert (await publish(broker, [(mine, 1)])).error_code == 0
    await grant(broker, everywhere)
    assert (await publish(broker, [(theirs, 1)], batch_id=1)).error_code == 0  # nothing was dropped


async def test_lists_leave_out_what_one_may_not_see(broker: Broker) -> None:
    """Groups, transactional ids, what groups have committed; without a line in the log."""
    await with_topics(broker, "flights", "other")
    seeing = [
        binding(Operation.ALL, kind)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    await grant(broker, *seeing)
    await stable(broker, "g")
    offsets: dict[str | Any, dict[int, int]] = {"flights": {0: 7}, "other": {0: 8}}
    assert await commit(broker, offsets, group="h") == {"flights": {0: 0}, "other": {0: 0}}
    await (await producer_of(broker, "payments")).begin(topic="flights")
    for name, kind in (
        ("g", ResourceType.GROUP),
        ("other", ResourceType.TOPIC),
        ("payments", ResourceType.TRANSACTIONAL_ID),
    ):
        await grant(broker, binding(Operation.ALL, kind, Permission.DENY, name))
    broker.refused.clear()
    listed = await broker.ask(codec.ListGroupsRequest(states_filter=[], types_filter=[]), 5)
    assert [each.group_id for each in listed.groups] == ["h"]
    request = codec.ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None
    )
    assert (await broker.ask(request, 2)).transaction_states == []
    assert await committed(broker, "h") == {"flights": {0: 7}}
    assert broker.refused == []


async def test_a_transaction_is_told_of_without_topics_that_one_may_not_see(
    broker: Broker,
) -> None:
    await with_topics(broker, "flights", "other")
    await grant(broker, binding(Operation.ALL, ResourceType.TOPIC))
    await grant(broker, binding(Operation.ALL, ResourceType.TRANSACTIONAL_ID))
    producer = await producer_of(broker)
    await producer.begin(topic="flights")
    await producer.begin(topic="other")
    await grant(broker, binding(Operation.ALL, ResourceType.TOPIC, Permission.DENY, "other"))
    [found] = await describe(broker)
    assert [each.topic for each in found.topics] == ["flights"]


async def test_settings_of_a_new_topic_are_for_those_who_may_see_them(broker: Broker) -> None:
    await grant(broker, binding(Operation.CREATE, ResourceType.CLUSTER))
    new = codec.CreateTopicsRequest.CreatableTopic(
        name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    [made] = (await broker.ask(codec.CreateTopicsRequest(topics=[new]), 7)).topics
    assert (made.error_code, made.topic_config_error_code) == (0, NO_TOPIC)
    assert (made.num_partitions, list(made.configs)) == (-1, [])


class _Member:
    """One of a consumer group by a regular expression, which owns what it is given."""

    def __init__(self, broker: Broker, who: Principal) -> None:
        self.broker = broker
        self.who = who
        self.epoch = 0
        self.owned: dict[Any, list[int]] = {}

    async def beat(self, times: int = 1, **said: Any) -> dict[Any, list[int]]:
        """What it has then."""
        Held = codec.ConsumerGroupHeartbeatRequest.TopicPartitions
        for _ in range(times):
            self.broker.principal = self.who
            asked = {
                "member_id": self.who.name,
                "member_epoch": self.epoch,
                "subscribed_topic_names": None,
                "rebalance_timeout_ms": -1,
                "topic_partitions": [
                    Held(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in self.owned.items()
                ],
                **said,
            }
            answer = await self.broker.ask(consumer_heartbeat_request(**asked), 1)
            assert answer.error_code == 0, answer
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                found = answer.assignment.topic_partitions
                self.owned = {each.topic_id: list(each.partitions) for each in found}
        return self.owned

    async def join(self) -> dict[Any, list[int]]:
        return await self.beat(subscribed_topic_regex="flights-.*", rebalance_timeout_ms=60_000)


async def test_a_regular_expression_matches_what_each_member_may_see(broker: Broker) -> None:
    """What one may not see, another of the group gets; a right that goes takes it along."""
    seen = (await create(broker, "flights-seen", 2)).topic_id
    hidden = (await create(broker, "flights-hidden", 2)).topic_id
    alice, bob = _Member(broker, ALICE), _Member(broker, Principal("bob"))
    described = binding(Operation.DESCRIBE, ResourceType.TOPIC, name="flights-seen")
    group = binding(Operation.READ, ResourceType.GROUP)
    everything = replace(binding(Operation.ALL, ResourceType.TOPIC), principal="User:bob")
    await grant(broker, group, described, replace(group, principal="User:bob"), everything)
    assert await alice.join() == {seen: [0, 1]}
    assert (await bob.join())[hidden] == [0, 1]  # nobody else may have them
    await alice.beat(3)
    assert set(await alice.beat()) == {seen}
    [gone] = await broker.acls.delete([_exactly(described)], principal=ALICE, peer="here")
    assert gone == [described]
    await alice.beat(3)
    await bob.beat(3)
    assert await alice.beat() == {}
    assert await bob.beat() == {seen: [0, 1], hidden: [0, 1]}
    await grant(broker, described)
    await alice.beat()
    await bob.beat(3)
    assert set(await alice.beat()) == {seen}


async def test_a_group_is_told_of_to_those_who_may_see_its_topics(broker: Broker) -> None:
    await with_topics(broker, "t")
    await grant(broker, binding(Operation.READ, ResourceType.GROUP))
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.TOPIC))
    assert (await broker.ask(consumer_heartbeat_request(), 1)).error_code == 0
    request = codec.ConsumerGroupDescribeRequest(
        group_ids=["g"], include_authorized_operations=True
    )
    [found] = (await broker.ask(request, 1)).groups
    assert (found.error_code, found.authorized_operations) == (0, 1 << 3 | 1 << 8)
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.TOPIC, Permission.DENY))
    [found] = (await broker.ask(request, 1)).groups
    assert (found.error_code, found.members) == (NO_TOPIC, [])


async def test_offsets_of_a_topic_are_deleted_by_those_who_may_read_it(broker: Broker) -> None:
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.ALL, ResourceType.GROUP))
    await grant(broker, binding(Operation.READ, ResourceType.TOPIC))
    await commit(broker, {"flights": {0: 7}})
    await grant(broker, binding(Operation.READ, ResourceType.TOPIC, Permission.DENY))
    Topic = codec.OffsetDeleteRequest.OffsetDeleteRequestTopic
    asked = Topic(
        name="flights",
        partitions=[Topic.OffsetDeleteRequestPartition(partition_index=0)],
    )
    answer = await broker.ask(codec.OffsetDeleteRequest(group_id="g", topics=[asked]), 0)
    assert errors_of(answer) == {"flights": {0: NO_TOPIC}}


async def test_a_super_user_needs_no_acl(make_broker: MakeBroker) -> None:
    broker = await make_broker(AUTHORIZER | {"super.users": "User:root;User:alice"})
    await broker.acls.load()
    broker.principal = ALICE
    assert (await broker.ask(codec.ListGroupsRequest(), 4)).groups == []
    request = codec.DescribeUserScramCredentialsRequest(users=None)
    assert (await broker.ask(request, 0)).error_code == 0
    broker.principal = Principal("Alice")
    assert (await broker.ask(request, 0)).error_code == NO_CLUSTER


async def test_without_an_authorizer(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    for name, number in (("DescribeAcls", 54), ("CreateAcls", 54), ("DeleteAcls", 54)):
        request, version = request_of(name)
        answer = await broker.handle(request, version)
        assert set(codes(record.described(answer))) == {number}


async def test_before_anything_is_read_nobody_may_do_anything(make_broker: MakeBroker) -> None:
    broker = await make_broker(AUTHORIZER | {"allow.everyone.if.no.acl.found": "true"})
    broker.principal = ALICE
    request = codec.DescribeUserScramCredentialsRequest(users=None)
    assert (await broker.ask(request, 0)).error_code == NO_CLUSTER
    await broker.acls.load()
    assert (await broker.ask(request, 0)).error_code == 0
