"""A process that reads with Pulsar's consumer and writes with Kafka's producer, in one transaction:
the producer takes acknowledgements on the subscription along."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka
import pulsar
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compat.pulsar.conftest import Both, ClientOf, make_topic

SUBSCRIPTION = "workers: one"
SHARED, EXCLUSIVE = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive
WAIT_S = 20


def group_of(topic: str, partition: int = 0) -> str:
    return f"pulsar-subscription:{topic}:{partition}:{SUBSCRIPTION}"


def offset_of(message: pulsar.Message) -> int:
    """A message's offset: its entry's, and its place in the batch."""
    found = message.message_id()
    return int(found.entry_id()) + max(found.batch_index(), 0)


class Confluent:
    """librdkafka's producer."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str) -> None:
        self._producer.produce(topic, value)

    def acknowledge(self, topic: str, group: str, offset: int, metadata: str = "") -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        with contextlib.closing(consumer):
            place = TopicPartition(topic, 0, offset, metadata)
            self._producer.send_offsets_to_transaction(
                [place], consumer.consumer_group_metadata(), WAIT_S
            )

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        pass


class Aiokafka:
    """aiokafka's, on a loop of its own."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()

        async def make() -> Any:
            made = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id
            )
            await made.start()
            return made

        self._producer = self._loop.run_until_complete(make())

    def begin(self) -> None:
        self._loop.run_until_complete(self._producer.begin_transaction())

    def send(self, topic: str, value: str) -> None:
        self._loop.run_until_complete(self._producer.send_and_wait(topic, value.encode()))

    def acknowledge(self, topic: str, group: str, offset: int, metadata: str = "") -> None:
        place = aiokafka.TopicPartition(topic, 0)
        offsets = {place: aiokafka.structs.OffsetAndMetadata(offset, metadata)}
        self._loop.run_until_complete(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._loop.run_until_complete(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run_until_complete(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


Maker = Callable[[str, str], Any]


@pytest.fixture(params=[Confluent, Aiokafka], ids=["confluent-kafka", "aiokafka"])
def make_producer(request: pytest.FixtureRequest, both: Both) -> Any:
    """Makes transactional producers, by default each with an id of its own."""
    with contextlib.ExitStack() as stack:

        def make(transactional_id: str | None = None) -> Any:
            made = request.param(both.gateway.bootstrap, transactional_id or uuid.uuid4().hex)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def source(both: Both, client_of: ClientOf, topic: str) -> str:
    """A topic with four records."""
    make_topic(both.gateway.bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": both.gateway.bootstrap, "batch.num.messages": 1})
    for number in range(4):
        producer.produce(topic, str(number))
        producer.flush(WAIT_S)
    return topic


def subscribe(
    both: Both, client_of: ClientOf, topic: str, kind: pulsar.ConsumerType
) -> pulsar.Consumer:
    return client_of(both.service_url).subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=kind,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=100,
    )


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(10_000) for _ in range(count)]


def is_quiet(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(300)
    except pulsar.Timeout:
        return True
    return False


def values(messages: Sequence[pulsar.Message]) -> list[int]:
    return [int(each.data()) for each in messages]


def test_single_messages_and_records_commit_together(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker
) -> None:
    consumer = subscribe(both, client_of, source, SHARED)
    messages = receive(consumer, 4)
    sink = f"{source}-sink"
    make_topic(both.gateway.bootstrap, sink, 1)
    reader = client_of(both.service_url).create_reader(sink, pulsar.MessageId.earliest)
    producer = make_producer()
    group = group_of(source)

    def take(*offsets: int) -> None:
        producer.begin()
        producer.send(sink, ",".join(map(str, offsets)))
        producer.acknowledge(source, group, offsets[-1] + 1, ",".join(map(str, offsets)))

    take(1, 3)
    assert not reader.has_message_available()
    producer.commit()
    assert reader.read_next(10_000).data() == b"1,3"
    take(0)
    producer.abort()
    (again,) = receive(consumer, 1)  # unasked
    assert (offset_of(again), again.redelivery_count()) == (0, 1)
    consumer.acknowledge(again)
    consumer.acknowledge(messages[2])
    consumer.close()
    assert is_quiet(subscribe(both, client_of, source, SHARED))


def test_all_up_to_an_offset(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker
) -> None:
    consumer = subscribe(both, client_of, source, EXCLUSIVE)
    receive(consumer, 4)
    producer = make_producer()
    producer.begin()
    producer.acknowledge(source, group_of(source), 2)
    producer.acknowledge(source, group_of(source), 3)
    producer.commit()
    consumer.close()
    consumer = subscribe(both, client_of, source, EXCLUSIVE)
    assert values(receive(consumer, 1)) == [3]


def test_one_of_two_takes_a_message(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker
) -> None:
    """As a group that has moved on: the second has to abort (KIP-447). aiokafka's producer is not
    to be used any more then."""
    consumer = subscribe(both, client_of, source, SHARED)
    receive(consumer, 4)
    one, two = make_producer(), make_producer()
    one.begin()
    one.acknowledge(source, group_of(source), 2, "0-1")
    two.begin()
    with pytest.raises((KafkaException, aiokafka.errors.KafkaError)):
        two.acknowledge(source, group_of(source), 2, "1")
    one.commit()
    consumer.close()
    consumer = subscribe(both, client_of, source, SHARED)
    assert values(receive(consumer, 2)) == [2, 3]


@pytest.mark.parametrize("taken", [["0,0"], ["0", "0"], ["0-2", "1"], ["0-1,1"]])
def test_who_has_worked_on_two_copies_has_to_abort(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker, taken: Sequence[str]
) -> None:
    """A message that is named twice in a transaction, at once or one after the other."""
    consumer = subscribe(both, client_of, source, SHARED)
    receive(consumer, 4)
    producer = make_producer()
    producer.begin()
    with pytest.raises((KafkaException, aiokafka.errors.KafkaError)):
        for each in taken:
            producer.acknowledge(source, group_of(source), 3, each)
    consumer.close()
    if isinstance(producer, Confluent):  # aiokafka's is not to be used any more
        producer.abort()
        consumer = subscribe(both, client_of, source, SHARED)
        assert values(receive(consumer, 4)) == [0, 1, 2, 3]


def test_a_producer_that_is_fenced_takes_nothing_along(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker
) -> None:
    consumer = subscribe(both, client_of, source, SHARED)
    receive(consumer, 4)
    transactional_id = uuid.uuid4().hex
    zombie = make_producer(transactional_id)
    zombie.begin()
    zombie.acknowledge(source, group_of(source), 1, "0")
    successor = make_producer(transactional_id)  # aborts what is open
    (again,) = receive(consumer, 1)
    assert offset_of(again) == 0
    successor.begin()
    successor.acknowledge(source, group_of(source), 1, "0")
    successor.commit()
    with pytest.raises((KafkaException, aiokafka.errors.KafkaError)):
        zombie.acknowledge(source, group_of(source), 2, "1")
    consumer.close()
    consumer = subscribe(both, client_of, source, SHARED)
    assert values(receive(consumer, 3)) == [1, 2, 3]


def test_many_transactions_of_one_producer(
    both: Both, client_of: ClientOf, source: str, make_producer: Maker
) -> None:
    """Each has its own end, whatever comes behind it."""
    consumer = subscribe(both, client_of, source, SHARED)
    producer = make_producer()
    seen = []
    for number in range(12):
        message = consumer.receive(10_000)
        producer.begin()
        producer.acknowledge(source, group_of(source), 0, str(offset_of(message)))
        if number % 3 == 0:
            producer.abort()
            continue
        seen.append(int(message.data()))
        producer.commit()
        if len(seen) == 4:
            break
    assert sorted(seen) == [0, 1, 2, 3]
    assert is_quiet(consumer)
    consumer.close()
    assert is_quiet(subscribe(both, client_of, source, SHARED))
