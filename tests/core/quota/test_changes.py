"""What can be set, and what a filter means. The words are those of an Apache Kafka 4.1.1."""

from __future__ import annotations

import math

import pytest

from core.errors import Error, Refusal
from core.quota.changes import (
    Alteration,
    Component,
    MatchType,
    NamedEntity,
    QuotaChanges,
    QuotaFilter,
    decide_alterations,
    read_filter,
)
from core.quota.entities import DEFAULT, QuotaEntity, QuotaKey

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
ALICE: NamedEntity = (("user", "alice"),)
HERE: NamedEntity = (("ip", "10.0.0.1"),)


def decided(*alterations: Alteration) -> tuple[QuotaChanges, list[str | None]]:
    changes, answers = decide_alterations(alterations)
    assert all(each is None or each.error is Error.INVALID_REQUEST for each in answers.values())
    return changes, [each and each.message for each in answers.values()]


def test_an_entity_is_changed_as_a_whole() -> None:
    both: NamedEntity = (("client-id", None), ("user", "bob"))
    changes, answers = decided(
        Alteration(ALICE, [("producer_byte_rate", 1024.0), ("fly", None)]),
        Alteration(both, [("request_percentage", 0.5), ("producer_byte_rate", None)]),
        Alteration((("user", "carol"),), [("producer_byte_rate", 1.0), ("fly", 1.0)]),
        Alteration(HERE, [("connection_creation_rate", 3.0)]),
    )
    assert answers == [None, None, "Invalid configuration key fly", None]
    assert changes == QuotaChanges(
        {
            (QuotaEntity("alice"), PRODUCE): 1024.0,
            (QuotaEntity("bob", DEFAULT), QuotaKey.REQUEST_PERCENTAGE): 0.5,
            (QuotaEntity(ip="10.0.0.1"), QuotaKey.CONNECTION_CREATION_RATE): 3.0,
        },
        [(QuotaEntity("bob", DEFAULT), PRODUCE)],
    )


def test_an_entity_that_comes_twice() -> None:
    """Is refused, and changed by the first all the same: so does Kafka."""
    changes, answers = decided(
        Alteration(ALICE, [("producer_byte_rate", 1.0)]),
        Alteration(ALICE, [("producer_byte_rate", 2.0)]),
    )
    assert answers == ["Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"]
    assert changes.upserts == {(QuotaEntity("alice"), PRODUCE): 1.0}
    both: NamedEntity = (("client-id", None), ("user", "e"))
    changes, answers = decided(
        Alteration(both, [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)])
    )
    assert answers == [
        "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=null, user=e})"
    ]
    assert not changes.upserts


@pytest.mark.parametrize(
    ("entity", "key", "value", "answer"),
    [
        ((), "producer_byte_rate", 5.0, "Invalid empty client quota entity"),
        ((("dog", "a"),), "producer_byte_rate", 5.0, "Unhandled client quota entity type: dog"),
        ((("user", ""),), "producer_byte_rate", 5.0, "Empty user not supported"),
        ((("user", "a\0"),), "producer_byte_rate", 5.0, "A user must not contain NUL"),
        (
            (("ip", "1.2.3.4"), ("user", "a")),
            "connection_creation_rate",
            5.0,
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId",
        ),
        (
            (("ip", "nowhere"),),
            "connection_creation_rate",
            5.0,
            "nowhere is not a valid IP or resolvable host.",
        ),
        (
            ALICE,
            "connection_creation_rate",
            5.0,
            "Invalid configuration key connection_creation_rate",
        ),
        (HERE, "producer_byte_rate", 5.0, "Invalid configuration key producer_byte_rate"),
        (ALICE, "producer_byte_rate", 5.5, "producer_byte_rate cannot be a fractional value."),
        (ALICE, "producer_byte_rate", 5.0000005, None),
        (ALICE, "controller_mutation_rate", 1.5, None),
        (ALICE, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (ALICE, "request_percentage", -1.0, "Quota request_percentage must be greater than 0"),
        (ALICE, "request_percentage", math.inf, "Quota request_percentage must be a number"),
        (ALICE, "consumer_byte_rate", math.nan, "Quota consumer_byte_rate must be a number"),
        (
            ALICE,
            "consumer_byte_rate",
            1e30,
            "Proposed value for consumer_byte_rate is too large for a LONG.",
        ),
        (
            HERE,
            "connection_creation_rate",
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
    ],
)
def test_what_can_be_set(entity: NamedEntity, key: str, value: float, answer: str | None) -> None:
    changes, answers = decided(Alteration(entity, [(key, value)]))
    assert answers == [answer]
    assert bool(changes.upserts) == (answer is None)


def wanted(*parts: tuple[str, MatchType, str | None], strict: bool = False) -> QuotaFilter:
    found = read_filter([Component(*each) for each in parts], strict)
    assert isinstance(found, QuotaFilter)
    return found


ANY = ("user", MatchType.SPECIFIED, None)


@pytest.mark.parametrize(
    ("asked", "those"),
    [
        (wanted(), {"alice", "both", "default", "app", "here"}),
        (wanted(strict=True), set()),
        (wanted(ANY), {"alice", "both", "default"}),
        (wanted(ANY, strict=True), {"alice", "default"}),
        (wanted(("user", MatchType.DEFAULT, None)), {"default"}),
        (wanted(("user", MatchType.EXACT, "alice")), {"alice", "both"}),
        (wanted(("user", MatchType.EXACT, "")), set()),
        (wanted(ANY, ("client-id", MatchType.SPECIFIED, None), strict=True), {"both"}),
        (wanted(("ip", MatchType.SPECIFIED, None), strict=True), {"here"}),
    ],
)
def test_what_a_filter_means(asked: QuotaFilter, those: set[str]) -> None:
    entities = {
        "alice": QuotaEntity("alice"),
        "both": QuotaEntity("alice", "app"),
        "default": QuotaEntity(DEFAULT),
        "app": QuotaEntity(client_id="app"),
        "here": QuotaEntity(ip="10.0.0.1"),
    }
    assert {name for name, each in entities.items() if asked.matches(each)} == those


@pytest.mark.parametrize(
    ("components", "error", "words"),
    [
        ([("", MatchType.SPECIFIED, None)], Error.INVALID_REQUEST, "Invalid empty entity type."),
        (
            [ANY, ("user", MatchType.DEFAULT, None)],
            Error.INVALID_REQUEST,
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [("dog", MatchType.SPECIFIED, None)],
            Error.UNSUPPORTED_VERSION,
            "Unsupported entity type dog",
        ),
        ([("user", None, None, 9)], Error.INVALID_REQUEST, "Unknown match type 9"),
        (
            [("user", MatchType.EXACT, None)],
            Error.INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", MatchType.DEFAULT, "x")],
            Error.INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", MatchType.SPECIFIED, "x")],
            Error.INVALID_REQUEST,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        (
            [("ip", MatchType.SPECIFIED, None), ANY],
            Error.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        ),
    ],
)
def test_a_filter_that_means_nothing(
    components: list[tuple[str, MatchType | None, str | None]], error: Error, words: str
) -> None:
    assert read_filter([Component(*each) for each in components], True) == Refusal(error, words)
