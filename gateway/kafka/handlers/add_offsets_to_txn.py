"""AddOffsetsToTxn (key 25): a group's offsets are to be part of a transaction.

Behavior: costs no fsync; what the group's coordinator writes next makes it durable. A transaction
has about 1,000 groups at most, with a million characters in all: one more is TRANSACTION_ABORTABLE,
INVALID_TXN_STATE before v4. V2 clients do not send it.

Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE (KIP-890).
"""

from core.errors import Error
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.values import ProducerIdAndEpoch
from gateway.kafka.api import CLOSE_CONNECTION, api
from gateway.kafka.codec import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code, known_to


def _unavailable(request: AddOffsetsToTxnRequest, ctx: RequestContext) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=kafka_code(Error.COORDINATOR_NOT_AVAILABLE))


@api(25, versions=range(5), unavailable=_unavailable)
async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, ctx: RequestContext
) -> AddOffsetsToTxnResponse | object:
    """Have the group take part."""
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return AddOffsetsToTxnResponse(error_code=kafka_code(refusal))
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if ctx.connection_order.is_overtaken(producer, "AddOffsetsToTxn", ctx.connection):
        return CLOSE_CONNECTION
    error = await ctx.transactions.add_group(request.transactional_id, producer, request.group_id)
    if error is Error.NONE:
        ctx.connection_order.carried(producer, "AddOffsetsToTxn", ctx.connection)
    error = known_to(AddOffsetsToTxnRequest.API_KEY, ctx.api_version, error)
    return AddOffsetsToTxnResponse(error_code=kafka_code(error))
