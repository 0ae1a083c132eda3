"""Whether what was written with one Avro schema can be read with another.

As Avro's Java library decides it (1.12), which Pulsar asks: a record's name does not matter where
there is nothing to choose from, nor an enum's namespace, so that classes in other packages
and languages go together; an enum with other symbols is readable, since only a datum shows whether
one is missing. Sources: Avro's specification (Schema Resolution), Resolver, Schema.applyAliases,
Symbol.hasErrors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from core.schema.avro import AvroField, AvroSchema

MOST_STEPS: Final = 100_000
"""Pairs of schemas that are looked at: a comparison takes a tenth of a second at most."""
_MOST_DEPTH: Final = 200
_PROMOTIONS: Final = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)
_NAMED: Final = frozenset({"record", "enum", "fixed"})


class TooComplexError(Exception):
    """The schemas are too large, or too deep, to be compared."""


@dataclass(slots=True, eq=False)
class _Outcome:
    """What becomes of a pair of schemas; an error if it is one, or if one of its parts is, however
    deep. Records that are part of themselves make it a graph."""

    error: str | None = None
    parts: list[_Outcome] = field(default_factory=list)


_FINE: Final = _Outcome()


def why_unreadable(writer: AvroSchema, reader: AvroSchema) -> str | None:
    """A sentence on what cannot be read, or None where all can. Raises TooComplexError.

    The two are not the same: a schema always reads what it has written, and is not asked here.
    """
    todo, seen = [_Resolution(reader).resolve(writer, reader, 0)], set[int]()
    while todo:
        outcome = todo.pop()
        if outcome.error is not None:
            return outcome.error
        if id(outcome) not in seen:
            seen.add(id(outcome))
            todo += reversed(outcome.parts)
    return None


class _Resolution:
    """One comparison. Each pair of records has one outcome, wherever it comes up again."""

    def __init__(self, reader: AvroSchema) -> None:
        self._records: dict[tuple[int, int], _Outcome] = {}
        self._alike: dict[tuple[int, int], bool] = {}
        self._names, self._field_names = _read_aliases(reader)
        self._steps = 0

    def _name(self, writer: AvroSchema) -> str:
        """What the reader calls a named schema of the writer's."""
        return self._names.get(writer.full_name, writer.full_name)

    def _fields(self, writer: AvroSchema) -> dict[str, AvroField]:
        """A record's fields, by what the reader calls them."""
        known = self._field_names.get(self._name(writer), {})
        return {known.get(name, name): each for name, each in writer.fields.items()}

    def resolve(self, writer: AvroSchema, reader: AvroSchema, depth: int) -> _Outcome:
        self._step(depth)
        if writer.kind == "union":
            is_alike = self._are_alike(writer, reader, depth)
            readers = reader.parts if is_alike else [reader] * len(writer.parts)
            pairs = zip(writer.parts, readers, strict=True)
            return _Outcome(parts=[self.resolve(w, r, depth + 1) for w, r in pairs])
        if writer.kind == reader.kind:
            return self._same_kind(writer, reader, depth)
        if reader.kind == "union":
            branch = self._matching_branch(writer, reader, depth)
            if branch is None:
                return _Outcome(f"no branch of a union reads {_said(writer)}")
            return _Outcome(parts=[self.resolve(writer, branch, depth + 1)])
        if (writer.kind, reader.kind) in _PROMOTIONS:
            return _FINE
        return _mismatch(writer, reader)

    def _step(self, depth: int) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS or depth > _MOST_DEPTH:
            raise TooComplexError("the schemas are too large to be compared")

    def _same_kind(self, writer: AvroSchema, reader: AvroSchema, depth: int) -> _Outcome:
        match writer.kind:
            case "record":
                return self._records_of(writer, reader, depth)
            case "array" | "map":
                part = self.resolve(writer.parts[0], reader.parts[0], depth + 1)
                return _Outcome(parts=[part])
            case "enum" | "fixed" if _short(self._name(writer)) != _short(reader.full_name):
                return _mismatch(writer, reader)
            case "fixed" if writer.size != reader.size:
                return _mismatch(writer, reader)
            case _:
                return _FINE

    def _records_of(self, writer: AvroSchema, reader: AvroSchema, depth: int) -> _Outcome:
        known = self._records.get((id(writer), id(reader)))
        if known is not None:
            return known
        written = self._fields(writer)
        for name, each in reader.fields.items():
            self._step(depth)
            if name not in written and (wrong := self._why_no_default(each)):
                outcome = _Outcome(f"{_said(reader)} has a field '{name}' {wrong}")
                self._records[id(writer), id(reader)] = outcome
                return outcome
        outcome = _Outcome()
        self._records[id(writer), id(reader)] = outcome  # before its fields, which may have it
        for name, each in written.items():
            self._step(depth)
            if (read_as := reader.fields.get(name)) is not None:
                outcome.parts.append(self.resolve(each.schema, read_as.schema, depth + 1))
        return outcome

    def _matching_branch(
        self, writer: AvroSchema, union: AvroSchema, depth: int
    ) -> AvroSchema | None:
        """The branch that reads what the writer has: of its kind, and its name; else a record that
        fits, rather one of the same short name; else one that the writer's kind is promoted to."""
        fitting: AvroSchema | None = None
        name = self._name(writer)
        for branch in union.parts:
            self._step(depth)
            if branch.kind != writer.kind:
                continue
            if branch.kind not in _NAMED or branch.full_name == name:
                return branch
            if branch.kind == "record":
                outcome = self._records_of(writer, branch, depth + 1)
                is_wrong = outcome.error or any(each.error for each in outcome.parts)
                is_namesake = _short(branch.full_name) == _short(name)
                if not is_wrong and (fitting is None or is_namesake):
                    fitting = branch
        if fitting is not None:
            return fitting
        promoted = (each for each in union.parts if (writer.kind, each.kind) in _PROMOTIONS)
        return next(promoted, None)

    def _are_alike(self, writer: AvroSchema, reader: AvroSchema, depth: int) -> bool:
        """Whether both have the same parts in the same order, namespaces aside
        (Resolver.unionEquiv): then branches of a union belong together by their place."""
        self._step(depth)
        if writer.kind != reader.kind or len(writer.parts) != len(reader.parts):
            return False
        if _short(self._name(writer)) != _short(reader.full_name):
            return False
        if writer.size != reader.size or list(writer.symbols) != list(reader.symbols):
            return False
        if writer.kind != "record":
            pairs = zip(writer.parts, reader.parts, strict=True)
            return all(self._are_alike(w, r, depth + 1) for w, r in pairs)
        key = id(writer), id(reader)
        if key not in self._alike:
            self._alike[key] = True  # before its fields, which may have it
            written = self._fields(writer)
            self._alike[key] = list(written) == list(reader.fields) and all(
                self._are_alike(written[name].schema, each.schema, depth + 1)
                for name, each in reader.fields.items()
            )
        return self._alike[key]

    def _why_no_default(self, given: AvroField) -> str | None:
        if not given.has_default:
            return "without a default, which its writer lacks"
        if not self._is_datum(given.default, given.schema, 0):
            return "whose default is none of its type"
        return None

    def _is_datum(self, value: Any, schema: AvroSchema, depth: int) -> bool:
        """Whether a JSON value is a schema's default (ResolvingGrammarGenerator.encode)."""
        self._step(depth)
        match schema.kind:
            case "union":
                return any(self._is_datum(value, each, depth + 1) for each in schema.parts)
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long" | "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "string" | "bytes" | "fixed":
                return isinstance(value, str)
            case "enum":
                return value in schema.symbols
            case "array" | "map":  # what holds nothing is taken for an empty one
                inside = value.values() if isinstance(value, dict) else value
                inside = inside if isinstance(value, dict | list) else ()
                return all(self._is_datum(each, schema.parts[0], depth + 1) for each in inside)
            case _:
                given = value if isinstance(value, dict) else {}
                return all(
                    (name in given or each.has_default)
                    and self._is_datum(given.get(name, each.default), each.schema, depth + 1)
                    for name, each in schema.fields.items()
                )


def _mismatch(writer: AvroSchema, reader: AvroSchema) -> _Outcome:
    return _Outcome(f"{_said(writer)} cannot be read as {_said(reader)}")


def _said(schema: AvroSchema) -> str:
    if schema.kind == "fixed":
        return f"fixed {schema.full_name} of {schema.size} bytes"
    return f"{schema.kind} {schema.full_name}" if schema.full_name else schema.kind


def _short(full_name: str) -> str:
    return full_name.rpartition(".")[2]


def _read_aliases(reader: AvroSchema) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What the reader's aliases stand for: names by alias; by record, fields by alias."""
    names: dict[str, str] = {}
    fields: dict[str, dict[str, str]] = {}
    todo, seen = [reader], set[int]()
    while todo:
        schema = todo.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        names |= dict.fromkeys(schema.aliases, schema.full_name)
        todo += schema.parts
        for each in schema.fields.values():
            todo.append(each.schema)
            if each.aliases:
                known = fields.setdefault(schema.full_name, {})
                known |= dict.fromkeys(each.aliases, each.name)
    return names, fields
