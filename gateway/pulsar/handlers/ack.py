"""ACK: messages are done: of single ids, of all up to one, of some messages of a batch.

Behavior: with a request_id the answer is ACK_RESPONSE, once it is stored; without one there is
none, and it may be stored a moment later. What is no id of this topic is passed over, as what is
done already. A cumulative one on a type with several active consumers is taken as its words say.
Of a consumer that is not there it is ConsumerNotFound.

In a transaction it counts if that commits; until then nobody else gets the messages. Answered when
it is stored. TransactionConflict: one of them is acknowledged already; or another transaction has
it; or an id names nothing but what this one has, which then works on a second copy. Disjoint parts
of a batch are no conflict, nor is the same again where nobody was told. A plain acknowledgement of
what a transaction has counts at once, however that ends. Source: PendingAckHandleImpl; Go's client
names with each message of a batch those that it has acknowledged before.
"""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandAck, CommandAckResponse
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import txn_of


@command(CommandType.ACK)
def ack(message: CommandAck, session: Session) -> CommandAckResponse | None:
    """Pass it on."""
    consumer = session.consumers.get(message.consumer_id)
    if consumer is None or consumer.member is None:
        return _refused(message, ServerError.CONSUMER_NOT_FOUND, "The consumer is not there")
    consumer.acknowledge(message, txn_of(message))
    return None


def _refused(message: CommandAck, code: ServerError, reason: str) -> CommandAckResponse | None:
    if not message.HasField("request_id"):
        return None
    return CommandAckResponse(
        consumer_id=message.consumer_id,
        txnid_least_bits=message.txnid_least_bits,
        txnid_most_bits=message.txnid_most_bits,
        request_id=message.request_id,
        error=code,
        message=reason,
    )
