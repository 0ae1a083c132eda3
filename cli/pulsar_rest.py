"""Asks a broker by Pulsar's REST: addresses, redirections, and what went wrong as a sentence.

Knows HTTP and names of topics in paths; must not know a terminal, nor what is asked.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus, urlsplit

from cli.rest_login import RestLogin

if TYPE_CHECKING:
    from gateway.pulsar.names import TopicName

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_WITHIN_S: Final = 30.0
_MOST_REDIRECTIONS: Final = 5
_REDIRECTED: Final = (307, 308)


class RestRefused(Exception):
    """The broker has answered, and has not done it: status, and its reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RestUnreachable(Exception):
    """There is no answer of a broker's REST; a sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Rest:
    """REST at an address. certificate: trusted beside what the system trusts. login: as whom it is
    asked."""

    url: str
    certificate: Path | None = None
    login: RestLogin = field(default_factory=RestLogin)

    def ask(self, method: str, segments: Sequence[str], query: str = "", body: Any = None) -> Any:
        """The answer's JSON; None where it has none. segments: of the path, encoded.

        Raises RestRefused, RestUnreachable, and PropertyError where the login may not go there.
        """
        path = "/" + "/".join(segments) + (f"?{query}" if query else "")
        url = self.url.rstrip("/") + path
        sent = b"" if body is None else json.dumps(body).encode()
        for _ in range(_MOST_REDIRECTIONS):
            status, location, whole = self._once(method, url, sent)
            if status in _REDIRECTED and location:
                url = location
                continue
            return _answer(self.url, status, whole)
        raise RestUnreachable(
            f"The brokers behind {self.url} send each other's requests in a ring."
        )

    def _once(self, method: str, url: str, body: bytes) -> tuple[int, str | None, bytes]:
        to = urlsplit(url)
        target = to.path + (f"?{to.query}" if to.query else "")
        headers = {"content-type": "application/json", **self.login.headers_to(url)}
        connection = None
        try:
            connection = self._connection(to.scheme, to.hostname or "", to.port)
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, response.headers["location"], response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RestUnreachable(
                f"Nobody answers by HTTP at {to.scheme}://{to.netloc} ({error}): start the broker "
                "with --http-listen, or name its address with --admin-url."
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=_WITHIN_S)
        trusted = ssl.create_default_context()
        trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for each in (self.certificate, self.login.certificate):
            if each is not None:
                trusted.load_verify_locations(each)
        if self.login.shows is not None:
            self.login.shows.load_into(trusted)
        return http.client.HTTPSConnection(host, port, timeout=_WITHIN_S, context=trusted)


def _answer(url: str, status: int, whole: bytes) -> Any:
    try:
        value = json.loads(whole) if whole else None
    except ValueError:
        raise RestUnreachable(
            f"What answers at {url} is no broker's REST (status {status}): name the address of "
            "--http-listen with --admin-url."
        ) from None
    if 200 <= status < 300:
        return value
    reason = value.get("reason") if isinstance(value, dict) else None
    raise RestRefused(status, str(reason or f"status {status}"))


def topic_path(name: TopicName) -> tuple[str, ...]:
    """The segments of a topic's path."""
    local = (
        name.local_name if name.partition < 0 else f"{name.local_name}-partition-{name.partition}"
    )
    return ("admin", "v2", "persistent", name.tenant, name.namespace, quote_plus(local))


def subscription_path(name: TopicName, subscription: str) -> tuple[str, ...]:
    """The segments of a subscription's path: its name is encoded twice, as Pulsar's clients do."""
    return (*topic_path(name), "subscription", quote(quote_plus(subscription), safe=""))
