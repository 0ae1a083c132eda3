"""EndTxn (key 26): commits or aborts: markers, offsets, state and next epoch in one commit.

Behavior: an abort of an id such as `pulsar:(3,1234)` by its producer id, which is the 1234, ends
that transaction of Pulsar's, as `penstock txn abort` wants it (`shown_ids.py`). A commit
does not: that is for whoever has opened it. No producer of Kafka's can be meant, since ids of
producers are given out once.

Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE; v5 is how V2 of
transactions ends one (KIP-890): the epoch rises, and the answer tells it.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import TransactionKey
from core.transaction.shown_ids import pulsar_key
from core.transaction.values import (
    EndTransaction,
    OpenTransaction,
    ProducerIdAndEpoch,
    TransactionVersion,
)
from gateway.kafka.api import api
from gateway.kafka.codec import EndTxnRequest, EndTxnResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import coordinator_error, kafka_code
from gateway.kafka.late_requests import refuse_late
from gateway.runtime.flush.outcomes import Unconfirmed

(_WRITE,) = REQUIREMENTS["EndTxn"]


def _about(request: EndTxnRequest) -> tuple[ProducerIdAndEpoch, str]:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch), "EndTxn"


def _unavailable(request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    return EndTxnResponse(error_code=kafka_code(Error.COORDINATOR_NOT_AVAILABLE))


@api(
    26,
    versions=range(6),
    unavailable=_unavailable,
    v2_since=5,
    known_since={Error.PRODUCER_FENCED: 2},
)
@refuse_late(_about, lambda answer: answer.error_code == 0, when_lapsed=_unavailable)
async def end_txn(request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    """End what is open."""
    if not ctx.may(_WRITE, request.transactional_id):
        refused = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return EndTxnResponse(error_code=kafka_code(refused))
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return EndTxnResponse(error_code=kafka_code(refusal))
    producer, _ = _about(request)
    version = ctx.transaction_version
    key = pulsar_key(request.transactional_id)
    if key is not None and not request.committed and key.txn_id[1] == producer.producer_id:
        aborted = await ctx.transactions.end_single(key, producer.producer_id, is_commit=False)
        if isinstance(aborted, Unconfirmed):
            return EndTxnResponse(error_code=kafka_code(coordinator_error(aborted)))
        if aborted.error is not Error.INVALID_PRODUCER_ID_MAPPING:
            return EndTxnResponse(error_code=kafka_code(aborted.error))
    own = TransactionKey.of_kafka(request.transactional_id)
    open_version = None
    if version is TransactionVersion.V1:
        known = ctx.transactions.known_open(own, producer)
        found = known or await ctx.transactions.find_open(own, producer)
        if isinstance(found, OpenTransaction):
            if not ctx.late_requests.has_asked(found, ctx.connection):
                # Whoever still is there asks again, on this connection.
                ctx.late_requests.note_asked(found, ctx.connection)
                return EndTxnResponse(error_code=kafka_code(Error.COORDINATOR_LOAD_IN_PROGRESS))
            open_version = found.version
    answer = await ctx.transactions.end(
        own, EndTransaction(producer, request.committed, version, open_version)
    )
    if isinstance(answer, Unconfirmed):
        return EndTxnResponse(error_code=kafka_code(coordinator_error(answer)))
    error = ctx.known(answer.error)
    if version is TransactionVersion.V1 or error is not Error.NONE:
        return EndTxnResponse(error_code=kafka_code(error))
    return EndTxnResponse(
        error_code=0,
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.producer_epoch,
    )
