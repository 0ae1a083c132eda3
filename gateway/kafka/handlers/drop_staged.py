"""DropStaged (key 10002): drops what was staged and will not be published.

Versions: v0, Penstock's own. Tokens that are not there are no error. What has been published has no
token any more, so a publication is never undone. A writer that cannot ask leaves its tokens to
expire.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.staging.ownership import owned_token
from gateway.kafka.api import api
from gateway.kafka.codec import DropStagedRequest, DropStagedResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import NOT_STORED

(_WRITE,) = REQUIREMENTS["DropStaged"]


def _unavailable(request: DropStagedRequest, ctx: RequestContext) -> DropStagedResponse:
    return DropStagedResponse(
        error_code=kafka_code(NOT_STORED.error), error_message=NOT_STORED.message
    )


@api(10002, versions=range(1), advertised=range(0), unavailable=_unavailable)
async def drop_staged(request: DropStagedRequest, ctx: RequestContext) -> DropStagedResponse:
    """Drop them."""
    tokens = [owned_token(each, ctx.principal) for each in request.tokens if each is not None]
    if ctx.rights is not None:
        for name in await ctx.staging.topics_of(tokens):
            if not ctx.may(_WRITE, name):
                code = kafka_code(Error.TOPIC_AUTHORIZATION_FAILED)
                return DropStagedResponse(error_code=code, error_message=name)
    await ctx.staging.drop(tokens)
    return DropStagedResponse(error_code=kafka_code(Error.NONE))
