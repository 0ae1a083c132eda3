"""Key sets: what is taken of them, and an endpoint that is down, slow, huge, empty or rotated."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from structlog.testing import capture_logs

from gateway.runtime import key_sets
from gateway.runtime.key_sets import (
    MAX_BYTES,
    MAX_KEYS,
    UNKNOWN_KEY_APART_S,
    KeySets,
    KeySource,
    KeysUnavailable,
    NoKeySet,
    read_key_set,
)
from tests.certificates import Authority
from tests.issuer import Issuer, in_base64, jwk_of, rsa_key, serving


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving(Issuer()) as made:
        yield made


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def of(url: str, clock: Callable[[], float] = time.monotonic, **settings: Any) -> KeySets:
    return KeySets(KeySource(url, **settings), clock=clock)


async def ids(keys: KeySets, key_id: str | None, algorithm: str = "ES256") -> list[str | None]:
    return [each.key_id for each in await keys.find(key_id, algorithm)]


# --- what is taken ---


def test_a_key_has_the_algorithms_that_it_is_for() -> None:
    small = rsa.generate_private_key(65537, 1024)
    given = [
        jwk_of(rsa_key(), kid="any"),
        jwk_of(rsa_key(), kid="one", alg="PS384", use="sig", key_ops=["verify"]),
        jwk_of(ec.generate_private_key(ec.SECP384R1()), kid="p384"),
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": in_base64(_ed25519())},
        # And what is not taken.
        jwk_of(small, kid="small"),
        jwk_of(rsa_key(), kid="encrypts", use="enc"),
        jwk_of(rsa_key(), kid="signs", key_ops=["sign"]),
        jwk_of(rsa_key(), kid="other", alg="HS256"),
        jwk_of(rsa_key(), kid="none", alg="none"),
        jwk_of(rsa_key(), kid=7),
        jwk_of(rsa_key(), kid="private") | {"d": "AQAB"},
        jwk_of(ec.generate_private_key(ec.SECP256K1()), kid="coins"),
        {"kty": "oct", "kid": "secret", "k": in_base64(b"x" * 64)},
        {"kty": "RSA", "kid": "cut", "n": "AQ"},
        {"kty": "EC", "crv": "P-256", "kid": "off the curve", "x": in_base64(b"1" * 32)},
        {"kty": []},
        {},
        "key",
        None,
    ]
    found = read_key_set(json.dumps({"keys": given}).encode())
    assert {each.key_id: sorted(each.algorithms) for each in found} == {
        "any": ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"],
        "one": ["PS384"],
        "p384": ["ES384"],
        "ed": ["EdDSA"],
    }


def _ed25519() -> bytes:
    return ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[{"kty":"oct","k":"AAAA"}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"keys": [{}] * (MAX_KEYS + 1)}).encode(),
    ],
)
def test_what_is_no_key_set(text: bytes) -> None:
    with pytest.raises(NoKeySet):
        read_key_set(text)


# --- where they come from ---


async def test_keys_are_fetched_once_and_kept(issuer: Issuer) -> None:
    keys = of(f"{issuer.url}/jwks")
    found = await asyncio.gather(*(ids(keys, "e") for _ in range(20)))
    assert found == [["e"]] * 20
    assert await ids(keys, "r", "RS512") == ["r"]
    assert await ids(keys, None, "RS256") == ["r"]
    assert issuer.asked == ["/jwks"]


async def test_a_key_is_not_another_algorithms(issuer: Issuer) -> None:
    keys = of(f"{issuer.url}/jwks")
    assert await ids(keys, "e", "RS256") == []
    for algorithm in ("HS256", "none", ""):
        assert await ids(keys, "r", algorithm) == []


async def test_keys_are_fetched_again_when_they_are_old(issuer: Issuer) -> None:
    clock = Clock()
    keys = of(f"{issuer.url}/jwks", clock, refresh_s=60)
    assert await ids(keys, "e") == ["e"]
    issuer.keys = {"n": issuer.keys["e"]}
    clock.now += 59
    assert await ids(keys, "e") == ["e"]
    clock.now += 2
    assert await ids(keys, "e") == [], "it has been withdrawn"
    assert await ids(keys, "n") == ["n"]


async def test_an_unknown_key_makes_it_ask_once_in_a_while(issuer: Issuer) -> None:
    """So rotated keys count at once, and whoever makes up names of keys does no harm."""
    clock = Clock()
    keys = of(f"{issuer.url}/jwks", clock)
    await ids(keys, "e")
    issuer.keys["n"] = issuer.keys["e"]
    assert await ids(keys, "n") == ["n"]
    for number in range(100):
        assert await ids(keys, f"made up {number}") == []
    assert len(issuer.asked) == 2
    clock.now += UNKNOWN_KEY_APART_S
    await asyncio.gather(*(ids(keys, f"made up {number}") for number in range(100)))
    assert len(issuer.asked) == 3


async def test_without_any_keys_nobody_can_tell(issuer: Issuer) -> None:
    clock = Clock()
    issuer.answers["/jwks"] = (503, {}, b"")
    keys = of(f"{issuer.url}/jwks", clock, backoff_s=1, backoff_max_s=5)
    with capture_logs() as logs:
        for pause_s in (0, 0.5, 0.6, 1.9, 0.2, 3.9, 0.2, 4.9, 0.2, 4.9, 0.2):
            clock.now += pause_s
            with pytest.raises(KeysUnavailable):
                await ids(keys, "e")
    assert len(issuer.asked) == 6, "after 0, 1, 2, 4, 5 and 5 seconds"
    assert [line["event"] for line in logs] == ["keys_unavailable"]
    assert "503" in logs[0]["reason"]
    del issuer.answers["/jwks"]
    clock.now += 6
    with capture_logs() as logs:
        assert await ids(keys, "e") == ["e"]
    assert [line["event"] for line in logs] == ["keys_read"]


BROKEN = {
    "down": (500, {}, b""),
    "empty": (200, {}, b""),
    "no keys": (200, {}, b'{"keys":[]}'),
    "huge": (200, {}, b" " * (MAX_BYTES + 1)),
    "elsewhere": (302, {"Location": "file:///etc/passwd"}, b""),
    "plain": (302, {"Location": "https://127.0.0.1:1/jwks"}, b""),
    "circle": (302, {"Location": "/jwks"}, b""),
    "nowhere": (302, {}, b""),
    "no content": (204, {}, b""),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_while_an_endpoint_is_broken_the_last_keys_stay(issuer: Issuer, how: str) -> None:
    clock = Clock()
    keys = of(f"{issuer.url}/jwks", clock, refresh_s=60)
    await ids(keys, "e")
    issuer.answers["/jwks"] = BROKEN[how]
    with capture_logs() as logs:
        for _ in range(3):
            clock.now += 61
            assert await ids(keys, "e") == ["e"]
    assert [line["event"] for line in logs] == ["keys_unavailable"]
    assert len(issuer.asked) <= 1 + 3 * 4


async def test_redirects_are_followed_within_the_scheme(issuer: Issuer) -> None:
    issuer.answers["/a"] = (301, {"Location": "/b"}, b"")
    issuer.answers["/b"] = (307, {"Location": f"{issuer.url}/jwks"}, b"")
    assert await ids(of(f"{issuer.url}/a"), "e") == ["e"]


@contextmanager
def drop_by_drop(sent: bytes) -> Iterator[str]:
    """A server that says this, a byte at a time and again and again, and never ends."""
    is_over = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not is_over.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(peer,), daemon=True).start()

    def drip(peer: socket.socket) -> None:
        with peer:
            try:
                while not is_over.wait(0.01):
                    peer.sendall(sent)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/jwks"
        is_over.set()


@pytest.mark.parametrize("sent", [b"H", b"HTTP/1.1 200 OK\r\nX: y\r\n", b""])
async def test_a_slow_endpoint_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it does it; other logins are not held up."""
    monkeypatch.setattr(key_sets, "FETCH_TIMEOUT_S", 0.3)
    with drop_by_drop(sent) as url, capture_logs() as logs:
        began = time.monotonic()
        with pytest.raises(KeysUnavailable):
            await ids(of(url), "e")
        assert time.monotonic() - began < 5
    assert [line["event"] for line in logs] == ["keys_unavailable"]


