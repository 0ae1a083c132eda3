"""Who may open the page at all, before anybody's rights count.

Where nobody logs in, it is for the machine's own users: whoever else reaches the port, or makes a
browser of this machine ask by a name of his own (DNS rebinding), is refused. Other brokers are let
in, which say for whom they ask, as they have let him in themselves.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.web.api import Endpoint, Refused
from gateway.web.call import Call
from gateway.web.guard import host_of, is_loopback, target_of
from gateway.web.introductions import HEADER, Introductions

_NOT_SAID: Final = Refused(403, "No broker has said so")
_NOT_LOCAL: Final = Refused(
    403,
    "Nobody logs in here, so the page is only for this machine: open it at 127.0.0.1, through an "
    "SSH tunnel, or let users log in (docs/security.md)",
)


class Door:
    """is_guarded: who asks has logged in, or was introduced, before he comes here."""

    def __init__(self, introductions: Introductions, *, is_guarded: bool) -> None:
        self._introductions = introductions
        self._is_guarded = is_guarded

    async def refuse(self, call: Call[Any], _: Endpoint) -> Refused | None:
        """Why not, or None. Raises StoreUnavailable."""
        if self._is_guarded:
            return None
        request = call.request
        if (said := request.headers.get(HEADER)) is not None:
            caller = await self._introductions.read(said, request.method, target_of(request))
            call.caller = caller or call.caller
            return None if caller else _NOT_SAID
        host = host_of(request)
        is_local = is_loopback(call.caller.host) and (host == "localhost" or is_loopback(host))
        return None if is_local else _NOT_LOCAL
