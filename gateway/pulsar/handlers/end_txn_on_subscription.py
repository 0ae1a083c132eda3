"""END_TXN_ON_SUBSCRIPTION: Pulsar's brokers tell each other so that a transaction has ended.

Behavior: here one commit ends a transaction everywhere, so there is nothing left to be done:
success where it has ended this way, InvalidTxnStatus where it is open still or has ended the other
way, TransactionNotFound where it is not there. No low-water mark is needed, for no id comes twice.
"""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, TxnAction
from gateway.pulsar.commands_pb2 import (
    CommandEndTxnOnSubscription,
    CommandEndTxnOnSubscriptionResponse,
)
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import TxnId, confirm_end


@command(CommandType.END_TXN_ON_SUBSCRIPTION)
async def end_txn_on_subscription(
    message: CommandEndTxnOnSubscription, session: Session
) -> CommandEndTxnOnSubscriptionResponse:
    """See how it has ended."""
    txn = TxnId(message.txnid_most_bits, message.txnid_least_bits)
    answer = CommandEndTxnOnSubscriptionResponse(
        request_id=message.request_id, txnid_most_bits=txn.most, txnid_least_bits=txn.least
    )
    is_commit = message.txn_action == TxnAction.COMMIT
    if failed := await confirm_end(txn, session, is_commit=is_commit):
        answer.error, answer.message = failed
    return answer
