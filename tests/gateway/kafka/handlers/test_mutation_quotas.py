"""Topics made, grown and deleted above `controller_mutation_rate` (KIP-599): refused to clients
that know the error, done for older ones, which wait."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import Error
from core.quota.changes import Alteration
from core.security.principal import ANONYMOUS
from gateway.kafka import codec
from gateway.kafka.errors import kafka_code
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker

EXCEEDED = kafka_code(Error.THROTTLING_QUOTA_EXCEEDED)
EXISTS = kafka_code(Error.TOPIC_ALREADY_EXISTS)


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    """Who may make or delete five partitions at once, and then one in a hundred seconds."""
    made = await make_broker({"controller.quota.window.num": "500", "num.partitions": "2"})
    rate = Alteration((("user", "ANONYMOUS"),), [("controller_mutation_rate", 0.01)])
    await made.quotas.alter([rate], only_validate=False, principal=ANONYMOUS, peer="here")
    return made


def new(**partitions: int) -> Any:
    Topic = codec.CreateTopicsRequest.CreatableTopic
    topics = [
        Topic(name=name, num_partitions=n, replication_factor=-1, assignments=[], configs=[])
        for name, n in partitions.items()
    ]
    return codec.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def more(**partitions: int) -> Any:
    Topic = codec.CreatePartitionsRequest.CreatePartitionsTopic
    topics = [Topic(name=name, count=n, assignments=None) for name, n in partitions.items()]
    return codec.CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def gone(*names: str) -> Any:
    State = codec.DeleteTopicsRequest.DeleteTopicState
    return codec.DeleteTopicsRequest(topics=[State(name=each, topic_id=None) for each in names])


async def test_what_is_above_is_refused_by_topic(broker: Broker) -> None:
    answer = await broker.ask(new(a=-1, b=2, c=1, d=1, e=1), 7)
    codes = {each.name: each.error_code for each in answer.topics}
    # Two, the default, two, and one are there; the next goes beyond.
    assert codes == {"a": 0, "b": 0, "c": 0, "d": 0, "e": EXCEEDED}
    assert 90_000 < answer.throttle_time_ms <= 100_000
    answer = await broker.ask(more(a=3, nowhere=9), 3)
    assert {each.error_code for each in answer.results} == {EXCEEDED}
    answer = await broker.ask(gone("a"), 6)
    assert [(each.name, each.error_code) for each in answer.responses] == [("a", EXCEEDED)]
    topic = await broker.topics.get("a")
    by_id = codec.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.topic_id)
    answer = await broker.ask(codec.DeleteTopicsRequest(topics=[by_id]), 6)
    assert [each.error_code for each in answer.responses] == [EXCEEDED]
    assert answer.throttle_time_ms > 0
    assert await broker.topics.get("a") is not None


async def test_what_was_refused_for_another_reason_is_not_counted(broker: Broker) -> None:
    await broker.ask(new(a=4), 7)
    for _ in range(3):
        answer = await broker.ask(new(a=4), 7)
        assert [each.error_code for each in answer.topics] == [EXISTS]
        answer = await broker.ask(more(a=2), 3)
        assert answer.results[0].error_code == kafka_code(Error.INVALID_PARTITIONS)
    answer = await broker.ask(more(a=5), 3)
    assert (answer.results[0].error_code, answer.throttle_time_ms) == (0, 0)


@pytest.mark.parametrize("number", range(3))
async def test_older_clients_are_served_and_wait(broker: Broker, number: int) -> None:
    await broker.ask(new(a=4, b=4), 7)
    wanted, version = ((new(c=1), 5), (more(a=5), 2), (gone("a"), 4))[number]
    if version == 4:
        wanted.topic_names = ["a"]
    answer = await broker.ask(wanted, version)
    [part] = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
    assert part.error_code == 0
    assert answer.throttle_time_ms > 300_000


async def test_topics_made_by_asking_for_them_count(broker: Broker) -> None:
    """Clients ask again for what is not there."""
    Topic = codec.MetadataRequest.MetadataRequestTopic
    names = [f"auto-{number}" for number in range(4)]
    wanted = codec.MetadataRequest(
        topics=[Topic(topic_id=None, name=each) for each in names], allow_auto_topic_creation=True
    )
    answer = await broker.ask(wanted, 12)
    unknown = kafka_code(Error.UNKNOWN_TOPIC_OR_PARTITION)
    assert [each.error_code for each in answer.topics] == [0, 0, 0, unknown]
    answer = await broker.ask(wanted, 12)
    assert [each.error_code for each in answer.topics] == [0, 0, 0, unknown]
    assert await broker.topics.get("auto-3") is None
