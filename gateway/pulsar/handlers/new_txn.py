"""NEW_TXN: a transaction begins.

Behavior: its id's most bits are the coordinator's number, its least bits a number that is never
given out again. The time to live is in milliseconds, whatever its field is called; one of 0, or
longer than `transaction.max.timeout.ms` (Kafka's setting holds for both), is NotAllowedError. The
transaction is stored with what joins it first, or some milliseconds later; from its first join on
every broker sees it. It becomes durable with what is written in it: where the database crashes
before, or the broker before anything has joined, clients find that there is no such transaction.
It belongs to who has logged in, where clients do.
"""

from core.errors import Error
from core.ports.log import StoreUnavailable
from core.transaction.key import TransactionKey
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandNewTxn, CommandNewTxnResponse
from gateway.pulsar.errors import server_error
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import refuse_coordinator

_MOST_MS = 2**31 - 1


@command(CommandType.NEW_TXN)
async def new_txn(message: CommandNewTxn, session: Session) -> CommandNewTxnResponse:
    """Open it."""
    answer = CommandNewTxnResponse(request_id=message.request_id, txnid_most_bits=message.tc_id)
    if failed := refuse_coordinator(message.tc_id, session):
        answer.error, answer.message = failed
        return answer
    try:
        begun = await session.services.transactions.begin(
            lambda sequence: TransactionKey.of_pulsar(message.tc_id, sequence),
            min(message.txn_ttl_seconds, _MOST_MS),
            session.client_version,
            session.peer,
            session.caller.principal.as_owner,
        )
    except StoreUnavailable as away:
        answer.error = ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
        answer.message = f"The database is away: {away}"
        return answer
    if begun.error is not Error.NONE:
        answer.error = server_error(begun.error)
        answer.message = f"A transaction may not last {message.txn_ttl_seconds} ms here"
        return answer
    answer.txnid_least_bits = begun.producer.producer_id
    return answer
