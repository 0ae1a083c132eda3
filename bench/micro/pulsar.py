"""The steps of a SEND and a MESSAGE, and of translation, each as a function to be timed.

Knows the server's modules; must not know how time is taken.
"""

from __future__ import annotations

from bench.micro.steps import TIMESTAMP, Step, batch
from core.log.records import Compression
from gateway.framing import Framer, make_scratch
from gateway.kafka import conversion as kafka
from gateway.pulsar import entries, framing, keys
from gateway.pulsar.commands import CompressionType
from gateway.pulsar.commands_pb2 import CommandSend, MessageMetadata, SingleMessageMetadata
from gateway.pulsar.conversion import read_entry, write_entry
from gateway.pulsar.entries import Entry


def entry(record_size: int, count: int, codec: CompressionType = CompressionType.NONE) -> bytes:
    """A batch as the Java client makes it: names, sequence ids, sizes; no keys."""
    metadata = MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=123_456,
        publish_time=TIMESTAMP,
        highest_sequence_id=123_456 + count - 1,
    )
    singles = [
        (SingleMessageMetadata(sequence_id=123_456 + at), bytes(record_size)) for at in range(count)
    ]
    return entries.encode_batch(metadata, singles, codec)


def send_frame(block: bytes, count: int) -> memoryview:
    send = CommandSend(
        producer_id=1,
        sequence_id=123_456,
        num_messages=count,
        highest_sequence_id=123_456 + count - 1,
    )
    return memoryview(b"".join(framing.encode_entry_frame(send, block)))[4:]


def take_send(block: bytes, count: int, name: str) -> Step:
    """All that a SEND is looked at for: frame, command, checksum, metadata, its rules."""
    frame = send_frame(block, count)

    def run() -> None:
        command, behind = framing.parse_frame(frame)
        if not isinstance(entries.parse_send(command.message, behind), Entry):
            raise AssertionError("it was refused")

    return Step(f"pulsar/send-{name}", run, len(frame))


def cut(block: bytes, count: int) -> Step:
    frame = bytes(send_frame(block, count))
    stream = memoryview(len(frame).to_bytes(4, "big") + frame)
    framer = Framer(framing.max_frame_size(), make_scratch())

    def run() -> None:
        if len(framer.feed(stream)) != 1:
            raise AssertionError("not one frame")

    return Step(f"pulsar/cut-{len(stream)}B", run, len(stream))


def steps() -> list[Step]:
    small, full = entry(100, 1), entry(1_000, 16)
    stored = entries.open_stored(full)
    zipped = entries.open_stored(entry(1_000, 16, CompressionType.LZ4))
    kafkas = batch(1_000, 16)
    neutral = kafka.read_batch(kafkas)
    lz4 = kafka.write_batch(read_entry(zipped))
    assert read_entry(zipped).compression is Compression.LZ4
    return [
        cut(small, 1),
        take_send(small, 1, "1x100B"),
        take_send(full, 16, "16x1kB"),
        take_send(entry(1_000, 1_000), 1_000, "1000x1kB"),
        Step("pulsar/receipt", lambda: framing.encode_send_receipt(1, 123_456, 123_471, 17, 10**7)),
        Step(
            "pulsar/message-16x1kB",
            lambda: framing.encode_message(1, 17, 10**7, full, partition=2, consumer_epoch=1),
        ),
        Step("pulsar/key-hash-20B", lambda: keys.key_hash(b"flight LH 442, ICAO3")),
        Step("pulsar/open-16x1kB", lambda: entries.messages(stored), len(full)),
        Step("convert/pulsar-to-kafka-16x1kB", lambda: kafka.write_batch(read_entry(stored))),
        Step("convert/pulsar-to-kafka-16x1kB-lz4", lambda: kafka.write_batch(read_entry(zipped))),
        Step("convert/kafka-to-pulsar-16x1kB", lambda: write_entry(kafka.read_batch(kafkas), 0)),
        Step("convert/kafka-to-pulsar-16x1kB-lz4", lambda: write_entry(kafka.read_batch(lz4), 0)),
        Step("convert/write-entry-16x1kB", lambda: write_entry(neutral, 0)),
    ]
