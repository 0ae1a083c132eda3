"""END_TXN: commits or aborts a transaction, in all partitions and subscriptions at once.

Behavior: the same again succeeds again, for some minutes; the other action is InvalidTxnStatus, as
is a commit of what its time to live has ended; of a transaction that is not there, or long gone, it
is TransactionNotFound. Answered when it is stored. Source: TransactionMetadataStoreService.
"""

from core.errors import Error
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, TxnAction
from gateway.pulsar.commands_pb2 import CommandEndTxn, CommandEndTxnResponse
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import TxnId, attempt
from gateway.runtime.flush.outcomes import Unconfirmed


@command(CommandType.END_TXN)
async def end_txn(message: CommandEndTxn, session: Session) -> CommandEndTxnResponse:
    """End it."""
    txn = TxnId(message.txnid_most_bits, message.txnid_least_bits)

    async def end() -> Error | Unconfirmed:
        ended = await session.services.transactions.end_single(
            txn.key, txn.least, is_commit=message.txn_action == TxnAction.COMMIT
        )
        return ended if isinstance(ended, Unconfirmed) else ended.error

    answer = CommandEndTxnResponse(
        request_id=message.request_id, txnid_most_bits=txn.most, txnid_least_bits=txn.least
    )
    if failed := await attempt(txn, session, end):
        answer.error, answer.message = failed
    return answer
