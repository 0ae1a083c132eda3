"""Keys and values as people read them: JSON, Avro, text, hex. Pure.

They are others' bytes: nothing here takes longer, or makes more, than their size is worth.
"""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from core.schema import avro_values
from core.schema.avro import AvroError, AvroSchema

NO_VALUE: Final = object()
_CONFLUENT: Final = 5  # a zero, and the id of a schema in Confluent's registry
_LONGEST_FLOAT: Final = 40
_PRETTY_BYTES: Final = 128 * 1024
"""Of JSON that is put into lines; more is shown as it is."""


class Format(StrEnum):
    """How values are to be shown. AUTO: as the first that fits, of JSON or Avro, text, hex."""

    AUTO = "auto"
    JSON = "json"
    AVRO = "avro"
    TEXT = "text"
    HEX = "hex"


class Shown(NamedTuple):
    """format: which it has become. value: as JSON says it; NO_VALUE where that is only text."""

    format: Format
    text: str
    value: Any = NO_VALUE


def show(data: bytes, wanted: Format, schema: AvroSchema | None) -> Shown:
    """The bytes in the wanted format, or in the first that fits. schema: which they were written
    by, if that is Avro's."""
    if schema is not None and wanted in (Format.AUTO, Format.AVRO):
        value = as_avro(data, schema)
        if not isinstance(value, AvroError):
            return Shown(Format.AVRO, _compact(value), value)
    if wanted in (Format.AUTO, Format.JSON):
        value = as_json(data)
        if value is not NO_VALUE:
            return Shown(Format.JSON, data.decode().strip(), value)
    if wanted is not Format.HEX:
        text = as_text(data)
        if text is not None:
            return Shown(Format.TEXT, text)
    return Shown(Format.HEX, data.hex(" "))


def as_json(data: bytes) -> Any:
    """What it says, or NO_VALUE where it is no JSON."""
    if not data[:1].strip() and not data.strip():
        return NO_VALUE
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return NO_VALUE


def as_avro(data: bytes, schema: AvroSchema) -> Any:
    """What it says, or why not (AvroError)."""
    try:
        return avro_values.read(schema, data)
    except AvroError as error:
        return error


def as_text(data: bytes) -> str | None:
    """UTF-8 that is mostly made to be read, or None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    strange = sum(letter < " " and letter not in "\t\r\n" for letter in text[:4_000])
    return text if strange * 10 <= min(len(text), 4_000) else None


def pretty(value: Any, size: int) -> str:
    """JSON in lines. size: of what it was made of, in bytes."""
    try:
        if size <= _PRETTY_BYTES:
            return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        pass
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def confluent_id(data: bytes) -> int | None:
    """The id of a schema in Confluent's registry, where bytes begin as those written with it."""
    if len(data) < _CONFLUENT or data[0]:
        return None
    return int.from_bytes(data[1:_CONFLUENT], "big")


def hex_dump(data: bytes) -> str:
    """Lines of 16 bytes: where, which, and what they are in ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def _is_exact(text: str) -> bool:
    """Whether JSON says all of it again when it was read and is written."""
    try:
        value = json.loads(
            text,
            parse_constant=_refuse,
            parse_float=_exact_float,
            object_pairs_hook=_without_duplicates,
        )
        json.dumps(value)
    except (ValueError, ArithmeticError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _exact_float(text: str) -> float:
    number = float(text)
    if (
        len(text) > _LONGEST_FLOAT
        or not math.isfinite(number)
        or (Decimal(repr(number)) != Decimal(text))
    ):
        raise ValueError("it would be rounded")
    return number


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def for_json(name: str, data: bytes | None, wanted: Format, schema: AvroSchema | None) -> Any:
    """A field of a JSON object: what JSON can say of the bytes, as text where that would change
    them, or them in Base64 under `name_base64`."""
    if data is None:
        return {name: None}
    found = show(data, wanted, schema)
    is_json = found.format is Format.JSON
    if found.format is Format.AVRO or (is_json and _is_exact(found.text)):
        return {name: found.value}
    if is_json or found.format is Format.TEXT:
        return {name: found.text}
    return {f"{name}_base64": base64.b64encode(data).decode()}
