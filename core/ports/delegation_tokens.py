"""What the runtime asks of the store for delegation tokens, and the answers.

Implemented by `storage`; only what `gateway.runtime` really calls. Knows no SQL.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from typing import Protocol

from core.ports.watched import WatchedRows
from core.security.delegation_tokens import DelegationToken

StoredTokens = WatchedRows[DelegationToken]


class DelegationTokenStore(Protocol):
    """Delegation tokens; no secret of any. A change is told to all brokers."""

    async def read(self, known: StoredTokens) -> StoredTokens | None:
        """All of them, or None if nothing has changed since `known`; reads what is new."""

    async def put(self, token: DelegationToken) -> None:
        """Stores a new token."""

    async def move_end(self, token: DelegationToken, before_ms: int) -> bool:
        """Stores when the token expires, if until now it does at before_ms. Whether it did."""

    async def delete(self, token_id: str) -> bool:
        """Deletes the token. Whether it was still there."""

    async def delete_over(self, now_ms: int) -> int:
        """Deletes those that are over; how many they were."""
