"""SEND: an entry for the log, stored as it came and confirmed by SEND_RECEIPT after the commit.

Behavior: receipts, and errors, leave in the order of the producer's SENDs. A wrong checksum is
ChecksumError, on which clients send again; what no other try makes better is NotAllowedError, which
fails that message. What the flush does not confirm ends the connection: the client comes again and
sends again all that has no receipt, in order. How large an entry may be is the topic's
`max.message.bytes`; topics that Pulsar's clients make have room for Pulsar's 5 MiB. Kafka's rules
on timestamps are not applied: an event time is the application's. A SEND of an unknown producer
closes the connection, as in Pulsar; of one that the broker has closed it is dropped, for its client
sends it again.

A SEND with the id of a transaction is of that, whatever its metadata says. Where the transaction is
not open, or does not have the partition, it is NotAllowedError, on which clients give it up.

On a topic that is deduplicated, an entry is stored if its sequence id is above all that came before
under the producer's name, wherever and whenever that was; of a batch the first one decides, as in
Pulsar. Else it is there already: a receipt with ledger and entry -1. Chunks of a message share its
sequence id and are told apart by their number; unlike in Pulsar, none is stored twice.
"""

import asyncio

from core.errors import Refusal
from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandSend
from gateway.pulsar.entries import parse_send
from gateway.pulsar.errors import send_error
from gateway.pulsar.session import Session
from gateway.pulsar.transactions import txn_of

_NOT_READY = "The producer waits to be the only one"


@command(CommandType.SEND)
def send(message: CommandSend, session: Session, entry: memoryview | None) -> None:
    """Check, queue; the producer answers."""
    producer = session.producers.get(message.producer_id)
    if producer is None:
        if message.producer_id not in session.closed_producers:
            session.outlet.close_for(f"SEND of an unknown producer {message.producer_id}")
        return
    received = asyncio.get_running_loop().time()
    txn = txn_of(message)
    if txn is not None and not txn.is_possible:
        reason = f"There is no transaction {txn.key.name}"
        producer.refuse(message, ServerError.NOT_ALLOWED_ERROR, reason, received)
        return
    if not producer.is_ready:
        producer.refuse(message, ServerError.NOT_ALLOWED_ERROR, _NOT_READY, received)
        return
    parsed = parse_send(message, entry)
    if isinstance(parsed, Refusal):
        producer.refuse(message, send_error(parsed.error), parsed.message or "", received)
        return
    producer.send(message, parsed, received, txn)
