"""Control batches that end a transaction, byte for byte as Kafka writes them.

One record: key (version, type), value (version, coordinator epoch). Sources:
MemoryRecords.writeEndTransactionalMarker, EndTransactionMarker, ControlRecordType. Knows no log.
"""

import struct
from typing import Final

from crc32c import crc32c

from core.transaction.values import Marker

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")  # as in records.py
_LOG_OVERHEAD: Final = 12
_CRC_START: Final = 21
_MAGIC: Final = 2
_TRANSACTIONAL_AND_CONTROL: Final = 0x30
_NO_LEADER_EPOCH: Final = -1
_NO_SEQUENCE: Final = -1
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


def control_batch(marker: Marker, timestamp: int) -> bytes:
    """The batch for a marker, stamped `timestamp` (ms), at offset 0 and leader epoch unset."""
    key = _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    # attributes, timestamp delta, offset delta, key size, key, value size, value, headers; sizes
    # and deltas are zigzag varints of one byte.
    body = b"\0\0\0" + bytes((len(key) << 1,)) + key + bytes((len(value) << 1,)) + value + b"\0"
    record = bytes((len(body) << 1,)) + body
    size = _HEADER.size + len(record)
    batch = bytearray(size)
    _HEADER.pack_into(
        batch,
        0,
        0,
        size - _LOG_OVERHEAD,
        _NO_LEADER_EPOCH,
        _MAGIC,
        0,
        _TRANSACTIONAL_AND_CONTROL,
        0,
        timestamp,
        timestamp,
        marker.producer_id,
        marker.producer_epoch,
        _NO_SEQUENCE,
        1,
    )
    batch[_HEADER.size :] = record
    struct.pack_into(">I", batch, _CRC_START - 4, crc32c(memoryview(batch)[_CRC_START:]))
    return bytes(batch)
