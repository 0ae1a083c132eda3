"""Changes and descriptions of users' SCRAM credentials (KIP-554), as Kafka's controller decides.

Rules and texts are those of ScramControlManager and ScramImage. Knows no wire and no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.errors import Error, Refusal
from core.security.verifier import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, Verifier

MAX_USER_BYTES: Final = 1000
"""Of a user's name, in UTF-8: what an index takes. Kafka has no limit."""
MAX_SALT_BYTES: Final = 1000

Credential = tuple[str, ScramMechanism]
"""A user's name and one of the mechanisms: what has a verifier."""

_TWICE: Final = Refusal(
    Error.DUPLICATE_RESOURCE,
    "A user credential cannot be altered twice in the same request",
)
_NOT_THERE: Final = Refusal(
    Error.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
)
_NO_MECHANISM: Final = Refusal(Error.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _unacceptable(message: str) -> Refusal:
    return Refusal(Error.UNACCEPTABLE_CREDENTIAL, message)


@dataclass(frozen=True, slots=True)
class Deletion:
    """mechanism: None if the client asked for one that is not known."""

    user: str
    mechanism: ScramMechanism | None


@dataclass(frozen=True, slots=True, repr=False)
class Upsertion:
    """A credential to be made or replaced; the client has salted the password."""

    user: str
    mechanism: ScramMechanism | None
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True)
class CredentialChanges:
    """What to store. deletions and upserts share no user."""

    deletions: tuple[Credential, ...] = ()
    upserts: tuple[tuple[str, Verifier], ...] = ()


def check_user(name: str) -> Refusal | None:
    """Why nobody can have this name."""
    if not name:
        return _unacceptable("Username must not be empty")
    if "\0" in name:
        return _unacceptable("Username must not contain NUL")
    if len(name.encode(errors="surrogatepass")) > MAX_USER_BYTES:
        return _unacceptable(f"Username must not be longer than {MAX_USER_BYTES} bytes")
    return None


def check_iterations(iterations: int) -> Refusal | None:
    """Why a new verifier cannot have so many."""
    if iterations < MIN_ITERATIONS:
        return _unacceptable("Too few iterations")
    if iterations > MAX_ITERATIONS:
        return _unacceptable("Too many iterations")
    return None


def decide_alterations(
    deletions: Sequence[Deletion],
    upsertions: Sequence[Upsertion],
    existing: Collection[Credential],
) -> tuple[CredentialChanges, Mapping[str, Refusal | None]]:
    """What to store, and each user's answer; None stands for success.

    A user that is named twice is refused; what is refused stops nothing else. existing: of the
    users named, those credentials that are there.
    """
    answers: dict[str, Refusal | None] = {}
    deleted: dict[str, Credential] = {}
    upserted: dict[str, Verifier] = {}
    alterations: tuple[Deletion | Upsertion, ...] = (*deletions, *upsertions)
    for each in alterations:
        if each.user in answers:
            # Also where the first was refused: Kafka then keeps that refusal.
            answers[each.user] = answers[each.user] or _TWICE
            deleted.pop(each.user, None)
            upserted.pop(each.user, None)
            continue
        if isinstance(each, Deletion):
            refusal = _check_deletion(each, existing)
        else:
            refusal = _check_upsertion(each)
        answers[each.user] = refusal
        if refusal is not None or each.mechanism is None:
            continue
        if isinstance(each, Deletion):
            deleted[each.user] = (each.user, each.mechanism)
        else:
            upserted[each.user] = Verifier.of_salted_password(
                each.mechanism, each.salt, each.iterations, each.salted_password
            )
    return CredentialChanges(tuple(deleted.values()), tuple(upserted.items())), answers


def _check_deletion(deletion: Deletion, existing: Collection[Credential]) -> Refusal | None:
    if refusal := _check_names(deletion):
        return refusal
    return None if (deletion.user, deletion.mechanism) in existing else _NOT_THERE


def _check_upsertion(upsertion: Upsertion) -> Refusal | None:
    if refusal := _check_names(upsertion) or check_iterations(upsertion.iterations):
        return refusal
    if not 0 < len(upsertion.salt) <= MAX_SALT_BYTES:
        return _unacceptable(f"Salt must have 1 to {MAX_SALT_BYTES} bytes")
    if not upsertion.salted_password:
        return _unacceptable("Salted password must not be empty")
    return None


def _check_names(each: Deletion | Upsertion) -> Refusal | None:
    return check_user(each.user) or (_NO_MECHANISM if each.mechanism is None else None)


Described = Mapping[str, Sequence[Verifier] | Refusal]


def describe_users(
    asked: Sequence[str] | None, users: Mapping[str, Sequence[Verifier]]
) -> Described:
    """Each user's verifiers, of which clients are told mechanism and iterations, or why not.

    asked: none, or nothing, asks for all. users: those who are there.
    """
    if not asked:
        return dict(users)
    return {name: _described(name, times, users) for name, times in Counter(asked).items()}


def _described(
    name: str, times: int, users: Mapping[str, Sequence[Verifier]]
) -> Sequence[Verifier] | Refusal:
    if times > 1:
        return Refusal(
            Error.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: "
            f"{name}",
        )
    found = users.get(name)
    if not found:
        return Refusal(
            Error.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name}",
        )
    return found
