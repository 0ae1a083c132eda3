"""What the runtime asks of the store for staged batches. Every call may raise StoreUnavailable.

The publication itself is a flush of the log (`core.ports.log.Flush`).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from core.staging.values import TokenEffects


class StagingStore(Protocol):
    """Tokens and their batches."""

    async def load(self, tokens: Sequence[UUID]) -> Mapping[UUID, int]:
        """How many batches each token holds; missing tokens are omitted."""

    async def stage(self, effects: Sequence[TokenEffects], expiration_s: float) -> None:
        """Stores batches and their payload, in one commit that waits for no disk.

        The whole token then expires after `expiration_s`. Raises
        VersionMismatch, RowLocked, SegmentGone, EffectRefused, StoreUnavailable, CommitUnknown.
        """

    async def drop(self, tokens: Sequence[UUID]) -> None:
        """Drops tokens, if they are there."""

    async def topics_of(self, tokens: Sequence[UUID]) -> set[str]:
        """The topics that these tokens hold batches for, by name."""

    async def staged_bytes(self) -> int:
        """Payload of all tokens."""
