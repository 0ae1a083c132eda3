"""Who may open the page at all, before anybody's rights count.

Where nobody logs in, it is for the machine's own users: whoever else reaches the port, or makes a
browser of this machine ask by a name of his own (DNS rebinding), is refused. Other brokers are let
in, which say for whom they ask, as they have let him in themselves.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Any, Final

from gateway.web.api import Endpoint, Refused
from gateway.web.call import Call
from gateway.web.guard import target_of
from gateway.web.introductions import HEADER, Introductions

_NOT_SAID: Final = Refused(403, "No broker has said so")
_NOT_LOCAL: Final = Refused(
    403,
    "Nobody logs in here, so the page is only for this machine: open it at 127.0.0.1, through an "
    "SSH tunnel, or let users log in (docs/security.md)",
)


class Door:
    """is_guarded: who asks has logged in, or was introduced, before he comes here. names: of this
    machine beside those of loopback, as browsers may write them."""

    def __init__(
        self, introductions: Introductions, *, is_guarded: bool, names: Collection[str] = ()
    ) -> None:
        self._introductions = introductions
        self._is_guarded = is_guarded
        self._names = frozenset(name.lower() for name in names)

    async def refuse(self, call: Call[Any], _: Endpoint) -> Refused | None:
        """Why not, or None. Raises StoreUnavailable."""
        if self._is_guarded:
            return None
        request = call.request
        if (said := request.headers.get(HEADER)) is not None:
            caller = await self._introductions.read(said, request.method, target_of(request))
            call.caller = caller or call.caller
            return None if caller else _NOT_SAID
        host = _without_port(request.headers.get("host", ""))
        is_local = is_loopback(call.caller.host) and (
            host == "localhost" or is_loopback(host) or host in self._names
        )
        return None if is_local else _NOT_LOCAL


def is_loopback(host: str) -> bool:
    """Whether it is an address of loopback."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
