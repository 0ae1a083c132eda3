"""Java's, Go's and Python's readers and table views; and ids that go from one client to another."""

from __future__ import annotations

import pytest

from tests.compat.pulsar.clients import EARLIEST, LATEST, Client, eventually, numbers, values
from tests.compat.pulsar.conftest import JAVA, Both, MakeClient, make_topic, of


@pytest.mark.parametrize("is_batched", [False, True])
def test_readers_begin_at_an_id_inclusive_or_not(
    stock: Client, topic: str, is_batched: bool
) -> None:
    ids = stock.send(topic, *numbers(20), is_batched=is_batched, batch_messages=7)
    for is_inclusive in (False, True):
        reader = stock.reader(topic, ids[11], is_inclusive=is_inclusive)
        first = 11 if is_inclusive else 12
        assert values(reader.rest()) == numbers(20 - first, first)
        reader.close()
    reader = stock.reader(topic, EARLIEST)
    assert values(reader.take(20)) == numbers(20)
    assert not reader.is_available()
    reader = stock.reader(topic, LATEST)
    assert not reader.is_available()
    stock.send(topic, b"new")
    assert reader.is_available() == (stock.name != "go")  # it looks only behind what it has read
    assert values(reader.take(1)) == [b"new"]
    assert not reader.is_available()
    # At the last message itself there is something for who wants it, too.
    assert values(stock.reader(topic, LATEST, is_inclusive=True).rest()) == [b"new"]


def test_an_empty_topic(stock: Client, topic: str) -> None:
    for start in (EARLIEST, LATEST):
        reader = stock.reader(topic, start)
        assert not reader.is_available()
        assert reader.some(1) == []


def test_readers_seek(stock: Client, topic: str) -> None:
    stock.send(topic, *numbers(10))
    reader = stock.reader(topic, EARLIEST)
    found = reader.take(10)
    assert values(found) == numbers(10)
    reader.seek(found[6].id)
    assert values(reader.rest()) == numbers(3, 7)  # behind it, as a reader starts
    if stock.name == "go":  # for it these are in no partition
        return
    reader.seek(EARLIEST)
    assert values(reader.rest()) == numbers(10)
    reader.seek(LATEST)
    assert not reader.is_available()


@of("java")
def test_readers_begin_some_time_ago(stock: Client, topic: str) -> None:
    stock.send(topic, *numbers(3))
    assert values(stock.reader(topic, before_ms=60_000).rest()) == numbers(3)


@of("java", "go")
def test_readers_of_partitions(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 2)
    stock.send(topic, *({"value": value, "key": value.decode()} for value in numbers(20)))
    if stock.name == "java":
        assert sorted(values(stock.reader(topic).rest())) == sorted(numbers(20))
    parts = [stock.reader(f"{topic}-partition-{number}") for number in range(2)]
    assert sorted(value for each in parts for value in values(each.rest())) == sorted(numbers(20))


def test_a_table_has_the_last_value_of_each_key(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 2)
    stock.send(topic, *({"key": f"k{number % 5}", "value": b"%d" % number} for number in range(20)))
    # In full: with a short name Java's does not wait until it has all.
    view = stock.table_view(f"persistent://public/default/{topic}")
    assert view.entries() == {f"k{number % 5}": b"%d" % number for number in range(15, 20)}
    stock.send(topic, {"key": "k3", "value": b"new"}, {"key": "k9", "value": b"more"})
    assert eventually(lambda: view.entries().get("k9") == b"more")
    assert eventually(lambda: view.entries()["k3"] == b"new")
    if stock.name != "go":  # it has no messages without a value
        stock.send(topic, {"key": "k3", "value": None})
        assert eventually(lambda: "k3" not in view.entries())


@pytest.mark.parametrize("writer", [JAVA, "go", "python"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_ids_mean_the_same_to_every_client(
    make_client: MakeClient, topic: str, writer: str, is_batched: bool
) -> None:
    ids = make_client(writer).send(topic, *numbers(10), is_batched=is_batched)
    # Java compares Go's partition 0 with none, if all else is equal.
    ids += make_client("java").send(topic, b"10")
    for name in ("java", "go", "python"):
        client = make_client(name)
        reader = client.reader(topic, ids[4], is_inclusive=True)
        found = reader.rest()
        assert values(found) == numbers(7, 4)
        assert [each.id.place for each in found] == [each.place for each in ids[4:]]
        reader.close()
