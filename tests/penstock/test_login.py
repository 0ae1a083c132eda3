"""The client's side of a login, against the server's, and against a server that lies."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.security.plain import read_plain
from core.security.scram import Challenge, Disproved, Proved, ScramServer
from core.security.verifier import ScramMechanism, Verifier
from penstock.connecting import Login
from penstock.login import LoginFailed, exchange

SALT = b"0123456789abcdef"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


def server(mechanism: ScramMechanism, password: str) -> ScramServer:
    return ScramServer(
        mechanism, "theirs", lambda _: Verifier.of_password(mechanism, SALT, 4096, password)
    )


@given(TEXT, TEXT, st.sampled_from(ScramMechanism))
def test_scram(user: str, password: str, mechanism: ScramMechanism) -> None:
    peer = server(mechanism, password)
    tokens = exchange(Login(mechanism.value, user, password))
    challenge = peer.receive(next(tokens))
    assert isinstance(challenge, Challenge)
    proved = peer.receive(tokens.send(challenge.message))
    assert isinstance(proved, Proved)
    assert proved.user == user
    with pytest.raises(StopIteration):
        tokens.send(proved.message)


def test_a_wrong_password_proves_nothing() -> None:
    peer = server(ScramMechanism.SHA_256, "right")
    tokens = exchange(Login("SCRAM-SHA-256", "alice", "wrong"))
    challenge = peer.receive(next(tokens))
    assert isinstance(challenge, Challenge)
    assert isinstance(peer.receive(tokens.send(challenge.message)), Disproved)


@given(TEXT, TEXT)
def test_plain(user: str, password: str) -> None:
    tokens = exchange(Login("PLAIN", user, password))
    told = read_plain(next(tokens))
    assert told is not None
    assert (told.authorization_id, told.user, told.password) == ("", user, password)
    with pytest.raises(StopIteration):
        tokens.send(b"")


def _field(name: str, value: str) -> Callable[[bytes], bytes]:
    def changed(message: bytes) -> bytes:
        fields = dict(each.split("=", 1) for each in message.decode().split(","))
        return ",".join(f"{n}={v}" for n, v in (fields | {name: value}).items()).encode()

    return changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: b"", "malformed"),
        (lambda _: b"e=other-error", "malformed"),
        (lambda _: b"\xff\xfe", "malformed"),
        (_field("s", "no base64!"), "malformed"),
        (_field("i", "many"), "malformed"),
        (_field("r", "anothers"), "for another login"),
        (_field("i", "4095"), "asks for 4095 iterations"),
        (_field("i", "1000001"), "asks for 1000001 iterations"),
    ],
)
def test_a_challenge_that_is_wrong(change: Callable[[bytes], bytes], reason: str) -> None:
    tokens = exchange(Login("SCRAM-SHA-256", "alice", "secret"))
    challenge = server(ScramMechanism.SHA_256, "secret").receive(next(tokens))
    assert isinstance(challenge, Challenge)
    with pytest.raises(LoginFailed, match=reason):
        tokens.send(change(challenge.message))


def test_a_server_that_adds_nothing_of_its_own() -> None:
    """Its challenge could be one that was recorded."""
    tokens = exchange(Login("SCRAM-SHA-256", "alice", "secret"))
    own = next(tokens).decode().rpartition("r=")[2]
    with pytest.raises(LoginFailed, match="for another login"):
        tokens.send(f"r={own},s={b64encode(SALT).decode()},i=4096".encode())


@pytest.mark.parametrize("last", [b"v=AAAA", b"v=!", b"", b"e=invalid-proof"])
def test_a_server_that_does_not_know_the_password(last: bytes) -> None:
    peer = server(ScramMechanism.SHA_512, "secret")
    tokens = exchange(Login("SCRAM-SHA-512", "alice", "secret"))
    challenge = peer.receive(next(tokens))
    assert isinstance(challenge, Challenge)
    tokens.send(challenge.message)
    with pytest.raises(LoginFailed, match=r"malformed|does not know the password"):
        tokens.send(last)
