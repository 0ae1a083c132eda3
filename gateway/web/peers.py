"""Other brokers, asked by HTTP for what only they can do.

The standard library's client, in threads of its own: it is asked by people's requests, a few at a
time, and one that hangs must not keep others' work from the event loop's threads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from core.security.principal import Caller
from core.types import LiveBroker
from gateway.web.front_end import LISTENER
from gateway.web.introductions import HEADER, Introductions

_WITHIN_S: Final = 15.0
_AT_ONCE: Final = 16


def http_url(broker: LiveBroker, *, is_tls: bool) -> str | None:
    """A broker's address for HTTP; None where it does not listen. is_tls: all brokers', as ours."""
    endpoint = broker.at(LISTENER)
    if endpoint is None:
        return None
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"http{'s' if is_tls else ''}://{host}:{endpoint.port}"


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What another broker has answered. value: its JSON; None where there is none."""

    status: int
    value: Any

    @property
    def is_done(self) -> bool:
        """Whether it has done what was asked."""
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Why not, for people."""
        value = self.value
        return (
            str(value["reason"]) if isinstance(value, dict) and "reason" in value else "no reason"
        )


class Peers:
    """The other brokers. certificate: what this one shows its clients, which is trusted, too.
    introductions: None where nobody is asked who he is."""

    def __init__(
        self, certificate: Path | None, introductions: Introductions | None = None
    ) -> None:
        self._certificate = certificate
        self._introductions = introductions
        self._tls: ssl.SSLContext | None = None
        self._threads = ThreadPoolExecutor(_AT_ONCE, "peer")  # begins none before it is asked

    async def ask(
        self,
        base_url: str,
        method: str,
        path: str,
        caller: Caller,
        body: bytes = b"",
        content_type: str | None = None,
    ) -> PeerAnswer:
        """One request, for the sake of a caller. A broker that cannot be reached has answered 503.
        Raises StoreUnavailable."""
        headers = {} if content_type is None else {"content-type": content_type}
        if self._introductions is not None:
            headers[HEADER] = await self._introductions.write(caller, method, path)
        loop = asyncio.get_running_loop()
        ask = partial(self._ask, base_url, method, path, body, headers)
        return await loop.run_in_executor(self._threads, ask)

    def _ask(
        self, base_url: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> PeerAnswer:
        connection = self._connection(base_url)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            whole = response.read()
        except (OSError, http.client.HTTPException) as error:
            return PeerAnswer(503, {"reason": f"The broker at {base_url} does not answer: {error}"})
        finally:
            connection.close()
        try:
            value = json.loads(whole) if whole else None
        except ValueError:
            value = None
        return PeerAnswer(response.status, value)

    def _connection(self, base_url: str) -> http.client.HTTPConnection:
        url = urlsplit(base_url)
        assert url.hostname is not None, "brokers tell their addresses"
        if url.scheme == "https":
            return http.client.HTTPSConnection(
                url.hostname, url.port, timeout=_WITHIN_S, context=self._context()
            )
        return http.client.HTTPConnection(url.hostname, url.port, timeout=_WITHIN_S)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            tls = ssl.create_default_context()
            # A certificate of one's own need not be signed by anybody.
            tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self._certificate is not None:
                tls.load_verify_locations(self._certificate)
            self._tls = tls  # only now: other threads ask, too
        return self._tls
