"""Who lacks a right: each API asked as stock clients ask it, with what the one table says it needs.

Made from the table and the captures: without any right, with every right, and with all but one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from core.errors import Error
from core.security.acl_changes import AclBindingFilter
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from core.security.operations import REQUIREMENTS, Requirement, Without
from core.security.principal import Principal
from core.topic.rules import NewTopic
from gateway.kafka import codec
from gateway.kafka.api import CLOSE_CONNECTION, LastResponse, load_handlers
from gateway.kafka.errors import kafka_code
from tests.batches import kafka_batch
from tests.captures import record
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker

ALICE = Principal("alice")
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
_ERRORS: Final = {
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.GROUP_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
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

# What the captured request does not bring with it; each is tried by a test of its own.
NOT_IN_THE_CAPTURE: Final = {
    ("AlterConfigs", 0),  # it is about topics only
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
    "name", [each for each in ASKING if told(REQUIREMENTS[each]) and each != "DropStaged"]
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
    await broker.topics.create([NewTopic(name, partition_count=1) for name in names])


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


def produce(batch: bytes, transactional_id: str | None) -> Any:
    Topic = codec.ProduceRequest.TopicProduceData
    part = Topic.PartitionProduceData(index=0, records=batch)
    return codec.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[Topic(name="flights", partition_data=[part])],
    )


async def test_what_is_in_a_transaction_needs_the_id(broker: Broker) -> None:
    """Also without one in the request (CVE-2018-17196)."""
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.WRITE, ResourceType.TOPIC))
    batch = kafka_batch(producer=7, epoch=0, sequence=0, transactional=True)
    for name in (None, "payments"):
        answer = await broker.ask(produce(batch, name), 9)
        assert answer.responses[0].partition_responses[0].error_code == NO_ID
    plain = await broker.ask(produce(kafka_batch(), "payments"), 9)
    assert plain.responses[0].partition_responses[0].error_code == 0


def fetch(**more: Any) -> Any:
    Topic = codec.FetchRequest.FetchTopic
    part = Topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    asked = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
    return codec.FetchRequest(
        topics=[Topic(topic="flights", partitions=[part])],
        **{"replica_id": -1, **asked, **more},
    )


async def test_who_says_that_it_is_a_replica(broker: Broker) -> None:
    """CVE-2018-1288."""
    await with_topics(broker, "flights")
    await grant(broker, binding(Operation.READ, ResourceType.TOPIC))
    answer = await broker.ask(fetch(), 6)
    assert answer.responses[0].partitions[0].error_code == 0
    answer = await broker.ask(fetch(replica_id=1), 6)
    assert answer.responses[0].partitions[0].error_code == NO_TOPIC


async def test_a_right_that_goes_during_a_long_poll(broker: Broker) -> None:
    """What was stored meanwhile is not given away."""
    await with_topics(broker, "flights")
    reading = binding(Operation.READ, ResourceType.TOPIC)
    await grant(broker, reading, binding(Operation.WRITE, ResourceType.TOPIC))
    waiting = asyncio.ensure_future(broker.ask(fetch(max_wait_ms=60_000), 6))
    await asyncio.sleep(0.1)
    await broker.acls.delete([_exactly(reading)], principal=ALICE, peer="here")
    await broker.ask(produce(kafka_batch(), None), 9)
    answer = await asyncio.wait_for(waiting, 20)
    [found] = answer.responses[0].partitions
    assert (found.error_code, bytes(found.records)) == (NO_TOPIC, b"")


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
