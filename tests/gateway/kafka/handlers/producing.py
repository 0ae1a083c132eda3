"""What tests of the log's handlers share: a topic, a Produce request, and reading it back."""

from __future__ import annotations

from typing import Any

from core.topic.rules import NewTopic
from core.topic.topic import Topic
from gateway.kafka.codec import ProduceRequest
from tests.gateway.kafka.handlers.conftest import Broker


async def create(broker: Broker, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
    """A new topic; settings by Kafka's names with "_" for "."."""
    settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
    await broker.topics.create([NewTopic(name, partitions, configs=settings)])
    topic = await broker.topics.get(name)
    assert topic is not None
    return topic


def produce_request(
    parts: dict[int, bytes | None], *, name: str = "t", topic_id: Any = None, acks: int = -1
) -> Any:
    """A Produce request for one topic: records by partition."""
    kind = ProduceRequest.TopicProduceData
    data = [kind.PartitionProduceData(index=i, records=r) for i, r in parts.items()]
    topic = kind(name=name, topic_id=topic_id, partition_data=data)
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[topic])


async def produce(broker: Broker, records: bytes | None, *, version: int = 9, **how: Any) -> Any:
    """Sends one batch to partition 0; gives its part of the answer."""
    answer = await broker.ask(produce_request({0: records}, **how), version)
    ((part,),) = [topic.partition_responses for topic in answer.responses]
    return part
