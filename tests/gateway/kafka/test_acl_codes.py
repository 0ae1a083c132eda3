"""Kafka's numbers, held against those that kafka-python has."""

from __future__ import annotations

from kafka import admin

from core.security.acls import Operation, ResourceType
from gateway.kafka import acl_codes
from gateway.kafka.codec import CreateAclsRequest

# AclEntry.supportedOperations, as clients of a Kafka 4.1 without an authorizer were told.
TOLD = {ResourceType.TOPIC: 3576, ResourceType.GROUP: 3400, ResourceType.CLUSTER: 8096}


def test_numbers_are_kafkas() -> None:
    for ours, kafkas in (
        (acl_codes.TYPE_CODES, admin.ResourceType),
        (acl_codes.PATTERN_CODES, admin.ACLResourcePatternType),
        (acl_codes.OPERATION_CODES, admin.ACLOperation),
        (acl_codes.PERMISSION_CODES, admin.ACLPermissionType),
    ):
        known = {each.name: each.value for each in kafkas}
        assert {each.name: ours[each] for each in ours if each.name in known} == {
            name: number for name, number in known.items() if name in {each.name for each in ours}
        }
        assert len(known) > 3


def test_numbers_of_what_kafka_python_does_not_know() -> None:
    assert acl_codes.OPERATION_CODES[Operation.CREATE_TOKENS] == 13
    assert acl_codes.OPERATION_CODES[Operation.DESCRIBE_TOKENS] == 14
    assert acl_codes.OPERATION_CODES[Operation.TWO_PHASE_COMMIT] == 15
    assert acl_codes.TYPE_CODES[ResourceType.USER] == 7
    assert acl_codes.TYPE_CODES[ResourceType.DELEGATION_TOKEN] == 6


def test_what_a_type_supports_is_what_kafka_tells() -> None:
    assert {each: acl_codes.SUPPORTED_BITS[each] for each in TOLD} == TOLD


def test_a_number_that_stands_for_nothing_is_unknown() -> None:
    made = CreateAclsRequest.AclCreation(
        resource_type=99,
        resource_name="a",
        resource_pattern_type=-1,
        principal="User:a",
        host="*",
        operation=16,
        permission_type=4,
    )
    binding = acl_codes.read_binding(made)
    assert {
        binding.resource_type.value,
        binding.pattern_type.value,
        binding.operation.value,
        binding.permission.value,
    } == {"UNKNOWN"}
