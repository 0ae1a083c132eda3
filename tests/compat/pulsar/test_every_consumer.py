"""Java's, Go's and Python's clients consume: one test for all that can; see README's table."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.compat.pulsar.clients import (
    EARLIEST,
    LATEST,
    Client,
    Consumer,
    Message,
    eventually,
    numbers,
    refusal,
    values,
)
from tests.compat.pulsar.conftest import Both, MakeClient, make_topic, of

TYPES = ["Exclusive", "Shared", "Failover", "Key_Shared"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_batched", [False, True])
def test_all_comes_once_and_what_is_acknowledged_is_done(
    stock: Client, topic: str, kind: str, is_batched: bool
) -> None:
    consumer = stock.consumer(topic, type=kind)
    ids = stock.send(topic, *numbers(100), is_batched=is_batched)
    assert (len({each.entry for each in ids}) < 100) == is_batched
    found = consumer.take(60)
    assert values(found) == numbers(60)
    assert [each.id.place for each in found] == [each.place for each in ids[:60]]
    consumer.close()
    consumer = stock.consumer(topic, type=kind)
    if is_batched:  # of a batch half done the client has not acknowledged anything
        (first,) = consumer.take(1)
        assert int(first.value or b"") <= 60
    else:
        assert values(consumer.take(40)) == numbers(40, 60)
        assert consumer.nothing_comes()


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_cumulative_acknowledgement_is_of_all_before(
    stock: Client, topic: str, is_batched: bool
) -> None:
    consumer = stock.consumer(topic, is_receipted=True)
    batching = {"is_batched": is_batched, "batch_messages": 10, "batch_delay_ms": 60_000}
    stock.send(topic, *numbers(30), **batching)
    consumer.acknowledge(consumer.take(20, acknowledge=False)[-1], is_cumulative=True)
    consumer.close()
    assert values(stock.consumer(topic).take(10)) == numbers(10, 20)


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_messages_of_a_batch_are_acknowledged_one_by_one(
    stock: Client, topic: str, kind: str
) -> None:
    settings = {"is_by_index": True, "is_receipted": True, "type": kind}
    consumer = stock.consumer(topic, **settings)
    ids = stock.send(topic, *numbers(10), is_batched=True, batch_delay_ms=60_000)
    assert len({each.entry for each in ids}) == 1
    messages = consumer.take(10, acknowledge=False)
    consumer.acknowledge(*(messages[index] for index in (0, 3, 4, 9)))
    consumer.close()
    consumer = stock.consumer(topic, **settings)
    found = consumer.take(6)
    assert values(found) == [b"%d" % index for index in (1, 2, 5, 6, 7, 8)]
    assert consumer.nothing_comes()
    consumer.close()
    assert stock.consumer(topic, **settings).nothing_comes()


@of("java", "go")
def test_a_batch_is_acknowledged_up_to_a_message_in_it(stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic, is_by_index=True, is_receipted=True)
    stock.send(topic, *numbers(10), is_batched=True, batch_delay_ms=300)
    consumer.acknowledge(consumer.take(4, acknowledge=False)[-1], is_cumulative=True)
    consumer.close()
    consumer = stock.consumer(topic, is_by_index=True)
    assert values(consumer.take(6)) == numbers(6, 4)


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_messages_given_back_are_counted(stock: Client, topic: str, kind: str) -> None:
    consumer = stock.consumer(topic, type=kind, give_back_ms=100)
    stock.send(topic, b"a", b"b")
    for count in range(3):
        (message,) = consumer.take(1, acknowledge=False)
        if message.value == b"b":
            consumer.acknowledge(message)
            (message,) = consumer.take(1, acknowledge=False)
        assert (message.value, message.redelivery_count) == (b"a", count)
        consumer.give_back(message)


@of("java", "python")
@pytest.mark.parametrize("kind", TYPES)
def test_one_that_gives_all_back_gets_it_again(stock: Client, topic: str, kind: str) -> None:
    consumer = stock.consumer(topic, type=kind, is_receipted=True)
    stock.send(topic, *numbers(5))
    assert values(consumer.take(2)) == numbers(2)
    assert values(consumer.take(3, acknowledge=False)) == numbers(3, 2)
    consumer.give_all_back()
    messages = consumer.take(3)
    assert values(messages) == numbers(3, 2)
    assert {each.redelivery_count for each in messages} == {1}


@of("java", "python")
def test_what_is_not_acknowledged_in_time_comes_again(stock: Client, topic: str) -> None:
    consumer = stock.consumer(
        topic, type="Shared", ack_timeout_ms=10_000 if stock.name == "python" else 4_000
    )
    stock.send(topic, b"done", b"forgotten")
    done, forgotten = consumer.take(2, acknowledge=False)
    consumer.acknowledge(done)
    (again,) = consumer.take(1)
    assert (again.id, again.redelivery_count) == (forgotten.id, 1)
    assert consumer.nothing_comes()


def test_what_is_given_back_too_often_is_a_dead_letter(stock: Client, topic: str) -> None:
    # Go's consumer does not see it the last time any more.
    after = 3 if stock.name == "go" else 2
    dead = {"after": after, "topic": f"{topic}-dead", "subscription": "letters"}
    consumer = stock.consumer(topic, type="Shared", give_back_ms=50, dead_letter=dead)
    sent = {"value": b"poison", "key": "k", "properties": {"p": "1"}}
    (sent_id,) = stock.send(topic, sent)
    for count in range(3):
        (message,) = consumer.take(1, acknowledge=False)
        assert message.redelivery_count == count
        consumer.give_back(message)
    # The subscription is made with the topic, before anybody subscribes.
    assert consumer.nothing_comes(1_000)
    (letter,) = stock.consumer(dead["topic"], "letters").take(1)
    assert (letter.value, letter.key) == (b"poison", b"k")
    assert letter.properties["p"] == "1"
    assert topic in letter.properties["REAL_TOPIC"]
    assert str(sent_id.entry) in letter.properties["ORIGIN_MESSAGE_ID"]
    consumer.close()
    assert stock.consumer(topic, type="Shared").nothing_comes()


@of("java", "go")
def test_what_is_to_be_tried_later_goes_through_a_retry_topic(stock: Client, topic: str) -> None:
    dead = {"after": 2, "topic": f"{topic}-dead", "retry_topic": f"{topic}-retry"}
    letters = stock.consumer(dead["topic"], "letters")
    consumer = stock.consumer(topic, type="Shared", has_retries=True, dead_letter=dead)
    stock.send(topic, {"value": b"later", "properties": {"p": "1"}})
    before = 0.0
    for count in range(3):
        (message,) = consumer.take(1, acknowledge=False)
        assert message.value == b"later"
        assert message.topic.endswith("-retry") == (count > 0)
        assert int(message.properties.get("RECONSUMETIMES", "0")) == count
        if count:
            assert time.monotonic() - before >= 0.3
        before = time.monotonic()
        consumer.reconsume_later(message, 300)
    # The third time it is a dead letter.
    (letter,) = letters.take(1)
    assert (letter.value, letter.properties["p"]) == (b"later", "1")


def test_a_second_exclusive_consumer_is_turned_away(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    stock.consumer(topic)
    other = make_client(stock.name)
    for kind in ("Exclusive", "Shared"):
        assert "Busy" in refusal(lambda kind=kind: other.consumer(topic, type=kind))


def test_shared_consumers_share_and_one_that_leaves_gives_back(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    clients = [stock, make_client(stock.name), make_client(stock.name)]
    consumers = [each.consumer(topic, type="Shared", queue=10) for each in clients]
    stock.send(topic, *numbers(90))
    found: Counter[bytes | None] = Counter()
    for consumer in consumers[:2]:
        found.update(values(consumer.take(10)))
    consumers[2].close()
    for hand in shares(consumers[:2], 90 - found.total()):
        found.update(values(hand))
    assert set(found) == set(numbers(90))
    assert set(found.values()) == {1}


def shares(consumers: Sequence[Consumer], count: int) -> list[list[Message]]:
    """What each of them gets, acknowledged, until they have so many together. On a busy machine
    one may wait for longer than `some` does."""
    hands: list[list[Message]] = [[] for _ in consumers]
    deadline = time.monotonic() + 30
    while sum(map(len, hands)) < count and time.monotonic() < deadline:
        for hand, consumer in zip(hands, consumers, strict=True):
            hand += consumer.some(count, acknowledge=True)
    return hands


@of("java")
def test_who_has_priority_gets_all(stock: Client, make_client: MakeClient, topic: str) -> None:
    first = stock.consumer(topic, type="Shared", priority=0)
    second = make_client(stock.name).consumer(topic, type="Shared", priority=1)
    stock.send(topic, *numbers(20))
    assert values(first.take(20)) == numbers(20)
    assert second.nothing_comes()


def test_a_keys_messages_come_in_order_while_consumers_come_and_go(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    clients = [stock, make_client(stock.name), make_client(stock.name)]
    consumers = [each.consumer(topic, type="Key_Shared", queue=10) for each in clients[:2]]
    sent = [{"value": b"%d" % number, "key": f"k{number % 13}"} for number in range(300)]
    stock.send(topic, *sent)
    seen: dict[bytes | None, list[int]] = defaultdict(list)
    owners: dict[bytes | None, set[int]] = defaultdict(set)
    done, changes = 0, 0
    deadline = time.monotonic() + 60
    while done < 300:
        assert time.monotonic() < deadline, f"{done} of 300"
        for place, consumer in enumerate(consumers):
            for message in consumer.some(10, 20, acknowledge=True):
                seen[message.key].append(int(message.value or b""))
                if not changes:
                    owners[message.key].add(place)
                done += 1
        if done >= 60 and changes == 0:
            consumers.append(clients[2].consumer(topic, type="Key_Shared", queue=10))
            changes += 1
        if done >= 150 and changes == 1:
            consumers.pop(0).close()
            changes += 1
    assert {len(each) for each in owners.values()} == {1}
    assert len(seen) == 13
    for order in seen.values():
        assert order == sorted(set(order))


def test_an_ordering_key_goes_before_the_key(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    consumers = [
        each.consumer(topic, type="Key_Shared") for each in (stock, make_client(stock.name))
    ]
    sent = [
        {"value": b"%d" % number, "key": f"k{number}", "ordering_key": b"o%d" % (number % 4)}
        for number in range(40)
    ]
    stock.send(topic, *sent)
    found = shares(consumers, 40)
    keys = [{message.ordering_key for message in each} for each in found]
    assert not keys[0] & keys[1]
    assert keys[0] | keys[1] == {b"o%d" % number for number in range(4)}
    assert sum(map(len, found)) == 40


def test_sticky_consumers_have_the_keys_of_their_ranges(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    ranges = [[[0, 16_383], [49_152, 65_535]], [[16_384, 49_151]]]
    other = make_client(stock.name)
    consumers = [
        client.consumer(topic, type="Key_Shared", ranges=each)
        for client, each in zip((stock, other), ranges, strict=True)
    ]
    overlapping = refusal(lambda: other.consumer(topic, type="Key_Shared", ranges=[[5, 6]]))
    assert overlapping
    stock.send(topic, *({"value": b"v", "key": f"k{number}"} for number in range(50)))
    found = shares(consumers, 50)
    keys = [{message.key for message in each} for each in found]
    assert sum(map(len, found)) == 50 == len(keys[0] | keys[1])
    assert min(map(len, keys)) > 10
    # The same hash for all clients and brokers: Murmur3, seed 0, modulo 65536.
    assert all(any(low <= _slot(key) <= high for low, high in ranges[0]) for key in keys[0])


def _slot(key: bytes | None) -> int:
    """murmur3_32 as published by Austin Appleby, without the sign, in Pulsar's ranges."""
    assert key is not None
    mask, state = 0xFFFFFFFF, 0

    def mixed(block: int) -> int:
        block = block * 0xCC9E2D51 & mask
        block = (block << 15 | block >> 17) & mask
        return block * 0x1B873593 & mask

    whole = len(key) // 4 * 4
    for start in range(0, whole, 4):
        state ^= mixed(int.from_bytes(key[start : start + 4], "little"))
        state = (state << 13 | state >> 19) & mask
        state = (state * 5 + 0xE6546B64) & mask
    if key[whole:]:
        state ^= mixed(int.from_bytes(key[whole:], "little"))
    state ^= len(key)
    state ^= state >> 16
    state = state * 0x85EBCA6B & mask
    state ^= state >> 13
    state = state * 0xC2B2AE35 & mask
    state ^= state >> 16
    return (state & 0x7FFFFFFF) % 65_536


