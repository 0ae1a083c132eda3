"""Tokens (JWT) by which a client logs in: of an issuer, by the client credentials flow of OAuth 2.0
(RFC 6749, 4.4), or of a file that somebody else renews.

Kept until most of their time has passed, and to their end where there is no other. Knows HTTP; must
not know Kafka. Standard library only. No token and no secret is in a `repr` or in what it says.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

WITHIN_S: Final = 10.0
MAX_BYTES: Final = 1024 * 1024
_RENEWED_AFTER: Final = 0.8  # of a token's time
_ASKED_AGAIN_AFTER_S: Final = 10.0  # where there was no other
_TOO_MANY_REQUESTS: Final = 429


class NoToken(Exception):
    """The issuer gives none, or what it gives is none; trying again will not help."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens come from. url: of an issuer's token endpoint, https or http, which is asked as
    this client; or of a file."""

    url: str
    client_id: str = ""
    secret: str = field(default="", repr=False)
    scope: str = ""

    @property
    def shown(self) -> str:
        """As whom one logs in, as far as is known."""
        return self.client_id or f"the token of {self.url}"

    def token(self) -> str:
        """One that is good for a while. Raises NoToken, and OSError where nobody answers or it is
        worth trying again."""
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return _read(Path(unquote(parts.path)))
        with _lock:
            kept = _kept.get(self)
            if kept is None or time.monotonic() >= kept.renewed_at:
                kept = _kept[self] = self._renewed(kept)
            return kept.token

    def _renewed(self, kept: _Kept | None) -> _Kept:
        """Another one; while there is none, the one that is kept, as long as it is good."""
        try:
            return self._ask()
        except (NoToken, OSError):
            now = time.monotonic()
            if kept is None or now >= kept.ends_at:
                raise
            return replace(kept, renewed_at=min(now + _ASKED_AGAIN_AFTER_S, kept.ends_at))

    def _ask(self) -> _Kept:
        asked_at = time.monotonic()
        status, answer = self._post()
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if status != 200 or not isinstance(token, str):
            said = answer.get("error") if isinstance(answer, dict) else None
            raise NoToken(f"{self.url} gives no token: {said or f'status {status}'}")
        lasts_s = _lifetime_s(token, answer)
        return _Kept(token.strip(), asked_at + _RENEWED_AFTER * lasts_s, asked_at + lasts_s)

    def _post(self) -> tuple[int, Any]:
        """The answer's status and its JSON. Raises OSError."""
        url = urlsplit(self.url)
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        # RFC 6749, 2.3.1: encoded before they are put together.
        known = f"{quote(self.client_id, safe='')}:{quote(self.secret, safe='')}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(known).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        connection = _connection(url.scheme, url.hostname or "", url.port)
        path = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
        try:
            connection.request("POST", path, urlencode(form), headers)
            response = connection.getresponse()
            body = response.read(MAX_BYTES + 1)
        except http.client.HTTPException as error:
            raise OSError(f"{self.url} does not speak HTTP: {error!r}") from error
        finally:
            connection.close()
        if response.status == _TOO_MANY_REQUESTS or response.status >= 500:
            raise OSError(f"{self.url} has answered with status {response.status}")
        try:
            return response.status, json.loads(body[:MAX_BYTES])
        except (ValueError, RecursionError):
            return response.status, None


@dataclass(frozen=True, slots=True)
class _Kept:
    """renewed_at, ends_at: of the clock that only rises."""

    token: str = field(repr=False)
    renewed_at: float
    ends_at: float


_lock: Final = threading.Lock()
_kept: Final[dict[TokenSource, _Kept]] = {}


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=WITHIN_S, context=context)
    return http.client.HTTPConnection(host, port, timeout=WITHIN_S)


def _lifetime_s(token: str, answer: dict[str, Any]) -> float:
    """How long a token is good from now on: as its issuer says, or the token; else not at all, and
    the next login has another one."""
    told = answer.get("expires_in")
    if isinstance(told, int | float) and not isinstance(told, bool):
        return max(0.0, float(told))
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return max(0.0, float(claims["exp"]) - time.time())
    except (IndexError, KeyError, TypeError, ValueError):
        return 0.0


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no token"
        raise NoToken(f"{path} cannot be read: {reason}") from error
    if not token:
        raise NoToken(f"{path} is empty")
    return token
