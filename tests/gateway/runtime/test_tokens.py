"""gateway.runtime.tokens: which tokens are good with which key, and which keys are taken."""

from __future__ import annotations

import base64
import itertools
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.types import ConfigError
from gateway.runtime.authentication import NotProved
from gateway.runtime.tokens import (
    MAX_TOKEN_BYTES,
    Role,
    Tokens,
    read_public_key,
    read_secret_key,
)

SECRET = bytes(range(32))
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(Encoding.PEM, Public.SubjectPublicKeyInfo)
DER = RSA.public_key().public_bytes(Encoding.DER, Public.SubjectPublicKeyInfo)


def base64_of(key: bytes) -> str:
    return base64.b64encode(key).decode()


def by_secret(key: bytes = SECRET, **settings: Any) -> Tokens:
    return Tokens(read_secret_key(base64_of(key)), **settings)


def by_public(algorithm: str = "RS256", key: bytes = DER) -> Tokens:
    return Tokens(read_public_key(base64_of(key), algorithm))


def signed(
    claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **how: Any
) -> bytes:
    return jwt.encode(claims, key, algorithm, **how).encode()


def by_hand(header: dict[str, Any], payload: bytes, key: bytes = SECRET) -> bytes:
    """As jwt.encode would not make it; signed by HS256, whatever the header says."""
    parts = [json.dumps(header).encode(), payload]
    text = b".".join(base64.urlsafe_b64encode(each).rstrip(b"=") for each in parts)
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(text, key)
    return text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


def why_not(tokens: Tokens, token: bytes) -> str:
    found = tokens.check(token)
    assert isinstance(found, NotProved)
    return found.reason


# --- good ---


def test_a_good_token_says_who_and_until_when() -> None:
    expires = int(time.time()) + 60
    assert by_secret().check(signed({"sub": "alice"})) == Role("alice", None)
    token = signed({"sub": "alice", "exp": expires})
    assert by_secret().check(token + b"\n") == Role("alice", expires)


@pytest.mark.parametrize(
    ("size", "good"),
    [(32, {"HS256"}), (48, {"HS256", "HS384"}), (64, {"HS256", "HS384", "HS512"})],
)
def test_a_secret_key_is_good_for_what_it_is_long_enough_for(size: int, good: set[str]) -> None:
    key = bytes(range(size))
    for algorithm in ("HS256", "HS384", "HS512"):
        header = {"alg": algorithm, "typ": "JWT"}
        if algorithm in good:
            token = signed({"sub": "a"}, key, algorithm)
            assert by_secret(key).check(token) == Role("a", None)
        else:
            reason = why_not(by_secret(key), by_hand(header, b'{"sub": "a"}', key))
            assert reason == "the token's algorithm is not the key's"


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (EC, "ES256")]
)
def test_a_public_key_checks_one_algorithm(key: Any, algorithm: str) -> None:
    public = key.public_key().public_bytes(Encoding.DER, Public.SubjectPublicKeyInfo)
    tokens = by_public(algorithm, public)
    assert tokens.check(signed({"sub": "a"}, key, algorithm)) == Role("a", None)
    if key is RSA:
        other = signed({"sub": "a"}, key, "RS384")
        assert why_not(tokens, other) == "the token's algorithm is not the key's"


def test_the_role_is_in_the_claim_that_is_said() -> None:
    tokens = by_secret(role_claim="who")
    assert tokens.check(signed({"sub": "x", "who": "alice"})) == Role("alice", None)
    assert tokens.check(signed({"who": ["alice", "bob"]})) == Role("alice", None)
    for other in ({"sub": "x"}, {"who": []}, {"who": 7}, {"who": " "}, {"who": [7]}, {"who": None}):
        assert why_not(tokens, signed(other)) == "the token has no role in its claim who"


def test_the_audience_is_in_the_claim_that_is_said() -> None:
    tokens = by_secret(audience_claim="aud", audience="penstock")
    for good in ("penstock", ["other", "penstock"]):
        assert tokens.check(signed({"sub": "a", "aud": good})) == Role("a", None)
    for other in ({"aud": "penstock2"}, {"aud": ["other"]}, {"aud": []}, {}, {"aud": None}):
        assert why_not(tokens, signed({"sub": "a", **other})) == "the token is for another audience"
    assert by_secret().check(signed({"sub": "a", "aud": "other"})) == Role("a", None)


