"""What was written by an Avro schema, as values that JSON can say.

Whoever writes a record chooses its bytes, so they are believed in nothing: depth and what
is made of them are bounded. fastavro has neither bound, and a record that is nested some thousand
times in itself ends its process. Knows no topic. Source: Avro's specification (Binary Encoding).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from core.schema.avro import AvroError, AvroSchema

_MOST_DEPTH: Final = 100
_VALUE: Final = 8  # a value's share of what is made, as a character of a field's name has 1
_LEAST_MADE: Final = 50_000
_MADE_OF_A_BYTE: Final = 64
_MOST_MADE: Final = 2_000_000
_MOST_DECIMAL: Final = 1_000
"""Bytes of a decimal: to write out more takes time by their square, in which nothing else runs."""
_DECIMALS: Final = Context(prec=3 * _MOST_DECIMAL)  # a byte is less than three digits
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MASK: Final = 2**64 - 1


def read(schema: AvroSchema, data: bytes) -> Any:
    """The value of all of the data: bytes and `fixed` as their Latin-1 text, as Avro's JSON has
    them; of logical types, dates and times in ISO 8601 and decimals, unless they are very long, as
    text. Raises AvroError."""
    reader = _Reader(data)
    value = reader.read(schema, 0)
    if reader.at != len(data):
        raise AvroError(f"{len(data) - reader.at} bytes are left over")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = min(_LEAST_MADE + _MADE_OF_A_BYTE * len(data), _MOST_MADE)
        self.at = 0

    def read(self, schema: AvroSchema, depth: int) -> Any:
        self._spend(_VALUE)
        if depth > _MOST_DEPTH:
            raise AvroError(f"it is nested more than {_MOST_DEPTH} deep")
        match schema.kind:
            case "record":
                found: dict[str, Any] = {}
                for name, field in schema.fields.items():
                    self._spend(len(name))
                    found[name] = self.read(field.schema, depth + 1)
                return found
            case "union":
                return self.read(_at(schema.parts, self._long()), depth + 1)
            case "array":
                items: list[Any] = []
                self._blocks(lambda: items.append(self.read(schema.parts[0], depth + 1)))
                return items
            case "map":
                entries: dict[str, Any] = {}
                self._blocks(lambda: self._entry(entries, schema.parts[0], depth))
                return entries
            case "enum":
                symbol = _at(schema.symbols, self._long())
                self._spend(len(symbol))
                return symbol
            case _:
                return _logical(schema, self._plain(schema))

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise AvroError("it has more values than its bytes are worth")

    def _plain(self, schema: AvroSchema) -> Any:
        match schema.kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._long()
            case "float":
                return _finite(struct.unpack("<f", self._take(4))[0])
            case "double":
                return _finite(struct.unpack("<d", self._take(8))[0])
            case "fixed":
                return self._take(schema.size)
            case "string":
                try:
                    return self._take(self._long()).decode()
                except UnicodeDecodeError:
                    raise AvroError("a string is no UTF-8") from None
            case _:
                return self._take(self._long())

    def _entry(self, found: dict[str, Any], values: AvroSchema, depth: int) -> None:
        name = self._take(self._long()).decode(errors="replace")
        found[name] = self.read(values, depth + 1)

    def _blocks(self, take_one: Callable[[], None]) -> None:
        while count := self._long():
            if count < 0:
                self._long()  # the block's bytes, for who skips it
            for _ in range(abs(count)):
                take_one()

    def _long(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise AvroError("a number has more than 64 bits")
        number &= _MASK
        return (number >> 1) ^ -(number & 1)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise AvroError("the bytes end early")
        self.at += size
        return self._data[self.at - size : self.at]


def _at(parts: Any, index: int) -> Any:
    if not 0 <= index < len(parts):
        raise AvroError(f"there is no part {index} of {len(parts)}")
    return parts[index]


def _finite(number: float) -> float | str:
    """JSON has numbers only; what is none is named as Avro's own JSON names it."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else f"{'-' if number < 0 else ''}Infinity"


def _logical(schema: AvroSchema, value: Any) -> Any:
    kind = schema.properties.get("logicalType")
    if isinstance(value, bytes):
        scale = _scale(schema.properties)
        if kind == "decimal" and scale is not None and len(value) <= _MOST_DECIMAL:
            number = Decimal(int.from_bytes(value, "big", signed=True))
            return f"{number.scaleb(-scale, _DECIMALS):f}"
        return value.decode("latin-1")
    try:
        match kind:
            case "date":
                return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
            case "timestamp-millis":
                return (_EPOCH + timedelta(milliseconds=value)).isoformat()
            case "timestamp-micros":
                return (_EPOCH + timedelta(microseconds=value)).isoformat()
    except (OverflowError, TypeError):
        pass  # beyond the calendar, or of another type than it says
    return value


def _scale(properties: Mapping[str, Any]) -> int | None:
    """None where it is none that the value could have."""
    scale = properties.get("scale", 0)
    return scale if isinstance(scale, int) and 0 <= scale <= 1_000 else None
