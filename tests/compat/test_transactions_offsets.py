"""Offsets in transactions, in every stock client. Expectations: Apache Kafka 4.1's own."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat import confluent
from tests.compat.clients import (
    AIOKafka,
    Client,
    Confluent,
    Java,
    Reader,
    read_to_end,
    read_until,
    refusal,
    values,
)
from tests.compat.conftest import MakeTopic
from tests.compat.groups import WAIT, eventually


def fill(bootstrap: str, topic: str, count: int = 10) -> None:
    confluent.send_all(
        confluent.producer(bootstrap, linger_ms=5),
        ({"topic": topic, "value": str(number)} for number in range(count)),
    )


def read(reader: Reader, count: int) -> list[str]:
    """The values of so many records."""
    return values(read_until(reader, lambda found: len(found) >= count))


def committed(admin: AdminClient, group_id: str, topic: str, *, stable: bool = False) -> int | None:
    """A group's offset in partition 0, as an administrator sees it; KafkaException."""
    asked = [ConsumerGroupTopicPartitions(group_id, [TopicPartition(topic, 0)])]
    answers = admin.list_consumer_group_offsets(asked, require_stable=stable, request_timeout=WAIT)
    [found] = answers[group_id].result(WAIT).topic_partitions
    if found.error is not None:
        raise KafkaException(found.error)
    return None if found.offset == OFFSET_INVALID else found.offset


def test_offsets_count_when_the_transaction_is_committed(
    client: Client,
    bootstrap: str,
    session_admin: AdminClient,
    make_topic: MakeTopic,
    transactional_id: str,
    group_id: str,
) -> None:
    topic, copies = make_topic(), make_topic()
    fill(bootstrap, topic)
    producer = client.producer(transactional_id)
    with contextlib.closing(client.reader(topic, group=group_id)) as reader:
        read(reader, 10)
        known = None
        for upto, end in ((4, producer.commit), (7, producer.abort), (9, producer.commit)):
            producer.begin()
            producer.send(copies, f"up to {upto}")
            producer.flush()
            producer.send_offsets(topic, {0: upto}, reader.member())
            assert committed(session_admin, group_id, topic) == known
            with pytest.raises(KafkaException) as unstable:
                committed(session_admin, group_id, topic, stable=True)
            assert unstable.value.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT
            end()
            if upto != 7:
                known = upto
            assert reader.committed(0) == known
    producer.close()
    assert values(read_to_end(client, copies)) == ["up to 4", "up to 9"]


def test_offsets_of_several_groups_alone_are_a_transaction(
    client: Client,
    session_admin: AdminClient,
    topic: str,
    transactional_id: str,
    group_id: str,
) -> None:
    producer = client.producer(transactional_id)
    # aiokafka registers one group a transaction; the broker refuses what comes for a second one.
    groups = [f"{group_id}-{n}" for n in range(1 if client.name == AIOKafka.name else 3)]
    producer.begin()
    for at, group in enumerate(groups, 5):
        with contextlib.closing(client.reader(topic, group=group)) as reader:
            producer.send_offsets(topic, {0: at}, reader.member())
    producer.commit()
    producer.close()
    for at, group in enumerate(groups, 5):
        eventually(lambda: committed(session_admin, group, topic) == at)  # noqa: B023 - at once


def test_a_member_waits_for_the_offsets_of_its_predecessor(
    client: Client, bootstrap: str, topic: str, transactional_id: str, group_id: str
) -> None:
    """Until the transaction ends nobody knows where to begin (KIP-447)."""
    fill(bootstrap, topic)
    producer = client.producer(transactional_id)
    with contextlib.closing(client.reader(topic, None, group=group_id)) as first:
        read(first, 10)
        producer.begin()
        producer.send_offsets(topic, {0: 6}, first.member())
    with contextlib.closing(client.reader(topic, None, group=group_id)) as second:
        found = second.poll(0.2)
        eventually(lambda: found.extend(second.poll(0.2)) or second.owned())
        found += second.poll(1)
        producer.commit()
        found += read_until(second, lambda later: bool(found or later))
    producer.close()
    # aiokafka does not ask for stable offsets, and begins where the group was before.
    assert values(found)[0] == ("0" if client.name == AIOKafka.name else "6")


def test_offsets_of_a_former_member_are_refused(
    client: Client,
    bootstrap: str,
    make_topic: MakeTopic,
    transactional_id: str,
    group_id: str,
) -> None:
    topic, copies = make_topic(), make_topic()
    fill(bootstrap, topic)
    producer = client.producer(transactional_id)
    with contextlib.closing(client.reader(topic, None, group=group_id)) as reader:
        read(reader, 10)
        gone = reader.member()
    with contextlib.closing(client.reader(topic, None, group=group_id)) as reader:
        read(reader, 10)
        producer.begin()
        producer.send(copies, "refused")
        producer.flush()
        if client.gone is None:
            producer.send_offsets(topic, {0: 3}, gone)  # it says no more than the group's name
        else:
            refused = refusal(client, lambda: producer.send_offsets(topic, {0: 3}, gone))
            assert refused == client.gone
        producer.abort()
        producer.begin()
        producer.send(copies, "accepted")
        producer.send_offsets(topic, {0: 5}, reader.member())
        producer.commit()
        eventually(lambda: reader.committed(0) == 5)
    producer.close()
    assert values(read_to_end(client, copies)) == ["accepted"]


# --- members that stall ---

IMPATIENT = {"max.poll.interval.ms": 1500, "session.timeout.ms": 1500}


@pytest.mark.parametrize("name", ["confluent", pytest.param("java", marks=pytest.mark.java)])
def test_a_stalled_member_cannot_commit_what_another_has_done(
    name: str,
    request: pytest.FixtureRequest,
    bootstrap: str,
    make_topic: MakeTopic,
    transactional_id: str,
    group_id: str,
) -> None:
    """It does not poll for too long, with a batch in hand, which another member then copies."""
    client: Confluent | Java = request.getfixturevalue(f"{name}_client")
    topic, copies = make_topic(), make_topic()
    fill(bootstrap, topic)
    slow, quick = (client.producer(f"{transactional_id}-{n}") for n in range(2))
    with contextlib.closing(client.reader(topic, None, group=group_id, **IMPATIENT)) as first:
        batch, member = read(first, 10), first.member()
        slow.begin()
        slow.send(copies, *batch)
        slow.flush()
        with contextlib.closing(client.reader(topic, None, group=group_id)) as second:
            assert read(second, 10) == batch
            quick.begin()
            quick.send(copies, *batch)
            quick.send_offsets(topic, {0: 10}, second.member())
            quick.commit()
            # Whether it says who it was when it read, or who it is by now.
            for who in (lambda: member, first.member):
                refused = refusal(client, lambda: slow.send_offsets(topic, {0: 10}, who()))  # noqa: B023
                assert refused == client.gone
                slow.abort()
                slow.begin()
    slow.abort()
    assert values(read_to_end(client, copies)) == batch
