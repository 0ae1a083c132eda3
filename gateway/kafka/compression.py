"""How the records of a batch are compressed: reading and writing Kafka's codecs.

Knows no batch but the bytes of its records. Sources: CompressionType, the classes of
org.apache.kafka.common.compress.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Final

import cramjam

from core.log.records import Compression, InvalidBatch

Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
# Blocks of the Java client's snappy (SnappyOutputStream); what other clients read as well.
_XERIAL_BLOCK: Final = 32 * 1024
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_DEFAULT: Final = 9
_LZ4_FASTEST, _LZ4_LEAST_HIGH = 1, 3


class Codec(IntEnum):
    """A batch's codec, by its number in the attributes (CompressionType)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final[Mapping[Compression, Codec]] = {
    Compression.NONE: Codec.NONE,
    Compression.DEFLATE: Codec.GZIP,
    Compression.SNAPPY: Codec.SNAPPY,
    Compression.LZ4: Codec.LZ4,
    Compression.ZSTD: Codec.ZSTD,
}


class InvalidRecords(InvalidBatch):
    """The records inside a batch are not what its header says; answered with INVALID_RECORD."""


class TooLarge(InvalidRecords):
    """They may be, but are more than whoever asked wants to see."""


# --- writing ---


def compress(body: Buffer, codec: Codec, level: int | None = None) -> Buffer:
    """These records in the codec. level: as in `compression.*.level`; None where nobody says."""
    match codec:
        case Codec.NONE:
            return body
        case Codec.GZIP:
            return zlib.compress(body, -1 if level is None else level, wbits=16 + zlib.MAX_WBITS)
        case Codec.SNAPPY:
            return _snappy(body)
        case Codec.LZ4:
            return _lz4(body, level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(body, level))


def _snappy(body: Buffer) -> bytes:
    starts = [*range(0, len(body), _XERIAL_BLOCK), len(body)]
    view = memoryview(body)
    blocks = [bytes(cramjam.snappy.compress_raw(view[a:b])) for a, b in pairwise(starts)]
    sized = (piece for block in blocks for piece in (len(block).to_bytes(4, "big"), block))
    return _XERIAL_HEADER + b"".join(sized)


def _lz4(body: Buffer, level: int | None) -> bytes:
    """A frame of independent blocks: others the Java client cannot read (KAFKA-3160).

    At its default level Kafka takes the fast compressor, at any other the high one
    (Lz4BlockOutputStream).
    """
    if level is not None:
        level = _LZ4_FASTEST if level == _LZ4_DEFAULT else max(level, _LZ4_LEAST_HIGH)
    stream = cramjam.lz4.Compressor(level, block_linked=False)
    view = memoryview(body)
    for start in range(0, len(body), _LZ4_BLOCK):  # it holds Python's lock during each call
        stream.compress(bytes(view[start : start + _LZ4_BLOCK]))
    return bytes(stream.finish())


# --- reading ---


def decompress(body: memoryview, codec: int, limit: int) -> Buffer:
    """The records of a batch, at most `limit` bytes. Raises InvalidRecords, TooLarge."""
    try:
        match codec:
            case Codec.NONE:
                return body
            case Codec.GZIP:
                return _gunzip(body, limit)
            case Codec.SNAPPY:
                return _unsnappy(body, limit)
            case Codec.LZ4:
                return _grow(cramjam.lz4.decompress_into, body, limit)
            case Codec.ZSTD:
                return _grow(cramjam.zstd.decompress_into, body, limit)
    except (cramjam.DecompressionError, zlib.error) as broken:
        raise InvalidRecords(f"the records cannot be decompressed: {broken}") from broken
    raise InvalidRecords(f"unknown compression type {codec}")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the records decompress to more than {limit} bytes")


def _gunzip(body: memoryview, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    records = stream.decompress(body, limit)
    if stream.unconsumed_tail:
        raise _too_large(limit)
    if not stream.eof:
        raise InvalidRecords("the gzip stream is cut short")
    return records


def _unsnappy(body: memoryview, limit: int) -> bytes:
    """Raw snappy (librdkafka), or the xerial framing of the Java client: blocks behind a header."""
    if bytes(body[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(body, limit)
    blocks: list[bytes] = []
    left, pos = limit, len(_XERIAL_HEADER)
    while pos < len(body):
        size = int.from_bytes(body[pos : pos + 4], "big")
        pos += 4
        if pos + size > len(body):
            raise InvalidRecords("a snappy block is cut short")
        blocks.append(_unsnappy_block(body[pos : pos + size], left))
        left -= len(blocks[-1])
        pos += size
    return b"".join(blocks)


def _unsnappy_block(block: memoryview, limit: int) -> bytes:
    announced = cramjam.snappy.decompress_raw_len(block)
    if announced > limit:
        raise _too_large(limit)
    # The longest copy, 64 bytes, takes two bytes: a greater length is a lie worth no allocation.
    if announced > 64 * len(block):
        raise InvalidRecords("a snappy block announces more than it can hold")
    return bytes(cramjam.snappy.decompress_raw(block))


def _grow(
    decompress_into: Callable[[memoryview, bytearray], int], body: memoryview, limit: int
) -> Buffer:
    """Decompress into a buffer that is made larger until the records fit."""
    room = min(max(4 * len(body), 64 * 1024), limit)
    while True:
        records = bytearray(room)
        try:
            return memoryview(records)[: decompress_into(body, records)]
        except cramjam.DecompressionError as failure:
            if "failed to write whole buffer" not in str(failure):
                raise
        if room == limit:
            raise _too_large(limit)
        room = min(4 * room, limit)
