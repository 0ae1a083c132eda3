"""What the runtime asks of the store for users, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.security.credentials import Credential, CredentialChanges
from core.security.verifier import Verifier


@dataclass(frozen=True, slots=True)
class StoredUsers:
    """All users, at a version or later.

    version: differs whenever the users do. users: each with the verifiers that it has. secret: the
    cluster's, from which users that are not there get their salts. unusable: names of those with a
    stored text that nobody can log in with.
    """

    version: str
    users: Mapping[str, Sequence[Verifier]]
    secret: bytes = field(repr=False)
    unusable: tuple[str, ...] = ()


class UserStore(Protocol):
    """Users and their verifiers."""

    async def read(self, known_version: str | None) -> StoredUsers | None:
        """All users, or None if nothing has changed since `known_version`."""

    async def alter(
        self,
        names: Collection[str],
        decide: Callable[[Collection[Credential]], CredentialChanges],
    ) -> None:
        """Reads which credentials the users of these names have, stores what is decided on that,
        and tells all brokers; all or nothing."""
