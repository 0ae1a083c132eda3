"""Reads a topic whole, three ways: confluent-kafka, aiokafka, and straight from the tables.

Knows clients and tables; must not know what was written or what a fault is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import psycopg
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka.record import MemoryRecords

from tests.faults.history import PartitionView, StoredRecord

READ_WITHIN_S = 60.0

Log = dict[int, PartitionView]


def read_all_ways(bootstrap: str, database_url: str, topic: str, partitions: int) -> dict[str, Log]:
    """The topic as each reader sees it. Nobody may be writing to it."""
    return {
        "postgresql": read_tables(database_url, topic),
        "confluent-kafka": read_with_confluent(bootstrap, topic, partitions),
        "aiokafka": asyncio.run(read_with_aiokafka(bootstrap, topic, partitions)),
    }


def read_tables(
    database_url: str, topic: str, values_of: Callable[[bytes], list[bytes]] | None = None
) -> Log:
    """What the tables hold, by the index and the chunks, payload decoded by kafka-python, or by
    `values_of`."""
    views: Log = {}
    assert urlsplit(database_url).scheme == "postgresql"
    with psycopg.connect(database_url) as connection:
        partitions = connection.execute(
            "SELECT p.partition, p.partition_id, p.log_start_offset, p.next_offset"
            " FROM topic_partition p JOIN topic t USING (topic_id) WHERE t.name = %s",
            (topic,),
        ).fetchall()
        for partition, partition_id, start, end in partitions:
            batches = connection.execute(
                "SELECT base_offset, last_offset, segment_id, payload_id, position, size"
                " FROM record_batch WHERE partition_id = %s AND last_offset >= %s"
                " ORDER BY last_offset",
                (partition_id, start),
            ).fetchall()
            payloads: dict[int, bytes] = {}
            for segment_id in {row[2] for row in batches}:
                rows = connection.execute(
                    f"SELECT payload_id, string_agg(data, ''::bytea ORDER BY seq)"
                    f" FROM record_chunk_{segment_id:d}"
                    " WHERE payload_id = ANY (%s) GROUP BY payload_id",
                    ([row[3] for row in batches if row[2] == segment_id],),
                )
                payloads.update(rows.fetchall())
            records: list[StoredRecord] = []
            for base_offset, last_offset, _, payload_id, position, size in batches:
                batch = payloads.get(payload_id, b"")[position : position + size]
                assert len(batch) == size, f"offset {base_offset}: {len(batch)} of {size} bytes"
                values = (values_of or _values)(batch)
                assert base_offset + len(values) - 1 == last_offset, f"batch at {base_offset}"
                records += [
                    StoredRecord(partition, base_offset + n, value)
                    for n, value in enumerate(values)
                    if base_offset + n >= start
                ]
            views[partition] = PartitionView(start, end, tuple(records))
    return views


def _values(payload: bytes) -> list[bytes]:
    batches = MemoryRecords(bytearray(payload))
    values = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        values += [bytes(record.value) for record in batch]
    return values


def read_with_confluent(bootstrap: str, topic: str, partitions: int) -> Log:
    """Every partition from its start to its end, with librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 500,
        }
    )
    try:
        ends = {n: _watermarks(consumer, TopicPartition(topic, n)) for n in range(partitions)}
        consumer.assign([TopicPartition(topic, n, start) for n, (start, _) in ends.items()])
        found: dict[int, list[StoredRecord]] = {n: [] for n in ends}
        deadline = time.monotonic() + READ_WITHIN_S
        missing = {n: end - start for n, (start, end) in ends.items()}
        while any(count > 0 for count in missing.values()):
            for message in consumer.consume(5_000, timeout=0.2):
                assert not message.error(), message.error()
                found[message.partition()].append(
                    StoredRecord(message.partition(), message.offset(), message.value())
                )
                missing[message.partition()] -= 1
            assert time.monotonic() < deadline, f"confluent-kafka did not read all: {missing} left"
    finally:
        consumer.close()
    return {n: PartitionView(*ends[n], tuple(records)) for n, records in found.items()}


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """librdkafka does not try this call again by itself, for instance when a broker has come back
    and the list of brokers changes under it."""
    deadline = time.monotonic() + READ_WITHIN_S
    while True:
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=READ_WITHIN_S)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return start, end


async def read_with_aiokafka(bootstrap: str, topic: str, partitions: int) -> Log:
    """Every partition from its start to its end, with aiokafka."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none"
    )
    deadline = time.monotonic() + READ_WITHIN_S
    while True:
        try:
            await consumer.start()
            break
        except AioKafkaError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
    try:
        handles = {n: AioTopicPartition(topic, n) for n in range(partitions)}
        consumer.assign(list(handles.values()))
        starts = await consumer.beginning_offsets(list(handles.values()))
        ends = await consumer.end_offsets(list(handles.values()))
        found: dict[int, list[StoredRecord]] = {n: [] for n in handles}
        for handle in handles.values():
            consumer.seek(handle, starts[handle])
        async with asyncio.timeout(READ_WITHIN_S):
            while any(
                len(found[n]) < ends[handle] - starts[handle] for n, handle in handles.items()
            ):
                for handle, messages in (await consumer.getmany(timeout_ms=200)).items():
                    found[handle.partition] += [
                        StoredRecord(handle.partition, each.offset, each.value) for each in messages
                    ]
        return {
            n: PartitionView(starts[handle], ends[handle], tuple(found[n]))
            for n, handle in handles.items()
        }
    finally:
        await consumer.stop()


def read_by_offset(
    bootstrap: str, topic: str, partitions: int, isolation: str
) -> dict[int, dict[int, bytes]]:
    """Values by partition and offset, from the beginning to the end that a confluent-kafka consumer
    of this isolation level has by now.

    That end is asked for: a broker may hear late what another one has written last, and tell a
    fetch of an earlier one.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verifier",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    consumer.assign(places)
    ends = {each.partition: _watermarks(consumer, each)[1] for each in places}
    found: dict[int, dict[int, bytes]] = {partition: {} for partition in range(partitions)}
    at_end: set[int] = set()
    deadline = time.monotonic() + READ_WITHIN_S
    while len(at_end) < partitions:
        assert time.monotonic() < deadline, f"no end of the partitions in sight: {at_end}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            is_end = message.error().name() == "_PARTITION_EOF"
            if is_end and message.offset() >= ends[message.partition()]:
                at_end.add(message.partition())
        else:
            found[message.partition()][message.offset()] = message.value()
    consumer.close()
    return found
