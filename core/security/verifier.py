"""What is stored of a password: SCRAM's salt and keys (RFC 5802), as PostgreSQL writes them.

With a verifier a password can be checked, and nobody can log in with the verifier alone. Its text
is that of `pg_authid.rolpassword`: `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`, the last three in
Base64. Must show none of it in a `repr`. Does not know where verifiers are kept.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

MIN_ITERATIONS: Final = 4096
"""Of Kafka's ScramMechanism; its clients refuse to log in with fewer."""
MAX_ITERATIONS: Final = 16_384
"""Most that AlterUserScramCredentials may ask for (ScramControlManager). Verifiers that come from
PostgreSQL may have more."""
SALT_BYTES: Final = 16
"""Of a new verifier, as in PostgreSQL."""


class ScramMechanism(Enum):
    """Kafka's mechanisms of SCRAM, by their SASL names."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """As hashlib has it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def digest_size(self) -> int:
        """Bytes of a hash, and of each key."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    def hash(self, text: bytes) -> bytes:
        """RFC 5802's H."""
        return hashlib.new(self.hash_name, text).digest()

    def hmac(self, key: bytes, text: bytes) -> bytes:
        """RFC 5802's HMAC."""
        return hmac.digest(key, text, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """RFC 5802's Hi: slow on purpose, milliseconds. As Kafka does, leaves out SASLprep."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """One user's secret of one mechanism. iterations: of PBKDF2."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Verifier({self.mechanism.value}, {self.iterations} iterations)"

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
    ) -> Verifier:
        """What is stored of a password that was salted already."""
        client_key = mechanism.hmac(salted_password, b"Client Key")
        server_key = mechanism.hmac(salted_password, b"Server Key")
        return cls(mechanism, iterations, salt, mechanism.hash(client_key), server_key)

    @classmethod
    def of_password(
        cls, mechanism: ScramMechanism, salt: bytes, iterations: int, password: str
    ) -> Verifier:
        """The same for a plain password. Slow."""
        salted = mechanism.salted_password(password, salt, iterations)
        return cls.of_salted_password(mechanism, salt, iterations, salted)

    def is_of(self, password: str) -> bool:
        """Whether this is the password. Slow, and as slow if it is not."""
        salted = self.mechanism.salted_password(password, self.salt, self.iterations)
        stored_key = self.mechanism.hash(self.mechanism.hmac(salted, b"Client Key"))
        return hmac.compare_digest(stored_key, self.stored_key)

    def is_proved_by(self, proof: bytes, auth_message: bytes) -> bool:
        """Whether a client that sends this proof knows the password (RFC 5802, 3)."""
        if len(proof) != self.mechanism.digest_size:
            return False
        signature = self.mechanism.hmac(self.stored_key, auth_message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(self.mechanism.hash(client_key), self.stored_key)

    def server_signature(self, auth_message: bytes) -> bytes:
        """What proves to a client that this server has the verifier."""
        return self.mechanism.hmac(self.server_key, auth_message)

    @property
    def text(self) -> str:
        """As it is stored. A secret."""
        salt, stored_key, server_key = (
            b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key)
        )
        return f"{self.mechanism.value}${self.iterations}:{salt}${stored_key}:{server_key}"


_TEXT: Final = re.compile(
    r"(?P<mechanism>SCRAM-SHA-(?:256|512))\$(?P<iterations>[0-9]{1,9})"
    r":(?P<salt>[A-Za-z0-9+/=]+)\$(?P<stored>[A-Za-z0-9+/=]+):(?P<server>[A-Za-z0-9+/=]+)"
)


def read_verifier(text: str) -> Verifier | None:
    """The verifier of a stored text; None for anything that nobody could log in with."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    mechanism = ScramMechanism(found["mechanism"])
    iterations = int(found["iterations"])
    try:
        salt, stored_key, server_key = (
            b64decode(found[each], validate=True) for each in ("salt", "stored", "server")
        )
    except binascii.Error:
        return None
    sizes = {len(stored_key), len(server_key)}
    if sizes != {mechanism.digest_size} or not salt or iterations < MIN_ITERATIONS:
        return None
    return Verifier(mechanism, iterations, salt, stored_key, server_key)


_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a client sees of a verifier before it has proved anything, apart from the salt's value.

    is_base_36: Kafka's own tools make salts of digits and small letters.
    """

    salt_bytes: int = SALT_BYTES
    iterations: int = MIN_ITERATIONS
    is_base_36: bool = False

    @classmethod
    def of(cls, verifier: Verifier) -> Shape:
        is_base_36 = all(byte in _BASE_36 for byte in verifier.salt)
        return cls(len(verifier.salt), verifier.iterations, is_base_36)


def usual_shape(verifiers: Iterable[Verifier]) -> Shape:
    """The most frequent one, of one mechanism; of several the same one each time."""
    counts = Counter(map(Shape.of, verifiers))

    def rank(shape: Shape) -> tuple[int, int, int, bool]:
        return counts[shape], -shape.salt_bytes, -shape.iterations, shape.is_base_36

    return max(counts, key=rank, default=Shape())


def mock_verifier(
    mechanism: ScramMechanism, user: str, secret: bytes, shape: Shape = Shape()
) -> Verifier:
    """A verifier for a user that is not there, which no password opens.

    secret: the cluster's. With it a user always has the same salt, at every broker, as one that is
    there has; PostgreSQL does the same (mock_scram_secret).
    """

    def derived(what: bytes, size: int) -> bytes:
        seed = hmac.digest(secret, b"%b\0%b" % (mechanism.value.encode(), user.encode()), "sha256")
        return hashlib.shake_256(what + seed).digest(size)

    salt = derived(b"salt", shape.salt_bytes)
    if shape.is_base_36:
        salt = bytes(_BASE_36[byte % len(_BASE_36)] for byte in salt)
    keys = derived(b"keys", 2 * mechanism.digest_size)
    stored_key, server_key = keys[: mechanism.digest_size], keys[mechanism.digest_size :]
    return Verifier(mechanism, shape.iterations, salt, stored_key, server_key)