def test_clocks_may_be_wrong_by_as_much_as_is_said() -> None:
    now = int(time.time())
    late = signed({"sub": "a", "exp": now - 5})
    early = signed({"sub": "a", "nbf": now + 60, "iat": now + 60})
    assert why_not(by_secret(), late) == "the token has expired"
    assert why_not(by_secret(), early) == "the token is not good yet"
    assert by_secret(skew_s=120).check(late) == Role("a", now - 5 + 120)
    assert by_secret(skew_s=120).check(early) == Role("a", None)


# --- not good ---


def test_a_token_of_another_key_is_refused() -> None:
    other = bytes(32)
    assert (
        why_not(by_secret(), signed({"sub": "a"}, other)) == "the token is signed with another key"
    )
    stranger = rsa.generate_private_key(65537, 2048)
    assert "another key" in why_not(by_public(), signed({"sub": "a"}, stranger, "RS256"))


def test_a_token_that_nobody_has_signed_is_refused() -> None:
    bare = signed({"sub": "admin"}, None, "none")
    unsigned = signed({"sub": "admin"}).rpartition(b".")[0] + b"."
    for tokens in (by_secret(), by_public()):
        assert why_not(tokens, bare) == "the token's algorithm is not the key's"
        assert tokens.check(unsigned) != Role("admin", None)
    for spelt in ("None", "NONE", "nOnE", ""):
        reason = why_not(by_secret(), by_hand({"alg": spelt}, b'{"sub": "admin"}'))
        assert reason in {"the token's algorithm is not the key's", "the token is malformed"}


@pytest.mark.parametrize("public", [PEM, DER], ids=["pem", "der"])
def test_the_public_key_is_no_secret(public: bytes) -> None:
    """CVE-2026-48526: HS256 with the text of the public key, which everybody knows."""
    forged = by_hand({"alg": "HS256", "typ": "JWT"}, b'{"sub": "admin"}', public)
    assert why_not(by_public(key=public), forged) == "the token's algorithm is not the key's"
    with pytest.raises(ConfigError, match="tokenSecretKey is no secret"):
        read_secret_key(base64_of(public))


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["b64"], "b64": False},
        {"crit": ["exp"], "exp": 1},
        {"crit": ["x-unknown"], "x-unknown": 1},
        {"crit": []},
        {"crit": "exp"},
    ],
)
def test_what_a_token_calls_critical_and_nobody_knows_is_refused(header: dict[str, Any]) -> None:
    """RFC 7515, 4.1.11; GHSA-752w-5fwx-jx9f."""
    token = by_hand({"alg": "HS256", "typ": "JWT", **header}, b'{"sub": "admin"}')
    assert why_not(by_secret(), token) == "the token is malformed"


@pytest.mark.parametrize("name", ["jku", "x5u"])
def test_no_header_names_the_key(name: str) -> None:
    header = {name: "http://127.0.0.1:1/keys", "kid": "../../key"}
    stranger = rsa.generate_private_key(65537, 2048)
    forged = signed({"sub": "admin"}, stranger, "RS256", headers=header)
    assert why_not(by_public(), forged) == "the token is signed with another key"
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(stranger.public_key()))
    forged = signed({"sub": "admin"}, stranger, "RS256", headers={"jwk": jwk})
    assert why_not(by_public(), forged) == "the token is signed with another key"


