"""Message ids and acknowledgement sets, from and to offsets.

    ledgerId     the partition's number in the store: another one once a topic is made again
    entryId      offset of the entry's first message
    batch_index  offset - entryId

So ids order as offsets do, are the same for ever, and an id of a deleted topic does not point into
its successor: numbers only rise, and an older ledger lies before all there is, a newer one behind.
This room knows no log: where an offset is before its start, past its end or within an entry is
resolved by who asks. Sources: MessageIdImpl, BitSetRecyclable, ManagedCursorImpl.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.pulsar.commands import signed
from gateway.pulsar.commands_pb2 import MessageIdData

NO_ID: Final = 2**64 - 1
"""-1 in an unsigned field: "no entry", as in the receipt of a duplicate and of an empty topic."""

BEFORE_ALL: Final = -1
"""Before the first offset: "earliest", which clients write as -1 twice, and older ledgers."""

AFTER_ALL: Final = 2**63 - 1
"""Behind every offset, for ever: "latest", 2^63-1 twice, and newer ledgers."""

_WORD_BITS: Final = 64
_WORD_MASK: Final = 2**64 - 1
_ONES: Final = re.compile("1+")


def message_id(
    ledger_id: int, entry_offset: int, partition: int = -1, batch_index: int = -1
) -> MessageIdData:
    """The id of an entry, or of one message of a batch. partition: -1 where the topic is none."""
    return MessageIdData(
        ledger_id=ledger_id, entry_id=entry_offset, partition=partition, batch_index=batch_index
    )


def earliest() -> MessageIdData:
    """The id before every other: also how an empty topic's last one is told."""
    return MessageIdData(ledger_id=NO_ID, entry_id=NO_ID, partition=-1, batch_index=-1)


def entry_offset(found: MessageIdData, ledger_id: int) -> int:
    """The offset that an id's entry stands for in the partition whose ledger is `ledger_id`.

    BEFORE_ALL for earliest, for older ledgers, and for the entry before the first, which clients
    make by subtracting one; AFTER_ALL for latest and for newer ledgers.
    """
    ledger = signed(found.ledger_id)
    if ledger != ledger_id:
        return BEFORE_ALL if ledger < ledger_id else AFTER_ALL
    return max(signed(found.entry_id), BEFORE_ALL)


def seek_offset(found: MessageIdData, ledger_id: int) -> int:
    """The offset of the first message that is wanted, for SEEK and `start_message_id`.

    Of a batch, that is the first bit of ack_set (Java), or batch_index (Go, Python). Of a message
    in chunks, its first chunk.
    """
    if found.HasField("first_chunk_message_id"):
        found = found.first_chunk_message_id
    offset = entry_offset(found, ledger_id)
    if offset in (BEFORE_ALL, AFTER_ALL):
        return max(offset, 0)
    index = max(found.batch_index, 0)
    if found.ack_set:
        bits = _bits(found.ack_set, _WORD_BITS * len(found.ack_set))
        index = (bits & -bits).bit_length() - 1 if bits else index
    return min(offset + index, AFTER_ALL)


def acknowledged_ranges(words: Sequence[int], message_count: int) -> list[range]:
    """What an ack_set says is acknowledged of an entry, as ranges of batch indexes.

    A bit of 1 is "not acknowledged"; words that are cut off are zeros. No words at all: the whole
    entry. Words and bits beyond the entry are not looked at, however many there are.
    """
    acknowledged = ~_bits(words, message_count) & (1 << message_count) - 1
    # As text, lowest bit first: of a large number single bits are slow to get at.
    bits = f"{acknowledged:b}"[::-1]
    return [range(found.start(), found.end()) for found in _ONES.finditer(bits)]


def unacknowledged_words(acknowledged: Iterable[range], message_count: int) -> list[int]:
    """The ack_set of an entry of which these batch indexes are acknowledged: signed words, those at
    the end that are zero cut off; none where nothing is left."""
    bits = bytearray(b"1" * message_count)
    for indexes in acknowledged:
        start, stop = max(indexes.start, 0), min(indexes.stop, message_count)
        bits[start:stop] = b"0" * (stop - start)
    left = int(bits[::-1] or b"0", 2)
    count = -(-left.bit_length() // _WORD_BITS)
    return list(struct.unpack(f"<{count}q", left.to_bytes(8 * count, "little")))


def _bits(words: Sequence[int], count: int) -> int:
    """The first `count` bits, bit i of the result being the i-th."""
    used = words[: -(-count // _WORD_BITS)]
    joined = b"".join((word & _WORD_MASK).to_bytes(8, "little") for word in used)
    return int.from_bytes(joined, "little") & ((1 << count) - 1)
