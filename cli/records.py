"""A record as a line of JSON or of text, and back: what `produce` takes and `consume` gives.

Pure: values in, values out; no client, no terminal. Bytes that are not UTF-8 are Base64 in a field
of their own (`value_base64`), so that what is consumed can be produced again byte for byte.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NO_TIMESTAMP: Final = -1
_FIELDS: Final = {
    *("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"),
    *("topic", "offset"),  # consume gives them; where a record was does not say where it goes
}


class LineRefused(Exception):
    """The line is no record; the text says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is sent. partition and timestamp (ms): None is the client's choice."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None

    @property
    def size(self) -> int:
        """About how many bytes wait to be sent."""
        return len(self.value or b"") + len(self.key or b"")


def text_record(line: bytes, key_separator: bytes | None) -> Record:
    """A line of text without its end. Raises LineRefused."""
    if key_separator is None:
        return Record(line)
    key, separator, value = line.partition(key_separator)
    if not separator:
        shown = key_separator.decode(errors="backslashreplace")
        raise LineRefused(f"there is no key separator '{shown}' in it")
    return Record(value, key)


def json_record(line: bytes) -> Record:
    """A line of JSON. Raises LineRefused."""
    try:
        fields = json.loads(line)
    except ValueError as error:  # UnicodeDecodeError as well
        raise LineRefused(f"it is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise LineRefused('it is not a JSON object like {"key": "a", "value": "b"}')
    if unknown := sorted(fields.keys() - _FIELDS):
        raise LineRefused(f"there is no field '{unknown[0]}' in a record")
    if not fields.keys() & {"value", "value_base64"}:
        raise LineRefused("it has no value (a record without one is written with null)")
    return Record(
        _bytes(fields, "value"),
        _bytes(fields, "key"),
        _headers(fields.get("headers")),
        _whole_number(fields, "partition"),
        _whole_number(fields, "timestamp"),
    )


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        if fields.get(name) is not None:
            raise LineRefused(f"it has {name} and {name}_base64")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise LineRefused(f"{name}_base64 is not Base64") from None
    value = fields.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LineRefused(f"{name} is not text: half of a surrogate pair") from None


def _headers(given: Any) -> tuple[tuple[str, bytes | None], ...]:
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"key": key, "value": value} for key, value in given.items()]
    if not isinstance(given, list):
        raise LineRefused('headers are not like {"name": "value"}')
    headers = []
    for each in given:
        if not isinstance(each, dict) or not isinstance(each.get("key"), str):
            raise LineRefused('a header is not like {"key": "name", "value": "text"}')
        headers.append((each["key"], _bytes(each, "value")))
    return tuple(headers)


def _whole_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (name == "timestamp" and value == NO_TIMESTAMP):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise LineRefused(f"{name} is not a whole number from 0 on")
    return value


# --- what consume gives ---


def json_line(record: Any) -> bytes:
    """All of a ConsumerRecord, without a newline."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_shown("key", record.key),
        **_shown("value", record.value),
        "headers": [{"key": key, **_shown("value", value)} for key, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _shown(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


@dataclass(frozen=True, slots=True)
class TextForm:
    """Which parts of a record a line of text has, in this order, and what is between them."""

    timestamps: bool = False
    offsets: bool = False
    headers: bool = False
    keys: bool = False
    separator: bytes = b"\t"

    def line(self, record: Any) -> bytes:
        """A ConsumerRecord, without a newline; its bytes as they are."""
        parts: list[bytes] = []
        if self.timestamps:
            parts.append(str(record.timestamp).encode())
        if self.offsets:
            parts.append(f"{record.partition}:{record.offset}".encode())
        if self.headers:
            parts.append(_joined(record.headers))
        if self.keys:
            parts.append(_text(record.key))
        return self.separator.join([*parts, _text(record.value)])


def _joined(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    return b",".join(key.encode() + b"=" + _text(value) for key, value in headers)


def _text(value: bytes | None) -> bytes:
    return b"null" if value is None else value  # as kafka-console-consumer has it
