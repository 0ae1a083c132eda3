"""Avro schemas in few letters, for tests."""

from __future__ import annotations

import json
from typing import Any


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record; a field is its name (then it is an int), or a pair or triple with its type and
    default, or the field itself."""
    return {"type": "record", "name": name, "fields": [*map(_field, fields)], **more}


def _field(given: Any) -> Any:
    if isinstance(given, str):
        return {"name": given, "type": "int"}
    if isinstance(given, dict):
        return given
    name, kind, *default = given
    return {"name": name, "type": kind} | ({"default": default[0]} if default else {})


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": [*symbols], **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_of(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def data_of(schema: Any) -> bytes:
    return json.dumps(schema).encode()
