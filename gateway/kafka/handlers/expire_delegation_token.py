"""ExpireDelegationToken (key 40): gives a delegation token another end (KIP-48).

Behavior: as Kafka's: its owner and its renewers may do it, who know its secret.
A negative period ends it at once: it is deleted. Whoever has logged in by it is disconnected
within a second of the new end (in Kafka such sessions go on until their time is over).

Versions: v2 flexible.
"""

from core.errors import Error, Refusal
from gateway.kafka.api import api
from gateway.kafka.codec import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED


def _unavailable(
    request: ExpireDelegationTokenRequest, ctx: RequestContext
) -> ExpireDelegationTokenResponse:
    return _refused(CHANGE_REFUSED.error)


@api(40, versions=range(1, 3), unavailable=_unavailable)
async def expire_delegation_token(
    request: ExpireDelegationTokenRequest, ctx: RequestContext
) -> ExpireDelegationTokenResponse:
    """Move its end, or end it now."""
    if not ctx.may_handle_tokens:
        return _refused(Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    answer = await ctx.delegation_tokens.expire(
        bytes(request.hmac), request.expiry_time_period_ms, principal=ctx.principal, peer=ctx.peer
    )
    if isinstance(answer, Refusal):
        return _refused(answer.error, timestamp=0)
    return ExpireDelegationTokenResponse(
        error_code=kafka_code(Error.NONE), expiry_timestamp_ms=answer
    )


def _refused(error: Error, timestamp: int = -1) -> ExpireDelegationTokenResponse:
    """timestamp: 0 where Kafka's controller answers."""
    return ExpireDelegationTokenResponse(
        error_code=kafka_code(error), expiry_timestamp_ms=timestamp
    )
