"""The few messages that the sink speaks, beside those of any connection (`penstock/connection.py`).

Knows bytes; must not know Spark, Arrow, when to try again or where. StageRecords, PublishStaged and
DropStaged are Penstock's own, which its gateways serve and never list; the others are Kafka's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.connection import Address, Buffer, Refused, ResponseBody, number, string

if TYPE_CHECKING:
    from penstock.spark.batches import Batch

CLIENT_ID: Final = "penstock-spark"

DESCRIBE_CONFIGS: Final = 32, 1
STAGE_RECORDS: Final = 10_000, 0
PUBLISH_STAGED: Final = 10_001, 0
DROP_STAGED: Final = 10_002, 0

_TOPIC_RESOURCE: Final = 2

# --- codes of errors ---

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
MESSAGE_TOO_LARGE: Final = 10
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
THROTTLING_QUOTA_EXCEEDED: Final = 89
RESOURCE_NOT_FOUND: Final = 91

# --- answers ---


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Metadata tells. partitions: how many each topic has, or why it has none."""

    brokers: list[Address]
    partitions: dict[str, int | Refused]


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """staged: batches that the token holds, -1 if that is not known."""

    refusal: Refused | None
    staged: int


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """What one partition got."""

    topic: str
    index: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """is_new: published by this very request; else it, or a later batch, had been before.
    highest: the last batch of this query and sink that is published by now."""

    is_new: bool
    highest: int
    partitions: list[PublishedPartition]


# --- requests ---


def read_metadata(answer: ResponseBody) -> Cluster:
    answer.number(4)  # throttle time
    brokers = []
    for _ in answer.count():
        answer.number(4)
        brokers.append((answer.text(), answer.number(4)))
        answer.string()  # rack
    answer.string()  # cluster id
    answer.number(4)  # controller
    partitions: dict[str, int | Refused] = {}
    for _ in answer.count():
        code, name = answer.number(2), answer.text()
        answer.number(1)  # whether it is internal
        count = 0
        for _ in answer.count():
            count += 1
            answer.take(2 + 4 + 4)  # error, index, leader
            for _ in range(2):  # replicas, in-sync replicas
                answer.take(4 * len(answer.count()))
        partitions[name] = Refused(code) if code else count
    return Cluster(brokers, partitions)


def describe_configs_request(topics: Sequence[str], name: str) -> bytes:
    """Asks for one setting of topics."""
    each = [number(_TOPIC_RESOURCE, 1) + string(topic) for topic in topics]
    wanted = number(1, 4) + string(name)
    return number(len(each), 4) + b"".join(one + wanted for one in each) + b"\0"


def read_configs(answer: ResponseBody) -> dict[str, str | None]:
    """The setting's value, by topic; topics that were refused are left out."""
    answer.number(4)  # throttle time
    values: dict[str, str | None] = {}
    for _ in answer.count():
        answer.refusal()
        answer.number(1)
        topic = answer.text()
        for _ in answer.count():
            answer.string()
            values[topic] = answer.string()
            answer.take(1 + 1 + 1)  # read-only, source, sensitive
            for _ in answer.count():  # synonyms
                answer.string()
                answer.string()
                answer.number(1)
    return values


def stage_request(
    token: UUID, first_batch: int, batches: Sequence[tuple[str, int, Batch]]
) -> list[Buffer]:
    """Stages batches, each for a topic and a partition. first_batch: how many went before."""
    head = token.bytes + number(first_batch, 4) + number(len(batches), 4)
    pieces: list[Buffer] = [head]
    for topic, index, batch in batches:
        place = string(topic) + number(index, 4) + number(batch.size, 4)
        pieces += place + batch.header, batch.body
    return pieces


def read_stage(answer: ResponseBody) -> StageAnswer:
    return StageAnswer(answer.refusal(), answer.number(4))


def publish_request(
    query_id: str, sink: str, batch_id: int, tokens: Sequence[tuple[UUID, int]], timeout_ms: int
) -> bytes:
    """tokens: each with how many batches it holds."""
    each = [token.bytes + number(batches, 4) for token, batches in tokens]
    head = string(query_id) + string(sink) + number(batch_id, 8) + number(len(each), 4)
    return head + b"".join(each) + number(timeout_ms, 4)


def read_publish(answer: ResponseBody) -> PublishAnswer:
    if refusal := answer.refusal():
        raise refusal
    is_new = answer.number(1) == 1
    return PublishAnswer(
        is_new,
        answer.number(8),
        [
            PublishedPartition(answer.text(), answer.number(4), answer.number(8), answer.number(8))
            for _ in answer.count()
        ],
    )


def drop_request(tokens: Sequence[UUID]) -> bytes:
    return number(len(tokens), 4) + b"".join(token.bytes for token in tokens)


def read_drop(answer: ResponseBody) -> None:
    if refusal := answer.refusal():
        raise refusal
