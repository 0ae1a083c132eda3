"""ADD_SUBSCRIPTION_TO_TXN: subscriptions that a transaction will acknowledge on.

Behavior: success where the transaction is open. A subscription takes part from its first ACK in the
transaction on, which is stored together with that: so nothing need be written here, and none that
is not there, or gone, holds up the transaction's end.
"""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandAddSubscriptionToTxn,
    CommandAddSubscriptionToTxnResponse,
)
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import TxnId, attempt


@command(CommandType.ADD_SUBSCRIPTION_TO_TXN)
async def add_subscription_to_txn(
    message: CommandAddSubscriptionToTxn, session: Session
) -> CommandAddSubscriptionToTxnResponse:
    """See whether the transaction is open."""
    txn = TxnId(message.txnid_most_bits, message.txnid_least_bits)
    transactions = session.services.transactions
    answer = CommandAddSubscriptionToTxnResponse(
        request_id=message.request_id, txnid_most_bits=txn.most, txnid_least_bits=txn.least
    )
    if failed := await attempt(txn, session, lambda: transactions.check(txn.key, txn.producer)):
        answer.error, answer.message = failed
    return answer
