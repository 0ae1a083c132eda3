"""WATCH_TOPIC_LIST, WATCH_TOPIC_UPDATE, WATCH_TOPIC_LIST_CLOSE."""

from __future__ import annotations

from typing import Any

import pytest

from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)
from gateway.pulsar.handlers import watch_topic_list
from gateway.pulsar.topic_lists import topics_hash
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation

HERE = "persistent://public/default/"


@pytest.fixture
async def client(broker: Broker) -> Conversation:
    await make(broker, ("one", 1), ("other", 1))
    return await broker.client()


async def make(broker: Broker, *topics: tuple[str, int]) -> None:
    await broker.runtime.topics.create([NewTopic(name, count) for name, count in topics])


def wanted(pattern: str = HERE + "o.*", watcher_id: int = 7, **more: Any) -> CommandWatchTopicList:
    return CommandWatchTopicList(
        watcher_id=watcher_id, namespace="public/default", topics_pattern=pattern, **more
    )


async def watch(client: Conversation, **asked: Any) -> Any:
    return await client.ask(wanted(**asked), CommandType.WATCH_TOPIC_LIST_SUCCESS)


async def update(client: Conversation) -> tuple[int, list[str], list[str], str]:
    heard = await client.hear(CommandType.WATCH_TOPIC_UPDATE)
    return (
        heard.watcher_id,
        [each.removeprefix(HERE) for each in heard.new_topics],
        [each.removeprefix(HERE) for each in heard.deleted_topics],
        heard.topics_hash,
    )


async def is_told_no_more(client: Conversation) -> bool:
    """By what a request and its answer leave over."""
    command = CommandGetTopicsOfNamespace(namespace="public/default")
    await client.ask(command, CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    return not client.transport.commands


async def test_each_change_of_what_matches_is_told(client: Conversation, broker: Broker) -> None:
    answer = await watch(client)
    assert (answer.watcher_id, list(answer.topic)) == (7, [HERE + "one", HERE + "other"])
    assert answer.topics_hash == topics_hash(answer.topic)
    await make(broker, ("orders", 2), ("x", 1))
    now = ["one", "orders-partition-0", "orders-partition-1", "other"]
    digest = topics_hash(HERE + each for each in now)
    assert await update(client) == (7, now[1:3], [], digest)
    await broker.runtime.topics.delete(["one", "x"])
    digest = topics_hash(HERE + each for each in now[1:])
    assert await update(client) == (7, [], ["one"], digest)


async def test_who_has_the_names_is_told_changes_only(client: Conversation, broker: Broker) -> None:
    digest = topics_hash([HERE + "one", HERE + "other"])
    answer = await watch(client, topics_hash=digest)
    assert (list(answer.topic), answer.topics_hash) == ([], digest)
    await make(broker, ("onto", 1))
    assert (await update(client))[1:3] == (["onto"], [])


async def test_other_changes_are_not_told(client: Conversation, broker: Broker) -> None:
    await watch(client)
    await make(broker, ("x", 1), ("pulsar.a.b.onto", 1))
    broker.runtime.topics.invalidate()
    await make(broker, ("onto", 1))
    assert (await update(client))[1:3] == (["onto"], [])


async def test_a_watcher_that_was_closed_is_told_nothing(
    client: Conversation, broker: Broker
) -> None:
    await watch(client)
    await watch(client, watcher_id=8, pattern=HERE + "only.*")
    for _ in range(2):  # the second time it is unknown
        await client.ask(CommandWatchTopicListClose(watcher_id=7), CommandType.SUCCESS)
    await make(broker, ("onto", 1), ("only", 1))
    assert (await update(client))[:2] == (8, ["only"])
    assert await is_told_no_more(client)


async def test_the_same_id_again_replaces_the_watcher(client: Conversation, broker: Broker) -> None:
    await watch(client)
    await watch(client, pattern=HERE + "x.*")
    await make(broker, ("onto", 1), ("x", 1))
    assert (await update(client))[:2] == (7, ["x"])
    assert await is_told_no_more(client)


@pytest.mark.parametrize("pattern", ["public/default/(?=o).*", "x" * 51])
async def test_a_pattern_that_clients_have_to_apply_is_refused(
    client: Conversation, broker: Broker, pattern: str
) -> None:
    error = await client.ask(wanted(pattern), CommandType.ERROR)
    assert error.error == ServerError.NOT_ALLOWED_ERROR
    await make(broker, ("onto", 1))
    assert await is_told_no_more(client)


async def test_a_connection_has_so_many_watchers(
    client: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_topic_list, "MOST_WATCHERS", 20)
    for number in range(20):
        await watch(client, watcher_id=number)
    error = await client.ask(wanted(watcher_id=20), CommandType.ERROR)
    assert error.error == ServerError.TOO_MANY_REQUESTS
    await watch(client, watcher_id=3)


async def test_who_has_gone_is_forgotten(client: Conversation, broker: Broker) -> None:
    other = await broker.client()
    await watch(client)
    await watch(other)
    client.transport.close()
    await client.ended()
    await make(broker, ("onto", 1))
    assert (await update(other))[1] == ["onto"]


async def test_no_such_namespace(client: Conversation) -> None:
    command = CommandWatchTopicList(watcher_id=1, namespace="public", topics_pattern="x")
    error = await client.ask(command, CommandType.ERROR)
    assert error.error == ServerError.INVALID_TOPIC_NAME
