"""What the runtime asks of the store for client quotas, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.ports.watched import WatchedRows
from core.quota.changes import QuotaChanges
from core.quota.entities import QuotaEntity, QuotaKey


@dataclass(frozen=True, slots=True)
class StoredQuota:
    """One quota of an entity. value: None where it was deleted."""

    entity: QuotaEntity
    key: QuotaKey
    value: float | None


StoredQuotas = WatchedRows[StoredQuota]


class QuotaStore(Protocol):
    """Client quotas."""

    async def read(self, known: StoredQuotas) -> StoredQuotas | None:
        """All of them, or None if nothing has changed since `known`; reads what is new."""

    async def alter(self, changes: QuotaChanges) -> Sequence[StoredQuota]:
        """Stores the changes, and tells all brokers; what has really changed. All or nothing."""
