"""PostgreSQL's binary formats, written straight from Python values: arrays and COPY rows.

On the hot path a flush carries some twenty arrays of a few values; packing each with one `struct`
call costs a tenth of adapting the list item by item. Sources: `array_send` and "COPY, Binary
Format" in PostgreSQL's documentation.
"""

import struct
from collections.abc import Iterable, Sequence

Payload = bytes | bytearray | memoryview

Chunk = tuple[int, int, Payload]
"""Payload id, seq within the payload, bytes."""

_ARRAY_HEADER = struct.Struct(">iIIii")  # dimensions, has nulls, element OID, length, lower bound
_EMPTY_ARRAY = struct.Struct(">iII")

_TYPES = {"q": 20, "i": 23, "h": 21, "?": 16}
_SIZES = {code: struct.calcsize(">" + code) for code in _TYPES}
_BYTEA_OID = 17
_TEXT_OID = 25

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + b"\0" * 8
COPY_TRAILER = b"\xff\xff"
_CHUNK_ROW = struct.Struct(">hiqiii")  # 3 fields: 8 bytes payload_id, 4 bytes seq, length of data


def _array(code: str, values: Sequence[int]) -> bytes:
    oid = _TYPES[code]
    if not values:
        return _EMPTY_ARRAY.pack(0, 0, oid)
    size = _SIZES[code]
    flat: list[int] = [size] * (2 * len(values))
    flat[1::2] = values
    return _ARRAY_HEADER.pack(1, 0, oid, len(values), 1) + struct.pack(
        ">" + ("i" + code) * len(values), *flat
    )


def bigint_array(values: Sequence[int]) -> bytes:
    """`bigint[]`."""
    return _array("q", values)


def integer_array(values: Sequence[int]) -> bytes:
    """`integer[]`."""
    return _array("i", values)


def smallint_array(values: Sequence[int]) -> bytes:
    """`smallint[]`."""
    return _array("h", values)


def boolean_array(values: Sequence[bool]) -> bytes:
    """`boolean[]`."""
    return _array("?", values)


def _varlena_array(oid: int, values: Sequence[Payload]) -> bytes:
    if not values:
        return _EMPTY_ARRAY.pack(0, 0, oid)
    parts: list[Payload] = [_ARRAY_HEADER.pack(1, 0, oid, len(values), 1)]
    for value in values:
        parts.append(len(value).to_bytes(4, "big"))
        parts.append(value)
    return b"".join(parts)


def bytea_array(values: Sequence[Payload]) -> bytes:
    """`bytea[]`; no element may be null."""
    return _varlena_array(_BYTEA_OID, values)


def text_array(values: Sequence[str]) -> bytes:
    """`text[]`; no element may be null."""
    return _varlena_array(_TEXT_OID, [value.encode() for value in values])


def array_literal(values: Iterable[int]) -> str:
    """An array as text, `{1,2}`: how arrays of arrays of unequal length travel in a `text[]`."""
    return "{" + ",".join(map(str, values)) + "}"


def cut(payload_id: int, batches: Sequence[Payload], chunk_bytes: int) -> list[Chunk]:
    """The chunks of one payload: the batches one after the other, cut every `chunk_bytes`."""
    payload = memoryview(batches[0] if len(batches) == 1 else b"".join(batches))
    return [
        (payload_id, seq, payload[start : start + chunk_bytes])
        for seq, start in enumerate(range(0, len(payload), chunk_bytes))
    ]


def copy_stream(chunks: Iterable[Chunk]) -> bytes:
    """The whole stream of a binary COPY of chunks."""
    parts: list[Payload] = [COPY_HEADER]
    for payload_id, seq, data in chunks:
        parts.append(_CHUNK_ROW.pack(3, 8, payload_id, 4, seq, len(data)))
        parts.append(data)
    parts.append(COPY_TRAILER)
    return b"".join(parts)
