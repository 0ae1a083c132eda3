"""SaslAuthenticate (key 36): a token of the mechanism that a client logs in with (KIP-152).

Behavior: as Kafka's. A refusal is SASL_AUTHENTICATION_FAILED, comes after
`connection.failed.authentication.delay.ms`, and closes the connection. Where nobody is logging in,
ILLEGAL_SASL_STATE. Where the users cannot be read, nobody is let in: the connection closes, and
clients try again.

Versions: v1 tells how long the session lasts (KIP-368); v2 flexible.
"""

from typing import Any, Final

import structlog

from core.errors import Error, Refusal
from gateway.kafka.api import CLOSE_CONNECTION, LastResponse, api
from gateway.kafka.codec import SaslAuthenticateRequest, SaslAuthenticateResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.login import CutOff, LoginState

log = structlog.get_logger(__name__)

_NOT_NOW: Final = Refusal(
    Error.ILLEGAL_SASL_STATE,
    "SaslAuthenticate request received after successful authentication",
)


# Whoever has gone is not checked any more.
@api(36, versions=range(3), is_long_poll=True, is_exempt_from_quotas=True)
async def sasl_authenticate(request: SaslAuthenticateRequest, ctx: RequestContext) -> Any:
    """Take the token."""
    if ctx.login is None or ctx.login.state is not LoginState.TOKEN:
        return _refused(_NOT_NOW)
    try:
        answer = await ctx.login.receive(bytes(request.auth_bytes))
    except CutOff as cut_off:
        log.warning("login_impossible", reason=str(cut_off), peer=ctx.peer)
        return CLOSE_CONNECTION
    if isinstance(answer, Refusal):
        return LastResponse(_refused(answer))
    return SaslAuthenticateResponse(
        error_code=kafka_code(Error.NONE),
        error_message="",
        auth_bytes=answer.token,
        session_lifetime_ms=answer.session_lifetime_ms,
    )


def _refused(refusal: Refusal) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
        auth_bytes=b"",
        session_lifetime_ms=0,
    )
