"""DescribeDelegationToken (key 41): delegation tokens, with their secrets (KIP-48).

Behavior: as Kafka's. Everybody sees those that he owns or may renew, and others by right; with an
empty list of owners, none. Those that are over are there until they are deleted.

Versions: v2 flexible; v3 tells who asked for each.
"""

from collections.abc import Sequence
from typing import Any

from core.errors import Error, Refusal
from core.security.delegation_tokens import DelegationToken
from core.security.operations import REQUIREMENTS
from core.security.principal import Principal
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

Described = DescribeDelegationTokenResponse.DescribedDelegationToken
_DESCRIBE, _DESCRIBE_TOKENS = REQUIREMENTS["DescribeDelegationToken"]


def _unavailable(
    request: DescribeDelegationTokenRequest, ctx: RequestContext
) -> DescribeDelegationTokenResponse:
    return _answer(TIMED_OUT.error)


@api(41, versions=range(1, 4), unavailable=_unavailable)
async def describe_delegation_token(
    request: DescribeDelegationTokenRequest, ctx: RequestContext
) -> DescribeDelegationTokenResponse:
    """Those that the client may see."""
    if not ctx.may_handle_tokens:
        return _answer(Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    owners = None
    if request.owners is not None:
        owners = {Principal(each.principal_name, each.principal_type) for each in request.owners}

    def may_describe(token: DelegationToken) -> bool:
        return ctx.may(_DESCRIBE, token.token_id) or ctx.may(_DESCRIBE_TOKENS, str(token.owner))

    found = await ctx.delegation_tokens.describe(owners, may_describe, principal=ctx.principal)
    if isinstance(found, Refusal):
        return _answer(found.error)
    return _answer(Error.NONE, [_described(*each) for each in found])


def _described(token: DelegationToken, token_hmac: bytes) -> Any:
    Renewer = Described.DescribedDelegationTokenRenewer
    return Described(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.kind,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_at_ms,
        expiry_timestamp=token.expires_at_ms,
        max_timestamp=token.max_at_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=[
            Renewer(principal_type=each.kind, principal_name=each.name) for each in token.renewers
        ],
    )


def _answer(error: Error, tokens: Sequence[Any] = ()) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=kafka_code(error), tokens=list(tokens))
