"""The benchmark of security: its client logs in as others do, and its turns alternate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka.admin import NewTopic

from bench.security import cases, servers, work
from bench.security.logins import SCRAM_HASHES, LoginFailed, ScramUser, framed, read_token
from core.security.scram import Challenge, Disproved, Proved, ScramAnswer, ScramServer
from core.security.verifier import ScramMechanism, Verifier
from tests.databases import Copies
from tests.entrance import PASSWORD, USER, Entrance, own_entrance


def exchanged(mechanism: ScramMechanism, password: str) -> tuple[ScramAnswer, bytes]:
    """A server's last answer, and what the client expects of one that knows `password`."""
    verifier = Verifier.of_password(mechanism, b"0123456789abcdef", 4096, "wonderland")
    server = ScramServer(mechanism, "fresh", lambda _: verifier)
    client = ScramUser(mechanism.value, "alice", password)
    challenge = server.receive(client.first("nonce"))
    assert isinstance(challenge, Challenge)
    sent, believed = client.final("nonce", challenge.message)
    return server.receive(sent), believed


@pytest.mark.parametrize("mechanism", ScramMechanism, ids=lambda each: each.name)
def test_a_server_and_the_client_believe_each_other(mechanism: ScramMechanism) -> None:
    answer, believed = exchanged(mechanism, "wonderland")
    assert isinstance(answer, Proved)
    assert (answer.user, answer.message) == ("alice", believed)
    assert mechanism.value in SCRAM_HASHES


def test_a_wrong_password_proves_nothing() -> None:
    assert isinstance(exchanged(ScramMechanism.SHA_256, "Wonderland")[0], Disproved)


def test_a_password_is_salted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScramUser("SCRAM-SHA-256", "alice", "wonderland")
    first = client.final("nonce", b"r=nonce1,s=MDEyMw==,i=4096")
    monkeypatch.setattr("hashlib.pbkdf2_hmac", None)
    assert client.final("nonce", b"r=nonce1,s=MDEyMw==,i=4096") == first
    assert client.final("nonce", b"r=nonce2,s=MDEyMw==,i=4096") != first
    with pytest.raises(TypeError):
        client.final("nonce", b"r=nonce1,s=MDEyNA==,i=4096")


def test_frames_have_their_size_and_answers_their_token() -> None:
    frame = framed(17, 1, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert read_token(b"\0\0\0\7\0\x3a\0\2no\0\0\0\3abc\0" * 8)[0] == 58
    assert read_token(b"\0\0\0\7\0\0\xff\xff\0\0\0\3abc" + bytes(8)) == (0, b"abc")


def test_turns_alternate_so_that_a_drift_falls_on_both() -> None:
    slower: Iterator[int] = iter((100, 90, 80, 70))
    order: list[str] = []

    def turn(name: str) -> dict[str, float]:
        order.append(name)
        return {"mb_per_s": float(next(slower))}

    figures = cases.beside_each_other(
        ("plain", "tls"), lambda: turn("plain"), lambda: turn("tls"), "to_ratio", "mb_per_s"
    )
    assert order == ["plain", "tls", "tls", "plain"]
    assert figures == {"plain_mb_per_s": 85.0, "tls_mb_per_s": 85.0, "to_ratio": 1.0}


def test_half_the_latency_is_twice_as_quick() -> None:
    figures = cases.beside_each_other(
        ("without", "with"), lambda: {"p50_ms": 2.0}, lambda: {"p50_ms": 1.0}, "ratio", "p50_ms"
    )
    assert figures["ratio"] == 2.0


def test_of_ten_thousand_acls_half_are_prefixes() -> None:
    acls = servers.acls()
    assert len(set(acls)) == len(acls) == 10_004
    assert Counter(acl[-1] for acl in acls) == {"PREFIXED": 5_002, "LITERAL": 5_002}
    own = [acl[1:] for acl in acls if acl[0] == f"User:{servers.USER}"]
    about = [each for each in own if each[1] == "TOPIC" and "bench-1".startswith(each[2])]
    assert about == [("ALL", "TOPIC", "bench-", "PREFIXED")]


# --- against a broker ---


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    directory = tmp_path_factory.mktemp("bench")
    settings = "connections.max.reauth.ms=600000", "connection.failed.authentication.delay.ms=1"
    with own_entrance(copies, template_database, certificate, directory, *settings) as found:
        yield found


@pytest.fixture
def who(at: Entrance, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a worker that begins at once."""
    monkeypatch.setattr(work, "ready", lambda: None)
    login = {"mechanism": "SCRAM-SHA-256", "user": USER, "password": PASSWORD}
    return {"bootstrap": at.plain} | login


async def test_logins_are_counted(who: dict[str, Any]) -> None:
    result = await work.security_logins(**who, connections=2, seconds=0.1)
    assert result["records"] == result["count"] >= 2


async def test_who_is_not_let_in_counts_nothing(who: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed, match="error 58"):
        await work.security_logins(**who | {"password": "?"}, connections=1, seconds=0.1)


async def test_each_connection_logs_in_again(who: dict[str, Any]) -> None:
    result = await work.security_relogins(**who, connections=40, seconds=0.2)
    assert result["records"] == 40
    assert result["ended"] - result["begun"] >= 0.2 * 39 / 40  # the last begins so late


async def test_wrong_passwords_are_refused_and_counted(at: Entrance, who: dict[str, Any]) -> None:
    told = {"bootstrap": at.plain, "user": USER, "logins": 5, "seconds": 0.1}
    before = at.gateway.log().count("login_refused")
    assert (await work.security_wrong_logins(**told))["records"] == 5
    assert at.gateway.log().count("login_refused") == before + 6  # the first does not count


async def test_metadata_is_counted_if_the_topics_are_there(
    at: Entrance, who: dict[str, Any]
) -> None:
    at.admin.create_topics([NewTopic("one", 1)])["one"].result(20)
    told = who | {"topics": 1, "connections": 2, "seconds": 0.05}
    for topic in (None, "one"):
        assert (await work.security_metadata(**told, topic=topic))["records"] > 0
    with pytest.raises(RuntimeError, match="0 topics"):
        await work.security_metadata(**told, topic="another")


def test_the_acls_are_such_as_the_database_takes(at: Entrance) -> None:
    assert at.gateway.database_url is not None
    servers.insert_acls(at.gateway.database_url)
    with psycopg.connect(at.gateway.database_url) as connection:
        assert connection.execute("SELECT count(*) FROM acl").fetchone() == (10_004,)
