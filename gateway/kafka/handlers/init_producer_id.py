"""InitProducerId (key 22): gives a producer its id and epoch, fencing older holders of its name.

Behavior: without a transactional id always a fresh id with epoch 0, as in Kafka's
TransactionCoordinator. With one: what was open under it is aborted in the same commit, so the
answer comes after the markers, and nobody is told CONCURRENT_TRANSACTIONS meanwhile.

Versions: v2 flexible; v3 takes the current id and epoch (KIP-360); v4 knows PRODUCER_FENCED; v5
TRANSACTION_ABORTABLE (KIP-890); v6 two-phase commit (KIP-939) is not offered.
"""

from datetime import UTC, datetime

from core.errors import Error
from core.ports.producer_clients import ProducerClient
from core.security.operations import REQUIREMENTS
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import TransactionKey
from core.transaction.values import InitProducerId, ProducerIdAndEpoch
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from gateway.kafka.api import api
from gateway.kafka.codec import InitProducerIdRequest, InitProducerIdResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import coordinator_error, kafka_code
from gateway.runtime.flush.outcomes import Unconfirmed

_WRITE, _IDEMPOTENT_WRITE = REQUIREMENTS["InitProducerId"]


def _unavailable(request: InitProducerIdRequest, ctx: RequestContext) -> InitProducerIdResponse:
    return _refused(Error.COORDINATOR_NOT_AVAILABLE)


@api(
    22,
    versions=range(6),
    unavailable=_unavailable,
    known_since={Error.PRODUCER_FENCED: 4},
)
async def init_producer_id(
    request: InitProducerIdRequest, ctx: RequestContext
) -> InitProducerIdResponse:
    """Refuse half a current id, ask for an id, answer."""
    if request.transactional_id is None:
        if not ctx.may(_IDEMPOTENT_WRITE):
            return _refused(Error.CLUSTER_AUTHORIZATION_FAILED)
    elif not ctx.may(_WRITE, request.transactional_id):
        return _refused(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if _is_half(request):
        return _refused(Error.INVALID_REQUEST)
    if request.transactional_id is None:
        producer_id = await ctx.producer_ids.next_id()
        client, owner = ctx.client, ctx.principal.as_owner
        begun = ProducerClient(
            producer_id, client.client_id, client.client_host, owner, datetime.now(UTC)
        )
        ctx.producer_clients.note(begun)
        return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return _refused(refusal)
    answer = await ctx.transactions.init_producer_id(
        InitProducerId(
            TransactionKey.of_kafka(request.transactional_id),
            request.transaction_timeout_ms,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            ctx.client.client_id,
            ctx.client.client_host,
            ctx.principal.as_owner,
        )
    )
    if isinstance(answer, Unconfirmed):
        return _refused(coordinator_error(answer))
    error = ctx.known(answer.error)
    return InitProducerIdResponse(
        error_code=kafka_code(error),
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.producer_epoch,
    )


def _is_half(request: InitProducerIdRequest) -> bool:
    """Whether an id comes without its epoch, or an epoch alone (KafkaApis)."""
    has_id: bool = request.producer_id != NO_PRODUCER_ID
    has_epoch: bool = request.producer_epoch != NO_PRODUCER_EPOCH
    return has_id != has_epoch


def _refused(error: Error) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=kafka_code(error), producer_id=-1, producer_epoch=-1)
