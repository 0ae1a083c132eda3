"""Names of transactions and of their participants, for all protocols.

Values only. A front-end makes them; every other room only compares them, and knows neither their
protocol nor their meaning. Both are keys in every flush, so they hash without a Python call (an
Enum's own hash is one).
"""

import re
from enum import IntEnum
from typing import Final, NamedTuple

_TXN_ID: Final = re.compile(r"\((0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18})\)")


class TransactionKind(IntEnum):
    """The kind of name a key has; the store keeps this number."""

    TRANSACTIONAL_ID = 0
    """A producer's: one transaction after the other has it."""
    TXN_ID = 1
    """One transaction's and never another's (Pulsar's TxnID)."""

    @property
    def is_used_once(self) -> bool:
        """Whether a transaction has the name for itself: once it has ended, nothing begins again
        under it, and its producer id is not used any more."""
        return self is TransactionKind.TXN_ID


class TransactionKey(NamedTuple):
    """A transaction's name; a producer that has one keeps it from one transaction to the next."""

    kind: TransactionKind
    name: str

    @classmethod
    def of_kafka(cls, transactional_id: str) -> "TransactionKey":
        """The transactional id of Kafka's producers."""
        return cls(TransactionKind.TRANSACTIONAL_ID, transactional_id)

    @classmethod
    def of_pulsar(cls, coordinator_id: int, sequence: int) -> "TransactionKey":
        """A TxnID, as Pulsar writes it for people: its most and its least bits."""
        return cls(TransactionKind.TXN_ID, f"({coordinator_id},{sequence})")

    @classmethod
    def read_pulsar(cls, text: str) -> "TransactionKey | None":
        """A TxnID as `of_pulsar` writes it; None where the text is none."""
        return cls(TransactionKind.TXN_ID, text) if _TXN_ID.fullmatch(text) else None

    @property
    def txn_id(self) -> tuple[int, int]:
        """Coordinator and sequence of a TxnID. ValueError for a key of another kind."""
        found = _TXN_ID.fullmatch(self.name)
        if found is None or self.kind is not TransactionKind.TXN_ID:
            raise ValueError(f"{self} is no TxnID")
        return int(found[1]), int(found[2])


class ParticipantKind(IntEnum):
    """What joins a transaction beside partitions; the store keeps this number."""

    GROUP = 0
    """A consumer group with pending offsets."""
    SUBSCRIPTION = 1
    """A subscription's cursor in one partition, with pending acknowledgements."""


class Participant(NamedTuple):
    """Who has something pending that takes effect if the transaction commits."""

    kind: ParticipantKind
    name: str

    @classmethod
    def of_group(cls, group_id: str) -> "Participant":
        """A consumer group."""
        return cls(ParticipantKind.GROUP, group_id)

    @classmethod
    def of_subscription(cls, subscription_id: int) -> "Participant":
        """A subscription in one partition, by its id in the store."""
        return cls(ParticipantKind.SUBSCRIPTION, str(subscription_id))
