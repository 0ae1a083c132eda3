"""The table of rights: whole, and as Kafka's docs and KIPs have the rows that matter most."""

from __future__ import annotations

import pytest

from core.errors import Error
from core.security.acl_changes import SUPPORTED_OPERATIONS
from core.security.acls import Operation, ResourceType
from core.security.operations import (
    REQUIREMENTS,
    Requirement,
    Right,
    Without,
)
from gateway.kafka.api import load_handlers

ALL = [(api, each) for api, row in REQUIREMENTS.items() for each in row]
IDS = [f"{api}-{number}" for number, (api, _) in enumerate(ALL)]
AHEAD = {"DescribeAcls", "CreateAcls", "DeleteAcls"}
"""Rows of APIs that are not served yet."""

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID


def test_each_api_that_is_served_has_a_row() -> None:
    served = {each.name for each in load_handlers().table()}
    assert served - REQUIREMENTS.keys() == set()
    assert REQUIREMENTS.keys() - served <= AHEAD


@pytest.mark.parametrize(("api", "requirement"), ALL, ids=IDS)
def test_a_right_can_be_granted_and_a_refusal_says_something(
    api: str, requirement: Requirement
) -> None:
    for right in requirement.rights:
        # Kafka asks for it, and no tool grants it by itself.
        if (api, right) != ("DeleteTopics", Right(Operation.DELETE, CLUSTER)):
            assert right.operation in SUPPORTED_OPERATIONS[right.resource_type]
    assert requirement.rights
    assert requirement.of
    assert (requirement.error is None) <= (requirement.without is Without.LEFT_OUT)


@pytest.mark.parametrize(("api", "requirement"), ALL, ids=IDS)
def test_a_refusal_names_what_was_asked_for(api: str, requirement: Requirement) -> None:
    """The last right is the one that a client is told to lack, but for three of Kafka's."""
    asked = requirement.rights[-1].resource_type
    if api == "InitProducerId" and asked is TOPIC:
        asked = CLUSTER
    if api == "Fetch" and asked is CLUSTER:
        asked = TOPIC
    if requirement.error is not None and api != "CreateDelegationToken":
        assert requirement.error.name == f"{asked}_AUTHORIZATION_FAILED"


def test_only_those_who_have_not_logged_in_or_know_a_secret_are_asked_for_nothing() -> None:
    assert {api for api, row in REQUIREMENTS.items() if not row} == {
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "RenewDelegationToken",
        "ExpireDelegationToken",
    }


R, W, D = Operation.READ, Operation.WRITE, Operation.DESCRIBE


@pytest.mark.parametrize(
    ("api", "rights"),
    [
        ("Produce", [{(W, TRANSACTIONAL_ID)}, {(W, TOPIC)}]),
        ("Fetch", [{(R, TOPIC)}, {(Operation.CLUSTER_ACTION, CLUSTER)}]),
        ("OffsetCommit", [{(R, GROUP)}, {(R, TOPIC)}]),
        ("OffsetFetch", [{(D, GROUP)}, {(D, TOPIC)}, {(D, TOPIC)}]),
        (
            "InitProducerId",
            [{(W, TRANSACTIONAL_ID)}, {(Operation.IDEMPOTENT_WRITE, CLUSTER), (W, TOPIC)}],
        ),
        ("TxnOffsetCommit", [{(W, TRANSACTIONAL_ID)}, {(R, GROUP)}, {(R, TOPIC)}]),
        ("DescribeProducers", [{(R, TOPIC)}]),
        (
            "WriteTxnMarkers",
            [{(Operation.ALTER, CLUSTER), (Operation.CLUSTER_ACTION, CLUSTER)}],
        ),
        ("StageRecords", [{(W, TOPIC)}]),
        ("PublishStaged", [{(W, TOPIC)}, {(W, TOPIC)}]),
        ("DropStaged", [{(W, TOPIC)}]),
    ],
)
def test_rows_that_the_docs_of_kafka_spell_out(
    api: str, rights: list[set[tuple[Operation, ResourceType]]]
) -> None:
    row = REQUIREMENTS[api]
    assert [{(one.operation, one.resource_type) for one in each.rights} for each in row] == rights


def test_where_any_resource_will_do() -> None:
    """KIP-679, and a publication of nothing."""
    assert {api for api, each in ALL if any(one.is_on_any for one in each.rights)} == {
        "InitProducerId",
        "PublishStaged",
    }


def test_each_kind_of_authorization_has_its_error() -> None:
    errors = {each for each in Error if each.name.endswith("AUTHORIZATION_FAILED")}
    assert {each.error for _, each in ALL} == {*errors, None}
