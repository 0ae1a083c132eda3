"""Which quotas can be set, and which ones a filter means, as Kafka 4.1 decides
(ClientQuotaControlManager, ClientQuotasImage).

Knows no wire, no store, and not which quota holds for a client (`rules.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from core.errors import Error, Refusal
from core.quota.entities import DEFAULT, EntityType, QuotaEntity, QuotaKey
from core.quota.rules import read_address

_OF_CLIENTS: Final = frozenset(QuotaKey) - {QuotaKey.CONNECTION_CREATION_RATE}
_OF_ADDRESSES: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_MOST: Final[Mapping[QuotaKey, tuple[int, str]]] = {
    QuotaKey.PRODUCER_BYTE_RATE: (_LONG_MAX, "LONG"),
    QuotaKey.CONSUMER_BYTE_RATE: (_LONG_MAX, "LONG"),
    QuotaKey.CONNECTION_CREATION_RATE: (_INT_MAX, "INT"),
}
"""Those that are whole numbers, and Java's type of them."""
_NEARLY_WHOLE: Final = 1e-6

# --- changes ---

NamedEntity = tuple[tuple[str, str | None], ...]
"""An entity as a client names it: types, each once and in order, and names; None: the default."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """What is asked for one entity. ops: keys and their new values; None removes one."""

    entity: NamedEntity
    ops: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class QuotaChanges:
    """upserts, deletions: no entity has a key in both."""

    upserts: Mapping[tuple[QuotaEntity, QuotaKey], float] = field(default_factory=dict)
    deletions: Collection[tuple[QuotaEntity, QuotaKey]] = ()


def decide_alterations(
    alterations: Sequence[Alteration],
) -> tuple[QuotaChanges, Mapping[NamedEntity, Refusal | None]]:
    """What is to be changed, and each entity's answer.

    An entity that comes again is refused, though what it came with first is done; so Kafka does.
    """
    answers: dict[NamedEntity, Refusal | None] = {}
    upserts: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    deletions: list[tuple[QuotaEntity, QuotaKey]] = []
    for each in alterations:
        keys = [key for key, _ in each.ops]
        if each.entity in answers or len(set(keys)) < len(keys):
            answers[each.entity] = _invalid(f"Ignoring duplicate entity {_text(each.entity)}")
            continue
        entity = _read_entity(each.entity)
        if isinstance(entity, Refusal):
            answers[each.entity] = entity
            continue
        values = _read_values(entity, each.ops)
        if isinstance(values, Refusal):
            answers[each.entity] = values
            continue
        answers[each.entity] = None
        for key, value in values.items():
            if value is None:
                deletions.append((entity, key))
            else:
                upserts[entity, key] = value
    return QuotaChanges(upserts, deletions), answers


def _read_entity(named: NamedEntity) -> QuotaEntity | Refusal:
    if not named:
        return _invalid("Invalid empty client quota entity")
    names: dict[EntityType, str] = {}
    for kind, name in named:
        try:
            names[EntityType(kind)] = DEFAULT if name is None else name
        except ValueError:
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            return _invalid(f"Empty {kind} not supported")
        if name is not None and "\0" in name:
            # Kafka takes it; PostgreSQL's text cannot hold it.
            return _invalid(f"A {kind} must not contain NUL")
    user, client_id, ip = (names.get(each) for each in EntityType)
    if ip is not None:
        if user is not None or client_id is not None:
            return _invalid(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or "
                "ClientId"
            )
        if ip != DEFAULT and read_address(ip) is None:
            return _invalid(f"{ip} is not a valid IP or resolvable host.")
    return QuotaEntity(user, client_id, ip)


def _read_values(
    entity: QuotaEntity, ops: Sequence[tuple[str, float | None]]
) -> Mapping[QuotaKey, float | None] | Refusal:
    """To remove what cannot be there is no mistake."""
    allowed = {key.value: key for key in (_OF_CLIENTS if entity.ip is None else _OF_ADDRESSES)}
    values: dict[QuotaKey, float | None] = {}
    for name, value in ops:
        key = allowed.get(name)
        if key is None:
            if value is not None:
                return _invalid(f"Invalid configuration key {name}")
        elif value is not None and (why := _refuse_value(key, value)):
            return _invalid(why)
        else:
            values[key] = value
    return values


def _refuse_value(key: QuotaKey, value: float) -> str | None:
    if value <= 0:
        return f"Quota {key.value} must be greater than 0"
    most = _MOST.get(key)
    if most is not None and value > most[0]:
        article = "an" if most[1] == "INT" else "a"
        return f"Proposed value for {key.value} is too large for {article} {most[1]}."
    if not math.isfinite(value):
        return f"Quota {key.value} must be a number"  # Kafka takes it
    if most is not None and abs(value - int(value + _NEARLY_WHOLE)) > _NEARLY_WHOLE:
        return f"{key.value} cannot be a fractional value."
    return None


def _text(entity: NamedEntity) -> str:
    """As Kafka writes it (ClientQuotaEntity.toString)."""
    shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{shown}}})"


# --- filters ---


class MatchType(Enum):
    """What a filter wants of a part of an entity."""

    EXACT = auto()
    DEFAULT = auto()
    SPECIFIED = auto()


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a filter. match_type: None where nobody knows it; `told` is its number then."""

    entity_type: str
    match_type: MatchType | None
    match: str | None
    told: int = 0


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Which entities are meant. wanted: names; None stands for any. is_strict: entities with other
    parts beside those are not meant."""

    wanted: Mapping[EntityType, str | None]
    is_strict: bool

    def matches(self, entity: QuotaEntity) -> bool:
        parts = dict(entity)
        if self.is_strict and len(parts) != len(self.wanted):
            return False
        return all(
            kind in parts and name in (None, parts[kind]) for kind, name in self.wanted.items()
        )


def read_filter(components: Sequence[Component], is_strict: bool) -> QuotaFilter | Refusal:
    """The filter, or why it means nothing."""
    wanted: dict[EntityType, str | None] = {}
    for each in components:
        if not each.entity_type:
            return _invalid("Invalid empty entity type.")
        if any(kind.value == each.entity_type for kind in wanted):
            return _invalid(
                f"Entity type {each.entity_type} cannot appear more than once in the filter."
            )
        try:
            kind = EntityType(each.entity_type)
        except ValueError:
            text = f"Unsupported entity type {each.entity_type}"
            return Refusal(Error.UNSUPPORTED_VERSION, text)
        if each.match_type is None:
            return _invalid(f"Unknown match type {each.told}")
        if each.match_type is MatchType.EXACT and each.match is None:
            return _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if each.match_type is not MatchType.EXACT and each.match is not None:
            return _invalid(
                f"Request specified MATCH_TYPE_{each.match_type.name}, but also specified a match "
                "string."
            )
        if each.match_type is MatchType.EXACT and each.match == DEFAULT:
            # No entity has an empty name.
            wanted[kind] = _NOBODY
        else:
            wanted[kind] = DEFAULT if each.match_type is MatchType.DEFAULT else each.match
    if EntityType.IP in wanted and len(wanted) > 1:
        return _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return QuotaFilter(wanted, is_strict)


_NOBODY: Final = "\0"  # no name has it


def _invalid(message: str) -> Refusal:
    return Refusal(Error.INVALID_REQUEST, message)
