"""What the runtime asks of the store for the clients behind idempotent producers.

Implemented by `storage`; knows no SQL. Every call may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProducerClient:
    """Who asked for a producer id. owner: as whom, "" where nobody is asked who he is."""

    producer_id: int
    client_id: str
    client_host: str
    owner: str
    begun_at: datetime


class ProducerClientStore(Protocol):
    """Clients by producer id, for people: they may be lost when the database crashes."""

    async def put(self, clients: Sequence[ProducerClient]) -> None:
        """Adds them; of an id that is there, nothing changes."""

    async def expire(self, age_s: float) -> int:
        """Removes those that began longer ago; how many."""
