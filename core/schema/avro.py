"""Avro schemas: from JSON to values, or why not; and one form for all that mean the same.

Knows nothing of topics. As Avro's own parser in Java (1.12) with Pulsar's settings: `$` may be in
names, and defaults are not held to their types. Unlike it, names are declared before they are used,
as the specification says, and nesting has a limit. Sources: Avro's specification (Schema
Declaration), org.apache.avro.Schema, NameValidator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_MOST_DEPTH: Final = 100
_NO_PROPERTIES: Final = frozenset({"name", "namespace", "doc", "aliases"})
_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "record": frozenset({"fields"}),
    "error": frozenset({"fields"}),
    "enum": frozenset({"symbols", "default"}),
    "fixed": frozenset({"size"}),
    "array": frozenset({"items"}),
    "map": frozenset({"values"}),
}
_OF_FIELD: Final = frozenset({"name", "type", "default", "order", "doc", "aliases"})
_ORDERS: Final = ("ascending", "descending", "ignore")


class AvroError(Exception):
    """The text is no Avro schema; the sentence says why."""


@dataclass(slots=True, eq=False)
class AvroSchema:
    """A schema, compared by identity: a record may be part of itself.

    kind: "record", "int", "union", …; an error is a record. full_name, aliases: of named kinds.
    fields: of a record. parts: the branches of a union, the items of an array, the values of a map.
    """

    kind: str
    full_name: str = ""
    aliases: Sequence[str] = ()
    fields: Mapping[str, AvroField] = field(default_factory=dict)
    symbols: Sequence[str] = ()
    enum_default: str | None = None
    size: int = 0
    parts: Sequence[AvroSchema] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """A field of a record. default: JSON, where `has_default`."""

    name: str
    schema: AvroSchema
    has_default: bool = False
    default: Any = None
    order: str = "ascending"
    aliases: Sequence[str] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)


def parse(data: bytes) -> AvroSchema:
    """The schema that JSON in UTF-8 declares. Raises AvroError."""
    return _Parser().parse(parse_json(data), "", 0)


def parse_json(data: bytes) -> Any:
    """JSON in UTF-8. Raises AvroError where it is none."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise AvroError(f"it is no JSON: {type(error).__name__}: {error}"[:200]) from None


class _Parser:
    """One text's. Names mean what was declared before."""

    def __init__(self) -> None:
        self._named: dict[str, AvroSchema] = {}
        self._open: set[str] = set()

    def parse(self, given: Any, namespace: str, depth: int) -> AvroSchema:
        if depth > _MOST_DEPTH:
            raise AvroError(f"it is nested more than {_MOST_DEPTH} deep")
        if isinstance(given, str):
            return AvroSchema(given) if given in PRIMITIVES else self._find(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace, depth)
        if not isinstance(given, dict):
            raise AvroError(f"a schema is no {type(given).__name__}")
        kind = given.get("type")
        if not isinstance(kind, str):
            raise AvroError("a schema has no type")
        if kind in PRIMITIVES:
            return AvroSchema(kind, properties=_others(given, {"type"}))
        if kind in _OF_KIND:
            known = _OF_KIND[kind] | {"type"}
            if kind in ("array", "map"):
                part = self.parse(_required(given, *_OF_KIND[kind]), namespace, depth + 1)
                return AvroSchema(kind, parts=(part,), properties=_others(given, known))
            return self._declare(given, kind, namespace, depth)
        return self._find(kind, namespace)

    def _find(self, name: str, namespace: str) -> AvroSchema:
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full_name) or self._named.get(name)
        if found is None:
            raise AvroError(f"there is no type '{name}'")
        return found

    def _union(self, given: list[Any], namespace: str, depth: int) -> AvroSchema:
        parts = tuple(self.parse(each, namespace, depth + 1) for each in given)
        seen: set[str] = set()
        for each in parts:
            if each.kind == "union":
                raise AvroError("a union is directly in a union")
            label = each.full_name or each.kind
            if label in seen:
                raise AvroError(f"a union has '{label}' twice")
            seen.add(label)
        return AvroSchema("union", parts=parts)

    def _declare(self, given: dict[str, Any], kind: str, namespace: str, depth: int) -> AvroSchema:
        """A named schema. One may be declared again, if it is the same."""
        full_name = _full_name(given, namespace)
        if full_name in PRIMITIVES:
            raise AvroError(f"'{full_name}' is the name of a primitive type")
        if full_name in self._open:
            raise AvroError(f"'{full_name}' is declared in itself")
        known = self._named.get(full_name)
        made = AvroSchema("record" if kind == "error" else kind, full_name)
        made.properties = _others(given, _OF_KIND[kind] | {"type"})
        space = full_name.rpartition(".")[0]
        made.aliases = [
            alias.removeprefix(".") if "." in alias or not space else f"{space}.{alias}"
            for alias in _aliases(given)
        ]
        self._named[full_name] = made
        if made.kind == "record":
            self._open.add(full_name)
            made.fields = self._fields(given, space, depth)
            self._open.remove(full_name)
        elif kind == "enum":
            made.symbols = _symbols(given)
            made.enum_default = given.get("default")
            if made.enum_default is not None and made.enum_default not in made.symbols:
                raise AvroError(f"the default of '{full_name}' is none of its symbols")
        else:
            made.size = _size(given)
        if known is not None and canonical(known) != canonical(made):
            raise AvroError(f"'{full_name}' is declared twice")
        return made

    def _fields(self, given: dict[str, Any], namespace: str, depth: int) -> dict[str, AvroField]:
        declared = _required(given, "fields")
        if not isinstance(declared, list):
            raise AvroError("a record's fields are no list")
        fields: dict[str, AvroField] = {}
        for each in declared:
            if not isinstance(each, dict):
                raise AvroError("a field is no object")
            name = _checked_name(_required(each, "name"))
            if name in fields:
                raise AvroError(f"a record has the field '{name}' twice")
            order = each.get("order", "ascending")
            if not isinstance(order, str) or order.lower() not in _ORDERS:
                raise AvroError(f"the field '{name}' has no such order")
            schema = self.parse(_required(each, "type"), namespace, depth + 1)
            fields[name] = AvroField(
                name,
                schema,
                "default" in each,
                _default(each.get("default"), schema),
                order.lower(),
                _aliases(each),
                _others(each, _OF_FIELD),
            )
        return fields


