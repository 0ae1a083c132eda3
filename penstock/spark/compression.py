"""The codecs of record batches, by the names that `compression.type` has for them.

Knows the bytes that Kafka's clients read; must not know a batch. Imports a codec only when it is
asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Compress = Callable[[memoryview], Any]


class UnknownCompression(ValueError):
    """The compression cannot be had; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec: its number in a batch's attributes, and how it is done (None: not at all)."""

    number: int
    compress: Compress | None


def compression_of(name: str) -> Compression:
    """The codec of a name as `compression.type` knows it. Raises UnknownCompression."""
    if name == "none":
        return Compression(0, None)
    if name == "gzip":
        return Compression(1, lambda body: zlib.compress(body, wbits=16 + zlib.MAX_WBITS))
    if name not in ("snappy", "lz4", "zstd"):
        raise UnknownCompression(
            f"compression.type is none, gzip, snappy, lz4 or zstd, not '{name}'."
        )
    try:
        import cramjam
    except ImportError as missing:
        raise UnknownCompression(
            f"compression.type {name} needs the package cramjam in every Python of this "
            f"application, also the executors' (it comes with penstock[spark])."
        ) from missing
    if name == "snappy":
        return Compression(2, cramjam.snappy.compress_raw)
    return Compression(4, cramjam.zstd.compress) if name == "zstd" else Compression(3, _lz4)


def _lz4(body: memoryview) -> Any:
    """A frame of independent blocks: others the Java client cannot read (KAFKA-3160)."""
    import cramjam

    stream = cramjam.lz4.Compressor(block_linked=False)
    stream.compress(bytes(body))
    return stream.finish()
