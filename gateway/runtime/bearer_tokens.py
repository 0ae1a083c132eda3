"""Tokens of issuers of the user's own (JWT, RFC 7519), by which Kafka's clients log in (KIP-768).

As Kafka's BrokerJwtValidator, and stricter: an issuer and an audience are always asked for. Signed
by a key of the issuer's set with an algorithm that is the key's; no header of a token chooses
either. Knows no wire; no token is in what it says. Loaded where tokens are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from core.config.listeners import BearerSettings
from core.security.principal import ANONYMOUS
from gateway.runtime.authentication import NotProved
from gateway.runtime.key_sets import Key, KeySets, KeySource

MAX_TOKEN_BYTES: Final = 16 * 1024
"""A token that is longer is not even taken apart."""
MAX_KEYS_TRIED: Final = 8
"""Of a token that names none."""
LATEST_MS: Final = 253_402_300_799_000
"""The end of the year 9999: answers have room for no endless session."""
MAX_NAME: Final = 1_000
"""Characters that a principal may have."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a good token is about. expires_at_ms: since the epoch, without clock skew."""

    name: str
    expires_at_ms: int


class BearerTokens:
    """Checks tokens of one issuer, by its keys."""

    def __init__(self, settings: BearerSettings, keys: KeySets) -> None:
        self._settings = settings
        self._keys = keys

    async def check(self, token: str) -> Bearer | NotProved:
        """Whose token it is, if it is good now. Raises KeysUnavailable."""
        if len(token) > MAX_TOKEN_BYTES:
            return NotProved(f"the token has {len(token)} bytes; {MAX_TOKEN_BYTES} are taken")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return NotProved("the token is malformed")
        key_id, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str):
            return NotProved("the token names no algorithm")
        keys = await self._keys.find(key_id, algorithm)
        if not keys:
            return NotProved("no key of the issuer's is the one of the token, and its algorithm's")
        if key_id is None and len(keys) > MAX_KEYS_TRIED:
            return NotProved("the token names no key, and there are too many to try")
        return self._checked(token, algorithm, keys)

    def _checked(self, token: str, algorithm: str, keys: Sequence[Key]) -> Bearer | NotProved:
        found: Bearer | NotProved = NotProved("the token is signed with another key")
        for key in keys:
            try:
                return self._bearer(self._claims(token, algorithm, key))
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                return NotProved("the token has expired")
            except jwt.ImmatureSignatureError:
                return NotProved("the token is not good yet")
            except jwt.InvalidIssuerError:
                return NotProved("the token is another issuer's")
            except jwt.InvalidAudienceError:
                return NotProved("the token is for another audience")
            except jwt.MissingRequiredClaimError as error:
                return NotProved(f"the token has no claim {error.claim}")
            # PyJWT lets pass on what strange numbers and depths of JSON make Python raise.
            except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
                return NotProved("the token is malformed")
        return found

    def _claims(self, token: str, algorithm: str, key: Key) -> dict[str, Any]:
        settings = self._settings
        return jwt.decode(
            token,
            key.public,
            algorithms=[algorithm],  # one of the key's own
            issuer=settings.issuer,
            audience=settings.audiences,
            leeway=settings.skew_s,
            options={"require": ["exp", "iat", "iss", "aud"], "verify_sub": False},
        )

    def _bearer(self, claims: dict[str, Any]) -> Bearer | NotProved:
        claim = self._settings.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
            return NotProved(f"the token has no name in its claim {claim}")
        scope = claims.get(self._settings.scope_claim, "")
        scopes = scope if isinstance(scope, list) else [scope]
        if not all(isinstance(each, str) for each in scopes):
            return NotProved(f"the token has no scopes in its claim {self._settings.scope_claim}")
        if name.strip() == ANONYMOUS.name:  # who is nobody may have rights
            return NotProved(f"the token's name is {ANONYMOUS.name}")
        return Bearer(name.strip(), min(int(claims["exp"]) * 1000, LATEST_MS))


def bearer_tokens_of(settings: BearerSettings) -> BearerTokens:
    """Those of a listener; looks for the keys."""
    source = KeySource(
        settings.url,
        settings.refresh_ms / 1000,
        settings.backoff_ms / 1000,
        settings.backoff_max_ms / 1000,
    )
    keys = KeySets(source)
    keys.begin()
    return BearerTokens(settings, keys)
