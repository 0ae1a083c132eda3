"""Kafka's numbers for what ACLs are made of, and the bit fields of KIP-430.

Numbers are those of ResourceType, PatternType, AclOperation and AclPermissionType of
org.apache.kafka.common; the values of `core.security.acls` stand in their order. Knows no rule.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from core.security.acl_changes import SUPPORTED_OPERATIONS, AclBindingFilter
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType

_E = TypeVar("_E", bound=StrEnum)


def _numbered(kind: type[_E]) -> tuple[Mapping[int, _E], Mapping[_E, int]]:
    members = list(kind)
    return dict(enumerate(members)), {each: number for number, each in enumerate(members)}


_TYPES, TYPE_CODES = _numbered(ResourceType)
_PATTERNS, PATTERN_CODES = _numbered(PatternType)
_OPERATIONS, OPERATION_CODES = _numbered(Operation)
_PERMISSIONS, PERMISSION_CODES = _numbered(Permission)

NOT_ASKED: Final = -(2**31)
"""What a field of authorized operations holds where the client did not ask."""


def operation_bits(operations: Collection[Operation]) -> int:
    """Bit n stands for the operation with the number n (Utils.to32BitField)."""
    return sum(1 << OPERATION_CODES[each] for each in operations)


SUPPORTED_BITS: Final = {
    kind: operation_bits(operations) for kind, operations in SUPPORTED_OPERATIONS.items()
}
"""All that can be done with a resource of the type: what Kafka tells without an authorizer."""


def read_binding(asked: Any) -> AclBinding:
    """An AclCreation of CreateAcls. A number that stands for nothing is UNKNOWN."""
    return AclBinding(
        _TYPES.get(asked.resource_type, ResourceType.UNKNOWN),
        asked.resource_name,
        _PATTERNS.get(asked.resource_pattern_type, PatternType.UNKNOWN),
        asked.principal,
        asked.host,
        _OPERATIONS.get(asked.operation, Operation.UNKNOWN),
        _PERMISSIONS.get(asked.permission_type, Permission.UNKNOWN),
    )


def read_filter(asked: Any) -> AclBindingFilter:
    """DescribeAcls itself, or a filter of DeleteAcls."""
    return AclBindingFilter(
        _TYPES.get(asked.resource_type_filter, ResourceType.UNKNOWN),
        asked.resource_name_filter,
        _PATTERNS.get(asked.pattern_type_filter, PatternType.UNKNOWN),
        asked.principal_filter,
        asked.host_filter,
        _OPERATIONS.get(asked.operation, Operation.UNKNOWN),
        _PERMISSIONS.get(asked.permission_type, Permission.UNKNOWN),
    )


def pattern_fields(binding: AclBinding) -> dict[str, Any]:
    """What it is about, as fields of an answer."""
    return {
        "resource_type": TYPE_CODES[binding.resource_type],
        "resource_name": binding.name,
        "pattern_type": PATTERN_CODES[binding.pattern_type],
    }


def entry_fields(binding: AclBinding) -> dict[str, Any]:
    """Who may or may not do what, as fields of an answer."""
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": OPERATION_CODES[binding.operation],
        "permission_type": PERMISSION_CODES[binding.permission],
    }
