"""AddOffsetsToTxn (key 25): a group's offsets are to be part of a transaction.

Behavior: costs no fsync; what the group's coordinator writes next makes it durable. A transaction
has about 1,000 groups at most, with a million characters in all: one more is TRANSACTION_ABORTABLE,
INVALID_TXN_STATE before v4. V2 clients do not send it. The group may be a subscription of Pulsar's
(`subscription_groups.py`).

Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE (KIP-890).
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import ProducerIdAndEpoch
from gateway.kafka.api import api
from gateway.kafka.codec import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.late_requests import note_asked, refuse_late
from gateway.kafka.subscription_groups import find_subscription

_WRITE, _READ = REQUIREMENTS["AddOffsetsToTxn"]


def _unavailable(request: AddOffsetsToTxnRequest, ctx: RequestContext) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=kafka_code(Error.COORDINATOR_NOT_AVAILABLE))


def _about(request: AddOffsetsToTxnRequest) -> tuple[ProducerIdAndEpoch, str]:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch), "AddOffsetsToTxn"


@api(
    25,
    versions=range(5),
    unavailable=_unavailable,
    known_since={Error.PRODUCER_FENCED: 2, Error.TRANSACTION_ABORTABLE: 4},
)
@refuse_late(_about, lambda answer: answer.error_code == 0)
async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, ctx: RequestContext
) -> AddOffsetsToTxnResponse:
    """Have the group take part."""
    if not ctx.may(_WRITE, request.transactional_id):
        refused = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return AddOffsetsToTxnResponse(error_code=kafka_code(refused))
    if not ctx.may(_READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=kafka_code(Error.GROUP_AUTHORIZATION_FAILED))
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return AddOffsetsToTxnResponse(error_code=kafka_code(refusal))
    producer, _ = _about(request)
    key = TransactionKey.of_kafka(request.transactional_id)
    participant = Participant.of_group(request.group_id)
    named = await find_subscription(request.group_id, ctx)
    if isinstance(named, Error):
        return AddOffsetsToTxnResponse(error_code=kafka_code(named))
    if named is not None:
        participant = Participant.of_subscription(named.subscription_id)
    error = await ctx.transactions.add_participant(key, producer, participant)
    if error is Error.NONE:
        note_asked(key, producer, ctx)
    return AddOffsetsToTxnResponse(error_code=kafka_code(ctx.known(error)))
