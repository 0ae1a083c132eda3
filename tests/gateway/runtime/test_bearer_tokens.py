"""Tokens of issuers: whose are good, and the known holes."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from core.config.listeners import BearerSettings
from gateway.runtime.authentication import NotProved
from gateway.runtime.bearer_tokens import (
    LATEST_MS,
    MAX_KEYS_TRIED,
    MAX_TOKEN_BYTES,
    Bearer,
    BearerTokens,
)
from gateway.runtime.key_sets import KeySets, KeySource
from tests.issuer import AUDIENCE, ISSUER, Issuer, in_base64, rsa_key

SETTINGS: dict[str, Any] = {
    "url": "",
    "issuer": ISSUER,
    "audiences": ("other", AUDIENCE),
    "name_claim": "sub",
    "scope_claim": "scope",
    "skew_s": 30,
    "refresh_ms": 3_600_000,
    "backoff_ms": 100,
    "backoff_max_ms": 10_000,
}


class Place:
    """An issuer, and who checks its tokens."""

    def __init__(self, directory: Path, issuer: Issuer | None = None, **changed: Any) -> None:
        self.issuer = issuer or Issuer()
        file = directory / "jwks.json"
        file.write_bytes(self.issuer.key_set())
        self.keys = KeySets(KeySource(file.as_uri()))
        self.tokens = BearerTokens(BearerSettings(**SETTINGS | changed), self.keys)

    async def name(self, token: str) -> str:
        found = await self.tokens.check(token)
        assert isinstance(found, Bearer), found
        return found.name

    async def reason(self, token: str) -> str:
        found = await self.tokens.check(token)
        assert isinstance(found, NotProved), found
        return found.reason


@pytest.fixture
def at(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_good_token_is_its_subjects_until_it_expires(at: Place) -> None:
    expires = int(time.time()) + 77
    for kid in ("e", "r"):
        token = at.issuer.token("alice", kid, exp=expires)
        assert await at.tokens.check(token) == Bearer("alice", expires * 1000)
    for algorithm in ("RS512", "PS256"):
        token = at.issuer.token("bö, =", "r", {"alg": algorithm})
        assert await at.name(token) == "bö, ="


async def test_a_token_without_the_name_of_its_key(at: Place, tmp_path: Path) -> None:
    claims = at.issuer.claims()
    token = jwt.encode(claims, at.issuer.keys["e"], "ES256")
    assert await at.name(token) == "alice"
    many = {str(n): ec.generate_private_key(ec.SECP256R1()) for n in range(MAX_KEYS_TRIED)}
    some = Place(tmp_path, Issuer(many))
    last = many[str(MAX_KEYS_TRIED - 1)]
    assert await some.name(jwt.encode(claims, last, "ES256")) == "alice"
    others = Place(tmp_path, Issuer(many | {"more": at.issuer.keys["e"]}))
    assert "too many to try" in await others.reason(token)


NOW = time.time()  # of the collection: what is not good yet is so for hours
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": int(NOW) - 31}, "has expired"),
    "not yet good": ({"nbf": int(NOW) + 9_000}, "not good yet"),
    "issued later": ({"iat": int(NOW) + 9_000}, "not good yet"),
    "another's": ({"iss": "https://other.example"}, "another issuer's"),
    "issuer in a list": ({"iss": [ISSUER]}, ""),
    "for others": ({"aud": "others"}, "another audience"),
    "for nobody": ({"aud": []}, "no claim aud"),
    "without audience": ({"aud": None}, "no claim aud"),
    "without issuer": ({"iss": None}, "no claim iss"),
    "without end": ({"exp": None}, "no claim exp"),
    "without beginning": ({"iat": None}, "no claim iat"),
    "without name": ({"sub": None}, "no name in its claim sub"),
    "a number for a name": ({"sub": 7}, "no name"),
    "an empty name": ({"sub": " "}, "no name"),
    "a long name": ({"sub": "x" * 1001}, "no name"),
    "nobody's name": ({"sub": "ANONYMOUS"}, "name is ANONYMOUS"),
    "strange scopes": ({"scope": {"a": 1}}, "no scopes"),
    "a strange end": ({"exp": "soon"}, "malformed"),
    "an endless end": ({"exp": float("inf")}, ""),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_token_is_refused(at: Place, what: str) -> None:
    claims, reason = WRONG[what]
    token = at.issuer.signed({"alg": "ES256", "kid": "e"}, at.issuer.claims() | claims)
    if None in claims.values():
        token = at.issuer.token(**claims)
    assert reason in await at.reason(token)


async def test_claims_have_the_names_that_the_settings_say(tmp_path: Path) -> None:
    at = Place(tmp_path, name_claim="azp", scope_claim="scp")
    token = at.issuer.token(azp=" robot ", scp=["a", "b"], scope={"not": "looked at"})
    assert await at.name(token) == "robot"
    assert "no name in its claim azp" in await at.reason(at.issuer.token(scp="a"))


async def test_the_clock_may_be_wrong_by_as_much_as_is_said(tmp_path: Path) -> None:
    at = Place(tmp_path, skew_s=30)
    token = at.issuer.token(exp=int(time.time()) - 20)
    assert await at.name(token) == "alice"
    strict = Place(tmp_path, at.issuer, skew_s=0)
    assert "expired" in await strict.reason(token)


async def test_a_token_of_a_thousand_years_is_good_until_answers_have_room(at: Place) -> None:
    found = await at.tokens.check(at.issuer.token(exp=10**300))
    assert found == Bearer("alice", LATEST_MS)


# --- known holes ---


async def test_unsigned(at: Place) -> None:
    """CVE-2026-33557: as RFC 7515's algorithm `none`, in each spelling."""
    claims = in_base64(at.issuer.claims())
    for algorithm in ("none", "None", "NONE", "nOnE", "", None, 7, ["ES256"], {}):
        for kid in ({}, {"kid": "e"}):
            header = in_base64({"alg": algorithm, **kid})
            for signature in ("", in_base64(b"x" * 64)):
                await at.reason(f"{header}.{claims}.{signature}")
    await at.reason(f"{in_base64({'kid': 'e'})}.{claims}.")


