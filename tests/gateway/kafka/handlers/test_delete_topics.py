"""DeleteTopics: by name, by id, and what is left behind."""

from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from core.topic.rules import NewTopic
from gateway.kafka.codec import DeleteTopicsRequest, DeleteTopicsResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(1, 7)


async def delete(broker: Broker, *names: str, version: int = 5) -> DeleteTopicsResponse:
    if version < 6:
        return await broker.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=1), version)
    return await delete_states(broker, *((name, None) for name in names))


async def delete_states(
    broker: Broker, *states: tuple[str | None, UUID | None]
) -> DeleteTopicsResponse:
    topics = [
        DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)
        for name, topic_id in states
    ]
    return await broker.ask(DeleteTopicsRequest(topics=topics, timeout_ms=1), 6)


def codes(answer: DeleteTopicsResponse) -> dict[object, int]:
    return {each.name or each.topic_id: each.error_code for each in answer.responses}


async def rows(broker: Broker, query: str) -> list[tuple[object, ...]]:
    async with broker.database.begin("test") as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_is_deleted_by_name(broker: Broker, version: int) -> None:
    await broker.topics.create(
        [NewTopic("gone", 3, configs=(("retention.ms", "1"),)), NewTopic("kept")]
    )
    topic = await broker.topics.get("gone")
    assert topic is not None
    assert codes(await delete(broker, "gone", "never", version=version)) == {
        "gone": 0,
        "never": Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await broker.topics.get("gone") is None
    assert await broker.topics.get_many_by_id([topic.topic_id]) == {}
    assert [each.name for each in await broker.topics.all()] == ["kept"]
    left = await rows(broker, "SELECT partition_id FROM penstock.deleted_partition ORDER BY 1")
    assert left == [(each,) for each in topic.partition_ids]
    assert await rows(broker, "SELECT * FROM penstock.config_entry") == []
    assert await rows(broker, "SELECT count(*) FROM penstock.topic_partition") == [(1,)]


async def test_topic_is_deleted_by_id(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t")])
    topic = await broker.topics.get("t")
    assert topic is not None
    unknown = uuid4()
    answer = await delete_states(broker, (None, topic.topic_id), (None, unknown))
    found = {each.topic_id: (each.name, each.error_code) for each in answer.responses}
    assert found == {topic.topic_id: ("t", 0), unknown: (None, Code.UNKNOWN_TOPIC_ID)}
    assert await broker.topics.all() == ()


async def test_topic_created_anew_is_another_one(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t", configs=(("retention.ms", "1"),))])
    before = await broker.topics.get("t")
    await delete(broker, "t")
    await broker.topics.create([NewTopic("t")])
    after = await broker.topics.get("t")
    assert before is not None
    assert after is not None
    assert after.topic_id != before.topic_id
    assert after.overrides == {}


async def test_names_and_ids_given_twice_or_both_are_refused(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t"), NewTopic("u")])
    topic = await broker.topics.get("t")
    assert topic is not None
    assert codes(await delete(broker, "t", "t", version=6)) == {"t": Code.INVALID_REQUEST}
    twice = await delete_states(broker, (None, topic.topic_id), (None, topic.topic_id))
    assert [each.error_message for each in twice.responses] == ["Duplicate topic id."]
    odd = await delete_states(broker, ("t", topic.topic_id), (None, None))
    assert [(each.error_code, each.error_message) for each in odd.responses] == [
        (Code.INVALID_REQUEST, "You may not specify both topic name and topic id."),
        (Code.INVALID_REQUEST, "Neither topic name nor id were specified."),
    ]
    mapped = await delete_states(broker, (None, topic.topic_id), ("t", None))
    assert [each.error_message for each in mapped.responses] == [
        "The provided topic name maps to an ID that was already supplied."
    ]
    assert len(await broker.topics.all()) == 2


async def test_text_no_topic_can_have_is_unknown(broker: Broker) -> None:
    assert codes(await delete(broker, "nul\0", "a/b")) == {
        "nul\0": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "a/b": Code.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (2, Code.INVALID_REQUEST),
        (3, Code.TOPIC_DELETION_DISABLED),
        (6, Code.TOPIC_DELETION_DISABLED),
    ],
)
async def test_deletion_may_be_switched_off(
    make_broker: MakeBroker, version: int, code: int
) -> None:
    broker = await make_broker({"delete.topic.enable": "false"})
    await broker.topics.create([NewTopic("t")])
    assert codes(await delete(broker, "t", version=version)) == {"t": code}
    assert await broker.topics.get("t") is not None


@pytest.mark.parametrize("version", [1, 6])
async def test_without_a_database_clients_are_told_to_try_again(
    cut_off: Broker, version: int
) -> None:
    assert codes(await delete(cut_off, "t", version=version)) == {"t": Code.NOT_CONTROLLER}
