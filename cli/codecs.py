"""Gives kafka-python the codecs that it lacks, out of cramjam, so that every topic can be read.

kafka-python reads snappy, LZ4 and zstd with packages that `pip install penstock` does not bring;
cramjam, which it brings, knows all three. Knows kafka-python's `codec` and `default_records`.
"""

import struct
from collections.abc import Callable
from typing import Final

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_LENGTH: Final = struct.Struct(">i")


def complete() -> None:
    """Fills in what is missing; leaves alone what is there."""
    import cramjam
    from kafka import codec

    if not codec.has_snappy():
        _replace("snappy", unpack_snappy, pack_snappy)
    if not codec.has_lz4():
        _replace(
            "lz4",
            lambda packed: bytes(cramjam.lz4.decompress(packed)),
            lambda data: bytes(cramjam.lz4.compress(data)),
        )
    if not codec.has_zstd():
        _replace(
            "zstd",
            lambda packed: bytes(cramjam.zstd.decompress(packed)),
            lambda data: bytes(cramjam.zstd.compress(data)),
        )


def _replace(name: str, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]) -> None:
    from kafka import codec
    from kafka.producer import KafkaProducer
    from kafka.record import default_records

    def is_there() -> bool:
        return True

    setattr(codec, f"has_{name}", is_there)
    setattr(default_records, f"{name}_decode", unpack)
    setattr(default_records, f"{name}_encode", pack)
    compressors = KafkaProducer._COMPRESSORS
    compressors[name] = (is_there, compressors[name][1])


def pack_snappy(data: bytes) -> bytes:
    """One block of xerial's framing, which every client of Kafka reads."""
    import cramjam

    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL_HEADER + _LENGTH.pack(len(block)) + block


def unpack_snappy(packed: bytes) -> bytes:
    """Blocks in xerial's framing (Java), or one bare block (librdkafka)."""
    import cramjam

    if not packed.startswith(_XERIAL_HEADER[:8]):
        return bytes(cramjam.snappy.decompress_raw(packed))
    blocks, place = [], len(_XERIAL_HEADER)
    while place < len(packed):
        (length,) = _LENGTH.unpack_from(packed, place)
        place += _LENGTH.size
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[place : place + length])))
        place += length
    return b"".join(blocks)
