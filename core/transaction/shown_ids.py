"""How transactions are named to Kafka's clients and on the page, whatever protocol they are of.

Pulsar's have no transactional id, but a TxnID: `pulsar:(3,1234)` stands for it, so that Kafka's
tools list and describe them, and call none of them hanging. A producer of Kafka's may have such an
id as well: then the id is its own, in every request. Values only.
"""

from typing import Final

from core.transaction.key import TransactionKey, TransactionKind

_PULSAR: Final = "pulsar:"


def shown_id(key: TransactionKey) -> str:
    """The transactional id of a transaction, for lists and descriptions."""
    if key.kind is TransactionKind.TRANSACTIONAL_ID:
        return key.name
    return _PULSAR + key.name


def pulsar_key(transactional_id: str) -> TransactionKey | None:
    """The transaction of Pulsar's that such an id stands for; None for every other id."""
    if not transactional_id.startswith(_PULSAR):
        return None
    return TransactionKey.read_pulsar(transactional_id.removeprefix(_PULSAR))