def test_failover_goes_on_after_the_acknowledged(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    clients = (stock, make_client(stock.name))
    settings = {"type": "Failover", "is_receipted": True}
    consumers = [
        client.consumer(topic, consumer_name=name, **settings)
        for client, name in zip(clients, "ab", strict=True)
    ]
    stock.send(topic, *numbers(20))
    found: list[Message] = []
    while not found:  # a hash of the topic's name says which of them it is
        for active in consumers:
            found = found or active.some(1, acknowledge=True)
            if found:
                break
    (standby,) = (each for each in consumers if each is not active)
    assert values(found + active.take(9)) == numbers(10)
    assert standby.nothing_comes()
    if stock.name == "java":  # Python has no listener for that, Go's misses what comes at once
        assert eventually(lambda: _told(active)[-1] == "active")
        assert eventually(lambda: _told(standby)[-1] == "inactive")
    active.close()
    assert values(standby.take(10)) == numbers(10, 10)
    if stock.name != "python":
        assert eventually(lambda: _told(standby)[-1:] == ["active"])


def _told(consumer: Consumer) -> list[str]:
    """Without the partitions: a topic that has none is -1 in Java, 0 in Go."""
    return [each.split()[0] for each in consumer.events()]


def test_a_new_subscription_begins_where_it_says(stock: Client, topic: str) -> None:
    stock.send(topic, *numbers(5))
    latest = stock.consumer(topic, "latest")
    earliest = stock.consumer(topic, "earliest", is_earliest=True)
    stock.send(topic, b"5")
    assert values(latest.take(1)) == [b"5"]
    assert values(earliest.take(6)) == numbers(6)


@of("java", "go")
def test_a_subscription_that_does_not_last(stock: Client, topic: str) -> None:
    stock.send(topic, *numbers(3))
    for _ in range(2):  # it begins anew each time
        consumer = stock.consumer(topic, is_earliest=True, is_transient=True)
        assert values(consumer.take(3)) == numbers(3)
        consumer.close()


def test_a_subscription_that_is_deleted_begins_anew(stock: Client, topic: str) -> None:
    stock.send(topic, *numbers(3))
    for _ in range(2):
        consumer = stock.consumer(topic, is_earliest=True)
        assert values(consumer.take(3)) == numbers(3)
        consumer.unsubscribe()


@of("java", "go")
def test_a_subscription_in_use_is_deleted_by_force(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    first = stock.consumer(topic, type="Shared", is_earliest=True)
    make_client(stock.name).consumer(topic, type="Shared", is_earliest=True)
    assert refusal(first.unsubscribe)
    first.unsubscribe(force=True)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_seek_by_id_and_by_time(stock: Client, topic: str, kind: str, is_batched: bool) -> None:
    consumer = stock.consumer(topic, type=kind, is_inclusive=True)
    settings = {"is_batched": is_batched, "batch_delay_ms": 100}
    stock.send(topic, *numbers(5), **settings)
    time.sleep(0.02)
    between = int(time.time() * 1000)
    time.sleep(0.02)
    stock.send(topic, *numbers(5, 5), **settings)
    found = consumer.take(10)
    assert values(found) == numbers(10)
    consumer.seek(found[2].id)
    assert values(consumer.take(8)) == numbers(8, 2)
    consumer.seek(between)
    assert values(consumer.take(5)) == numbers(5, 5)
    if stock.name == "go":  # for it earliest and latest are in no partition
        return
    consumer.seek(EARLIEST)
    assert values(consumer.take(10)) == numbers(10)
    consumer.seek(LATEST)
    assert consumer.nothing_comes()
    stock.send(topic, b"new")
    assert values(consumer.take(1)) == [b"new"]


def test_the_last_message(stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic)
    (nothing,) = consumer.last_ids()
    assert nothing.entry == -1
    *_, single = stock.send(topic, *numbers(3))
    assert [each.place for each in consumer.last_ids()] == [single.place]
    *_, in_batch = stock.send(topic, *numbers(3), is_batched=True)
    assert [each.place for each in consumer.last_ids()] == [in_batch.place]


def test_several_topics(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, f"{topic}-p", 2)
    topics = [f"{topic}-a", f"{topic}-b", f"{topic}-p"]
    consumer = stock.consumer(topics, type="Shared")
    for number, each in enumerate(topics):
        stock.send(each, *numbers(10, 10 * number), is_round_robin=True)
    assert sorted(values(consumer.take(30))) == sorted(numbers(30))
    consumer.close()
    assert stock.consumer(topics, type="Shared").nothing_comes()


def test_patterns_find_topics_that_come_later(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, f"{topic}-1", 2)
    stock.send(f"other-{topic}", b"not this")
    settings = {"pattern": f"persistent://public/default/{topic}-.*", "is_earliest": True}
    consumer = stock.consumer("", type="Shared", **settings)
    stock.send(f"{topic}-1", *numbers(10))
    assert sorted(values(consumer.take(10))) == numbers(10)
    if stock.name == "java":  # the others look only every minute
        stock.send(f"{topic}-2", *numbers(5))
        assert values(consumer.take(5)) == numbers(5)
    assert consumer.nothing_comes()


@of("java", "python")
def test_all_messages_of_a_slow_queue_of_one(stock: Client, topic: str) -> None:
    """Java's receiver may have no queue: a permit at a time."""
    consumer = stock.consumer(topic, type="Shared", queue=0 if stock.name == "java" else 1)
    stock.send(topic, *numbers(10))
    assert values(consumer.take(10)) == numbers(10)


def test_at_the_end_of_a_terminated_topic_a_client_stays(
    both: Both, stock: Client, topic: str
) -> None:
    """Go's and C++'s close their connection when they are told of the end; so they are not."""
    consumer = stock.consumer(topic, is_receipted=True)
    stock.send(topic, *numbers(5))
    _rest(both, "POST", f"{topic}/terminate")
    assert values(consumer.take(5)) == numbers(5)
    (before,) = _rest(both, "GET", f"{topic}/stats")["subscriptions"]["s"]["consumers"]
    deadline = time.monotonic() + 30
    while _rest(both, "GET", f"{topic}/stats")["subscriptions"]["s"]["msgBacklog"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if stock.name == "java":
        while not consumer.is_at_end():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert consumer.nothing_comes(500)
    (after,) = _rest(both, "GET", f"{topic}/stats")["subscriptions"]["s"]["consumers"]
    for name in ("address", "connectedSince"):
        assert after[name] == before[name]


def _rest(both: Both, method: str, path: str) -> Any:
    url = f"{both.http_url}/admin/v2/persistent/public/default/{path}"
    with urlopen(Request(url, method=method), timeout=30) as answer:
        return json.load(answer)
