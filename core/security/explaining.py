"""Why somebody may do a thing, or may not: the rules that decide, for people.

Decides nothing itself (`acls.py`). Knows no wire and no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.security.acl_changes import SUPPORTED_OPERATIONS
from core.security.acls import (
    EVERY_ROLE,
    EVERYBODY,
    AclBinding,
    AclRules,
    Decision,
    Operation,
    PatternType,
    ResourceType,
    Standing,
)
from core.security.operations import REQUIREMENTS, Requirement
from core.security.principal import ROLE, USER, Principal
from core.security.pulsar_operations import COMMANDS
from core.security.sql_operations import SQL_REQUIREMENTS

REQUESTS: Final[Mapping[str, Mapping[str, tuple[Requirement, ...]]]] = {
    "Kafka": REQUIREMENTS,
    "Pulsar": COMMANDS,
    "SQL": SQL_REQUIREMENTS,
}
"""All that can be asked for, by door and name: the tables that the doors themselves go by."""
_STANDINGS: Final = {
    Standing.SUPER_USER: "it is a super user (super.users), who may do everything",
    Standing.NO_ACL_FOUND: "no ACL is about it, so everybody may",
    Standing.NOT_ALLOWED: "no ACL allows it",
}


@dataclass(frozen=True, slots=True)
class Held:
    """What somebody may do on a resource that an ACL of his is about: an operation each, and the
    decision. Of a prefix: on what begins with it, unless more exact ACLs say otherwise."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    decisions: Sequence[tuple[Operation, Decision]]


def in_words(decision: Decision) -> str:
    """By which rule it was decided."""
    rule = decision.rule
    return rule.text if isinstance(rule, AclBinding) else _STANDINGS[rule]


def read_principal(text: str) -> Principal | None:
    """`User:name` or `Role:name`; None where it is neither."""
    kind, _, name = text.partition(":")
    return Principal(name, kind) if kind in (USER, ROLE) and name else None


Pattern = tuple[ResourceType, PatternType, str]


def patterns_of(rules: AclRules, principal: Principal) -> list[Pattern]:
    """What ACLs of somebody, and of everybody, are about, in order."""
    his = {str(principal), EVERYBODY, EVERY_ROLE if principal.kind == ROLE else EVERYBODY}
    found = {(e.resource_type, e.pattern_type, e.name) for e in rules if e.principal in his}
    return sorted(found, key=lambda each: (each[0], each[2], each[1]))


def held(
    rules: AclRules, principal: Principal, host: str, patterns: Iterable[Pattern]
) -> list[Held]:
    """What somebody who comes from a host may do on each of them."""
    return [
        Held(
            kind,
            pattern_type,
            name,
            [
                (operation, rules.authorize(principal, host, operation, kind, name))
                for operation in sorted(SUPPORTED_OPERATIONS.get(kind, ()))
            ],
        )
        for kind, pattern_type, name in patterns
    ]
