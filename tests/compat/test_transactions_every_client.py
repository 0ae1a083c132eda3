"""What every stock client's transactions do, in V1 and V2. Expectations: Apache Kafka 4.1's own."""

from __future__ import annotations

import contextlib

from tests.compat import confluent
from tests.compat.clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Client,
    Producer,
    read_to_end,
    read_until,
    refusal,
    values,
)
from tests.compat.conftest import MakeTopic
from tests.compat.groups import eventually

# Java's message alone says what was wrong.
INVALID_TIMEOUT = {
    "INVALID_TRANSACTION_TIMEOUT",
    "InvalidTransactionTimeout",
    "InvalidTransactionTimeoutError",
    "KafkaException",
}


def plain(bootstrap: str, topic: str, *values: str) -> None:
    """Records outside of any transaction."""
    confluent.send_all(
        confluent.producer(bootstrap), ({"topic": topic, "value": value} for value in values)
    )


def test_commits_and_aborts_over_partitions_and_topics(
    client: Client, make_topic: MakeTopic, transactional_id: str
) -> None:
    topics = make_topic(2), make_topic(2)
    producer = client.producer(transactional_id)
    for number in range(6):
        producer.begin()
        for topic in topics:
            for partition in range(2):
                producer.send(topic, f"{number}a", f"{number}b", partition=partition)
        producer.flush()
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    producer.close()
    # Two records and a marker in each partition each time.
    everything = {3 * n + i: f"{n}{letter}" for n in range(6) for i, letter in enumerate("ab")}
    committed = {at: value for at, value in everything.items() if int(value[0]) % 2 == 0}
    for topic in topics:
        for isolation, expected in (
            (READ_UNCOMMITTED, everything),
            (READ_COMMITTED, committed),
        ):
            found = read_to_end(client, topic, 2, isolation=isolation)
            for partition in range(2):
                here = [read for read in found if read.partition == partition]
                assert {read.offset: read.value.decode() for read in here} == expected
                assert [read.offset for read in here] == sorted(expected)


def test_transactions_without_records_leave_nothing(
    client: Client, topic: str, transactional_id: str
) -> None:
    producer = client.producer(transactional_id)
    for _ in range(2):
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
    producer.begin()
    producer.send(topic, "a record")
    producer.commit()
    producer.close()
    [read] = read_to_end(client, topic)
    assert (read.offset, read.value) == (0, b"a record")


def test_a_fetch_from_anywhere_hides_what_was_aborted(
    client: Client, bootstrap: str, topic: str, transactional_id: str
) -> None:
    """Two producers mix their records in one partition; plain records are in between."""
    one, other = (client.producer(f"{transactional_id}-{n}") for n in range(2))

    def send(producer: Producer | None, value: str) -> None:
        if producer is None:
            plain(bootstrap, topic, value)
        else:
            producer.send(topic, value)
            producer.flush()

    one.begin()
    other.begin()
    send(one, "aborted 0")
    send(other, "1")
    send(None, "2")
    send(one, "aborted 3")
    other.commit()  # 4
    send(one, "aborted 5")
    send(None, "6")
    one.abort()  # 7
    one.begin()
    other.begin()
    send(one, "8")
    send(other, "aborted 9")
    one.commit()  # 10
    send(None, "11")
    other.abort()  # 12
    other.begin()
    send(other, "aborted 13")
    other.abort()  # 14
    one.close()
    other.close()
    committed = [1, 2, 6, 8, 11]
    with contextlib.closing(client.reader(topic)) as reader:
        read_until(reader, lambda found: len(found) == len(committed))
        for start in range(16):
            reader.seek(0, start)
            found = read_until(reader, lambda _: reader.position(0) == 15)
            assert [read.offset for read in found] == [at for at in committed if at >= start]
            assert [read.value for read in found] == [b"%d" % read.offset for read in found]


def test_a_second_instance_aborts_and_fences_the_first(
    client: Client, topic: str, transactional_id: str
) -> None:
    first = client.producer(transactional_id)
    first.begin()
    first.send(topic, "from the first")
    first.flush()
    second = client.producer(transactional_id)
    assert values(read_to_end(client, topic)) == []  # and does not wait for the first
    second.begin()
    second.send(topic, "from the second")
    second.commit()

    def send_late() -> None:
        first.send(topic, "late")
        first.flush()

    told = refusal(client, send_late)
    assert values(read_to_end(client, topic)) == ["from the second"]
    written = values(read_to_end(client, topic, isolation=READ_UNCOMMITTED))
    assert written == ["from the first", "from the second"]
    assert told in client.fenced
    # kafka-python is not ready to refuse until it has tried to get a new epoch.
    eventually(lambda: refusal(client, first.commit) in client.fenced)
    first.abandon()
    second.begin()
    second.send(topic, "goes on")
    second.commit()
    second.close()
    assert values(read_to_end(client, topic)) == ["from the second", "goes on"]


def test_a_crashed_instance_holds_readers_back_until_the_next_one_starts(
    client: Client, bootstrap: str, topic: str, transactional_id: str
) -> None:
    first = client.producer(transactional_id)
    first.begin()
    first.send(topic, "lost")
    first.flush()
    first.abandon()
    plain(bootstrap, topic, "behind it")
    with contextlib.closing(client.reader(topic)) as reader:
        assert reader.poll(0.5) == []
        assert reader.end(0) == 0
        second = client.producer(transactional_id)
        assert values(read_until(reader, lambda found: len(found) == 1)) == ["behind it"]
        assert reader.end(0) == 3
    second.close()


def test_a_transaction_that_takes_too_long_is_aborted(
    client: Client, bootstrap: str, topic: str, transactional_id: str
) -> None:
    """The broker ends it by itself; the producer learns of it when it wants to end it."""
    producer = client.producer(transactional_id, timeout_ms=4000)
    producer.begin()
    producer.send(topic, "too late")
    producer.flush()
    plain(bootstrap, topic, "behind it")
    with contextlib.closing(client.reader(topic)) as reader:
        assert values(read_until(reader, lambda found: len(found) == 1)) == ["behind it"]
    assert refusal(client, producer.commit) == client.timed_out
    producer.abandon()
    again = client.producer(transactional_id)
    again.begin()
    again.send(topic, "in time")
    again.commit()
    again.close()
    assert values(read_to_end(client, topic)) == ["behind it", "in time"]


def test_a_timeout_above_the_brokers_is_refused(client: Client, transactional_id: str) -> None:
    told = refusal(client, lambda: client.producer(transactional_id, timeout_ms=900_001))
    assert told in INVALID_TIMEOUT
    client.producer(transactional_id, timeout_ms=900_000).close()


def test_a_large_transaction(client: Client, make_topic: MakeTopic, transactional_id: str) -> None:
    partitions, each = 100, 50
    topic = make_topic(partitions)
    producer = client.producer(transactional_id)
    for name, end in (("aborted", producer.abort), ("committed", producer.commit)):
        producer.begin()
        for partition in range(partitions):
            records = (f"{name} {partition} {number}" for number in range(each))
            producer.send(topic, *records, partition=partition)
        producer.flush()
        end()
    producer.close()
    found = read_to_end(client, topic, partitions)
    assert values(found) == [
        f"committed {partition} {number}"
        for partition in range(partitions)
        for number in range(each)
    ]
    assert [read.offset for read in found] == [*range(each + 1, 2 * each + 1)] * partitions
