"""One request as a handler sees it: names from its path, flags from its query, its body.

Knows Starlette, no endpoint and no protocol.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_plus

from starlette.requests import ClientDisconnect, Request

from core.security.principal import Caller
from gateway.web.api import Refused

Services = TypeVar("Services")

MAX_BODY_BYTES: Final = 1024 * 1024
SMALL_BODY_BYTES: Final = 8 * 1024
"""So much may be read for anybody, beside what others send."""
_BODY_WITHIN_S: Final = 30.0
_SMALL_BODY_WITHIN_S: Final = 5.0
_TURN_WITHIN_S: Final = 10.0
_MOST_BODIES: Final = 16  # read at a time: so much memory, and no more

_bodies = asyncio.Semaphore(_MOST_BODIES)


class ClientError(Exception):
    """What a client asks cannot be done, found out on the way; `refused` says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.refused = Refused(status, reason)


class Call(Generic[Services]):
    """A request, who has sent it, and the services that its handler may ask."""

    def __init__(self, request: Request, services: Services, caller: Caller) -> None:
        self.request = request
        self.services = services
        self.caller = caller
        self._body: bytes | None = None

    def name(self, parameter: str) -> str:
        """A part of the path, decoded as a form's field is: so do Pulsar's clients encode it."""
        return unquote_plus(str(self.request.path_params[parameter]))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A switch of the query."""
        given = self.request.query_params.get(name)
        return default if given is None else given.strip().lower() == "true"

    def number(self, parameter: str) -> int:
        """A whole number of the path. Raises ClientError."""
        given = self.name(parameter)
        try:
            return int(given)
        except ValueError:
            raise ClientError(400, f"'{given[:100]}' is no whole number") from None

    async def body(self, most_bytes: int = MAX_BODY_BYTES) -> bytes:
        """All of it. Raises ClientError where it is too large, or does not come."""
        if self._body is None:
            if most_bytes <= SMALL_BODY_BYTES:
                self._body = await self._read_body(most_bytes, _SMALL_BODY_WITHIN_S)
            else:
                self._body = await self._read_in_turn(most_bytes)
        return self._body

    async def _read_in_turn(self, most_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(_TURN_WITHIN_S):
                await _bodies.acquire()
        except TimeoutError:
            raise ClientError(503, "Too many send a body at the same time") from None
        try:
            return await self._read_body(most_bytes, _BODY_WITHIN_S)
        finally:
            _bodies.release()

    async def _read_body(self, most_bytes: int, within_s: float) -> bytes:
        whole = bytearray()
        try:
            async with asyncio.timeout(within_s):
                async for part in self.request.stream():
                    whole += part
                    if len(whole) > most_bytes:
                        raise ClientError(413, f"A body may have {most_bytes} bytes")
        except TimeoutError:
            raise ClientError(408, "The body did not come in time") from None
        except ClientDisconnect:
            raise ClientError(400, "The client has gone") from None
        return bytes(whole)

    async def json(self, default: Any = None) -> Any:
        """The body as JSON; the default where there is none. Raises ClientError."""
        whole = await self.body()
        if not whole.strip():
            return default
        try:
            return json.loads(whole)
        except (ValueError, RecursionError) as error:
            raise ClientError(400, f"The body is no JSON: {error}") from None
