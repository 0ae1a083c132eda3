"""What stock clients sent, held against our own definition: read, and written to the same bytes."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.log.records import RecordSet
from gateway.kafka import conversion as kafka
from gateway.pulsar import entries, framing
from gateway.pulsar.commands import (
    CommandType,
    CompressionType,
    TxnAction,
    encode_command,
    parse_command,
)
from gateway.pulsar.conversion import read_entry, write_entry
from gateway.pulsar.entries import Entry
from gateway.pulsar.keys import sticky_key
from gateway.pulsar.transactions import txn_of
from tests.captures import record_pulsar

FRAMES = sorted(record_pulsar.CAPTURES.glob("*/*.bin"))
SENDS = [capture for capture in FRAMES if capture.parent.name == "06_send"]


def name_of(capture: Path) -> str:
    return f"{capture.parent.name}/{capture.stem}"


def frame_of(capture: Path) -> memoryview:
    return memoryview(capture.read_bytes())


def entry_of(capture: Path) -> Entry:
    command, behind = framing.parse_frame(frame_of(capture))
    entry = entries.parse_send(command.message, behind)
    assert isinstance(entry, Entry), entry
    return entry


def sent(name: str) -> Entry:
    return entry_of(record_pulsar.folder_of(CommandType.SEND) / f"python_{name}.bin")


def test_there_are_captures_of_what_producers_and_consumers_send() -> None:
    assert {capture.parent for capture in FRAMES} >= {
        record_pulsar.folder_of(each)
        for each in (
            *(CommandType.CONNECT, CommandType.LOOKUP, CommandType.PARTITIONED_METADATA),
            *(CommandType.PRODUCER, CommandType.SEND, CommandType.SUBSCRIBE, CommandType.FLOW),
            *(CommandType.ACK, CommandType.SEEK, CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES),
            *(CommandType.TC_CLIENT_CONNECT_REQUEST, CommandType.NEW_TXN, CommandType.END_TXN),
            *(CommandType.ADD_PARTITION_TO_TXN, CommandType.ADD_SUBSCRIPTION_TO_TXN),
        )
    }


@pytest.mark.parametrize("capture", FRAMES, ids=name_of)
def test_a_command_is_read_and_written_to_the_same_bytes(capture: Path) -> None:
    frame = frame_of(capture)
    command, behind = framing.parse_frame(frame)
    assert capture.parent == record_pulsar.folder_of(command.type)
    encoded = encode_command(command.message)
    assert parse_command(encoded) == command
    assert struct.pack(">I", len(encoded)) + encoded == frame[: len(frame) - len(behind or b"")]
    assert record_pulsar.described(frame) == json.loads(capture.with_suffix(".json").read_text())
    origin = (capture.parent / "ORIGIN").read_text()
    assert f"{capture.stem}: " in origin


@pytest.mark.parametrize("capture", SENDS, ids=name_of)
def test_an_entry_is_written_to_the_same_bytes(capture: Path) -> None:
    entry = entry_of(capture)
    assert entries.encode_entry(entry.metadata, entry.payload) == entry.block
    if entry.is_batch:
        body = b"".join(
            struct.pack(">I", metadata.ByteSize()) + metadata.SerializeToString() + payload
            for metadata, payload in entries.messages(entry)
        )
        codec = CompressionType(entry.metadata.compression)
        if codec is CompressionType.NONE:
            assert body == entry.payload
        else:
            assert len(body) == entry.metadata.uncompressed_size


@pytest.mark.parametrize("capture", SENDS, ids=name_of)
def test_an_entry_goes_to_kafka_and_back(capture: Path) -> None:
    records = read_entry(entry_of(capture))
    through = kafka.read_batch(kafka.write_batch(records))
    back = read_entry(entries.open_stored(write_entry(through, 0)))

    def without_publication(of: RecordSet) -> list[object]:
        return [
            each
            and replace(
                each, event_time=of.timestamp if each.event_time is None else each.event_time
            )
            for each in of.records
        ]

    assert without_publication(back) == without_publication(records)
    assert back.compression is records.compression


def test_batches() -> None:
    assert (sent("batch").is_batch, sent("batch").message_count) == (True, 3)
    assert (sent("batch_of_one").is_batch, sent("batch_of_one").message_count) == (True, 1)
    assert not sent("zstd").is_batch
    assert sticky_key(sent("batch").metadata) == b"key 0"
    assert sticky_key(sent("batch_by_key").metadata) == b"key 0"
    assert sticky_key(sent("ordered").metadata) == b"o"


@pytest.mark.parametrize("codec", ["lz4", "zlib", "zstd", "snappy"])
def test_every_codec_of_the_client_is_read(codec: str) -> None:
    assert entries.messages(sent(codec))[0].payload == b"compressed " * 50
    batch = [bytes(payload) for _, payload in entries.messages(sent(f"batch_{codec}"))]
    assert batch == [f"message {at} ".encode() * 20 for at in range(3)]


def test_chunks_make_up_their_message() -> None:
    chunks = [sent(f"chunk_{at}") for at in range(2)]
    assert all(chunk.is_chunk for chunk in chunks)
    assert b"".join(bytes(chunk.payload) for chunk in chunks) == bytes(5_000)


def test_an_empty_message_is_not_null() -> None:
    (record,) = read_entry(sent("empty")).records
    assert record is not None and record.value == b""


@pytest.mark.parametrize("client", ["java", "go"])
def test_transactions(client: str) -> None:
    """Where each client puts the id, (0, 7); Go's leaves it out of the entry."""

    def message_of(command: CommandType, scene: str) -> Any:
        capture = record_pulsar.folder_of(command) / f"{client}{scene}.bin"
        return framing.parse_frame(frame_of(capture))[0].message

    assert message_of(CommandType.NEW_TXN, "").txn_ttl_seconds == 30_000  # milliseconds
    for scene in ("_in_transaction", "_batch_in_transaction"):
        assert txn_of(message_of(CommandType.SEND, scene)) == (0, 7)
        entry = entry_of(record_pulsar.folder_of(CommandType.SEND) / f"{client}{scene}.bin")
        assert entry.metadata.HasField("txnid_least_bits") == (client == "java")
    index = message_of(CommandType.ACK, "_batch_index_in_transaction")
    assert txn_of(index) == (0, 7)
    assert index.HasField("request_id")
    assert list(index.message_id[0].ack_set) == [0b101]
    assert index.message_id[0].HasField("batch_size") == (client == "java")
    ends = [message_of(CommandType.END_TXN, f"_{each}").txn_action for each in ("commit", "abort")]
    assert ends == [TxnAction.COMMIT, TxnAction.ABORT]
