"""OAUTHBEARER (RFC 7628, KIP-255): the client's message, and what it is told where its token is not
good. As Kafka's OAuthBearerClientInitialResponse and OAuthBearerSaslServer.

A message is `n,` or `n,a=NAME,`, then ^A, `auth=Bearer TOKEN` and extensions with ^A behind each,
and one more ^A. Knows nothing of what is in a token. No token is in a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

OAUTHBEARER: Final = "OAUTHBEARER"
ACKNOWLEDGEMENT: Final = b"\x01"
"""What a client says when it has been told that it is refused; then the login has failed."""
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
"""What it is told; no more, whatever is wrong."""

_NAME: Final = r"(?:[\x01-\x2B\x2D-\x3C\x3E-\x7F]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01"
_MESSAGE: Final = re.compile(rf"n,(?:a=(?P<name>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_AUTH: Final = re.compile(r"bearer +([-_.a-zA-Z0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """authorization_id: "" for none. extensions: by name; nothing here goes by them."""

    token: str = field(repr=False)
    authorization_id: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


def read_message(message: bytes) -> BearerMessage | None:
    """The client's message; None where it is malformed."""
    try:
        found = _MESSAGE.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    pairs = [pair.partition("=") for pair in found["pairs"].split("\x01")[:-1]]
    given = {name: value for name, _, value in pairs}
    if len(given) < len(pairs):
        return None
    auth = _AUTH.fullmatch(given.pop("auth", ""))
    if auth is None:
        return None
    name = (found["name"] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerMessage(auth[1], name, given)


def check_url(url: str) -> str | None:
    """What is wrong with the URL of a key set, if anything."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return None if parts.path and parts.netloc in ("", "localhost") else "it names no file"
    if parts.scheme not in ("http", "https"):
        return "it is no URL of http, https or file"
    if "@" in parts.netloc:  # it is told in the log, and would not be sent
        return "it has a name or a password in it"
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none
        has_host = False
    return None if has_host else "it names no host"
