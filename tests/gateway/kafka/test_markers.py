"""Control batches against those that Apache Kafka wrote, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from kafka.record import MemoryRecords

from core.transaction.values import Marker
from gateway.kafka.markers import control_batch
from tests.captures.record import CAPTURES

GOLDEN = sorted((CAPTURES.parent / "control_batches").glob("*.bin"))
PATCHED = 16  # base offset, length and leader epoch: what lies before the CRC is set when read


def fields(batch: bytes) -> tuple[Marker, int]:
    """The marker that a batch stands for, and its timestamp."""
    timestamp, producer_id, epoch = struct.unpack_from(">q8xqh", batch, 27)
    [record] = MemoryRecords(batch).next_batch()
    _, kind = struct.unpack(">hh", record.key)
    _, coordinator_epoch = struct.unpack(">hi", record.value)
    return Marker(producer_id, epoch, kind == 1, coordinator_epoch), timestamp


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_same_bytes_as_kafka(golden: Path) -> None:
    theirs = golden.read_bytes()
    marker, timestamp = fields(theirs)
    assert marker.is_commit is (golden.stem == "commit")
    assert marker.coordinator_epoch == 2
    ours = control_batch(marker, timestamp)
    assert ours[PATCHED:] == theirs[PATCHED:]
    assert ours[8:12] == theirs[8:12]  # the length


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("coordinator_epoch", [-1, 0, 2**31 - 1])
@pytest.mark.parametrize("epoch", [0, 2**15 - 1])
def test_a_stock_reader_reads_it(is_commit: bool, coordinator_epoch: int, epoch: int) -> None:
    marker = Marker(2**63 - 1, epoch, is_commit, coordinator_epoch)
    batch = control_batch(marker, 1_700_000_000_123)
    read = MemoryRecords(batch).next_batch()
    assert read.is_control_batch
    assert read.is_transactional
    assert read.validate_crc()
    assert (read.base_sequence, read.last_offset_delta, read.records_count) == (-1, 0, 1)
    assert fields(batch) == (marker, 1_700_000_000_123)
