"""The client's side of SCRAM, written down from RFC 5802 with nothing of the server's in it."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Client:
    """One login. What it sends may be changed on the way by whoever holds it."""

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        nonce: str = "rOprNGfwEbeRWgbNEkqO",
        gs2_header: str = "n,,",
        extensions: str = "",
    ) -> None:
        self.hash = HASHES[mechanism]
        self.password = password
        self.gs2_header = gs2_header
        name = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={name},r={nonce}{extensions}"
        self.auth_message = b""
        self.salted = b""

    def first(self) -> bytes:
        return (self.gs2_header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(each.split("=", 1) for each in server_first.decode().split(","))
        salt, iterations = b64decode(fields["s"]), int(fields["i"])
        self.salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, iterations)
        binding = b64encode(self.gs2_header.encode()).decode()
        without_proof = f"c={binding},r={fields['r']}"
        self.auth_message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        client_key = self._hmac(self.salted, b"Client Key")
        stored_key = hashlib.new(self.hash, client_key).digest()
        signature = self._hmac(stored_key, self.auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def believes(self, server_final: bytes) -> bool:
        """Whether the server has shown that it knows the verifier."""
        server_key = self._hmac(self.salted, b"Server Key")
        signature = b64encode(self._hmac(server_key, self.auth_message))
        return server_final == b"v=" + signature

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash)
