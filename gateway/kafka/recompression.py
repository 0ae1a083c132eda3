"""A batch in its topic's codec (`compression.type`), whatever it came in.

The records stay byte for byte what they were, and so does the header, but for the codec's number,
the length and the checksum. Knows no request, and judges no record: whoever has not written a batch
himself looks at its records first (`validation.py`).
"""

from __future__ import annotations

from core.config.values import TopicConfig
from gateway.kafka.compression import CODECS, Buffer, Codec, compress
from gateway.kafka.records import codec_of, opened, with_records


def codec_to_change_to(payload: Buffer, config: TopicConfig) -> Codec | None:
    """The topic's codec, where the batch has another one; else None."""
    if config.compression_type is None:
        return None
    codec = CODECS[config.compression_type]
    return None if codec_of(payload) is codec else codec


def recompressed(payload: Buffer, body: Buffer, codec: Codec, config: TopicConfig) -> bytes:
    """The batch with its records in `codec`, the topic's. body: they themselves, as `opened` gives
    them."""
    return with_records(payload, compress(body, codec, config.compression_level), codec)


def in_codec_of_topic(payload: Buffer, config: TopicConfig) -> Buffer:
    """A valid batch, compressed or not, as it goes to the topic's log. Raises InvalidRecords where
    its records cannot be decompressed, and TooLarge where they are more than MAX_DECOMPRESSED."""
    codec = codec_to_change_to(payload, config)
    return payload if codec is None else recompressed(payload, opened(payload), codec, config)
