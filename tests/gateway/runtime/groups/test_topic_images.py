"""Topics that come, grow and go under consumer groups; regular expressions over topic names."""

import asyncio

import pytest

from core.errors import Error
from core.group.expressions import Viewer, seen_by
from core.group.subscribed_topics import InvalidRegularExpression
from core.security.principal import Principal
from gateway.runtime.groups import topic_images
from gateway.runtime.groups.topic_images import TopicImages
from gateway.runtime.topics.topics import PartitionIncrease
from tests.gateway.runtime.coordinators import Coordinator, MakeCoordinator

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def broker(make_coordinator: MakeCoordinator) -> Coordinator:
    return await make_coordinator(watches=False)


async def assigned(broker: Coordinator, epoch: int, **said: object) -> tuple[int, list[int]]:
    """Heartbeats of the only member until its epoch stays; how many partitions of each topic."""
    result = await broker.consume("g", "m", epoch, **said)
    assert result.error is Error.NONE, result
    if result.assignment is None:
        return result.member_epoch, []
    return result.member_epoch, sorted(len(each) for each in result.assignment.values())


async def test_partitions_that_are_added_are_assigned(broker: Coordinator) -> None:
    await broker.create_topic("t", 2)
    epoch, counts = await assigned(broker, 0, subscribed_topic_names=("t",))
    assert counts == [2]
    await broker.topics.create_partitions([PartitionIncrease("t", 5)])
    after, counts = await assigned(broker, epoch)
    assert counts == [5]
    assert after > epoch
    assert await assigned(broker, after) == (after, [])


async def test_a_topic_that_comes_later_is_assigned_and_one_that_goes_is_not(
    broker: Coordinator,
) -> None:
    epoch, counts = await assigned(broker, 0, subscribed_topic_names=("later",))
    assert counts == []
    await broker.create_topic("other", 1)
    assert await assigned(broker, epoch) == (epoch, [])
    await broker.create_topic("later", 3)
    after, counts = await assigned(broker, epoch)
    assert counts == [3]
    await broker.topics.delete(["later"])
    gone = await broker.consume("g", "m", after)
    assert gone.assignment == {}


async def test_topics_of_other_brokers_are_seen(make_coordinator: MakeCoordinator) -> None:
    """What NOTIFY would say is said by hand here."""
    one, other = await make_coordinator(), await make_coordinator()
    epoch, _ = await assigned(one, 0, subscribed_topic_names=("t",))
    await other.create_topic("t", 3)
    one.topics.invalidate()
    _, counts = await assigned(one, epoch)
    assert counts == [3]


async def test_an_expression_is_resolved_again_when_topics_come_and_go(
    broker: Coordinator,
) -> None:
    await broker.create_topic("sales-eu", 1)
    await broker.create_topic("stock", 7)
    epoch, counts = await assigned(broker, 0, subscribed_topic_regex="sales-.*")
    assert counts == [1]
    await broker.create_topic("sales-us", 2)
    await broker.create_topic("presales-us", 3)
    epoch, counts = await assigned(broker, epoch)
    assert counts == [1, 2]
    await broker.topics.delete(["sales-eu"])
    epoch, counts = await assigned(broker, epoch)
    assert counts == [2]


async def test_an_expression_that_is_none_is_refused(broker: Coordinator) -> None:
    refused = await broker.consume("g", "m", subscribed_topic_regex="(a")
    assert refused.error is Error.INVALID_REGULAR_EXPRESSION
    assert refused.message == (
        "SubscribedTopicRegex `(a` is not a valid regular expression: missing ): (a."
    )


async def test_expressions_are_known_after_a_take_over(make_coordinator: MakeCoordinator) -> None:
    one, other = await make_coordinator(), await make_coordinator()
    await one.create_topic("sales-eu", 2)
    epoch, counts = await assigned(one, 0, subscribed_topic_regex="sales-.*")
    assert counts == [2]
    await one.groups.stop()
    assert await assigned(other, epoch) == (epoch, [])
    await other.create_topic("sales-us", 1)
    _, counts = await assigned(other, epoch)
    assert counts == [1, 2]


async def test_the_whole_name_has_to_match(broker: Coordinator) -> None:
    for name in ("ab", "abc", "AB", "a.b"):
        await broker.create_topic(name, 1)
    picture = TopicImages(broker.topics)
    expressions = ("ab", "a.?b", "ab.*", "(?i)ab", "a\\.b", "ab|abc", "")
    assert set(await picture.ready(expressions)) == {"ab", "abc", "AB", "a.b"}
    matched = [sorted(picture.resolve(each)) for each in expressions]
    assert matched == [
        ["ab"],
        ["a.b", "ab"],
        ["ab", "abc"],
        ["AB", "ab"],
        ["a.b"],
        ["ab", "abc"],
        [],
    ]
    assert picture.resolve("abc?") == {"ab", "abc"}  # also one that nobody has announced
    for wrong in ("(?=a)", "a{1001}", "(x{30}){30}(y{30}){30}" * 40):
        await picture.ready([wrong])
        with pytest.raises(InvalidRegularExpression):
            picture.resolve(wrong)
    picture.close()


async def test_no_expression_stalls_the_others(broker: Coordinator) -> None:
    """Milliseconds for each topic, in a thread: the loop goes on meanwhile."""
    for number in range(40):
        await broker.create_topic("t" * 200 + str(number), 1)
    picture = TopicImages(broker.topics)
    await picture.ready()
    evil = asyncio.create_task(picture.ready(["(.?){400}x(.?){400}"]))
    turns = 0
    while not evil.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert picture.resolve("(.?){400}x(.?){400}") == frozenset()
    picture.close()


async def test_expressions_do_not_fill_the_memory(
    broker: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_images, "EXPRESSIONS_KEPT", 5)
    await broker.create_topic("t7", 1)
    picture = TopicImages(broker.topics)
    await picture.ready([f"t{number}" for number in range(20)])
    assert len(picture._expressions) == 5
    assert picture.resolve("t7") == {"t7"}
    assert len(picture._expressions) == 5
    picture.close()


async def test_one_read_of_the_topics_for_all_who_ask(broker: Coordinator) -> None:
    await broker.create_topic("t", 1)
    await broker.consume("g", "m", subscribed_topic_names=("t",))
    broker.topics.invalidate()
    before = broker.queries["list_topics"]
    beats = [broker.consume(f"g{n}", "m", subscribed_topic_names=("t",)) for n in range(30)]
    assert {each.error for each in await asyncio.gather(*beats)} == {Error.NONE}
    assert broker.queries["list_topics"] - before == 1


class _Sight:
    """Of which topics somebody may know: those with his name in them, wherever he is."""

    def __init__(self) -> None:
        self.asked = 0

    def may_see(self, viewer: Viewer, topic: str) -> bool:
        self.asked += 1
        return viewer.principal.name in topic

    def seen_alike(self, viewer: Viewer) -> Viewer:
        return Viewer(viewer.principal, "*")


async def test_who_sees_alike_is_asked_for_once(broker: Coordinator) -> None:
    for name in ("alice-1", "alice-2", "bob-1"):
        await broker.create_topic(name, 1)
    sight = _Sight()
    images = TopicImages(broker.topics, sight)
    many = [
        seen_by(".*-1", Viewer(Principal(name), f"10.0.0.{n}"))
        for n in range(50)
        for name in ("alice", "bob")
    ]
    await images.ready(many)
    assert {images.resolve(each) for each in many} == {
        frozenset({"alice-1"}),
        frozenset({"bob-1"}),
    }
    assert sight.asked == 4
    images.on_rights_changed()
    images.resolve(many[0])
    assert sight.asked == 6
