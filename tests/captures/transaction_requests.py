"""Sensible requests of transactions, in any version: each for a transactional id of its own.

Knows how a transaction gets where it may be asked about; must not know what the broker answers to
the request itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.kafka import codec

# ask(request, version): the broker's answer, decoded.
Ask = Callable[[Any, int], Any]

APIS = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "WriteTxnMarkers",
    "DescribeTransactions",
    "ListTransactions",
    "DescribeProducers",
)
TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic, and names of a transactional id and a group that nobody has used."""

    topic: str
    topic_id: uuid.UUID
    transactional_id: str

    @property
    def group(self) -> str:
        return f"{self.transactional_id}-group"


@dataclass(frozen=True, slots=True)
class Producer:
    """Who writes."""

    producer_id: int = -1
    producer_epoch: int = -1


def init(subject: Subject, current: Producer) -> Any:
    """InitProducerId."""
    return codec.InitProducerIdRequest(
        transactional_id=subject.transactional_id,
        transaction_timeout_ms=TIMEOUT_MS,
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
    )


def initialised(ask: Ask, subject: Subject) -> Producer:
    """A producer that has begun nothing yet."""
    answer = ask(init(subject, Producer()), 4)
    return Producer(answer.producer_id, answer.producer_epoch)


def add_partitions(subject: Subject, producer: Producer, *, verify_only: bool = False) -> Any:
    """AddPartitionsToTxn, as clients (v0 to v3) and as brokers (v4 on) say it."""
    Topic = codec.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    topics = [Topic(name=subject.topic, partitions=[0, 1])]
    return codec.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=subject.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
        transactions=[
            codec.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=subject.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                verify_only=verify_only,
                topics=topics,
            )
        ],
    )


def add_offsets(subject: Subject, producer: Producer) -> Any:
    """AddOffsetsToTxn."""
    return codec.AddOffsetsToTxnRequest(
        transactional_id=subject.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id=subject.group,
    )


def opened(ask: Ask, subject: Subject) -> Producer:
    """A producer whose transaction has both partitions of the topic."""
    producer = initialised(ask, subject)
    ask(add_partitions(subject, producer), 3)
    return producer


def commit_offsets(subject: Subject, producer: Producer) -> Any:
    """TxnOffsetCommit of both partitions, by a consumer that is no member."""
    Topic = codec.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    parts = [
        Topic.TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=0,
            committed_metadata="noted",
        ),
        Topic.TxnOffsetCommitRequestPartition(
            partition_index=1,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata=None,
        ),
    ]
    return codec.TxnOffsetCommitRequest(
        transactional_id=subject.transactional_id,
        group_id=subject.group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[Topic(name=subject.topic, partitions=parts)],
    )


def write_markers(subject: Subject, producer: Producer) -> Any:
    """WriteTxnMarkers, as `kafka-transactions abort` sends it."""
    Marker = codec.WriteTxnMarkersRequest.WritableTxnMarker
    topics = [Marker.WritableTxnMarkerTopic(name=subject.topic, partition_indexes=[0, 7])]
    return codec.WriteTxnMarkersRequest(
        markers=[
            Marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=0,
                transaction_version=0,
            )
        ]
    )


def request(name: str, subject: Subject, version: int, ask: Ask) -> Any:
    """A request of API `name`, after everything that has to come before it."""
    match name:
        case "InitProducerId":
            current = initialised(ask, subject) if version >= 3 else Producer()
            return init(subject, current)
        case "AddPartitionsToTxn":
            if version == 4:  # as a broker asks whether the partitions take part
                return add_partitions(subject, opened(ask, subject), verify_only=True)
            return add_partitions(subject, initialised(ask, subject))
        case "AddOffsetsToTxn":
            return add_offsets(subject, initialised(ask, subject))
        case "TxnOffsetCommit":
            producer = initialised(ask, subject)
            if version < 5:
                ask(add_offsets(subject, producer), 3)
            return commit_offsets(subject, producer)
        case "EndTxn":
            producer = opened(ask, subject)
            return codec.EndTxnRequest(
                transactional_id=subject.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=True,
            )
        case "WriteTxnMarkers":
            return write_markers(subject, opened(ask, subject))
        case "DescribeTransactions":
            opened(ask, subject)
            return codec.DescribeTransactionsRequest(
                transactional_ids=[subject.transactional_id, "no-such-id"]
            )
        case "ListTransactions":
            opened(ask, subject)
            return codec.ListTransactionsRequest(
                state_filters=["Ongoing", "NoSuchState"],
                producer_id_filters=[],
                duration_filter=0 if version >= 1 else -1,
                transactional_id_pattern="capture-.*" if version >= 2 else None,
            )
        case "DescribeProducers":
            opened(ask, subject)
            Topic = codec.DescribeProducersRequest.TopicRequest
            return codec.DescribeProducersRequest(
                topics=[Topic(name=subject.topic, partition_indexes=[0, 7])]
            )
    raise ValueError(f"no request written for {name}")
