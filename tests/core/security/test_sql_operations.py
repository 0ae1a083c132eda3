"""The table of rights at the SQL doors: as Kafka asks for the same, and what a role is told."""

from __future__ import annotations

import pytest

from core.security.operations import REQUIREMENTS, Requirement, Without
from core.security.sql_operations import SQL_REQUIREMENTS


@pytest.mark.parametrize(
    ("function", "api"),
    [
        ("produce", "Produce"),
        ("outbox", "Produce"),
        ("commit_offsets", "OffsetCommit"),
        ("read", "Fetch"),
    ],
)
def test_a_function_asks_for_what_the_api_asks_for(function: str, api: str) -> None:
    asked = [each.rights for each in SQL_REQUIREMENTS[function]]
    assert asked == [each.rights for each in REQUIREMENTS[api] if each.rights in asked]


@pytest.mark.parametrize("row", [each for row in SQL_REQUIREMENTS.values() for each in row])
def test_a_refusal_fails_the_statement_and_names_what_was_asked_for(row: Requirement) -> None:
    [right] = row.rights
    assert row.without is Without.WHOLE
    assert row.error is not None
    assert row.error.name == f"{right.resource_type}_AUTHORIZATION_FAILED"
