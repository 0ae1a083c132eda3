"""Which schema may follow which, by strategy.

AVRO, JSON and PROTOBUF: Avro's rules. KEY_VALUE: those of the key's type and of the value's.
PROTOBUF_NATIVE: the root message keeps its name, and no more (as Pulsar's default check).
Primitive types: the same type. Sources: SchemaRegistryServiceImpl, SchemaCompatibilityCheck and
those that implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.schema.avro import canonical
from core.schema.avro_resolution import TooComplexError, why_unreadable
from core.schema.forms import fingerprint, read_avro, root_message, split
from core.schema.values import CompatibilityStrategy, Schema, SchemaRefusal, SchemaType

_ALWAYS: Final = CompatibilityStrategy.ALWAYS_COMPATIBLE
_NEVER: Final = (CompatibilityStrategy.ALWAYS_INCOMPATIBLE, CompatibilityStrategy.UNDEFINED)
_NO_OTHER: Final = "no schema may follow another"
_PARTS: Final = ("the key", "the value")
_LATEST_FOR_READERS: Final = (
    CompatibilityStrategy.BACKWARD,
    CompatibilityStrategy.FORWARD,
    CompatibilityStrategy.FORWARD_TRANSITIVE,
    CompatibilityStrategy.FULL,
)


def compared_versions(strategy: CompatibilityStrategy, versions: Sequence[int]) -> Sequence[int]:
    """Those of a topic's versions, oldest first, that a new schema is compared with."""
    if strategy is _ALWAYS:
        return ()
    return versions if strategy.is_transitive else versions[-1:]


def reader_strategy(strategy: CompatibilityStrategy) -> CompatibilityStrategy:
    """What a consumer's schema is held to: it has to read, and nobody reads what it writes."""
    return CompatibilityStrategy.BACKWARD if strategy in _LATEST_FOR_READERS else strategy


def refuse_incompatible(
    old: Schema, new: Schema, strategy: CompatibilityStrategy
) -> SchemaRefusal | None:
    """Why a schema may not follow another, both well formed: one that counts, see
    `compared_versions`."""
    if strategy is _ALWAYS:
        return None
    if old.type is not new.type:
        return SchemaRefusal(
            f"Incompatible schema: exists schema type {old.type.name}, "
            f"new schema type {new.type.name}"
        )
    try:
        reason = _why_not(old, new, strategy)
    except TooComplexError as error:
        reason = str(error)
    return (
        None
        if reason is None
        else SchemaRefusal(f"Incompatible schema ({strategy.name}): {reason}")
    )


def _why_not(old: Schema, new: Schema, strategy: CompatibilityStrategy) -> str | None:
    if old.type is not new.type:
        return f"{old.type.name} would become {new.type.name}"
    if new.type.has_avro_data:
        return _why_not_read(old, new, strategy)
    if fingerprint(old) == fingerprint(new):
        return None
    if strategy in _NEVER:
        return _NO_OTHER
    if new.type is SchemaType.KEY_VALUE:
        for what, before, after in zip(_PARTS, split(old), split(new), strict=True):
            if (reason := _why_not(before, after, strategy)) is not None:
                return f"{what}: {reason}"
    elif new.type is SchemaType.PROTOBUF_NATIVE:
        before_name, after_name = root_message(old), root_message(new)
        if before_name != after_name:
            return f"message {before_name} became {after_name}"
    return None


def _why_not_read(old: Schema, new: Schema, strategy: CompatibilityStrategy) -> str | None:
    before, after = read_avro(old), read_avro(new)
    if before is None or after is None:  # JSON Schema, of before Pulsar 2.1
        return _NO_OTHER if strategy in _NEVER and old.data != new.data else None
    if canonical(before) == canonical(after):
        return None
    if strategy in _NEVER:
        return _NO_OTHER
    if strategy.new_reads_old and (reason := why_unreadable(before, after)) is not None:
        return f"the new schema cannot read what was written with the old one: {reason}"
    if strategy.old_reads_new and (reason := why_unreadable(after, before)) is not None:
        return f"the old schema cannot read what is written with the new one: {reason}"
    return None
