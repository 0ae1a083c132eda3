"""Permissions: of namespaces, topics and subscriptions, in the one list that Kafka's ACLs are in.

Behavior: what is given here is an ACL (`core/security/permissions.py`) and holds at Kafka's door as
well; what is told is whatever of the list can be said as a permission, whoever has put it there. A
role is the principal `User:role`. To give a role actions takes its others away, as in Pulsar. Other
actions than produce and consume mean nothing here: 501. Sources: NamespacesBase,
PersistentTopicsBase, PulsarAuthorizationProvider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from core.errors import Refusal
from core.security.acl_changes import AclBindingFilter
from core.security.acls import (
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.permissions import (
    Action,
    Permissions,
    namespace_bindings,
    namespace_permissions,
    namespace_prefix,
    subscription_bindings,
    subscription_permissions,
    subscription_resource,
    topic_bindings,
    topic_permissions,
)
from core.security.principal import Principal
from core.security.pulsar_operations import SEE_PERMISSIONS, SET_PERMISSIONS, SET_TOPIC_PERMISSIONS
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import name_of, namespace_of, subscription_of, topic_of
from gateway.pulsar.names import TopicName
from gateway.web.api import Refused
from gateway.web.call import ClientError
from gateway.web.guard import peer_of

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"
_DISABLED: Final = Refused(501, "Authorization is not enabled")
_NOT_SET: Final = Refused(412, "Permissions are not set at the topic level")
_OPERATIONS: Final = (Operation.READ, Operation.WRITE, Operation.ALL)
"""What a permission is made of, or could be."""


# --- namespaces ---


@endpoint("GET", _NAMESPACE, SEE_PERMISSIONS)
async def of_namespace(call: AdminCall) -> Permissions:
    """What roles may do to all topics of a namespace."""
    prefix = await _prefix_of(call)
    return namespace_permissions(await _bindings(call), prefix)


@endpoint("POST", f"{_NAMESPACE}/{{role}}", SET_PERMISSIONS)
async def grant_on_namespace(call: AdminCall) -> Refused | None:
    """Give a role actions on all topics of a namespace."""
    prefix, role = await _prefix_of(call), _role_of(call)
    wanted = namespace_bindings(prefix, role, _actions(await call.json()))
    return await _replace(call, wanted, _of_namespace(prefix, role))


@endpoint("DELETE", f"{_NAMESPACE}/{{role}}", SET_PERMISSIONS)
async def revoke_on_namespace(call: AdminCall) -> Refused | None:
    """Take away what a role was given on a namespace; what it has by a broader rule stays."""
    prefix = await _prefix_of(call)
    return await _replace(call, (), _of_namespace(prefix, _role_of(call)))


# --- topics ---


@endpoint("GET", _TOPIC, SEE_PERMISSIONS)
async def of_topic(call: AdminCall) -> Permissions:
    """What roles may do to a topic, by it or by what it is in."""
    name, log_name = await _topic(call)
    return topic_permissions(await _bindings(call), log_name, _full_name(name))


@endpoint("POST", f"{_TOPIC}/{{role}}", SET_TOPIC_PERMISSIONS)
async def grant_on_topic(call: AdminCall) -> Refused | None:
    """Give a role actions on a topic."""
    (name, log_name), role = await _topic(call), _role_of(call)
    wanted = topic_bindings(log_name, role, _actions(await call.json()))
    return await _replace(call, wanted, _of_topic(name, log_name, role))


@endpoint("DELETE", f"{_TOPIC}/{{role}}", SET_TOPIC_PERMISSIONS)
async def revoke_on_topic(call: AdminCall) -> Refused | None:
    """Take away what a role was given on a topic; what it has by its namespace stays."""
    filters = _of_topic(*await _topic(call), _role_of(call))
    if not any(each.matches(binding) for binding in await _bindings(call) for each in filters):
        return _NOT_SET if call.services.pulsar.acls.is_on else _DISABLED
    return await _replace(call, (), filters)


# --- subscriptions ---


@endpoint("GET", f"{_NAMESPACE}/subscription", SEE_PERMISSIONS)
async def of_subscriptions(call: AdminCall) -> Any:
    """Which roles may use a subscription, where that is for some only."""
    await _prefix_of(call)
    return subscription_permissions(await _bindings(call), *namespace_of(call))


@endpoint("POST", f"{_NAMESPACE}/subscription/{{subscription}}", SET_PERMISSIONS)
async def grant_on_subscription(call: AdminCall) -> Refused | None:
    """Let these roles use a subscription, and no others."""
    await _prefix_of(call)
    roles = await call.json()
    if not isinstance(roles, list) or not all(isinstance(each, str) and each for each in roles):
        return Refused(400, "Roles are a list of names")
    resource = subscription_resource(*namespace_of(call), subscription_of(call))
    return await _replace(call, subscription_bindings(resource, roles), _of_group(resource, None))


@endpoint("DELETE", f"{_NAMESPACE}/{{subscription}}/{{role}}", SET_PERMISSIONS)
async def revoke_on_subscription(call: AdminCall) -> Refused | None:
    """Take a role's right to use a subscription away; without any role all may use it again."""
    await _prefix_of(call)
    resource = subscription_resource(*namespace_of(call), subscription_of(call))
    return await _replace(call, (), _of_group(resource, _role_of(call)))


