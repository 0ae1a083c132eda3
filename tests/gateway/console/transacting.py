"""Transactions of both protocols, left open by their clients."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandAddPartitionToTxn,
    CommandNewTxn,
    CommandProducer,
    MessageMetadata,
)
from gateway.pulsar.entries import encode_entry
from tests.gateway.console.conftest import WITHIN_S, Site
from tests.pulsar_wire import Wire, closing_all

_COORDINATOR = 3


def make_topic(site: Site, name: str, partitions: int = 1, **config: str) -> None:
    """config: names with underscores for dots."""
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    given = {each.replace("_", "."): value for each, value in config.items()}
    for made in admin.create_topics([NewTopic(name, partitions, config=given)]).values():
        made.result(WITHIN_S)


def open_transaction(
    site: Site, transactional_id: str, topic: str, records: int = 3, client_id: str = "payer"
) -> Producer:
    """A producer of Kafka's that has written so many records to partition 0 in a transaction."""
    producer = Producer(
        {
            "bootstrap.servers": site.bootstrap,
            "transactional.id": transactional_id,
            "client.id": client_id,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, f"{number}".encode(), partition=0)
    assert producer.flush(WITHIN_S) == 0
    return producer


def stand_at(site: Site, group: str, topic: str, offset: int) -> Consumer:
    """A member of a group that has committed an offset of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    place = TopicPartition(topic, 0, offset)
    consumer.commit(offsets=[place], asynchronous=False)
    return consumer


def open_pulsar_transaction(site: Site, topic: str) -> int:
    """A transaction with one message of the topic `persistent://public/default/…`; its sequence,
    which is its producer id, too. Pulsar's client for Python has no transactions."""
    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop in this one
        work = closing_all(_open_pulsar_transaction(site.pulsar_port, topic))
        return thread.submit(asyncio.run, work).result(WITHIN_S)


async def _open_pulsar_transaction(port: int, topic: str) -> int:
    name = f"persistent://public/default/{topic}"
    wire = await Wire.connected(port)
    async with asyncio.timeout(WITHIN_S):
        while await wire.owner_of(name) is None:
            await asyncio.sleep(0.1)
    made = CommandProducer(topic=name, producer_id=0, producer_name="writer")
    await wire.ask(made, CommandType.PRODUCER_SUCCESS)
    wanted = CommandNewTxn(tc_id=_COORDINATOR, txn_ttl_seconds=60_000)
    begun = await wire.ask(wanted, CommandType.NEW_TXN_RESPONSE)
    ids = {"txnid_most_bits": _COORDINATOR, "txnid_least_bits": begun.txnid_least_bits}
    join = CommandAddPartitionToTxn(partitions=[name], **ids)
    await wire.ask(join, CommandType.ADD_PARTITION_TO_TXN_RESPONSE)
    metadata = MessageMetadata(producer_name="writer", sequence_id=0, publish_time=1, **ids)
    wire.send(encode_entry(metadata, b"pending"), sequence_id=0, **ids)
    await wire.hear(CommandType.SEND_RECEIPT)
    return int(begun.txnid_least_bits)
