"""Which ACLs can be made, and which ones a filter means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import Error
from core.security.acl_changes import (
    SUPPORTED_OPERATIONS,
    AclBindingFilter,
    check_binding,
    check_filter,
)
from core.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.core.security.acl_definition import is_about

GOOD = AclBinding(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


@pytest.mark.parametrize("resource_type", SUPPORTED_OPERATIONS)
@pytest.mark.parametrize("pattern_type", [PatternType.LITERAL, PatternType.PREFIXED])
@pytest.mark.parametrize("permission", [Permission.DENY, Permission.ALLOW])
def test_each_operation_can_be_allowed_and_denied_on_each_type(
    resource_type: ResourceType, pattern_type: PatternType, permission: Permission
) -> None:
    name = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else "orders"
    for operation in Operation:
        made = AclBinding(
            resource_type, name, pattern_type, "User:alice", "*", operation, permission
        )
        is_good = operation not in {Operation.UNKNOWN, Operation.ANY}
        assert (check_binding(made) is None) is is_good


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "*"},
        {"name": "*", "pattern_type": PatternType.PREFIXED},
        {"name": "no topic's name: \N{SNOWMAN}, =2C" + "x" * 32_000},
        {"principal": "User:*"},
        {"principal": "User:"},
        {"principal": ":"},
        {"principal": "User:CN=a,O=b:c"},
        {"host": ""},
        {"host": "no host"},
    ],
)
def test_what_kafka_takes_is_taken(changes: dict[str, Any]) -> None:
    assert check_binding(replace(GOOD, **changes)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"resource_type": ResourceType.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            {"resource_type": ResourceType.CLUSTER, "name": "*"},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.UNKNOWN}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": PatternType.UNKNOWN}, "Invalid patternType UNKNOWN"),
        ({"pattern_type": PatternType.ANY}, "Invalid patternType ANY"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": Operation.UNKNOWN}, "Invalid operation UNKNOWN"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.UNKNOWN}, "Invalid permissionType UNKNOWN"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal "
            "type from the principal name)",
        ),
        ({"name": "a\0"}, "Resource name, principal and host must not contain NUL"),
        ({"principal": "User:\0"}, "Resource name, principal and host must not contain NUL"),
        ({"host": "\0"}, "Resource name, principal and host must not contain NUL"),
        # The first that is wrong is named.
        (
            {"resource_type": ResourceType.ANY, "operation": Operation.ANY, "principal": "a"},
            "Invalid resourceType ANY",
        ),
    ],
)
def test_others_are_refused_in_kafkas_words(changes: dict[str, Any], message: str) -> None:
    refusal = check_binding(replace(GOOD, **changes))
    assert refusal is not None
    assert (refusal.error, refusal.message) == (Error.INVALID_REQUEST, message)


PREFIX, MATCH = PatternType.PREFIXED, PatternType.MATCH
BINDINGS = {
    "orders": GOOD,
    "ord…": replace(GOOD, name="ord", pattern_type=PREFIX),
    "orders…": replace(GOOD, name="orders", pattern_type=PREFIX),
    "*": replace(GOOD, name="*"),
    "*…": replace(GOOD, name="*", pattern_type=PREFIX),
    "group": replace(GOOD, resource_type=ResourceType.GROUP),
    "bob": replace(GOOD, principal="User:bob"),
    "host": replace(GOOD, host="10.0.0.1"),
    "all": replace(GOOD, operation=Operation.ALL),
    "deny": replace(GOOD, permission=Permission.DENY),
}
OF_ORDERS = {"orders", "bob", "host", "all", "deny", "group"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (AclBindingFilter(), set(BINDINGS)),
        (AclBindingFilter(ResourceType.GROUP), {"group"}),
        (AclBindingFilter(ResourceType.USER), set()),
        (AclBindingFilter(name="orders"), OF_ORDERS | {"orders…"}),
        (AclBindingFilter(name="orders", pattern_type=PatternType.LITERAL), OF_ORDERS),
        (AclBindingFilter(name="orders", pattern_type=PREFIX), {"orders…"}),
        (
            AclBindingFilter(name="orders", pattern_type=MATCH),
            OF_ORDERS | {"orders…", "ord…", "*"},
        ),
        (AclBindingFilter(name="orderly", pattern_type=MATCH), {"ord…", "*"}),
        (AclBindingFilter(name="or", pattern_type=MATCH), {"*"}),
        (AclBindingFilter(name="*", pattern_type=MATCH), {"*", "*…"}),
        (AclBindingFilter(name="*"), {"*", "*…"}),
        (AclBindingFilter(name="*", pattern_type=PatternType.LITERAL), {"*"}),
        (AclBindingFilter(pattern_type=MATCH), set(BINDINGS)),
        (AclBindingFilter(pattern_type=PREFIX), {"ord…", "orders…", "*…"}),
        (AclBindingFilter(name=""), set()),
        (AclBindingFilter(principal="User:bob"), {"bob"}),
        # A star is a principal, and a host, like another: no filter means what it covers.
        (AclBindingFilter(principal="User:*"), set()),
        (AclBindingFilter(host="10.0.0.1"), {"host"}),
        (AclBindingFilter(host="*"), set(BINDINGS) - {"host"}),
        (AclBindingFilter(operation=Operation.ALL), {"all"}),
        (AclBindingFilter(operation=Operation.READ), set(BINDINGS) - {"all"}),
        (AclBindingFilter(permission=Permission.DENY), {"deny"}),
    ],
)
def test_a_filter_means(asked: AclBindingFilter, found: set[str]) -> None:
    assert {name for name, each in BINDINGS.items() if asked.matches(each)} == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (AclBindingFilter(), None),
        (AclBindingFilter(name="", principal="no colon"), None),
        (AclBindingFilter(ResourceType.UNKNOWN), "Unknown patternFilter."),
        (AclBindingFilter(pattern_type=PatternType.UNKNOWN), "Unknown patternFilter."),
        (AclBindingFilter(operation=Operation.UNKNOWN), "Unknown entryFilter."),
        (AclBindingFilter(permission=Permission.UNKNOWN), "Unknown entryFilter."),
    ],
)
def test_a_filter_of_unknown_things_is_refused(
    asked: AclBindingFilter, message: str | None
) -> None:
    refusal = check_filter(asked)
    assert (refusal.message if refusal else None) == message
    assert refusal is None or refusal.error is Error.INVALID_REQUEST


NAMES = st.text("ab*", min_size=1, max_size=3)
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
PRINCIPALS = st.sampled_from(["User:a", "User:*"])
HOSTS = st.sampled_from(["*", "h"])
OPERATIONS = st.sampled_from([Operation.READ, Operation.ALL])
PERMISSIONS = st.sampled_from([Permission.ALLOW, Permission.DENY])
RANDOM = st.builds(
    AclBinding,
    TYPES,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PREFIX]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    PERMISSIONS,
)
FILTERS = st.builds(
    AclBindingFilter,
    st.just(ResourceType.ANY) | TYPES,
    st.none() | NAMES,
    st.sampled_from([PatternType.ANY, MATCH, PatternType.LITERAL, PREFIX]),
    st.none() | PRINCIPALS,
    st.none() | HOSTS,
    st.just(Operation.ANY) | OPERATIONS,
    st.just(Permission.ANY) | PERMISSIONS,
)


def plainly_matches(asked: AclBindingFilter, each: AclBinding) -> bool:
    """Each part of the filter that says something must say what the binding says."""
    parts = [
        (asked.resource_type, each.resource_type),
        (asked.principal, each.principal),
        (asked.host, each.host),
        (asked.operation, each.operation),
        (asked.permission, each.permission),
    ]
    if asked.pattern_type is not MATCH:
        parts += [(asked.pattern_type, each.pattern_type), (asked.name, each.name)]
    elif asked.name is not None and not is_about(each, each.resource_type, asked.name):
        return False
    return all(wanted is None or wanted == "ANY" or wanted == has for wanted, has in parts)


@given(st.lists(RANDOM, max_size=12), FILTERS)
@settings(max_examples=500)
def test_random_filters_match_as_the_plain_definition(
    bindings: list[AclBinding], asked: AclBindingFilter
) -> None:
    for each in bindings:
        assert asked.matches(each) is plainly_matches(asked, each)
