"""What ACLs mean, in plain words: slow, and by itself. The rules are compared with it."""

from __future__ import annotations

from collections.abc import Collection

from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType

IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def is_about(binding: AclBinding, resource_type: ResourceType, name: str) -> bool:
    if binding.resource_type is not resource_type:
        return False
    if binding.pattern_type is PatternType.PREFIXED:
        return name.startswith(binding.name)
    return binding.name in (name, "*")


def fitting(
    bindings: Collection[AclBinding],
    permission: Permission,
    who: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> list[AclBinding]:
    """The bindings that deny it, or those that allow it."""
    operations = {operation, Operation.ALL}
    if permission is Permission.ALLOW:
        operations |= IMPLIED_BY.get(operation, set())
    return [
        each
        for each in bindings
        if each.permission is permission
        and each.principal in {who, "User:*", "Role:*" if who.startswith("Role:") else who}
        and each.host in (host, "*")
        and each.operation in operations
        and is_about(each, resource_type, name)
    ]


def may(
    bindings: Collection[AclBinding],
    who: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    if_no_acl: bool = False,
) -> bool:
    """Whether who is no super user may do it."""
    asked = (who, host, operation, resource_type, name)
    if fitting(bindings, Permission.DENY, *asked):
        return False
    if fitting(bindings, Permission.ALLOW, *asked):
        return True
    return if_no_acl and not any(is_about(each, resource_type, name) for each in bindings)


def may_on_any(
    bindings: Collection[AclBinding],
    who: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    *,
    if_no_acl: bool = False,
) -> bool:
    """Whether there could be a resource on which they may do it, no operation implying another."""
    own = [each for each in bindings if each.operation in (operation, Operation.ALL)]
    # A name ends what a binding says in the binding's own way, or goes on in a way of nobody's.
    names = [f"{each.name}{end}" for each in own for end in ("", "\N{SNOWMAN}")]
    return may(
        bindings, who, host, operation, resource_type, "hardcode", if_no_acl=if_no_acl
    ) or any(may(own, who, host, operation, resource_type, name) for name in names)
