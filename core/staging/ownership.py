"""A token belongs to who stages under it: each principal has tokens of its own.

Whoever names another's token means one that holds nothing. Knows no store.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from core.security.principal import ANONYMOUS, Principal


def owned_token(token: UUID, principal: Principal) -> UUID:
    """The token as it is stored: the client's where nobody is asked who he is, else one made of
    both."""
    if principal == ANONYMOUS:
        return token
    text = f"staged by {principal}".encode(errors="surrogatepass")
    return UUID(bytes=hashlib.blake2b(token.bytes, key=_key(text), digest_size=16).digest())


def _key(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=32).digest()
