"""The stock Python client reads what conversion writes of Kafka's batches, in every codec."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from core.log.records import Compression, Record, RecordSet
from gateway.kafka import conversion as kafka
from gateway.pulsar import ids
from gateway.pulsar.conversion import write_entry
from tests.captures.record_pulsar import Broker

T0 = 1_700_000_000_000
TOPIC = "persistent://public/default/read"
RECORDS = (
    Record(b"key", b"v" * 2000, (("a", b"1"), ("b", "ü".encode())), T0, key_is_text=True),
    Record(None, b"", event_time=T0 + 1),
    Record(b"\xff", b"raw", (("h", b"\xff"),), event_time=T0 + 2),
    Record(b"k", None, ordering_key=b"o", event_time=T0 + 3, key_is_text=True),
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.server.shutdown()
    broker.server.server_close()


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def received(broker: Broker, client: pulsar.Client, records: RecordSet, count: int) -> list[Any]:
    batch = kafka.write_batch(records, base_offset=70)
    broker.stored = [write_entry(kafka.read_batch(batch), 70)]
    consumer = client.subscribe(TOPIC, "s")
    return [consumer.receive(timeout_millis=30_000) for _ in range(count)]


@pytest.mark.parametrize("kind", list(Compression), ids=lambda kind: kind.name)
def test_a_batch_of_kafkas(broker: Broker, client: pulsar.Client, kind: Compression) -> None:
    messages = received(broker, client, RecordSet(RECORDS, T0, compression=kind), 4)
    assert [message.data() for message in messages] == [b"v" * 2000, b"", b"raw", b""]
    assert [message.partition_key() for message in messages] == ["key", "", "/w==", "k"]
    assert [message.event_timestamp() for message in messages] == [T0, T0 + 1, T0 + 2, T0 + 3]
    assert [message.message_id().batch_index() for message in messages] == [0, 1, 2, 3]
    assert messages[0].properties() == {"a": "1", "b": "ü"}
    assert messages[2].properties() == {"penstock.header.0.base64.h": "/w=="}
    assert messages[3].ordering_key() == "o"
    assert {message.publish_timestamp() for message in messages} == {T0 + 3}


def test_holes_are_to_be_told_as_acknowledged(broker: Broker, client: pulsar.Client) -> None:
    """It is the Java client that passes over `compacted_out`; this one needs an ack_set."""
    records = RecordSet((None, RECORDS[0], None, RECORDS[1]), T0)
    broker.ack_set = ids.unacknowledged_words([range(1), range(2, 3)], 4)
    messages = received(broker, client, records, 2)
    assert [message.data() for message in messages] == [b"v" * 2000, b""]
    assert [message.message_id().batch_index() for message in messages] == [1, 3]
