"""PublishStaged (key 10001): makes staged records visible, all at once and once only.

Versions: v0, Penstock's own. All batches of the listed tokens enter the log in one commit, unless
this batch id of the query and its sink, or a higher one, has been published before. Tokens are
those of who asks: another's hold nothing. The answer may be lost, or may not be known: asked again,
at any broker, the truth is told.
"""

from dataclasses import replace

from core.errors import Error, Refusal
from core.ports.log import StoreUnavailable
from core.security.operations import REQUIREMENTS
from core.staging.ownership import owned_token
from core.staging.values import Guard, Publication, PublicationAnswer, WantedToken
from gateway.kafka.api import api
from gateway.kafka.codec import PublishStagedRequest, PublishStagedResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code, log_error
from gateway.kafka.unavailable import NOT_STORED
from gateway.runtime.flush.outcomes import Unconfirmed

_WRITE, _WRITE_ANY = REQUIREMENTS["PublishStaged"]


@api(10001, versions=range(1), advertised=range(0))
async def publish_staged(
    request: PublishStagedRequest, ctx: RequestContext
) -> PublishStagedResponse:
    """Publish them."""
    if any(each.token is None for each in request.tokens):
        return _answer(PublicationAnswer(Error.INVALID_REQUEST, "A token is not all zeros."))
    if ctx.rights is not None and (refusal := await _refusal(request, ctx)) is not None:
        return _answer(PublicationAnswer(refusal.error, refusal.message))
    publication = Publication(
        Guard(request.query_id, request.sink),
        request.batch_id,
        tuple(
            WantedToken(owned_token(each.token, ctx.principal), each.batches)
            for each in request.tokens
        ),
    )
    timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else None
    answer = await ctx.staging.publish(publication, timeout_s)
    if isinstance(answer, Unconfirmed):
        return _answer(PublicationAnswer(log_error(answer), answer.message))
    return _answer(_in_the_clients_words(answer, request, ctx))


def _in_the_clients_words(
    answer: PublicationAnswer, request: PublishStagedRequest, ctx: RequestContext
) -> PublicationAnswer:
    """What is said of a token is said of it as the client calls it."""
    if (message := answer.message) is None:
        return answer
    for each in request.tokens:
        message = message.replace(str(owned_token(each.token, ctx.principal)), str(each.token))
    return replace(answer, message=message)


async def _refusal(request: PublishStagedRequest, ctx: RequestContext) -> Refusal | None:
    try:
        names = await ctx.staging.topics_of(
            [owned_token(each.token, ctx.principal) for each in request.tokens]
        )
    except StoreUnavailable:
        return NOT_STORED
    for name in names:
        if not ctx.may(_WRITE, name):
            return Refusal(Error.TOPIC_AUTHORIZATION_FAILED, name)
    if not names and not ctx.may(_WRITE_ANY):
        return Refusal(Error.TOPIC_AUTHORIZATION_FAILED)
    return None


def _answer(answer: PublicationAnswer) -> PublishStagedResponse:
    return PublishStagedResponse(
        error_code=kafka_code(answer.error),
        error_message=answer.message,
        outcome=answer.outcome.value if answer.outcome else 0,
        highest_batch_id=answer.highest,
        partitions=[
            PublishStagedResponse.PublishedPartition(
                topic=each.topic,
                index=each.partition,
                base_offset=each.base_offset,
                record_count=each.record_count,
            )
            for each in answer.partitions
        ],
    )
