"""Which ACLs can be made, and which ones a filter means, as Kafka decides (AclApis,
AclControlManager, AclBindingFilter).

Knows no wire, no store, and not what an ACL allows (`acls.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from core.errors import Error, Refusal
from core.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""What can be done with a resource of the type (AclEntry.supportedOperations), and may be told as
its `authorized_operations`. Only the tool `kafka-acls` refuses ACLs for others: the server takes
them, and nobody asks for them."""


def check_binding(binding: AclBinding) -> Refusal | None:
    """Why it cannot be made.

    Kafka closes the connection where a request has an UNKNOWN, and answers with
    UNKNOWN_SERVER_ERROR where one has ANY, before it comes to its own words for both. Here its
    words are said, and the request's other ACLs are made.
    """
    if binding.resource_type is ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        return _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not binding.name:
        return _invalid("Invalid empty resource name")
    if binding.resource_type not in SUPPORTED_OPERATIONS:
        return _invalid(f"Invalid resourceType {binding.resource_type}")
    if binding.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        return _invalid(f"Invalid patternType {binding.pattern_type}")
    if binding.operation in {Operation.UNKNOWN, Operation.ANY}:
        return _invalid(f"Invalid operation {binding.operation}")
    if binding.permission not in {Permission.DENY, Permission.ALLOW}:
        return _invalid(f"Invalid permissionType {binding.permission}")
    if ":" not in binding.principal:
        return _invalid(
            f"Could not parse principal from `{binding.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if "\0" in binding.name + binding.principal + binding.host:
        # Kafka takes it; PostgreSQL's text cannot hold it, and no resource here has it in its name.
        return _invalid("Resource name, principal and host must not contain NUL")
    return None


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """Which bindings are meant (Kafka's ResourcePatternFilter and AccessControlEntryFilter).

    name, principal, host: None means any. pattern_type: MATCH means all that are about the resource
    `name`, whatever their pattern.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.pattern_type is not PatternType.MATCH:
            return self.pattern_type in (
                PatternType.ANY,
                binding.pattern_type,
            ) and self.name in (None, binding.name)
        if self.name is None:
            return True
        if binding.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(binding.name)
        return binding.name in (self.name, WILDCARD)


def check_filter(asked: AclBindingFilter) -> Refusal | None:
    """Why it means nothing (AclControlManager.validateFilter)."""
    if asked.resource_type is ResourceType.UNKNOWN or asked.pattern_type is PatternType.UNKNOWN:
        return _invalid("Unknown patternFilter.")
    if asked.operation is Operation.UNKNOWN or asked.permission is Permission.UNKNOWN:
        return _invalid("Unknown entryFilter.")
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(Error.INVALID_REQUEST, message)
