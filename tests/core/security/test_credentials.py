"""Changes of users: what Kafka's controller takes, and what it says of the rest."""

from __future__ import annotations

import pytest

from core.errors import Error, Refusal
from core.security.credentials import (
    MAX_SALT_BYTES,
    MAX_USER_BYTES,
    Deletion,
    Upsertion,
    decide_alterations,
    describe_users,
)
from core.security.verifier import ScramMechanism, Verifier

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
TWICE = "A user credential cannot be altered twice in the same request"


def upsertion(
    user: str = "alice",
    mechanism: ScramMechanism | None = SHA_256,
    iterations: int = 4096,
    salt: bytes = b"salt",
    salted_password: bytes = b"salted",
) -> Upsertion:
    return Upsertion(user, mechanism, iterations, salt, salted_password)


def refused(error: Error, message: str) -> Refusal:
    return Refusal(error, message)


def test_good_changes_are_made_beside_bad_ones() -> None:
    existing = {("bob", SHA_256), ("carol", SHA_512)}
    changes, answers = decide_alterations(
        [Deletion("bob", SHA_256), Deletion("carol", SHA_256), Deletion("", SHA_256)],
        [upsertion(), upsertion("dave", iterations=4095)],
        existing,
    )
    made = Verifier.of_salted_password(SHA_256, b"salt", 4096, b"salted")
    assert changes.deletions == (("bob", SHA_256),)
    assert changes.upserts == (("alice", made),)
    assert {name: each and each.error.name for name, each in answers.items()} == {
        "bob": None,
        "carol": "RESOURCE_NOT_FOUND",
        "": "UNACCEPTABLE_CREDENTIAL",
        "alice": None,
        "dave": "UNACCEPTABLE_CREDENTIAL",
    }


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (upsertion(""), (Error.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")),
        (upsertion(iterations=4095), (Error.UNACCEPTABLE_CREDENTIAL, "Too few iterations")),
        (upsertion(iterations=-1), (Error.UNACCEPTABLE_CREDENTIAL, "Too few iterations")),
        (
            upsertion(iterations=16_385),
            (Error.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ),
        (
            upsertion(mechanism=None),
            (Error.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ),
        (
            Deletion("alice", None),
            (Error.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ),
        (
            Deletion("", SHA_256),
            (Error.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ),
        (
            Deletion("alice", SHA_256),
            (
                Error.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            ),
        ),
    ],
)
def test_what_kafka_refuses(asked: Upsertion | Deletion, refusal: tuple[Error, str]) -> None:
    deletions = [asked] if isinstance(asked, Deletion) else []
    upsertions = [asked] if isinstance(asked, Upsertion) else []
    changes, answers = decide_alterations(deletions, upsertions, ())
    assert (changes.deletions, changes.upserts) == ((), ())
    assert answers == {asked.user: refused(*refusal)}


@pytest.mark.parametrize("iterations", [4096, 16_384])
def test_bounds_of_iterations_are_taken(iterations: int) -> None:
    changes, answers = decide_alterations([], [upsertion(iterations=iterations)], ())
    assert answers == {"alice": None}
    assert changes.upserts[0][1].iterations == iterations


@pytest.mark.parametrize(
    "asked",
    [
        upsertion("a\0b"),
        upsertion("ä" * (MAX_USER_BYTES // 2) + "x"),
        upsertion(salt=b""),
        upsertion(salt=b"s" * (MAX_SALT_BYTES + 1)),
        upsertion(salted_password=b""),
    ],
)
def test_what_cannot_be_stored_or_logged_in_with_is_refused(asked: Upsertion) -> None:
    _, answers = decide_alterations([], [asked], ())
    answer = answers[asked.user]
    assert answer is not None
    assert answer.error is Error.UNACCEPTABLE_CREDENTIAL


def test_the_longest_name_is_taken() -> None:
    _, answers = decide_alterations([], [upsertion("ä" * (MAX_USER_BYTES // 2))], ())
    assert list(answers.values()) == [None]


@pytest.mark.parametrize(
    ("deletions", "upsertions"),
    [
        ([Deletion("alice", SHA_256), Deletion("alice", SHA_512)], []),
        ([Deletion("alice", SHA_256)], [upsertion()]),
        ([Deletion("alice", SHA_256)], [upsertion(mechanism=SHA_512)]),
        ([], [upsertion(), upsertion(mechanism=SHA_512)]),
        ([], [upsertion(), upsertion(), upsertion()]),
    ],
)
def test_a_user_is_altered_once_in_a_request(
    deletions: list[Deletion], upsertions: list[Upsertion]
) -> None:
    existing = {("alice", SHA_256), ("alice", SHA_512)}
    changes, answers = decide_alterations(deletions, [*upsertions, upsertion("bob")], existing)
    assert answers == {"alice": refused(Error.DUPLICATE_RESOURCE, TWICE), "bob": None}
    assert (changes.deletions, [name for name, _ in changes.upserts]) == ((), ["bob"])


def test_the_first_refusal_of_a_user_stays() -> None:
    _, answers = decide_alterations([Deletion("alice", None)], [upsertion()], ())
    answer = answers["alice"]
    assert answer is not None
    assert answer.error is Error.UNSUPPORTED_SASL_MECHANISM


def test_no_salted_password_is_in_a_repr() -> None:
    assert "swordfish" not in repr(upsertion(salted_password=b"swordfish"))


# --- descriptions ---


USERS = {"alice": [Verifier.of_password(SHA_256, b"salt", 4096, "a")]}


@pytest.mark.parametrize("asked", [None, []])
def test_who_asks_for_nobody_is_told_of_all(asked: list[str] | None) -> None:
    assert describe_users(asked, USERS) == USERS


def test_each_user_is_described_or_refused() -> None:
    assert describe_users(["bob", "alice"], USERS) == {
        "alice": USERS["alice"],
        "bob": refused(
            Error.RESOURCE_NOT_FOUND,
            "Attempt to describe a user credential that does not exist: bob",
        ),
    }
    assert describe_users(["alice", "alice"], USERS) == {
        "alice": refused(
            Error.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: alice",
        )
    }
