"""Different clients, V1 and V2, at one transactional id and in one partition; what readers see.

Expectations: Apache Kafka 4.1's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.compat import confluent
from tests.compat.clients import (
    READ_UNCOMMITTED,
    AIOKafka,
    Client,
    Confluent,
    Java,
    KafkaPython,
    read_to_end,
    read_until,
    values,
)
from tests.compat.conftest import MakeTopic, make_client
from tests.compat.groups import eventually


@pytest.fixture
def four(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[dict[str, Client]]:
    """All four clients."""
    names = (Confluent.name, AIOKafka.name, KafkaPython.name, Java.name)
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(make_client(name, request, bootstrap)))
            for name in names
        }


@pytest.mark.java
def test_clients_of_both_versions_take_turns_at_one_id(
    four: dict[str, Client], make_topic: MakeTopic, transactional_id: str, group_id: str
) -> None:
    """Each commits one, aborts one and leaves one open, which the next one's start aborts."""
    topic = make_topic()
    turns = [Confluent, Java, AIOKafka, Java, Java, KafkaPython, Confluent, AIOKafka]
    expected, left = [], []
    for turn, kind in enumerate(turns):
        client = four[kind.name]
        producer = client.producer(transactional_id)
        reader = client.reader(topic, group=group_id)
        producer.begin()
        producer.send(topic, f"{turn} committed")
        producer.send_offsets(topic, {0: turn + 1}, reader.member())
        producer.commit()
        producer.begin()
        producer.send(topic, f"{turn} aborted")
        producer.flush()
        producer.abort()
        producer.begin()
        producer.send(topic, f"{turn} left open")
        producer.send_offsets(topic, {0: 1000}, reader.member())
        producer.flush()
        producer.abandon()
        reader.close()
        expected.append(f"{turn} committed")
        left += [f"{turn} committed", f"{turn} aborted", f"{turn} left open"]
    four[Java.name].producer(transactional_id).close()
    for client in four.values():
        assert values(read_to_end(client, topic)) == expected
        assert values(read_to_end(client, topic, isolation=READ_UNCOMMITTED)) == left
        with closing(client.reader(topic, group=group_id)) as reader:
            eventually(lambda: reader.committed(0) == len(turns))


@pytest.mark.java
def test_an_instance_of_one_version_fences_one_of_the_other(
    four: dict[str, Client], make_topic: MakeTopic, transactional_id: str
) -> None:
    topic = make_topic()
    old, new = four[Confluent.name], four[Java.name]
    for first, second in ((old, new), (new, old)):
        zombie = first.producer(transactional_id)
        zombie.begin()
        zombie.send(topic, "zombie")
        zombie.flush()
        successor = second.producer(transactional_id)
        with pytest.raises(Exception) as refused:
            zombie.commit()
        assert first.name_of(refused.value) in first.fenced
        zombie.abandon()
        successor.begin()
        successor.send(topic, second.name)
        successor.commit()
        successor.close()
    assert values(read_to_end(new, topic)) == [new.name, old.name]


@pytest.mark.java
def test_producers_of_both_versions_mix_in_one_partition(
    four: dict[str, Client], make_topic: MakeTopic, transactional_id: str
) -> None:
    topic = make_topic()
    producers = {
        name: client.producer(f"{transactional_id}-{name}") for name, client in four.items()
    }
    expected = []
    for turn in range(4):
        commits = {name for number, name in enumerate(four) if (turn >> number % 2) % 2 == 0}
        for producer in producers.values():
            producer.begin()
        for half in "ab":
            for name, producer in producers.items():
                producer.send(topic, f"{turn} {name} {half}")
                producer.flush()
                if name in commits:
                    expected.append(f"{turn} {name} {half}")
        for name, producer in producers.items():
            if name in commits:
                producer.commit()
            else:
                producer.abort()
    for producer in producers.values():
        producer.close()
    for client in four.values():
        assert values(read_to_end(client, topic)) == expected


def test_where_a_reader_of_committed_records_ends(
    client: Client, bootstrap: str, topic: str, transactional_id: str
) -> None:
    """Position, end offset and lag count control records, and stop at the last stable offset."""
    done, still_open = (client.producer(f"{transactional_id}-{n}") for n in range(2))
    done.begin()
    done.send(topic, "0", "1")
    done.commit()  # 2
    still_open.begin()
    still_open.send(topic, "3")
    still_open.flush()
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": "4"}])
    with (
        closing(client.reader(topic)) as committed,
        closing(client.reader(topic, isolation=READ_UNCOMMITTED)) as everything,
    ):
        assert (committed.end(0), everything.end(0)) == (3, 5)
        found = read_until(committed, lambda _: committed.position(0) == 3)
        assert values(found) == ["0", "1"]
        found = read_until(everything, lambda _: everything.position(0) == 5)
        assert values(found) == ["0", "1", "3", "4"]
        if client.name == Java.name:
            assert (committed.lag(0), everything.lag(0)) == (0, 0)
        still_open.abort()  # 5
        eventually(lambda: (committed.end(0), everything.end(0)) == (6, 6))
        found = read_until(committed, lambda _: committed.position(0) == 6)
        assert values(found) == ["4"]
        read_until(everything, lambda _: everything.position(0) == 6)
    done.close()
    still_open.close()
