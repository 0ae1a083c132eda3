"""core.security.explaining: what somebody may do, and by which rule."""

from core.security.acls import (
    AclBinding,
    AclRules,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.explaining import REQUESTS, held, in_words, patterns_of, read_principal
from core.security.principal import ROLE, Principal

ALICE = Principal("alice")


def acl(
    operation: Operation,
    name: str,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:alice",
    pattern_type: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern_type, principal, "*", operation, permission)


def test_each_resource_that_an_acl_of_somebodys_or_everybodys_is_about_is_told() -> None:
    rules = AclRules(
        [
            acl(Operation.READ, "a"),
            acl(Operation.WRITE, "b", principal="User:*", pattern_type=PatternType.PREFIXED),
            acl(Operation.READ, "c", principal="User:bob"),
            acl(Operation.READ, "d", principal="Role:*"),
        ]
    )
    of_alice = [name for _, _, name in patterns_of(rules, ALICE)]
    assert of_alice == ["a", "b"]
    assert [name for _, _, name in patterns_of(rules, Principal("r", ROLE))] == ["b", "d"]


def test_each_operation_is_told_with_its_rule() -> None:
    allow = acl(Operation.READ, "a")
    deny = acl(Operation.WRITE, "a", Permission.DENY)
    rules = AclRules([allow, deny])
    (found,) = held(rules, ALICE, "10.0.0.1", patterns_of(rules, ALICE))
    decisions = dict(found.decisions)
    assert decisions[Operation.READ].is_allowed
    assert decisions[Operation.DESCRIBE].is_allowed  # by READ
    assert in_words(decisions[Operation.DESCRIBE]) == allow.text
    assert not decisions[Operation.WRITE].is_allowed
    assert in_words(decisions[Operation.WRITE]) == deny.text
    assert in_words(decisions[Operation.DELETE]) == "no ACL allows it"


def test_super_users_and_resources_without_acls_have_words_of_their_own() -> None:
    rules = AclRules(super_users=["User:alice"], allow_everyone_if_no_acl_found=True)
    asked = ("", Operation.READ, ResourceType.TOPIC, "a")
    assert "super user" in in_words(rules.authorize(ALICE, *asked))
    assert in_words(rules.authorize(Principal("bob"), *asked)) == (
        "no ACL is about it, so everybody may"
    )


def test_principals_are_users_and_roles() -> None:
    assert read_principal("User:a:b") == Principal("a:b")
    assert read_principal("Role:r") == Principal("r", ROLE)
    assert [read_principal(each) for each in ("alice", "User:", "Group:a", "")] == [None] * 4


def test_all_doors_are_there() -> None:
    assert {door: bool(requests) for door, requests in REQUESTS.items()} == {
        "Kafka": True,
        "Pulsar": True,
        "SQL": True,
    }
