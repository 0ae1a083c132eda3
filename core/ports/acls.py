"""What the runtime asks of the store for ACLs, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.security.acls import AclBinding

AclKey = bytes
"""What the store calls a binding; the same binding always has the same."""


@dataclass(frozen=True, slots=True)
class StoredAcls:
    """All ACLs, at a version or later.

    version: differs whenever they do. unreadable: how many rows nobody can make sense of.
    """

    version: int = -1
    bindings: Mapping[AclKey, AclBinding] = field(default_factory=dict)
    unreadable: int = 0


class AclStore(Protocol):
    """ACLs."""

    async def read(self, known: StoredAcls) -> StoredAcls | None:
        """All of them, or None if nothing has changed since `known`; reads what is new."""

    async def create(self, bindings: Sequence[AclBinding]) -> set[AclBinding]:
        """Stores those that are not there, and tells all brokers; which they were. All or
        nothing."""

    async def delete(self, keys: Collection[AclKey]) -> set[AclKey]:
        """Deletes those that are there, and tells all brokers; which they were."""
