"""Keys of transactions, and who takes part in them, by the names that tests give them."""

from core.transaction.key import Participant, TransactionKey

named = TransactionKey.of_kafka


def groups(*group_ids: str) -> frozenset[Participant]:
    """Consumer groups that take part."""
    return frozenset(map(Participant.of_group, group_ids))
