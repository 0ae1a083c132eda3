"""Tokens (JWT, RFC 7519) that say who somebody is, checked by one key with fixed algorithms.

Keys and settings are given as Pulsar takes them (AuthTokenUtils, AuthenticationProviderToken).
PyJWT reads and verifies; no header of a token chooses a key, or an algorithm that is not this
key's. Knows no wire; no token and no secret key is in what it says. Loaded where tokens are taken.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from core.config.definitions import PUBLIC_KEY_ALGORITHMS
from core.config.types import ConfigError
from core.config.values import broker_int, broker_text
from gateway.runtime.authentication import NotProved

MAX_TOKEN_BYTES: Final = 16 * 1024
"""A token that is longer is not even taken apart."""
MIN_RSA_BITS: Final = 2048

_HMAC: Final = (("HS256", 32), ("HS384", 48), ("HS512", 64))
"""With so many bytes, or more, a secret key is good for the algorithm (RFC 7518, 3.2)."""
_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")

PublicKey = RSAPublicKey | EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Role:
    """What a good token says. expires_at: seconds since the epoch, skew included; None: never."""

    name: str
    expires_at: float | None


@dataclass(frozen=True, slots=True, repr=False)
class TokenKey:
    """By which tokens are checked, and the algorithms that are good with it."""

    key: bytes | PublicKey
    algorithms: Sequence[str]


def read_secret_key(setting: str) -> TokenKey:
    """The one of `tokenSecretKey`. Raises ConfigError."""
    key = read_key(setting, "tokenSecretKey")
    if _public_key(key) is not None or b"-----BEGIN " in key:
        # Whoever knows the public key could make tokens (CVE-2026-48526).
        raise ConfigError("tokenSecretKey is no secret; give a public key as tokenPublicKey")
    algorithms = [name for name, least in _HMAC if len(key) >= least]
    if not algorithms:
        raise ConfigError(
            f"tokenSecretKey has {len(key)} bytes and needs 32; make one with `penstock tokens "
            "create-secret-key`"
        )
    return TokenKey(key, algorithms)


def read_public_key(setting: str, algorithm: str) -> TokenKey:
    """The one of `tokenPublicKey`. algorithm: `tokenPublicAlg`. Raises ConfigError."""
    key = _public_key(read_key(setting, "tokenPublicKey"))
    if key is None:
        raise ConfigError("tokenPublicKey is no public key in DER or PEM; name one")
    if not _is_for(key, algorithm):
        raise ConfigError(f"tokenPublicKey is no key for {algorithm}; set tokenPublicAlg")
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise ConfigError(f"tokenPublicKey has {key.key_size} bits and needs {MIN_RSA_BITS}")
    return TokenKey(key, (algorithm,))


def read_private_key(setting: str) -> tuple[RSAPrivateKey | EllipticCurvePrivateKey, list[str]]:
    """One that makes tokens, and the algorithms that it is for. Raises ConfigError."""
    data = read_key(setting, "the private key")
    is_pem = data.lstrip().startswith(b"-----")
    try:
        key = (load_pem_private_key if is_pem else load_der_private_key)(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise ConfigError(
            "there is no private key in it, in DER or PEM, without password"
        ) from None
    if isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        public = key.public_key()
        if found := [each for each in PUBLIC_KEY_ALGORITHMS if _is_for(public, each)]:
            return key, found
    raise ConfigError(f"the private key is for none of {', '.join(PUBLIC_KEY_ALGORITHMS)}")


def _is_for(key: PublicKey, algorithm: str) -> bool:
    if isinstance(key, RSAPublicKey):
        return algorithm not in _CURVES
    return key.curve.name == _CURVES.get(algorithm)


def _public_key(data: bytes) -> PublicKey | None:
    load = load_pem_public_key if data.lstrip().startswith(b"-----") else load_der_public_key
    try:
        found = load(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return found if isinstance(found, RSAPublicKey | EllipticCurvePublicKey) else None


def read_key(setting: str, name: str) -> bytes:
    """A key's bytes: of a file (`file:` and its path, or a path), of `data:`, or in Base64. name:
    of the setting, for the sentence. Raises ConfigError."""
    if setting.startswith("data:"):
        head, _, body = setting.removeprefix("data:").partition(",")
        data = unquote_to_bytes(body)
        return _decoded(data.decode("latin-1"), name) if head.endswith(";base64") else data
    if setting.startswith("file:"):
        path = unquote(urlsplit(setting).path)
    elif os.path.exists(setting):  # noqa: PTH110 - pathlib raises where a key is no path at all
        path = setting
    else:
        return _decoded(setting, name)
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{name}: {path} cannot be read ({reason}); name a file that can"
        ) from None


def _decoded(text: str, name: str) -> bytes:
    bare = "".join(text.split()).rstrip("=")
    try:
        if not _BASE64.fullmatch(text):
            raise ValueError
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (ValueError, binascii.Error):
        # It may be the key itself, mistyped: it is not repeated.
        raise ConfigError(
            f"{name} is neither a file nor Base64; write file:///PATH or data:;base64,…"
        ) from None


class Tokens:
    """Checks tokens with one key.

    role_claim: which has the role. audience_claim, audience: what has to be where, if both are
    said. skew_s: so much clocks may be wrong.
    """

    def __init__(
        self,
        key: TokenKey,
        *,
        role_claim: str = "sub",
        audience_claim: str = "",
        audience: str = "",
        skew_s: int = 0,
    ) -> None:
        self._key = key
        self._role_claim = role_claim
        self._audience_claim = audience_claim
        self._audience = audience
        self._skew_s = skew_s

    def check(self, token: bytes) -> Role | NotProved:
        """Whose token it is, if it is good now."""
        if len(token) > MAX_TOKEN_BYTES:
            return NotProved(f"the token has {len(token)} bytes; {MAX_TOKEN_BYTES} are taken")
        try:
            claims = jwt.decode(
                token.strip(),
                self._key.key,
                algorithms=self._key.algorithms,
                leeway=self._skew_s,
                # Neither does Pulsar look at these; the audience has a claim of its own choice.
                options={
                    "verify_aud": False,
                    "verify_iat": False,
                    "verify_iss": False,
                    "verify_jti": False,
                    "verify_sub": False,
                },
            )
            return self._role(claims)
        except jwt.ExpiredSignatureError:
            return NotProved("the token has expired")
        except jwt.ImmatureSignatureError:
            return NotProved("the token is not good yet")
        except jwt.InvalidSignatureError:
            return NotProved("the token is signed with another key")
        except jwt.InvalidAlgorithmError:
            return NotProved("the token's algorithm is not the key's")
        # PyJWT lets pass on what strange numbers and depths of JSON make Python raise.
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            return NotProved("the token is malformed")

    def _role(self, claims: dict[str, Any]) -> Role | NotProved:
        if self._audience_claim:
            given = claims.get(self._audience_claim)
            if self._audience not in (given if isinstance(given, list) else [given]):
                return NotProved("the token is for another audience")
        role = claims.get(self._role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role.strip():
            return NotProved(f"the token has no role in its claim {self._role_claim}")
        expires = claims.get("exp")
        return Role(role, None if expires is None else float(int(expires) + self._skew_s))


def tokens_of(static: Mapping[str, str]) -> Tokens:
    """As the broker's properties say. Raises ConfigError."""
    text = partial(broker_text, broker=static)
    secret = text("tokenSecretKey")
    key = (
        read_secret_key(secret)
        if secret
        else read_public_key(text("tokenPublicKey"), text("tokenPublicAlg"))
    )
    return Tokens(
        key,
        role_claim=text("tokenAuthClaim"),
        audience_claim=text("tokenAudienceClaim"),
        audience=text("tokenAudience"),
        skew_s=broker_int("tokenAllowedClockSkewSeconds", static),
    )
