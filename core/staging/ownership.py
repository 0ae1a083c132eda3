"""A token belongs to who stages under it: each principal has tokens of its own.

Whoever names another's token means one that holds nothing. Knows no store.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import RFC_4122, UUID

from core.security.principal import ANONYMOUS, Principal

_MARKED: Final = 0xF000_C000 << 48  # RFC 9562: the bits of the version, and of the variant
_VERSION_8: Final = 0x8000_8000 << 48


def owned_token(token: UUID, principal: Principal) -> UUID:
    """The token as it is stored: the client's where nobody is asked who he is, else one made of
    both, a UUID of version 8. Anybody could work that out, so it is nobody's own token."""
    if principal == ANONYMOUS and (token.variant, token.version) != (RFC_4122, 8):
        return token
    text = f"staged by {principal}".encode(errors="surrogatepass")
    made = hashlib.blake2b(token.bytes, key=_key(text), digest_size=16).digest()
    return UUID(int=int.from_bytes(made) & ~_MARKED | _VERSION_8)


def _key(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=32).digest()
