"""What the runtime asks of the store for ACLs, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from core.ports.watched import RowKey, WatchedRows
from core.security.acls import AclBinding

StoredAcls = WatchedRows[AclBinding]


class AclStore(Protocol):
    """ACLs."""

    async def read(self, known: StoredAcls) -> StoredAcls | None:
        """All of them, or None if nothing has changed since `known`; reads what is new."""

    async def create(self, bindings: Sequence[AclBinding]) -> set[AclBinding]:
        """Stores those that are not there, and tells all brokers; which they were. All or
        nothing."""

    async def delete(self, keys: Collection[RowKey]) -> set[RowKey]:
        """Deletes those that are there, and tells all brokers; which they were."""
