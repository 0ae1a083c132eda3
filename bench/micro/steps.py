"""The steps of a Produce and a Fetch, each as a function to be timed, on stock clients' bytes.

Knows the server's modules (this is what it measures); must not know how time is taken.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.record import MemoryRecordsBuilder

from core.log.effects import IncomingBatch
from core.log.partition_log import PartitionLog, PartitionState
from core.types import BatchFormat, RecordBatch
from gateway.framing import Framer, make_scratch
from gateway.kafka import codec, records

PARTITIONS = 4
TIMESTAMP = 1_700_000_000_000
MAX_FRAME = 100 * 1024 * 1024
TOPIC_ID = uuid.UUID(int=1)


@dataclass(frozen=True, slots=True)
class Step:
    """`run()` does the step once, on `size` bytes of wire (0: none to speak of)."""

    name: str
    run: Callable[[], object]
    size: int = 0


def batch(record_size: int, record_count: int) -> bytes:
    """A record batch v2 as kafka-python builds it, of an idempotent producer."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 24)
    builder.set_producer_state(7, 0, 0, False)
    for _ in range(record_count):
        builder.append(timestamp=TIMESTAMP, key=None, value=bytes(record_size), headers=[])
    builder.close()
    return bytes(builder.buffer())


def request_frame(key: int, version: int, message: Any) -> bytes:
    """A request's frame without its size, header v2 (flexible versions only)."""
    header = struct.pack(">hhih", key, version, 1, 8) + b"producer" + b"\0"
    return header + b"".join(bytes(part) for part in codec.encode_message(message, version))


def produce_frame(payload: bytes, version: int = 9) -> bytes:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData
    message = ProduceRequest(
        version=version,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            topic(
                version=version,
                name="bench",
                partition_data=[
                    partition(version=version, index=index, records=payload)
                    for index in range(PARTITIONS)
                ],
            )
        ],
    )
    return request_frame(0, version, message)


def fetch_frame(partitions: int, version: int = 16) -> bytes:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition
    message = FetchRequest(
        version=version,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 26,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                version=version,
                topic_id=TOPIC_ID,
                partitions=[
                    partition(
                        version=version,
                        partition=index,
                        current_leader_epoch=0,
                        fetch_offset=0,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=1 << 20,
                    )
                    for index in range(partitions)
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
    return request_frame(1, version, message)


# --- framing --------------------------------------------------------------------------------------


def framing(frame: bytes, chunk: int) -> Step:
    """A frame that arrives in reads of at most `chunk` bytes."""
    stream = struct.pack(">i", len(frame)) + frame
    framer = Framer(MAX_FRAME, make_scratch())

    def run() -> None:
        at, frames = 0, []
        while at < len(stream):
            buffer = framer.get_buffer()
            take = min(len(buffer), chunk, len(stream) - at)
            buffer[:take] = stream[at : at + take]
            at += take
            frames += framer.buffer_updated(take)
        if len(frames) != 1:
            raise AssertionError("the framer lost the frame")

    return Step(f"framing/{len(frame)}B-in-{chunk}B-reads", run, len(stream))


# --- codec ----------------------------------------------------------------------------------------


def decode(name: str, frame: bytes) -> Step:
    view = memoryview(frame)

    def run() -> object:
        return codec.decode_body(codec.decode_header(view), view)

    return Step(f"decode/{name}", run, len(frame))


def encode_produce(version: int = 9) -> Step:
    """The answer to a Produce of four partitions, built and encoded."""
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse

    def run() -> object:
        answered = [
            partition(
                version=version,
                index=index,
                error_code=0,
                base_offset=1_000,
                log_append_time_ms=-1,
                log_start_offset=0,
                record_errors=[],
                error_message=None,
            )
            for index in range(PARTITIONS)
        ]
        topics = [topic(version=version, name="bench", partition_responses=answered)]
        response = ProduceResponse(version=version, responses=topics, throttle_time_ms=0)
        return codec.encode_response(response, version, 1)

    return Step(f"encode/produce-response-{PARTITIONS}p", run)


def encode_fetch(payloads: int, payload: bytes, version: int = 16) -> Step:
    """A Fetch answer of four partitions, each with some stored batches, patched on the way out."""
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData

    def stored() -> list[bytes | memoryview]:
        return [part for at in range(payloads) for part in records.patched(payload, at, 0)]

    def run() -> object:
        answered = [
            partition(
                version=version,
                partition_index=index,
                error_code=0,
                high_watermark=10_000,
                last_stable_offset=10_000,
                log_start_offset=0,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=stored(),
            )
            for index in range(PARTITIONS)
        ]
        topics = [topic(version=version, topic_id=TOPIC_ID, partitions=answered)]
        response = FetchResponse(
            version=version, throttle_time_ms=0, error_code=0, session_id=0, responses=topics
        )
        return codec.encode_response(response, version, 1)

    size = PARTITIONS * payloads * len(payload)
    return Step(f"encode/fetch-response-{PARTITIONS}p-{payloads}x{len(payload)}B", run, size)


# --- records and decisions ------------------------------------------------------------------------


def parse_batch(payload: bytes, label: str) -> Step:
    """Validation of a batch as Produce does it: header, lengths, CRC-32C."""
    view = memoryview(payload)
    if not isinstance(records.parse_produce_batch(view, 9), records.KafkaBatch):
        raise AssertionError("the batch was refused")
    return Step(f"records/{label}", lambda: records.parse_produce_batch(view, 9), len(payload))


def decide(producers: int, batches: int) -> Step:
    """One flush on one partition: draft, decide on `batches` in turn, replay the effects.

    Sequences go on from flush to flush, so making the batches is part of what is timed.
    """
    log = PartitionLog(PartitionState(partition_id=1))
    log.load(log.state, dict.fromkeys(range(producers)))
    rounds: Iterator[int] = count()

    def run() -> None:
        base_sequence = next(rounds) * batches // producers * 16 % (1 << 30)
        draft = log.draft()
        for number in range(batches):
            arrived = RecordBatch(
                record_count=16,
                max_timestamp=TIMESTAMP,
                size=16_384,
                format=BatchFormat.KAFKA_V2,
                producer_id=number % producers,
                producer_epoch=0,
                base_sequence=base_sequence + number // producers * 16,
            )
            draft.prepare_append(IncomingBatch(arrived, b"", "week"))
        effects = draft.effects()
        if effects is None or len(effects.rows) != batches:
            raise AssertionError("not every batch was accepted")
        log.replay(effects)

    return Step(f"decide/{batches}-batches-of-{producers}-producers", run)


def steps() -> list[Step]:
    small, full = batch(100, 1), batch(1_000, 16)
    metadata = MetadataRequest(
        version=12,
        topics=[],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return [
        framing(produce_frame(small), 128 * 1024),
        framing(produce_frame(full), 128 * 1024),
        framing(produce_frame(full), 1_460),
        decode("produce-4p-small", produce_frame(small)),
        decode("produce-4p-16kB", produce_frame(full)),
        decode("fetch-4p", fetch_frame(4)),
        decode("fetch-64p", fetch_frame(64)),
        decode("metadata", request_frame(3, 12, metadata)),
        encode_produce(),
        encode_fetch(1, small),
        encode_fetch(16, full),
        parse_batch(small, "validate-1x100B"),
        parse_batch(full, "validate-16x1kB"),
        parse_batch(batch(1_000, 1_000), "validate-1000x1kB"),
        decide(1, 1),
        decide(8, 64),
    ]