# --- what a path and a body say ---


async def _prefix_of(call: AdminCall) -> str:
    """Raises ClientError, StoreUnavailable."""
    full_name = namespace_of(call)
    if await call.services.pulsar.namespaces.get(*full_name) is None:
        raise ClientError(404, "Namespace does not exist")
    return namespace_prefix(*full_name)


async def _topic(call: AdminCall) -> tuple[TopicName, str]:
    """One that is there. Raises ClientError, StoreUnavailable."""
    await topic_of(call)
    return name_of(call)


def _role_of(call: AdminCall) -> str:
    role = call.name("role")
    if not role.strip() or "\0" in role:
        raise ClientError(412, "A role has a name")
    return role


def _actions(given: Any) -> list[Action]:
    """Raises ClientError."""
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ClientError(400, "Actions are a list of names")
    known = {each.value for each in Action}
    others = [each for each in given if each not in known]
    if others:
        raise ClientError(501, f"Penstock has no action '{others[0][:100]}'")
    return [Action(each) for each in given]


# --- the list ---


async def _bindings(call: AdminCall) -> Sequence[AclBinding]:
    """All; none where nobody is asked for any. Raises StoreUnavailable."""
    acls = call.services.pulsar.acls
    if not acls.is_on:
        return ()
    found = await acls.describe(
        AclBindingFilter(
            ResourceType.ANY,
            None,
            PatternType.ANY,
            None,
            None,
            Operation.ANY,
            Permission.ALLOW,
        )
    )
    assert not isinstance(found, Refusal), "the filter is one"
    return found


def _filters(
    kind: ResourceType, name: str, pattern: PatternType, role: str | None
) -> list[AclBindingFilter]:
    """The bindings of a role, or of all (None), that a permission is made of."""
    principal = None if role is None else str(Principal(role))
    return [
        AclBindingFilter(kind, name, pattern, principal, WILDCARD, each, Permission.ALLOW)
        for each in _OPERATIONS
    ]


def _of_namespace(prefix: str, role: str) -> list[AclBindingFilter]:
    return _filters(ResourceType.TOPIC, prefix, PatternType.PREFIXED, role)


def _of_topic(name: TopicName, log_name: str, role: str) -> list[AclBindingFilter]:
    """By either of its names."""
    return [
        each
        for one in (log_name, _full_name(name))
        for each in _filters(ResourceType.TOPIC, one, PatternType.LITERAL, role)
    ]


def _full_name(name: TopicName) -> str:
    return str(TopicName(name.tenant, name.namespace, name.local_name))


def _of_group(resource: str, role: str | None) -> list[AclBindingFilter]:
    return _filters(ResourceType.GROUP, resource, PatternType.LITERAL, role)


async def _replace(
    call: AdminCall, wanted: Sequence[AclBinding], former: Sequence[AclBindingFilter]
) -> Refused | None:
    """Makes bindings, then deletes what else the filters mean. Raises StoreUnavailable."""
    acls = call.services.pulsar.acls
    if not acls.is_on:
        return _DISABLED
    principal, peer = call.caller.principal, peer_of(call.request)
    for refusal in await acls.create(wanted, principal=principal, peer=peer):
        if refusal is not None:
            return Refused(412, refusal.message or refusal.error.name)
    keep = set(wanted)
    gone = {
        each
        for each in await _bindings(call)
        if each not in keep and any(one.matches(each) for one in former)
    }
    await acls.delete([_exactly(each) for each in gone], principal=principal, peer=peer)
    return None


def _exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.resource_type,
        binding.name,
        binding.pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission,
    )
