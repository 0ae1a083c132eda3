"""RenewDelegationToken (key 39): prolongs a delegation token (KIP-48).

Behavior: as Kafka's: its owner and its renewers may do it, who know its secret.

Versions: v2 flexible.
"""

from core.errors import Error, Refusal
from gateway.kafka.api import api
from gateway.kafka.codec import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED


def _unavailable(
    request: RenewDelegationTokenRequest, ctx: RequestContext
) -> RenewDelegationTokenResponse:
    return _refused(CHANGE_REFUSED.error)


@api(39, versions=range(1, 3), unavailable=_unavailable)
async def renew_delegation_token(
    request: RenewDelegationTokenRequest, ctx: RequestContext
) -> RenewDelegationTokenResponse:
    """Prolong it."""
    if not ctx.may_handle_tokens:
        return _refused(Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    answer = await ctx.delegation_tokens.renew(
        bytes(request.hmac), request.renew_period_ms, principal=ctx.principal, peer=ctx.peer
    )
    if isinstance(answer, Refusal):
        return _refused(answer.error, timestamp=0)
    return RenewDelegationTokenResponse(
        error_code=kafka_code(Error.NONE), expiry_timestamp_ms=answer
    )


def _refused(error: Error, timestamp: int = -1) -> RenewDelegationTokenResponse:
    """timestamp: 0 where Kafka's controller answers."""
    return RenewDelegationTokenResponse(error_code=kafka_code(error), expiry_timestamp_ms=timestamp)
