"""InitProducerId (key 22): gives an idempotent producer its id.

Versions: v2 flexible; v3 takes the current id and epoch (KIP-360); v6 two-phase commit (KIP-939) is
not offered. Behavior: a producer without a transactional id always gets a fresh id with epoch 0, as
in Kafka's TransactionCoordinator. Transactional ids are refused until transactions are served.
"""

from core.errors import Error
from core.ports import StoreUnavailable
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from gateway.kafka.api import api
from gateway.kafka.codec import InitProducerIdRequest, InitProducerIdResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code


@api(22, versions=range(6))
async def init_producer_id(
    request: InitProducerIdRequest, ctx: RequestContext
) -> InitProducerIdResponse:
    """Refuse transactional ids and half a current id, ask for an id, answer."""
    if request.transactional_id is not None or _is_half(request):
        return _refused(Error.INVALID_REQUEST)
    try:
        producer_id = await ctx.producer_ids.next_id()
    except StoreUnavailable:
        return _refused(Error.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)


def _is_half(request: InitProducerIdRequest) -> bool:
    """Whether an id comes without its epoch, or an epoch alone (KafkaApis)."""
    has_id: bool = request.producer_id != NO_PRODUCER_ID
    has_epoch: bool = request.producer_epoch != NO_PRODUCER_EPOCH
    return has_id != has_epoch


def _refused(error: Error) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=kafka_code(error), producer_id=-1, producer_epoch=-1)
