"""What the runtime asks of the store for the functions that applications call in SQL.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the functions have to know of brokers' settings; topics have their own beside them.

    super_users: principals of roles (`Role:name`); users of Kafka's do not call functions.
    """

    asks_rights: bool
    allows_without_acl: bool
    super_users: tuple[str, ...]
    max_message_bytes: int
    is_compacted: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    max_transaction_bytes: int
    max_metadata_bytes: int


class SqlDoorStore(Protocol):
    """The one row that they read."""

    async def put(self, settings: DoorSettings) -> DoorSettings | None:
        """Writes these where there are others; what they were, None where they were the same."""
