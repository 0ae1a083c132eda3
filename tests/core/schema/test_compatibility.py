"""What may follow what: every strategy, every type; and when a topic takes another version."""

from __future__ import annotations

from typing import Any

import pytest

from core.schema.compatibility import compared_versions, reader_strategy, refuse_incompatible
from core.schema.forms import fingerprint
from core.schema.registration import find_version, refuse_another
from core.schema.values import (
    MAX_TOPIC_BYTES,
    MAX_VERSIONS,
    CompatibilityStrategy,
    Schema,
    SchemaHead,
    SchemaPolicy,
    SchemaType,
)
from tests.core.schema.avro_schemas import record
from tests.core.schema.test_forms import JSON_SCHEMA_OF_OLD, key_value, native, of

S = CompatibilityStrategy
AVRO_LIKE = [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF]
BACKWARD = {S.BACKWARD, S.BACKWARD_TRANSITIVE}
FORWARD = {S.FORWARD, S.FORWARD_TRANSITIVE}
FULL = {S.FULL, S.FULL_TRANSITIVE}
ALWAYS = {S.ALWAYS_COMPATIBLE}
NEVER = {S.ALWAYS_INCOMPATIBLE, S.UNDEFINED}

OLD = record("a")
EVOLUTIONS: list[tuple[str, Any, set[CompatibilityStrategy]]] = [
    ("the same", record("a", doc="d"), set(S)),
    ("a field with a default", record("a", ("b", "int", 0)), set(S) - NEVER),
    ("a field without", record("a", "b"), FORWARD | ALWAYS),
    ("a field less", record(), BACKWARD | ALWAYS),
    ("wider", record(("a", "long")), BACKWARD | ALWAYS),
    ("another type", record(("a", "string")), ALWAYS),
]


@pytest.mark.parametrize("kind", AVRO_LIKE)
@pytest.mark.parametrize("strategy", S)
@pytest.mark.parametrize(("new", "allowed"), [e[1:] for e in EVOLUTIONS], ids=lambda _: "")
def test_records_evolve(
    new: Any, allowed: set[CompatibilityStrategy], strategy: CompatibilityStrategy, kind: SchemaType
) -> None:
    refusal = refuse_incompatible(of(kind, OLD), of(kind, new), strategy)
    assert (refusal is None) == (strategy in allowed)
    for pair in ("key", "value"):
        types = {f"{pair}_schema_type": kind.name}
        old, later = (key_value(**{pair: of(kind, e).data, **types}) for e in (OLD, new))  # type: ignore[arg-type]
        assert (refuse_incompatible(old, later, strategy) is None) == (strategy in allowed)


@pytest.mark.parametrize("strategy", S)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Schema(SchemaType.STRING), of(SchemaType.AVRO)),
        (Schema(SchemaType.INT32), Schema(SchemaType.INT64)),
        (of(SchemaType.JSON), of(SchemaType.AVRO)),
        (key_value(key_schema_type="INT32"), key_value(key_schema_type="INT64")),
        (key_value(), Schema(SchemaType.STRING)),
    ],
)
def test_types_do_not_change(old: Schema, new: Schema, strategy: CompatibilityStrategy) -> None:
    refusal = refuse_incompatible(old, new, strategy)
    assert (refusal is None) == (strategy is S.ALWAYS_COMPATIBLE)
    assert refuse_incompatible(old, old, strategy) is None


@pytest.mark.parametrize("strategy", S)
@pytest.mark.parametrize(
    ("old", "new", "is_other"),
    [
        (native(), native(fileDescriptorSet="Cgo="), False),
        (native(), native(rootMessageTypeName="p.Other"), True),
        (JSON_SCHEMA_OF_OLD, of(SchemaType.JSON), False),
        (JSON_SCHEMA_OF_OLD, Schema(SchemaType.JSON, b'{"type":"object"}'), False),
        (of(SchemaType.JSON), JSON_SCHEMA_OF_OLD, False),
        (Schema(SchemaType.STRING), Schema(SchemaType.STRING, b"null"), False),
        (key_value(b"a"), key_value(b"b"), False),
        (key_value(), key_value(kv_encoding_type="SEPARATED"), False),
    ],
)
def test_others_keep_what_names_them(
    old: Schema, new: Schema, is_other: bool, strategy: CompatibilityStrategy
) -> None:
    allowed = ALWAYS if is_other else set(S) - NEVER
    assert (refuse_incompatible(old, new, strategy) is None) == (strategy in allowed)


