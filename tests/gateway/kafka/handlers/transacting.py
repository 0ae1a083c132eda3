"""What tests of transactions' APIs share: a producer with a name, and how it says each thing.

What is expected of each was asked of Apache Kafka 4.1.1 first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.kafka import codec
from tests.batches import T0, kafka_batch
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code

NAME = "payments"
TIMEOUT_MS = 60_000

Places = Mapping[str, Sequence[int]]


OWN = "(its own)"


@dataclass(frozen=True, slots=True)
class Producer:
    """Who says it. Each method sends one request; versions are those of V1 unless told."""

    broker: Broker
    producer_id: int = -1
    producer_epoch: int = -1
    name: str = NAME

    async def add(self, places: Places, version: int = 3, **how: Any) -> dict[str, list[int]]:
        """AddPartitionsToTxn; the errors by topic, in order of partitions."""
        answer = await self.broker.ask(add_request(self, places, **how), version)
        if version < 4:
            results = answer.results_by_topic_v3_and_below
        else:
            assert answer.error_code == Code.NONE
            [only] = answer.results_by_transaction
            assert only.transactional_id == self.name
            results = only.topic_results
        return {
            topic.name: [each.partition_error_code for each in topic.results_by_partition]
            for topic in results
        }

    async def begin(self, *partitions: int, topic: str = "t") -> Producer:
        """Has partitions take part."""
        numbers = partitions or (0,)
        assert await self.add({topic: numbers}) == {topic: [Code.NONE] * len(numbers)}
        return self

    async def add_offsets(self, group: str = "g", version: int = 3) -> int:
        """AddOffsetsToTxn."""
        request = codec.AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        code: int = (await self.broker.ask(request, version)).error_code
        return code

    async def commit_offsets(
        self,
        offsets: Mapping[str, Mapping[int, int]],
        group: str = "g",
        version: int = 3,
        metadata: str | None = "",
        **member: Any,
    ) -> dict[str, list[int]]:
        """TxnOffsetCommit; the errors by topic, in order of partitions."""
        kind = codec.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics = [
            kind(
                name=name,
                partitions=[
                    kind.TxnOffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        committed_metadata=metadata,
                    )
                    for number, offset in numbers.items()
                ],
            )
            for name, numbers in offsets.items()
        ]
        request = codec.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=topics,
            **{"generation_id": -1, "member_id": "", "group_instance_id": None, **member},
        )
        answer = await self.broker.ask(request, version)
        return {
            topic.name: [each.error_code for each in topic.partitions] for topic in answer.topics
        }

    def records(
        self,
        sequence: int,
        *,
        values: Sequence[bytes] = (b"v",),
        transactional: bool = True,
        at: int = T0,
    ) -> bytes:
        """One batch of its own."""
        return kafka_batch(
            values,
            timestamps=[at] * len(values),
            producer=self.producer_id,
            epoch=self.producer_epoch,
            sequence=sequence,
            transactional=transactional,
        )

    async def write(
        self,
        sequence: int = 0,
        *,
        partition: int = 0,
        version: int = 9,
        values: Sequence[bytes] = (b"v",),
        name: str | None = OWN,
        transactional: bool = True,
        topic: str = "t",
        topic_id: Any = None,
        at: int = T0,
    ) -> int:
        """Produce, one batch. name: other than its own."""
        records = self.records(sequence, values=values, transactional=transactional, at=at)
        kind = codec.ProduceRequest.TopicProduceData
        parts = [kind.PartitionProduceData(index=partition, records=records)]
        request = codec.ProduceRequest(
            transactional_id=self.name if name == OWN else name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[kind(name=topic, topic_id=topic_id, partition_data=parts)],
        )
        answer = await self.broker.ask(request, version)
        ((part,),) = [topic.partition_responses for topic in answer.responses]
        code: int = part.error_code
        return code

    async def end(self, is_commit: bool = True, version: int = 3) -> Any:
        """EndTxn."""
        request = codec.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        return await self.broker.ask(request, version)


def add_request(producer: Producer, places: Places, *, verify_only: bool = False) -> Any:
    """AddPartitionsToTxn, as clients (v0 to v3) and as brokers (v4 on) say it."""
    kind = codec.AddPartitionsToTxnRequest
    topics = [
        kind.AddPartitionsToTxnTopic(name=name, partitions=list(numbers))
        for name, numbers in places.items()
    ]
    return kind(
        v3_and_below_transactional_id=producer.name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
        transactions=[
            kind.AddPartitionsToTxnTransaction(
                transactional_id=producer.name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                verify_only=verify_only,
                topics=topics,
            )
        ],
    )


def init_request(name: str | None = NAME, **fields: Any) -> Any:
    """InitProducerId of a producer that has no id yet."""
    return codec.InitProducerIdRequest(
        **{
            "transactional_id": name,
            "transaction_timeout_ms": TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
            **fields,
        }
    )


async def producer_of(broker: Broker, name: str = NAME, version: int = 4) -> Producer:
    """A producer that has just started under a name, and has fenced the one before."""
    answer = await broker.ask(init_request(name), version)
    assert answer.error_code == Code.NONE
    return Producer(broker, answer.producer_id, answer.producer_epoch, name)


async def describe(broker: Broker, *names: str) -> list[Any]:
    """DescribeTransactions."""
    request = codec.DescribeTransactionsRequest(transactional_ids=list(names or (NAME,)))
    return list((await broker.ask(request, 0)).transaction_states)


async def state_of(broker: Broker, name: str = NAME) -> str:
    """The state's name."""
    [found] = await describe(broker, name)
    return str(found.transaction_state)