def _required(given: dict[str, Any], name: str) -> Any:
    if name not in given:
        raise AvroError(f"something has no {name}")
    return given[name]


def _default(given: Any, schema: AvroSchema) -> Any:
    if isinstance(given, str) and schema.kind in ("float", "double"):
        try:
            return float(given)  # as NaN is written
        except ValueError:
            raise AvroError(f"the default of a {schema.kind} is no number") from None
    return given


def _aliases(given: dict[str, Any]) -> list[str]:
    aliases = given.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise AvroError("aliases are no list of names")
    return aliases


def _others(given: dict[str, Any], known: Sequence[str] | frozenset[str] | set[str]) -> Any:
    """What else is said of a schema, as its logical type."""
    return {
        name: value
        for name, value in given.items()
        if name not in known and name not in _NO_PROPERTIES
    }


def _size(given: dict[str, Any]) -> int:
    size = _required(given, "size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
        raise AvroError("a fixed has no size")
    return size


def _symbols(given: dict[str, Any]) -> tuple[str, ...]:
    symbols = _required(given, "symbols")
    if not isinstance(symbols, list):
        raise AvroError("an enum's symbols are no list")
    names = tuple(map(_checked_name, symbols))
    if len(set(names)) < len(names):
        raise AvroError("an enum has a symbol twice")
    return names


def _full_name(given: dict[str, Any], namespace: str) -> str:
    name = _required(given, "name")
    if not isinstance(name, str):
        raise AvroError("a name is no text")
    space, dot, last = name.rpartition(".")
    if not dot:
        own = given.get("namespace", namespace)
        if own is not None and not isinstance(own, str):
            raise AvroError(f"the namespace of '{name}' is no text")
        space = own or ""
    for part in space.split(".") if space else ():
        _checked_name(part)
    return f"{space}.{_checked_name(last)}" if space else _checked_name(last)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise AvroError("a name is empty, or no text")
    is_begun = name[0].isalpha() or name[0] in "_$"
    if not is_begun or not all(each.isalnum() or each in "_$" for each in name):
        raise AvroError(f"'{name}' is no name")
    return name


def canonical(schema: AvroSchema) -> bytes:
    """The same bytes for schemas that are the same to Avro, whatever their documentation, aliases,
    enums' defaults and layout are (Schema.equals)."""
    return json.dumps(_plain(schema, set()), sort_keys=True, separators=(",", ":")).encode()


def _plain(schema: AvroSchema, seen: set[str]) -> Any:
    if schema.kind == "union":
        return [_plain(each, seen) for each in schema.parts]
    if schema.full_name:
        if schema.full_name in seen:
            return schema.full_name
        seen.add(schema.full_name)
    plain: dict[str, Any] = {"type": schema.kind, "properties": schema.properties}
    if schema.full_name:
        plain["name"] = schema.full_name
    if schema.kind == "record":
        plain["fields"] = [_plain_field(each, seen) for each in schema.fields.values()]
    elif schema.kind == "enum":
        plain["symbols"] = schema.symbols
    elif schema.kind == "fixed":
        plain["size"] = schema.size
    elif schema.parts:
        plain["of"] = _plain(schema.parts[0], seen)
    return plain


def _plain_field(given: AvroField, seen: set[str]) -> dict[str, Any]:
    plain = {"name": given.name, "type": _plain(given.schema, seen), "order": given.order}
    plain["properties"] = given.properties
    if given.has_default:
        plain["default"] = given.default
    return plain
