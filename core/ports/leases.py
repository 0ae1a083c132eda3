"""What the runtime asks of the store for leases: which broker decides for which shard.

Implemented by `storage`. Knows neither SQL nor the contents of a shard. Every method may raise
StoreUnavailable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to decide for a shard, while the holder's session lasts.

    generation: rises whenever the lease changes hands; it guards every write of the shard.
    """

    shard: int
    generation: int


class LeaseStore(Protocol):
    """Which broker has which shard. A lease is free while its holder has no live session."""

    async def acquire(self, shard: int, broker_id: int, incarnation: UUID) -> Lease | int:
        """The lease, if it was this broker's or free; else the live broker that has it.

        Locks the holder's broker row before it looks at the session, as a renewal does, so that two
        brokers cannot both believe that they have it. The generation rises even if the lease was
        this broker's already: the caller is about to read the shard, and a write of unknown outcome
        that is still on its way (CommitUnknown) must not arrive after that.
        Also raises StoreUnavailable if this broker's own session has run out.
        """

    async def holders(self, shards: Sequence[int]) -> Mapping[int, int]:
        """The live holders of shards; free shards are omitted."""

    async def free(self) -> list[int]:
        """Shards that had a holder once and have no live one now."""

    async def release(
        self, broker_id: int, incarnation: UUID, shards: Sequence[int] | None = None
    ) -> None:
        """Frees leases of this broker at once: of these shards, or all."""
