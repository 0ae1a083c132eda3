"""A small issuer of tokens for tests: keys, tokens that are good or not, and a server of both."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER: Final = "https://issuer.example/realm"
AUDIENCE: Final = "kafka"
SECRET: Final = "swordfish & chips"


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    """Shared, since it takes a while."""
    return rsa.generate_private_key(65537, 2048)


def jwk_of(key: Any, **further: Any) -> dict[str, Any]:
    """The public half as a JWK."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else None
    found = (kind or jwt.algorithms.ECAlgorithm).to_jwk(key.public_key(), as_dict=True)
    return {**found, **further}


def in_base64(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Issuer:
    """One with two keys, `r` of RSA and `e` of an elliptic curve.

    tokens_for_s: how long tokens last that it gives to clients. of_clients: claims of theirs that
    are not a good token's, by the client's name. answers: what it serves by path, instead: status,
    headers and body. asked: paths, in order.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    tokens_for_s: float = 300
    begins_s: float = -5
    of_clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    url: str = ""

    def __post_init__(self) -> None:
        self.keys = self.keys or {"r": rsa_key(), "e": ec.generate_private_key(ec.SECP256R1())}

    def key_set(self) -> bytes:
        return json.dumps({"keys": [jwk_of(k, kid=n) for n, k in self.keys.items()]}).encode()

    def claims(self, name: str = "alice", **changed: Any) -> dict[str, Any]:
        """Of a good token; None leaves one out."""
        now = time.time()
        known = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": int(now + self.begins_s)}
        known |= {"exp": int(now + self.tokens_for_s), "scope": "read write", **changed}
        return {claim: value for claim, value in known.items() if value is not None}

    def token(
        self,
        name: str = "alice",
        kid: str = "e",
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """One of its own, signed with a key of its own."""
        key = self.keys[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        given = {"kid": kid, **(headers or {})}
        return jwt.encode(self.claims(name, **claims), key, given.pop("alg", algorithm), given)

    def signed(self, header: dict[str, Any], claims: dict[str, Any] | bytes, kid: str = "e") -> str:
        """One with any header and claims, signed rightly by ES256."""
        body = f"{in_base64(header)}.{in_base64(claims)}"
        algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
        return f"{body}.{in_base64(algorithm.sign(body.encode(), self.keys[kid]))}"


@contextmanager
def serving(issuer: Issuer, certificate: Path | None = None) -> Iterator[Issuer]:
    """Serves /jwks, and /token for clients that show SECRET (client credentials flow); and what
    `answers` has by path. certificate: with its key, of localhost; None: by plain HTTP."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            if self.path in issuer.answers:
                self.answer(*issuer.answers[self.path])
            elif self.path == "/jwks":
                self.answer(200, {}, issuer.key_set())
            else:
                self.answer(404, {}, b"{}")

        def do_POST(self) -> None:
            issuer.asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path in issuer.answers or self.path != "/token":
                self.answer(*issuer.answers.get(self.path, (404, {}, b"{}")))
                return
            known = base64.b64decode(self.headers.get("Authorization", "Basic ").split()[1:][0])
            name, _, secret = known.decode().partition(":")
            # Python's clients encode both, as RFC 6749 says; Java's and librdkafka's do not.
            if secret not in (SECRET, quote(SECRET, safe="")):
                self.answer(401, {}, b'{"error":"invalid_client"}')
                return
            name = unquote(name)
            token = issuer.token(name, **issuer.of_clients.get(name, {}))
            given = {"access_token": token, "token_type": "Bearer"}
            given["expires_in"] = issuer.tokens_for_s
            self.answer(200, {}, json.dumps(given).encode())

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            known = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in (known | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that hangs up amid TLS is no news."""

    with Server(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        if certificate is not None:
            issuer.url = f"https://localhost:{server.server_port}"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