async def test_signed_with_the_public_key_as_a_secret(at: Place) -> None:
    """PyJWT's CVE-2026-48526, and each library's before."""
    public = rsa_key().public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        at.issuer.key_set(),
    ]
    for secret in secrets:
        for algorithm, name in (("HS256", "sha256"), ("HS512", "sha512")):
            for header in ({"alg": algorithm, "kid": "r"}, {"alg": algorithm}):
                body = f"{in_base64(header)}.{in_base64(at.issuer.claims())}"
                mac = hmac.digest(secret, body.encode(), name)
                assert "no key" in await at.reason(f"{body}.{in_base64(mac)}")
                # Also where the header names the key's own algorithm.
                body = f"{in_base64({**header, 'alg': 'RS256'})}.{in_base64(at.issuer.claims())}"
                mac = hmac.digest(secret, body.encode(), hashlib.sha256)
                assert "another key" in await at.reason(f"{body}.{in_base64(mac)}")


async def test_what_is_critical_and_not_known(at: Place) -> None:
    """GHSA-752w-5fwx-jx9f."""
    for critical in (["exp2"], ["b64"], [], "exp", None, 7, {}):
        header = {"alg": "ES256", "kid": "e", "crit": critical, "exp2": 1, "b64": False}
        await at.reason(at.issuer.signed(header, at.issuer.claims()))


async def test_a_key_that_the_token_brings_along(at: Place) -> None:
    """`jwk`, `jku`, `x5u`, `x5c` choose nothing, and nothing is fetched."""
    own = Issuer({"e": ec.generate_private_key(ec.SECP256R1())})
    jwk = json.loads(own.key_set())["keys"][0]
    for header in (
        {"jwk": jwk},
        {"jku": "http://127.0.0.1:1/jwks"},
        {"x5u": "file:///etc/passwd", "x5c": ["AAAA"]},
    ):
        for kid in ({"kid": "e"}, {}):
            token = own.signed({"alg": "ES256", **kid, **header}, own.claims())
            assert "another key" in await at.reason(token)
    good = at.issuer.signed({"alg": "ES256", "kid": "e", "jku": "x"}, at.issuer.claims())
    assert await at.name(good) == "alice"


async def test_names_of_keys(at: Place) -> None:
    for kid in ("", "x", "E", "../e", "e\0", "x" * 10_000, 7, None, ["e"]):
        token = at.issuer.signed({"alg": "ES256", "kid": kid}, at.issuer.claims())
        await at.reason(token)


async def test_what_is_long_is_not_taken_apart(at: Place) -> None:
    """Authlib's CVE-2025-61920: a header of megabytes."""
    for size in (MAX_TOKEN_BYTES, 5_000_000):
        token = at.issuer.signed({"alg": "ES256", "kid": "e", "x": "y" * size}, {})
        began = time.thread_time()  # its own: others may be busy
        assert "bytes" in await at.reason(token)
        assert time.thread_time() - began < 0.1


async def test_deep_json(at: Place) -> None:
    deep = b"[" * 5000 + b"]" * 5000
    header = in_base64({"alg": "ES256", "kid": "e"})
    for token in (
        f"{in_base64(deep)}.{in_base64({})}.AA",
        at.issuer.signed(json.loads("{}"), deep),
    ):
        await at.reason(token)
    body = f"{header}.{in_base64(deep)}"
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    await at.reason(f"{body}.{in_base64(algorithm.sign(body.encode(), at.issuer.keys['e']))}")


async def test_a_signature_of_another_token(at: Place) -> None:
    one, other = at.issuer.token("alice"), at.issuer.token("bob")
    mixed = ".".join([*other.split(".")[:2], one.split(".")[2]])
    assert "another key" in await at.reason(mixed)


async def test_anything_but_a_token_is_refused(at: Place) -> None:
    for text in ("", ".", "..", "a.b", "a.b.c.d", "\x00" * 10, "é.é.é", "." * 5000):
        await at.reason(text)


@given(data=st.data())
async def test_a_changed_token_is_refused(data: st.DataObject, tmp_path_factory: Any) -> None:
    at = _SHARED.setdefault("at", Place(tmp_path_factory.mktemp("shared")))
    token = at.issuer.token()
    at_ = data.draw(st.integers(0, len(token) - 3))  # the last letters have bits that say nothing
    letter = data.draw(st.sampled_from("ABCxyz019-_.")).replace(token[at_], "~")
    await at.reason(token[:at_] + letter + token[at_ + 1 :])


_SHARED: dict[str, Place] = {}
