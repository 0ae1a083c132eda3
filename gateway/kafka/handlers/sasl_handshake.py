"""SaslHandshake (key 17): which mechanism a client will log in with (KIP-43).

Behavior: as Kafka's. A mechanism that is not offered is refused, late, with the list of those that
are, and the connection closes. Where the listener asks nobody, or the client is in and its session
has no end, ILLEGAL_SASL_STATE. Where sessions end (KIP-368) it begins a new login, once a second
at most.

Versions: after v0 tokens come bare (`bare_tokens.py`), after v1 as SaslAuthenticate (KIP-152).
"""

from typing import Any

from core.errors import Error
from gateway.kafka.api import LastResponse, api
from gateway.kafka.codec import SaslHandshakeRequest, SaslHandshakeResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.login import Handshake


@api(17, versions=range(2), is_exempt_from_quotas=True)
async def sasl_handshake(request: SaslHandshakeRequest, ctx: RequestContext) -> Any:
    """Begin a login."""
    if ctx.login is None:
        return _response(Handshake(error=Error.ILLEGAL_SASL_STATE))
    answer = await ctx.login.handshake(request.mechanism, ctx.api_version)
    return LastResponse(_response(answer)) if answer.is_last else _response(answer)


def _response(answer: Handshake) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(
        error_code=kafka_code(answer.error) if answer.error else kafka_code(Error.NONE),
        mechanisms=list(answer.mechanisms),
    )
