"""DescribeProducers (key 61): the producers a partition remembers, and what they have open there.

Behavior: any broker answers for any partition, from the database (KIP-664). -1 is nothing open, or
no marker yet.

Versions: v0, flexible.
"""

from collections import defaultdict
from typing import Any

from core.errors import Error, Refusal
from core.ports.topics import ActiveProducer
from core.security.operations import REQUIREMENTS
from core.topic.rules import unknown_topic
from core.topic.topic import find_partition
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeProducersRequest, DescribeProducersResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import NO_LEADER

TopicAnswer = DescribeProducersResponse.TopicResponse
PartitionAnswer = TopicAnswer.PartitionResponse
_NOT_AUTHORIZED = Refusal(Error.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
(_READ,) = REQUIREMENTS["DescribeProducers"]


def _refuse_all(
    request: DescribeProducersRequest, ctx: RequestContext
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicAnswer(
                name=each.name,
                partitions=[_refused(number, NO_LEADER) for number in each.partition_indexes],
            )
            for each in request.topics
        ]
    )


@api(61, versions=range(1), unavailable=_refuse_all)
async def describe_producers(
    request: DescribeProducersRequest, ctx: RequestContext
) -> DescribeProducersResponse:
    """List the producers of each partition asked for."""
    names = {each.name for each in request.topics}
    hidden = {name for name in names if not ctx.may(_READ, name)}
    topics = await ctx.topics.get_many(names - hidden)
    partition_ids = {
        partition_id
        for each in request.topics
        for number in each.partition_indexes
        if (partition_id := find_partition(topics, each.name, number)) is not None
    }
    producers: dict[int, list[ActiveProducer]] = defaultdict(list)
    for producer in await ctx.topics.active_producers(partition_ids):
        producers[producer.partition_id].append(producer)
    answers = []
    for each in request.topics:
        partitions = []
        for number in each.partition_indexes:
            partition_id = find_partition(topics, each.name, number)
            partitions.append(
                _refused(
                    number, _NOT_AUTHORIZED if each.name in hidden else unknown_topic(each.name)
                )
                if partition_id is None
                else _partition(number, producers[partition_id])
            )
        answers.append(TopicAnswer(name=each.name, partitions=partitions))
    return DescribeProducersResponse(topics=answers)


def _refused(number: int, refusal: Refusal) -> Any:
    return PartitionAnswer(
        partition_index=number,
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
        active_producers=[],
    )


def _partition(number: int, producers: list[ActiveProducer]) -> Any:
    return PartitionAnswer(
        partition_index=number,
        error_code=0,
        error_message=None,
        active_producers=[
            PartitionAnswer.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_first_offset,
            )
            for producer in producers
        ],
    )