async def test_logins_do_not_wait_long_where_there_are_keys(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "PATIENCE_S", 0.05)
    clock = Clock()
    keys = of(f"{issuer.url}/jwks", clock, refresh_s=60)
    await ids(keys, "e")
    with drop_by_drop(b"") as url:
        keys._url = key_sets.urlsplit(url)
        clock.now += 61
        async with asyncio.timeout(5):
            assert await ids(keys, "e") == ["e"]
        assert keys._fetching is not None
        keys._fetching.cancel()


async def test_nobody_is_there(free_tcp_port: int) -> None:
    with pytest.raises(KeysUnavailable):
        await ids(of(f"http://127.0.0.1:{free_tcp_port}/"), "e")


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_https_trusts_whom_the_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    authority = Authority.made(tmp_path)
    certificate = authority.write("issuer.pem", "CN=issuer", host="localhost")
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.write_own()))
    with serving(Issuer(), certificate) as issuer:
        keys = of(f"{issuer.url}/jwks")
        if is_trusted:
            assert await ids(keys, "e") == ["e"]
            return
        with capture_logs() as logs, pytest.raises(KeysUnavailable):
            await ids(keys, "e")
        assert "certificate verify failed" in logs[0]["reason"]
        assert issuer.asked == []


async def test_a_file_is_read_again_when_it_changes(issuer: Issuer, tmp_path: Path) -> None:
    clock = Clock()
    file = tmp_path / "key set.json"
    file.write_bytes(issuer.key_set())
    keys = of(file.as_uri(), clock)
    assert await ids(keys, "e") == ["e"]
    issuer.keys = {"n": issuer.keys["e"]}
    file.write_bytes(issuer.key_set())
    clock.now += 1.1
    assert (await ids(keys, "e"), await ids(keys, "n")) == ([], ["n"])
    file.unlink()
    clock.now += 1.1
    with capture_logs() as logs:
        assert await ids(keys, "n") == ["n"]
    assert [line["event"] for line in logs] == ["keys_unavailable"]


async def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    with file.open("wb") as sparse:
        sparse.truncate(100 * MAX_BYTES)
    with pytest.raises(KeysUnavailable):
        await ids(of(file.as_uri()), "e")
