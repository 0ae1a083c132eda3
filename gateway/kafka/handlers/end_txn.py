"""EndTxn (key 26): commits or aborts: markers, offsets, state and next epoch in one commit.

Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE; v5 is how V2 of
transactions ends one (KIP-890): the epoch rises, and the answer tells it.
"""

from typing import Final

from core.errors import Error
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.values import EndTransaction, ProducerIdAndEpoch, TransactionVersion
from gateway.kafka.api import CLOSE_CONNECTION, api
from gateway.kafka.codec import EndTxnRequest, EndTxnResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code, known_to

_FIRST_VERSION_OF_V2: Final = 5


def _unavailable(request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    return EndTxnResponse(error_code=kafka_code(Error.COORDINATOR_NOT_AVAILABLE))


@api(26, versions=range(6), unavailable=_unavailable)
async def end_txn(request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse | object:
    """End what is open."""
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return EndTxnResponse(error_code=kafka_code(refusal))
    is_v2 = ctx.api_version >= _FIRST_VERSION_OF_V2
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    order = ctx.connection_order
    if not is_v2 and order.is_overtaken(producer, "EndTxn", ctx.connection):
        return CLOSE_CONNECTION
    # It may have lain here while its client asked another broker and began the next transaction,
    # which V1 does not tell from its own. Who still waits asks the coordinator again.
    if not is_v2 and ctx.cluster.has_lapsed:
        return _unavailable(request, ctx)
    answer = await ctx.transactions.end(
        request.transactional_id,
        EndTransaction(
            producer,
            request.committed,
            TransactionVersion.V2 if is_v2 else TransactionVersion.V1,
        ),
    )
    error = known_to(EndTxnRequest.API_KEY, ctx.api_version, answer.error)
    if not is_v2 and error is Error.NONE:
        order.carried(producer, "EndTxn", ctx.connection)
    if not is_v2 or error is not Error.NONE:
        return EndTxnResponse(error_code=kafka_code(error))
    return EndTxnResponse(
        error_code=0,
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.producer_epoch,
    )
