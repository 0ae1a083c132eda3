"""What a quota is of: users, clients by their id, addresses; and what of them it limits.

Kafka's words (KIP-13, KIP-124, KIP-257, KIP-546, KIP-599, KIP-612). Does not know which quota goes
before which (`rules.py`), nor what can be set (`changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT: Final = ""
"""In the place of a name: those that have no quota by their own. No name is empty."""


class EntityType(Enum):
    """What quotas are of; the values are Kafka's words (ClientQuotaEntity)."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(Enum):
    """What is limited, per second and broker; the values are Kafka's words (QuotaConfig).

    REQUEST_PERCENTAGE: 100 is all of one thread's time. CONTROLLER_MUTATION_RATE: partitions made
    and deleted.
    """

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Who has a quota: a user, a client id, both together, or an address.

    None: it is not about these; DEFAULT: those of them that have no quota by their own.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __iter__(self) -> Iterator[tuple[EntityType, str]]:
        """Its parts, in the order in which Kafka tells of them."""
        if self.client_id is not None:
            yield EntityType.CLIENT_ID, self.client_id
        if self.user is not None:
            yield EntityType.USER, self.user
        if self.ip is not None:
            yield EntityType.IP, self.ip


Quotas = Mapping[QuotaKey, float]
"""Those of one entity."""
