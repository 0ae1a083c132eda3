"""What decisions rest on is not forgotten under them."""

from __future__ import annotations

from typing import cast

from core.ports.log import LogStore
from core.transaction.values import StoredTransaction, TransactionMetadata, TransactionState
from gateway.runtime.flush.memory import TRANSACTIONS_IN_MEMORY, FlushMemory
from tests.keys import named


def stored(producer_id: int) -> StoredTransaction:
    return StoredTransaction(
        TransactionMetadata(named(str(producer_id)), producer_id, 0, TransactionState.EMPTY)
    )


def test_transactions_are_forgotten_between_flushes_only() -> None:
    known = FlushMemory(cast(LogStore, object()), {})  # nothing is read
    many = range(TRANSACTIONS_IN_MEMORY + 5)
    known.remember({producer_id: stored(producer_id) for producer_id in many})
    known.remember(dict.fromkeys(range(100_000, 120_000)))
    assert known.transactions[0] is not None
    known.trim()
    assert len(known.transactions) == TRANSACTIONS_IN_MEMORY
    assert 0 not in known.transactions
    assert 119_999 in known.transactions
