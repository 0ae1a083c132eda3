"""Pulsar's permissions as bindings of the one list of ACLs, and what of that list they can say.

A topic has two names in bindings: the log's, and Pulsar's full one. So a permission on a namespace
is a binding on all names that begin with `persistent://tenant/namespace/`; one on a topic has the
log's name, by which Kafka's tools show it. Roles that administer a tenant may do everything to its
topics, without a row. Sources: AuthAction, AuthPolicies, PulsarAuthorizationProvider.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from core.security.acls import (
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.principal import Principal
from core.subscription.group_ids import PREFIX as OF_SUBSCRIPTIONS


class Action(StrEnum):
    """Those of AuthAction that mean something here."""

    PRODUCE = "produce"
    CONSUME = "consume"


_OPERATIONS: Final[Mapping[Action, Operation]] = {
    Action.PRODUCE: Operation.WRITE,
    Action.CONSUME: Operation.READ,
}
_ACTIONS: Final[Mapping[Operation, frozenset[Action]]] = {
    Operation.WRITE: frozenset({Action.PRODUCE}),
    Operation.READ: frozenset({Action.CONSUME}),
    Operation.ALL: frozenset(Action),
}
_USER: Final = str(Principal(""))  # "User:"

Permissions = Mapping[str, list[Action]]
"""Actions by role, both in order."""


# --- names in bindings ---


def tenant_prefix(tenant: str) -> str:
    """What the full names of a tenant's topics begin with."""
    return f"persistent://{tenant}/"


def namespace_prefix(tenant: str, namespace: str) -> str:
    """What the full names of a namespace's topics begin with."""
    return f"persistent://{tenant}/{namespace}/"


def subscription_resource(tenant: str, namespace: str, subscription: str) -> str:
    """What bindings call a subscription of this name on any topic of the namespace (a GROUP)."""
    return f"{OF_SUBSCRIPTIONS}{namespace_prefix(tenant, namespace)}:{subscription}"


# --- bindings ---


def admin_bindings(tenant: str, roles: Iterable[str]) -> list[AclBinding]:
    """What roles that administer a tenant have without any row."""
    kinds = (
        (ResourceType.TOPIC, tenant_prefix(tenant)),
        (ResourceType.GROUP, OF_SUBSCRIPTIONS + tenant_prefix(tenant)),
    )
    return [
        _allow(kind, name, PatternType.PREFIXED, role, Operation.ALL)
        for role in roles
        for kind, name in kinds
    ]


def namespace_bindings(prefix: str, role: str, actions: Iterable[Action]) -> list[AclBinding]:
    """A permission on a namespace. prefix: see `namespace_prefix`."""
    return [
        _allow(ResourceType.TOPIC, prefix, PatternType.PREFIXED, role, _OPERATIONS[each])
        for each in sorted(set(actions))
    ]


def topic_bindings(log_name: str, role: str, actions: Iterable[Action]) -> list[AclBinding]:
    """A permission on a topic."""
    return [
        _allow(ResourceType.TOPIC, log_name, PatternType.LITERAL, role, _OPERATIONS[each])
        for each in sorted(set(actions))
    ]


def subscription_bindings(resource: str, roles: Iterable[str]) -> list[AclBinding]:
    """A permission on a subscription. resource: see `subscription_resource`."""
    return [
        _allow(ResourceType.GROUP, resource, PatternType.LITERAL, role, Operation.READ)
        for role in dict.fromkeys(roles)
    ]


def _allow(
    kind: ResourceType, name: str, pattern: PatternType, role: str, operation: Operation
) -> AclBinding:
    principal = str(Principal(role))
    return AclBinding(kind, name, pattern, principal, WILDCARD, operation, Permission.ALLOW)


# --- what is there ---


def namespace_permissions(bindings: Iterable[AclBinding], prefix: str) -> Permissions:
    """Who may do what to all topics of a namespace, whoever has said so."""
    return _permissions(each for each in _of_topics(bindings) if _is_about_all(each, prefix))


def topic_permissions(bindings: Iterable[AclBinding], log_name: str, full_name: str) -> Permissions:
    """Who may do what to a topic, by it or by what it is in."""
    return _permissions(
        each for each in _of_topics(bindings) if _is_about(each, (log_name, full_name))
    )


def subscription_permissions(
    bindings: Iterable[AclBinding], tenant: str, namespace: str
) -> Mapping[str, list[str]]:
    """Roles by subscription of a namespace, where its use is for some only."""
    before = subscription_resource(tenant, namespace, "")
    found: dict[str, set[str]] = {}
    for each in bindings:
        role = _role_of(each)
        if (
            role is not None
            and each.resource_type is ResourceType.GROUP
            and each.pattern_type is PatternType.LITERAL
            and each.name.startswith(before)
            and each.operation in (Operation.READ, Operation.ALL)
        ):
            found.setdefault(each.name.removeprefix(before), set()).add(role)
    return {name: sorted(roles) for name, roles in sorted(found.items())}


def _of_topics(bindings: Iterable[AclBinding]) -> Iterable[AclBinding]:
    return (each for each in bindings if each.resource_type is ResourceType.TOPIC)


def _is_about_all(binding: AclBinding, prefix: str) -> bool:
    if binding.pattern_type is PatternType.PREFIXED:
        return prefix.startswith(binding.name)
    return binding.name == WILDCARD


def _is_about(binding: AclBinding, names: Collection[str]) -> bool:
    if binding.pattern_type is PatternType.PREFIXED:
        return any(name.startswith(binding.name) for name in names)
    return binding.name == WILDCARD or binding.name in names


def _role_of(binding: AclBinding) -> str | None:
    """Whom an ALLOW is for, wherever he comes from; others are nothing that Pulsar's tools show."""
    is_shown = binding.permission is Permission.ALLOW and binding.host == WILDCARD
    if not is_shown or not binding.principal.startswith(_USER):
        return None
    return binding.principal.removeprefix(_USER)


def _permissions(bindings: Iterable[AclBinding]) -> Permissions:
    found: dict[str, set[Action]] = {}
    for each in bindings:
        role = _role_of(each)
        if role is not None and (actions := _ACTIONS.get(each.operation)):
            found.setdefault(role, set()).update(actions)
    return {role: sorted(actions) for role, actions in sorted(found.items())}
