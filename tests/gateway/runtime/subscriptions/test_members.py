"""What a subscription in memory gives to be written."""

from __future__ import annotations

from core.ports.leases import Lease
from core.subscription.cursor import Cursor
from core.subscription.subscription import Subscription
from core.subscription.values import DispatchSettings
from core.transaction.values import OpenTransaction
from gateway.runtime.subscriptions.members import LiveSubscription

TRANSACTION = OpenTransaction(11, 2)


def test_rows_of_acknowledgements_stay_while_the_cursor_stores_less_than_it_has() -> None:
    """Else a crash would lose what a transaction has committed."""
    core = Subscription(Cursor(max_stored_ranges=1), DispatchSettings())
    live = LiveSubscription(Lease(64, 1), "s", core, 7, on_refused=lambda: None)
    for start in (2, 4):
        assert core.pend(TRANSACTION, [[(start, start + 1)]], 10)
    core.commit_pending(TRANSACTION)
    live.taken_in.add(TRANSACTION)
    write = live.take()
    assert write is not None
    assert (write.effects.put, write.taken_in) == (((2, 3),), ())
    assert live.take() is None
    core.acknowledge_up_to(4, 10)
    write = live.take()
    assert write is not None
    assert (write.effects.mark_delete, write.taken_in) == (5, (TRANSACTION,))
    assert live.take() is None
