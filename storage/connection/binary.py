"""PostgreSQL's binary arrays, written straight from Python values.

On the hot path a flush carries some twenty arrays of a few values. Packing each with one `struct`
call costs a tenth of adapting its list item by item. Source: `array_send` in PostgreSQL.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from psycopg.adapt import AdaptersMap, Transformer
from psycopg.postgres import types
from psycopg.pq import Format
from psycopg.types.array import ArrayBinaryLoader
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.numeric import (
    Float8BinaryLoader,
    Int2BinaryLoader,
    Int4BinaryLoader,
    Int8BinaryLoader,
)
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader

if TYPE_CHECKING:
    from psycopg.abc import Loader
    from psycopg.pq.abc import PGresult

_ARRAY_HEADER = struct.Struct(">iIIii")  # dimensions, has nulls, element OID, length, lower bound
_EMPTY_ARRAY = struct.Struct(">iII")

_TYPES = {"q": (20, 8), "i": (23, 4), "h": (21, 2), "?": (16, 1)}  # OID, size
_BYTEA_OID, _TEXT_OID, _TID_OID, _UUID_OID, _JSONB_OID = 17, 25, 27, 2950, 3802
_TID_BYTES = 6
_SHORT = 64  # layouts of arrays up to this length are kept
_length = struct.Struct(">i").pack
_NULL = _length(-1)  # the length of a null element

_OF_RESULTS: Final[Mapping[str, type[Loader]]] = {
    "bool": BoolBinaryLoader,
    "int2": Int2BinaryLoader,
    "int4": Int4BinaryLoader,
    "int8": Int8BinaryLoader,
    "xid8": Int8BinaryLoader,
    "float8": Float8BinaryLoader,
    "text": TextBinaryLoader,
    "text[]": ArrayBinaryLoader,
    "bytea[]": ArrayBinaryLoader,
}


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(types=types)
    for name, loader in _OF_RESULTS.items():
        adapters.register_loader(types.get_oid(name), loader)
    adapters.register_loader(0, ByteaBinaryLoader)  # psycopg's default: all other types
    return adapters


_ADAPTERS: Final = _adapters()


def _array(code: str, values: Sequence[int]) -> bytes:
    oid, size = _TYPES[code]
    length = len(values)
    if not length:
        return _EMPTY_ARRAY.pack(0, 0, oid)
    flat: list[int] = [size] * (2 * length)
    flat[1::2] = values
    if length > _SHORT:
        header = _ARRAY_HEADER.pack(1, 0, oid, length, 1)
        return header + struct.pack(">" + ("i" + code) * length, *flat)
    return _packing(code, length)(1, 0, oid, length, 1, *flat)


@functools.cache
def _packing(code: str, length: int) -> Callable[..., bytes]:
    return struct.Struct(_ARRAY_HEADER.format + ("i" + code) * length).pack


def columns(codes: str, rows: Sequence[Sequence[int]]) -> list[bytes]:
    """An array of each column. codes: struct's, one per column: "q", "i", "h" or "?"."""
    if not rows:
        return [_array(code, ()) for code in codes]
    return [
        _array(code, column) for code, column in zip(codes, zip(*rows, strict=True), strict=True)
    ]


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


def _bytes_array(oid: int, values: Sequence[bytes | None]) -> bytes:
    if not values:
        return _EMPTY_ARRAY.pack(0, 0, oid)
    header = _ARRAY_HEADER.pack(1, None in values, oid, len(values), 1)
    return header + b"".join(
        [_NULL if value is None else _length(len(value)) + value for value in values]
    )


def text_array(values: Sequence[str | None]) -> bytes:
    """`text[]`."""
    return _bytes_array(_TEXT_OID, [None if value is None else value.encode() for value in values])


def bytea_array(values: Sequence[bytes]) -> bytes:
    """`bytea[]`."""
    return _bytes_array(_BYTEA_OID, values)


def tid_array(values: Sequence[bytes]) -> bytes:
    """`tid[]`, of 6 bytes each."""
    return _bytes_array(_TID_OID, values)


def uuid_array(values: Sequence[bytes]) -> bytes:
    """`uuid[]`, of 16 bytes each."""
    return _bytes_array(_UUID_OID, values)


def jsonb_array(values: Sequence[str]) -> bytes:
    """`jsonb[]`, of JSON text."""
    return _bytes_array(_JSONB_OID, [b"\1" + value.encode() for value in values])


def array_literal(values: Iterable[int]) -> str:
    """An array as text, `{1,2}`: a `text[]` of these carries arrays of unequal length."""
    return "{" + ",".join(map(str, values)) + "}"


def integer(value: bytes | None) -> int:
    """A `smallint`, `integer` or `bigint` from a binary result."""
    return int.from_bytes(value or b"", "big", signed=True)


def integers(array: bytes | None, code: str) -> tuple[int, ...]:
    """An array of numbers from a binary result, without nulls. code: struct's, of an element."""
    if array is None or len(array) == _EMPTY_ARRAY.size:
        return ()
    length = int.from_bytes(array[12:16], "big")
    values: tuple[int, ...] = struct.unpack_from(">" + ("i" + code) * length, array, 20)
    return values[1::2]


def tids(array: bytes | None) -> list[bytes]:
    """A `tid[]` from a binary result, without nulls."""
    array = array or b""
    return [
        array[at : at + _TID_BYTES]
        for at in range(_ARRAY_HEADER.size + 4, len(array), _TID_BYTES + 4)
    ]


def texts(array: bytes) -> list[str]:
    """A `text[]` from a binary result, without nulls."""
    if len(array) == _EMPTY_ARRAY.size:
        return []
    found, start = [], _ARRAY_HEADER.size
    for _ in range(int.from_bytes(array[12:16], "big")):
        end = start + 4 + int.from_bytes(array[start : start + 4], "big")
        found.append(array[start + 4 : end].decode())
        start = end
    return found


def rows_of(result: PGresult) -> list[tuple[bytes | None, ...]]:
    """The rows of a binary result."""
    get, columns = result.get_value, range(result.nfields)
    return [tuple([get(row, column) for column in columns]) for row in range(result.ntuples)]


def loaded_rows(result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a binary result: numbers, `xid8`, boolean, text, arrays of text and bytea as
    Python has them, all else as bytes.

    By psycopg's compiled loaders: for thousands of rows a fifth of what `rows_of` takes alone.
    """
    transformer = Transformer.from_context(_ADAPTERS)
    transformer.set_pgresult(result, format=Format.BINARY)
    return transformer.load_rows(0, result.ntuples, tuple)
