"""`penstock tokens`: keys for tokens, and tokens by which clients log in at Pulsar's door.

As `bin/pulsar tokens`; what either makes the other takes. Works without a broker and without a
database. Knows flags and files; what is in a token is `gateway.runtime.tokens`. Exit codes: 0 done,
1 the token is not good, 2 a wrong argument.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.client import fail

if TYPE_CHECKING:
    from gateway.runtime.tokens import TokenKey

tokens = typer.Typer(
    help="Make keys, and tokens by which Pulsar's clients log in; look at tokens, and check them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_SECONDS: Final = {
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86_400,
    "w": 7 * 86_400,
    "y": 365 * 86_400,
}
_RSA_BITS: Final = 2048

Algorithm = Annotated[
    str, typer.Option("--signature-algorithm", "-a", metavar="NAME", help="As RS256, ES256, HS256.")
]
SecretKey = Annotated[
    str | None,
    typer.Option(
        "--secret-key",
        "-sk",
        metavar="KEY",
        help="A file, file:///PATH, data:;base64,… or Base64; as tokenSecretKey.",
    ),
]
Token = Annotated[
    str | None,
    typer.Argument(
        metavar="TOKEN", envvar="TOKEN", show_default=False, help="Default: the variable TOKEN."
    ),
]
FromStdin = Annotated[bool, typer.Option("--stdin", "-i", help="Read the token from a pipe.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", "-f", metavar="FILE", help="Read it from a file.")
]


@tokens.command("create-secret-key")
def create_secret_key(
    algorithm: Algorithm = "HS256",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: shown in Base64."),
    ] = None,
    in_base64: Annotated[bool, typer.Option("--base64", "-b", help="Write Base64.")] = False,
) -> None:
    """Make a secret key: who has it can check tokens, and make them."""
    if algorithm not in _SECRET_BYTES:
        fail(f"There is no such algorithm {algorithm}: name {', '.join(_SECRET_BYTES)}.", 2)
    key = secrets.token_bytes(_SECRET_BYTES[algorithm])
    shown = base64.b64encode(key)
    if output is None:
        typer.echo(shown.decode())
    else:
        _write(output, shown if in_base64 else key)


@tokens.command("create-key-pair")
def create_key_pair(
    private: Annotated[
        Path, typer.Option("--output-private-key", metavar="FILE", help="Makes tokens.")
    ],
    public: Annotated[
        Path, typer.Option("--output-public-key", metavar="FILE", help="Checks them: brokers'.")
    ],
    algorithm: Algorithm = "RS256",
) -> None:
    """Make a pair of keys (DER): brokers need the public one alone."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    from core.config.definitions import PUBLIC_KEY_ALGORITHMS

    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm not in PUBLIC_KEY_ALGORITHMS:
        fail(f"There is no such algorithm {algorithm}: name {', '.join(PUBLIC_KEY_ALGORITHMS)}.", 2)
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in curves:
        key = ec.generate_private_key(curves[algorithm])
    else:
        key = rsa.generate_private_key(65537, _RSA_BITS)
    _write(private, key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    _write(
        public,
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        is_secret=False,
    )


@tokens.command()
def create(
    subject: Annotated[
        str, typer.Option("--subject", "-s", metavar="ROLE", help="Who logs in by it.")
    ],
    expiry: Annotated[
        str | None,
        typer.Option(
            "--expiry-time",
            "-e",
            metavar="TIME",
            help="When it runs out: 30s, 10m, 1h, 3d, 2w, 1y. Default: never.",
        ),
    ] = None,
    secret_key: SecretKey = None,
    private_key: Annotated[
        str | None,
        typer.Option("--private-key", "-pk", metavar="KEY", help="Given likewise; DER or PEM."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--signature-algorithm",
            "-a",
            metavar="NAME",
            help="Default: RS256, or what the key is for.",
        ),
    ] = None,
) -> None:
    """Make a token, and show it."""
    import jwt

    claims: dict[str, Any] = {"sub": subject}
    if not subject.strip():
        fail("--subject is empty: name a role.", 2)
    if expiry is not None:
        claims["exp"] = int(time.time()) + _seconds(expiry)
    key, its = _signing_key(secret_key, private_key)
    if algorithm is not None and algorithm not in its:
        fail(f"The key is not for {algorithm}: name one of {', '.join(its)}.", 2)
    typer.echo(jwt.encode(claims, key, algorithm or its[0]))


@tokens.command()
def show(token: Token = None, stdin: FromStdin = False, token_file: TokenFile = None) -> None:
    """Show what is in a token, without checking it."""
    parts = _token(token, stdin, token_file).split(".")
    try:
        header, claims = (
            json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
            for part in parts[:2]
        )
    except ValueError:
        fail("That is no token.")
    typer.echo(json.dumps(header))
    typer.echo("---")
    typer.echo(json.dumps(claims))


@tokens.command()
def validate(
    token: Token = None,
    stdin: FromStdin = False,
    token_file: TokenFile = None,
    secret_key: SecretKey = None,
    public_key: Annotated[
        str | None,
        typer.Option("--public-key", "-pk", metavar="KEY", help="Given likewise; DER or PEM."),
    ] = None,
    algorithm: Algorithm = "RS256",
) -> None:
    """Check a token as a broker does, and show whose it is; exit code 1 if it is not good."""
    from core.config.types import ConfigError
    from gateway.runtime.authentication import NotProved
    from gateway.runtime.tokens import Tokens, read_public_key, read_secret_key

    given = _token(token, stdin, token_file).encode()
    _one_of(secret_key, public_key, "--public-key")
    try:
        key: TokenKey = (
            read_secret_key(secret_key)
            if secret_key is not None
            else read_public_key(public_key or "", algorithm)
        )
    except ConfigError as error:
        fail(f"{error}.", 2)
    found = Tokens(key).check(given)
    if isinstance(found, NotProved):
        fail(f"{found.reason[:1].upper()}{found.reason[1:]}.")
    ends = {} if found.expires_at is None else {"exp": int(found.expires_at)}
    typer.echo(json.dumps({"sub": found.name, **ends}))


def _one_of(secret: str | None, other: str | None, flag: str) -> None:
    if (secret is None) == (other is None):
        fail(f"Name one key: --secret-key or {flag}.", 2)


def _signing_key(secret: str | None, private: str | None) -> tuple[Any, list[str]]:
    """A key that signs, and the algorithms that it is for: the usual one first."""
    from core.config.types import ConfigError
    from gateway.runtime.tokens import read_private_key, read_secret_key

    _one_of(secret, private, "--private-key")
    try:
        if secret is None:
            return read_private_key(private or "")
        key = read_secret_key(secret)
    except ConfigError as error:
        fail(f"{error}.", 2)
    return key.key, list(reversed(key.algorithms))


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhdwy])", text.strip().lower())
    if found is None:
        fail(f"--expiry-time: '{text}' is no time; write for example 1h, 30d or 1y.", 2)
    return int(found[1]) * _SECONDS[found[2]]


def _token(given: str | None, stdin: bool, file: Path | None) -> str:
    if stdin:
        return sys.stdin.read().strip()
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            fail(f"{file} cannot be read ({error}).", 2)
    if given is None:
        fail("Name a token, or where it is: --stdin, --token-file, the variable TOKEN.", 2)
    return given.strip()


def _write(path: Path, data: bytes, *, is_secret: bool = True) -> None:
    """A new file, or another in place of an old one; a secret is for its owner alone."""
    try:
        mode = 0o600 if is_secret else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror}).", 2)
