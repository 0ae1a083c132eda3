"""What names a transaction and what takes part in it, whichever protocol the names are of.

Values only, made where a front-end reads a name. Every other room compares them, and asks neither
whose they are nor what a name means. Both are keys in every flush, so they hash without a call of
Python's (an Enum's own hash is one).
"""

from enum import IntEnum
from typing import NamedTuple


class TransactionKind(IntEnum):
    """Whose name a key has.

    The store has only Kafka's so far, so there is no other. The next one (Pulsar's TxnID) comes
    with a column of `transaction_state`, whose value this is.
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
    """What takes part, beside partitions.

    The store has only groups so far, so there is no other. The next one (Pulsar's subscription)
    comes with a column of `transaction_group`, whose value this is.
    """

    GROUP = 0


class Participant(NamedTuple):
    """One that moves on if the transaction is committed: a group, whose offsets are pending."""

    kind: ParticipantKind
    name: str

    @classmethod
    def of_group(cls, group_id: str) -> "Participant":
        """A consumer group."""
        return cls(ParticipantKind.GROUP, group_id)
