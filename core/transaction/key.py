"""Names of transactions and of their participants, for all protocols.

Values only. A front-end makes them; every other room only compares them, and knows neither their
protocol nor their meaning. Both are keys in every flush, so they hash without a Python call (an
Enum's own hash is one).
"""

from enum import IntEnum
from typing import NamedTuple


class TransactionKind(IntEnum):
    """The kind of name a key has.

    The store has only Kafka's so far. The next one (Pulsar's TxnID) needs a column in
    `transaction_state` that holds this value.
    """

    TRANSACTIONAL_ID = 0


class TransactionKey(NamedTuple):
    """A transaction's name; a producer that has one keeps it from one transaction to the next."""

    kind: TransactionKind
    name: str

    @classmethod
    def of_kafka(cls, transactional_id: str) -> "TransactionKey":
        """The transactional id of Kafka's producers."""
        return cls(TransactionKind.TRANSACTIONAL_ID, transactional_id)


class ParticipantKind(IntEnum):
    """What joins a transaction beside partitions.

    The store has only groups so far. The next one (Pulsar's subscription) needs a column in
    `transaction_group` that holds this value.
    """

    GROUP = 0


class Participant(NamedTuple):
    """A group with pending offsets, which become committed if the transaction does."""

    kind: ParticipantKind
    name: str

    @classmethod
    def of_group(cls, group_id: str) -> "Participant":
        """A consumer group."""
        return cls(ParticipantKind.GROUP, group_id)
