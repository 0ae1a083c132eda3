"""A client's side of a login by SASL, as Kafka's clients do: PLAIN (RFC 4616), SCRAM (RFC 5802)
and OAUTHBEARER (RFC 7628).

Knows tokens; must not know how they are sent. Names and passwords are sent as they are, in UTF-8:
Kafka's clients do not normalise them either.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator
from typing import Final

from penstock.connecting import PLAIN, Login
from penstock.tokens import NoToken

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_LEAST_ITERATIONS: Final = 4_096  # less protects nobody; Kafka's clients refuse it too
_MOST_ITERATIONS: Final = 1_000_000  # more is to keep this process busy
_NONCE_BYTES: Final = 24


class LoginFailed(Exception):
    """The broker does not log anybody in as it should: it may be another's."""


def exchange(login: Login) -> Generator[bytes, bytes, None]:
    """The client's tokens: each is to be sent, and the broker's answer handed in. Ends when the
    login is complete. Raises LoginFailed where the broker does not prove that it knows the user, or
    no token is to be had; and OSError where its issuer does not answer."""
    if login.mechanism == PLAIN:
        yield b"\0".join((b"", login.user.encode(), login.password.encode()))
        return
    if login.tokens is not None:
        try:
            token = login.tokens.token()
        except NoToken as no:
            raise LoginFailed(str(no)) from no
        # RFC 7628: where it says something it has refused, and wants to hear that this is known.
        if (yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
            yield b"\x01"
        return
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode(errors="replace")
    fields = _fields(challenge)
    try:
        both, salt, iterations = fields["r"], _bytes(fields["s"]), int(fields["i"])
    except (KeyError, ValueError):
        raise LoginFailed("the broker's challenge is malformed") from None
    if not both.startswith(nonce) or both == nonce:
        raise LoginFailed("the broker's challenge is for another login")
    if not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise LoginFailed(f"the broker asks for {iterations} iterations")
    name = _HASHES[login.mechanism]
    salted = hashlib.pbkdf2_hmac(name, login.password.encode(), salt, iterations)
    final = f"c=biws,r={both}"
    signed = f"{first},{challenge},{final}".encode()
    key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    last = yield f"{final},p={b64encode(proof).decode()}".encode()
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
    try:
        told = _bytes(_fields(last.decode(errors="replace"))["v"])
    except (KeyError, ValueError):
        raise LoginFailed("the broker's last message is malformed") from None
    if not hmac.compare_digest(told, verifier):
        raise LoginFailed("the broker does not know the password itself")


def _fields(message: str) -> dict[str, str]:
    parts = (part.partition("=") for part in message.split(","))
    return {name: value for name, _, value in parts}


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