def test_a_long_token_is_not_taken_apart() -> None:
    """Headers of megabytes (CVE-2025-61920)."""
    token = signed({"sub": "admin"}, headers={"x": "y" * MAX_TOKEN_BYTES})
    assert why_not(by_secret(), token).endswith(f"{MAX_TOKEN_BYTES} are taken")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"sub": "a", "exp": 1e999}',
        b'{"sub": "a", "exp": Infinity}',
        b'{"sub": "a", "exp": NaN}',
        b'{"sub": "a", "exp": "soon"}',
        b'{"sub": "a", "exp": [1]}',
        b'{"sub": "a", "exp": {}}',
        b'{"sub": "a", "nbf": Infinity}',
        b'{"sub": "a", "exp": 1' + b"0" * 5000 + b"}",
        b'["sub"]',
        b"7",
        b"\xff\xff",
        b"[" * 9000,
        b"",
    ],
    ids=itertools.count(),
)
def test_what_is_no_set_of_claims_is_malformed(payload: bytes) -> None:
    token = by_hand({"alg": "HS256", "typ": "JWT"}, payload)
    assert why_not(by_secret(), token) == "the token is malformed"


@pytest.mark.parametrize(
    "token",
    [b"", b".", b"..", b"a.b.c", b"\xff.\xff.\xff", b"e30.e30.e30"],
    ids=itertools.count(),
)
def test_what_is_no_token_is_malformed(token: bytes) -> None:
    assert why_not(by_secret(), token) in {
        "the token is malformed",
        "the token's algorithm is not the key's",
    }


GOOD = signed({"sub": "a", "exp": 4_000_000_000, "aud": ["x"], "nbf": 1})


@given(st.data())
def test_whatever_comes_is_decided(data: st.DataObject) -> None:
    """Parts of a token in another order, cut, and with other bytes in them: never Role("a")."""
    parts = data.draw(st.permutations(GOOD.split(b".")))
    text = bytearray(b".".join(parts))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    found = by_secret().check(bytes(text))
    if isinstance(found, Role):
        assert bytes(text).strip().split(b".")[:2] == GOOD.split(b".")[:2]


@settings(max_examples=50)
@given(st.recursive(st.none() | st.floats() | st.text() | st.integers(), st.lists))
def test_whatever_a_claim_is_it_is_decided(value: Any) -> None:
    """With a good signature: only what has a role, and has not run out, is one."""
    for name in ("exp", "nbf", "sub"):
        claims = json.dumps({"sub": "a", name: value}).encode()
        found = by_secret().check(by_hand({"alg": "HS256", "typ": "JWT"}, claims))
        assert isinstance(found, Role | NotProved)
        assert not isinstance(found, Role) or found.name.strip()


# --- keys ---


def test_a_key_is_given_in_pulsars_ways(tmp_path: Path) -> None:
    path = tmp_path / "my secret.key"
    path.write_bytes(SECRET)
    for setting in (
        str(path),
        path.as_uri(),
        f"file:{path}",
        f"data:;base64,{base64_of(SECRET)}",
        f"data:application/octet-stream;base64,{base64_of(SECRET)}",
        base64_of(SECRET),
        base64_of(SECRET).rstrip("="),
    ):
        assert read_secret_key(setting).key == SECRET
    for public in (DER, PEM):
        path.write_bytes(public)
        found = read_public_key(path.as_uri(), "RS256").key
        assert not isinstance(found, bytes)
        assert found.public_numbers() == RSA.public_key().public_numbers()


def test_a_key_that_is_none_is_told_of_without_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor Base64") as raised:
        read_secret_key("hunter2!")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"missing.key cannot be read \(No such file"):
        read_secret_key(f"file://{tmp_path}/missing.key")
    with pytest.raises(ConfigError, match="has 31 bytes and needs 32"):
        read_secret_key(base64_of(bytes(31)))
    with pytest.raises(ConfigError, match="neither a file nor Base64"):
        read_secret_key("x" * 5000 + "!")  # too long for a path


def test_a_public_key_has_to_be_one_of_its_algorithm() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()
    curve = EC.public_key().public_bytes(Encoding.DER, Public.SubjectPublicKeyInfo)
    private = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for key, algorithm, sentence in (
        (DER, "ES256", "no key for ES256"),
        (curve, "RS256", "no key for RS256"),
        (curve, "ES384", "no key for ES384"),
        (SECRET, "RS256", "no public key in DER or PEM"),
        (private, "RS256", "no public key in DER or PEM"),
        (
            short.public_bytes(Encoding.DER, Public.SubjectPublicKeyInfo),
            "RS256",
            "has 1024 bits and needs 2048",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            read_public_key(base64_of(key), algorithm)