def test_a_refusal_says_what_is_wrong() -> None:
    refusal = refuse_incompatible(of(SchemaType.AVRO), of(SchemaType.AVRO, record("b")), S.FULL)
    assert refusal is not None
    assert refusal.message == (
        "Incompatible schema (FULL): the new schema cannot read what was written with the old one: "
        "record R has a field 'b' without a default, which its writer lacks"
    )
    types = refuse_incompatible(of(SchemaType.JSON), of(SchemaType.AVRO), S.FULL)
    assert types is not None
    assert "exists schema type JSON, new schema type AVRO" in types.message


def test_what_is_too_large_is_refused() -> None:
    many = [record(f"a{n}", name=f"A{n}") for n in range(400)]
    old, new = (of(SchemaType.JSON, record(("u", [record("x", name=n), *many]))) for n in "BC")
    refusal = refuse_incompatible(old, new, S.FULL)
    assert refusal is not None
    assert "too large" in refusal.message


@pytest.mark.parametrize("strategy", S)
def test_which_versions_count(strategy: CompatibilityStrategy) -> None:
    expected = (0, 3, 4) if strategy.name.endswith("TRANSITIVE") else (4,)
    expected = () if strategy is S.ALWAYS_COMPATIBLE else expected
    assert compared_versions(strategy, (0, 3, 4)) == expected
    assert compared_versions(strategy, ()) == ()


def test_readers_need_only_read() -> None:
    for strategy in (S.FORWARD, S.FORWARD_TRANSITIVE, S.FULL, S.BACKWARD):
        assert reader_strategy(strategy) is S.BACKWARD
    for strategy in (S.BACKWARD_TRANSITIVE, S.FULL_TRANSITIVE, *NEVER, *ALWAYS):
        assert reader_strategy(strategy) is strategy


def test_undefined_is_full() -> None:
    assert SchemaPolicy().effective_strategy is S.FULL
    assert SchemaPolicy(S.FORWARD).effective_strategy is S.FORWARD


def head(version: int, schema: Schema) -> SchemaHead:
    return SchemaHead(version, schema.type, fingerprint(schema), schema.size)


def test_a_version_is_found_by_what_it_means() -> None:
    heads = [head(2, of(SchemaType.AVRO)), head(3, of(SchemaType.AVRO, record("b")))]
    again = fingerprint(of(SchemaType.AVRO, record("b", doc="d")))
    assert find_version(heads, SchemaType.AVRO, again) == 3
    assert find_version(heads, SchemaType.JSON, again) is None


def test_a_topic_takes_no_more_than_it_may() -> None:
    schema = Schema(SchemaType.STRING)
    large = SchemaHead(0, SchemaType.AVRO, b"", MAX_TOPIC_BYTES)
    heads = [head(number, schema) for number in range(MAX_VERSIONS)]
    open_policy, closed = SchemaPolicy(), SchemaPolicy(allows_auto_update=False)
    assert refuse_another(heads[1:], schema, open_policy) is None
    assert refuse_another([large], schema, open_policy) is None
    for versions, another, policy, why in (
        (heads, schema, open_policy, "1000 versions"),
        ([large], of(SchemaType.AVRO), open_policy, f"more than {MAX_TOPIC_BYTES} bytes"),
        ([], schema, closed, "auto updating is disabled"),
    ):
        refusal = refuse_another(versions, another, policy)
        assert refusal is not None
        assert why in refusal.message
