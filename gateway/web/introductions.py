"""What a broker tells another of who asks, where it asks that one for a client's sake.

The other would see the first broker's address, and no certificate of the client's. So the first
signs who is asking, for this one request, with a secret that brokers share through the database.
Knows no endpoint; the secret is in nothing that it says.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from core.security.principal import Caller, Principal

if TYPE_CHECKING:
    from gateway.runtime.users import Users

HEADER: Final = "x-penstock-caller"
_GOOD_FOR_S: Final = 60.0
"""Before and after: brokers' clocks may differ."""
_PURPOSE: Final = b"penstock introduction"  # the secret serves for other things, too


class Introductions:
    """Writes and reads them. users: has the secret. clock: seconds since the epoch."""

    def __init__(self, users: Users, clock: Callable[[], float] = time.time) -> None:
        self._users = users
        self._clock = clock

    async def write(self, caller: Caller, method: str, target: str) -> str:
        """For one request. target: path and query. Raises StoreUnavailable."""
        proxy = None if caller.proxy is None else caller.proxy.name
        said = [caller.principal.name, caller.host, proxy, self._clock(), method, target]
        text = base64.urlsafe_b64encode(json.dumps(said).encode())
        await self._users.ensure_current()
        return f"{text.decode()}.{self._signature(text)}"

    async def read(self, introduction: str, method: str, target: str) -> Caller | None:
        """Who asks, if another broker says so now, and of this request. Raises StoreUnavailable."""
        text, _, signature = introduction.partition(".")
        await self._users.ensure_current()
        expected = self._signature(text.encode(errors="replace"))
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
            return None
        name, host, proxy, written_at, *of = json.loads(base64.urlsafe_b64decode(text))
        if of != [method, target] or abs(self._clock() - written_at) > _GOOD_FOR_S:
            return None
        return Caller(Principal(name), host, None if proxy is None else Principal(proxy))

    def _signature(self, text: bytes) -> str:
        return hmac.digest(self._users.secret, _PURPOSE + b"\0" + text, "sha256").hex()
