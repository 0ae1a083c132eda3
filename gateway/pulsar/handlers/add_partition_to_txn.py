"""ADD_PARTITION_TO_TXN: partitions that a transaction will write to; all join, or none.

Behavior: of a transaction that has ended it is InvalidTxnStatus, of one that is not there
TransactionNotFound; of a topic that is not there TopicNotFound. A SEND of the transaction to a
partition that has not joined is refused.
"""

from core.errors import Error, Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandAddPartitionToTxn,
    CommandAddPartitionToTxnResponse,
)
from gateway.pulsar.errors import server_error
from gateway.pulsar.rights import refuse_topic
from gateway.pulsar.session import Session
from gateway.pulsar.topics import find_place
from gateway.pulsar.transactions import Failed, TxnId, attempt


@command(CommandType.ADD_PARTITION_TO_TXN)
async def add_partition_to_txn(
    message: CommandAddPartitionToTxn, session: Session
) -> CommandAddPartitionToTxnResponse:
    """Find them, and have them join."""
    txn = TxnId(message.txnid_most_bits, message.txnid_least_bits)
    services = session.services

    async def join() -> Error | Failed:
        partition_ids = []
        for topic in message.partitions:
            if refused := refuse_topic(session, topic, "ADD_PARTITION_TO_TXN"):
                return Failed(*refused)
            place = await find_place(topic, services, create=False)
            if isinstance(place, Refusal):
                return Failed(server_error(place.error), place.message or "")
            partition_ids.append(place.partition_id)
        return await services.transactions.add_partitions(txn.key, txn.producer, partition_ids)

    answer = CommandAddPartitionToTxnResponse(
        request_id=message.request_id, txnid_most_bits=txn.most, txnid_least_bits=txn.least
    )
    if failed := await attempt(txn, session, join):
        answer.error, answer.message = failed
    return answer
