"""SASL's tokens without a request around them: what follows a SaslHandshake v0 (KIP-43).

A frame is a token, and so is its answer; no header, no error code. A client that has failed sees
the connection close. Knows no mechanism.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import structlog

from core.errors import Refusal
from gateway.kafka.api import CLOSE_CONNECTION, Api
from gateway.kafka.codec import RequestHeader
from gateway.kafka.context import RequestContext
from gateway.kafka.login import SASL_AUTHENTICATE_KEY, CutOff

log = structlog.get_logger(__name__)

_SIZE: Final = struct.Struct(">i")
_NAME: Final = "SaslAuthenticate"


@dataclass(frozen=True, slots=True, repr=False)
class BareToken:
    """An answer."""

    token: bytes

    def framed(self) -> bytes:
        """With its size."""
        return _SIZE.pack(len(self.token)) + self.token


async def _bare_token(token: bytes, ctx: RequestContext) -> Any:
    assert ctx.login is not None, "bare tokens come only in a login"
    try:
        answer = await ctx.login.receive(token)
    except CutOff as cut_off:
        log.warning("login_impossible", reason=str(cut_off), peer=ctx.peer)
        return CLOSE_CONNECTION
    return CLOSE_CONNECTION if isinstance(answer, Refusal) else BareToken(answer.token)


BARE_TOKEN: Final = Api(
    SASL_AUTHENTICATE_KEY, _NAME, range(1), range(0), _bare_token, is_long_poll=True
)
"""What a connection serves such a frame with. No registry has it."""


def header_of_bare_token() -> RequestHeader:
    """What stands in for the header that it has not."""
    return RequestHeader(SASL_AUTHENTICATE_KEY, 0, 0, "", 0)
