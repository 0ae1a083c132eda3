"""SaslAuthenticate, and tokens without it: who is let in, what the others are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from core.security.principal import ANONYMOUS, Principal
from core.security.verifier import Verifier
from gateway.kafka.codec import AlterUserScramCredentialsRequest, SaslAuthenticateRequest
from tests.core.security.exchanges import Client as ScramClient
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.logging_in import (
    ALICE,
    QUICK,
    SHA_256,
    SHA_512,
    WRONG,
    Entrance,
    entrance,
    peer,
    refusals,
)
from tests.kafka_codes import Code

ANOTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


@pytest.fixture
async def at(make_broker: MakeBroker) -> AsyncIterator[Entrance]:
    async with entrance(await make_broker(QUICK)) as made:
        yield made


def wrong(mechanism: str) -> str:
    if mechanism == "PLAIN":
        return "Authentication failed: Invalid username or password"
    return WRONG + mechanism


async def log_in(one: Any, mechanism: str, user: str, password: str) -> Any:
    if mechanism == "PLAIN":
        return await one.plain(user, password)
    return await one.scram(user, password, mechanism)


# --- right and wrong ---


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_who_knows_the_password_is_let_in(at: Entrance, mechanism: str) -> None:
    both = Verifier.of_password(SHA_512, b"s", 4096, "bäcker,=")
    await at.put_and_know(
        ("bö=b,", Verifier.of_password(SHA_256, b"s", 4096, "bäcker,=")), ("bö=b,", both)
    )
    async with peer(at) as one:
        answer = await log_in(one, mechanism, "bö=b,", "bäcker,=")
        assert (answer.error_code, answer.error_message, answer.session_lifetime_ms) == (0, "", 0)
        assert (await one.metadata()).controller_id == 1
    assert at.counted == [(mechanism, "success")]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "Wonderland"), ("alice", "wonderland "), ("Alice", "wonderland"), ("nobody", "x")],
)
async def test_nobody_else_is_and_all_are_told_the_same(
    at: Entrance, mechanism: str, user: str, password: str
) -> None:
    with capture_logs() as logs:
        async with peer(at) as one:
            answer = await log_in(one, mechanism, user, password)
            assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
            assert (answer.error_message, answer.auth_bytes) == (wrong(mechanism), b"")
            assert await one.is_closed()
    assert refusals(logs) == [(user, "wrong password, or no such user")]
    assert at.counted == [(mechanism, "failure")]


async def test_a_user_that_is_not_there_has_a_salt_that_stays(
    at: Entrance, make_broker: MakeBroker
) -> None:
    """Also at other brokers."""
    salts = []
    async with entrance(await make_broker(QUICK)) as other:
        for door in (at, at, other):
            for user in ("nobody", "alice"):
                async with peer(door) as one:
                    await one.handshake()
                    answer = await one.token(ScramClient("SCRAM-SHA-256", user, "").first())
                    fields = dict(
                        f.split("=", 1) for f in bytes(answer.auth_bytes).decode().split(",")
                    )
                    salts.append((user, fields["s"], fields["i"], len(fields["r"])))
    assert len(set(salts)) == 2
    (_, one_salt, *one_rest), (_, other_salt, *other_rest) = set(salts)
    assert (len(one_salt), one_rest) == (len(other_salt), other_rest)


async def test_nonces_are_fresh(at: Entrance) -> None:
    first = ScramClient("SCRAM-SHA-256", "alice", "").first()
    challenges = set()
    for _ in range(3):
        async with peer(at) as one:
            await one.handshake()
            challenges.add(bytes((await one.token(first)).auth_bytes))
    assert len(challenges) == 3


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("user", ["alice", "nobody"])
async def test_nobody_acts_as_another(at: Entrance, mechanism: str, user: str) -> None:
    """CVE-2017-12610. Whether there is such a user is not told by the way."""
    async with peer(at) as one:
        if mechanism == "PLAIN":
            answer = await one.plain(user, as_whom="root")
            told = ANOTHER_ID if user == "alice" else wrong("PLAIN")
        else:
            answer, told = await one.scram(user, gs2_header="n,a=root,"), ANOTHER_ID
        assert (answer.error_code, answer.error_message) == (Code.SASL_AUTHENTICATION_FAILED, told)
        assert await one.is_closed()
    for how in ({"gs2_header": "n,a=alice,"}, {"gs2_header": "y,,"}):
        async with peer(at) as one:
            assert (await one.scram("alice", **how)).error_code == 0
    async with peer(at) as one:
        assert (await one.plain("alice", as_whom="alice")).error_code == 0


async def test_a_users_name_is_no_delegation_token(at: Entrance) -> None:
    async with peer(at) as one:
        answer = await one.scram("alice", extensions=",tokenauth=true")
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    async with peer(at) as one:
        assert (await one.scram("alice", extensions=",tokenauth=false,x=y")).error_code == 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(
    "token", [b"", b"\0", b"n,,n=alice", b"\xff" * 1000, b"\0alice\0", b"=" * 9]
)
async def test_what_is_no_message_of_the_mechanism_is_refused(
    at: Entrance, mechanism: str, token: bytes
) -> None:
    """Redpanda's issue 11349: with an answer."""
    async with peer(at) as one:
        await one.handshake(mechanism)
        answer = await one.token(token)
        assert (answer.error_code, answer.error_message) == (
            *(Code.SASL_AUTHENTICATION_FAILED, WRONG + mechanism),
        )
        assert await one.is_closed()


@pytest.mark.parametrize("version", range(3))
async def test_every_version(at: Entrance, version: int) -> None:
    async with peer(at) as one:
        await one.handshake("PLAIN")
        assert (await one.token(b"\0alice\0wonderland", version)).error_code == 0
    async with peer(at) as one:
        await one.handshake("PLAIN")
        answer = await one.token(b"\0alice\0", version)
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED


# --- without it ---


async def test_tokens_may_be_bare(at: Entrance) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "wonderland")
    async with peer(at) as one:
        assert (await one.handshake(version=0)).error_code == 0
        one.send(client.first())
        one.send(client.final(await one.receive()))
        assert client.believes(await one.receive())
        assert (await one.metadata()).controller_id == 1
    async with peer(at) as one:
        assert (await one.handshake("PLAIN", version=0)).error_code == 0
        one.send(b"\0alice\0wonderland")
        assert await one.receive() == b""
        assert (await one.metadata()).controller_id == 1
    assert at.counted == [("SCRAM-SHA-256", "success"), ("PLAIN", "success")]


@pytest.mark.parametrize("token", [b"", b"\0alice\0wrong", b"\0\0\0\x12" * 9, b"\0" * 70_000])
async def test_a_bare_token_that_is_wrong_closes(at: Entrance, token: bytes) -> None:
    async with peer(at) as one:
        await one.handshake("PLAIN", version=0)
        one.send(token)
        assert await one.is_closed()
    assert at.counted == [("PLAIN", "failure")]


# --- at the wrong time ---


async def test_where_nobody_is_asked_it_is_out_of_place(broker: Broker) -> None:
    answer = await broker.ask(SaslAuthenticateRequest(auth_bytes=b"x"), 2)
    assert answer.error_code == Code.ILLEGAL_SASL_STATE
    assert broker.context().principal == ANONYMOUS


async def test_who_is_in_has_nothing_to_prove(at: Entrance) -> None:
    async with peer(at) as one:
        await one.plain()
        answer = await one.token(b"\0alice\0wrong")
        assert (answer.error_code, answer.error_message) == (
            Code.ILLEGAL_SASL_STATE,
            "SaslAuthenticate request received after successful authentication",
        )
        assert (await one.metadata()).controller_id == 1


async def test_a_failure_takes_its_time(make_broker: MakeBroker) -> None:
    slow = QUICK | {"connection.failed.authentication.delay.ms": "600"}
    async with entrance(await make_broker(slow)) as at:
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            async with peer(at) as one:
                begun = time.monotonic()
                answer = await log_in(one, mechanism, "alice", "wrong")
                assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
                assert time.monotonic() - begun >= 0.6
                assert await one.is_closed()


# --- sessions ---


@pytest.fixture
async def short(make_broker: MakeBroker) -> AsyncIterator[Entrance]:
    """Sessions of 1.5 seconds."""
    settings = QUICK | {"connections.max.reauth.ms": "1500"}
    async with entrance(await make_broker(settings)) as made:
        yield made


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_session_that_is_renewed_goes_on(make_broker: MakeBroker, mechanism: str) -> None:
    settings = QUICK | {"connections.max.reauth.ms": "5000"}
    async with entrance(await make_broker(settings)) as at:
        async with peer(at) as one:
            for _ in range(2):
                answer = await log_in(one, mechanism, "alice", "wonderland")
                assert (answer.error_code, answer.session_lifetime_ms) == (0, 5000)
                assert (await one.metadata()).controller_id == 1
                await asyncio.sleep(3)
            assert (await one.metadata()).controller_id == 1
        assert at.counted == [(mechanism, "success")] * 2


@pytest.mark.parametrize("is_bare", [True, False])
async def test_after_its_time_a_session_serves_nothing(short: Entrance, is_bare: bool) -> None:
    """KAFKA-9241: however old the client is."""
    async with peer(short) as one:
        await one.handshake("PLAIN", version=0 if is_bare else 1)
        if is_bare:
            one.send(b"\0alice\0wonderland")
            await one.receive()
        else:
            assert (await one.token(b"\0alice\0wonderland", 0)).error_code == 0
        assert (await one.metadata()).controller_id == 1
        await asyncio.sleep(1.6)
        with pytest.raises(asyncio.IncompleteReadError):
            await one.metadata()


async def test_after_its_time_a_session_may_still_be_renewed(short: Entrance) -> None:
    async with peer(short) as one:
        await one.scram()
        await asyncio.sleep(1.6)
        assert (await one.scram()).error_code == 0
        assert (await one.metadata()).controller_id == 1


async def test_bare_tokens_renew_a_session_too(short: Entrance) -> None:
    async with peer(short) as one:
        for _ in range(2):
            assert (await one.handshake("PLAIN", version=0)).error_code == 0
            one.send(b"\0alice\0wonderland")
            assert await one.receive() == b""
            await asyncio.sleep(1.1)
        assert (await one.plain()).error_code == 0, "and by requests, if it likes"
        assert (await one.metadata()).controller_id == 1


async def test_only_the_same_user_renews_a_session(short: Entrance) -> None:
    await short.put_and_know(("bob", Verifier.of_password(SHA_256, b"s", 4096, "builder")))
    async with peer(short) as one:
        await one.scram()
        await asyncio.sleep(1.1)
        answer = await one.scram("bob", "builder")
        assert (answer.error_code, answer.error_message) == (
            Code.SASL_AUTHENTICATION_FAILED,
            "Cannot change principals during re-authentication from User.alice: User.bob",
        )
        assert await one.is_closed()


async def test_only_the_same_mechanism_renews_a_session(short: Entrance) -> None:
    async with peer(short) as one:
        await one.scram()
        await asyncio.sleep(1.1)
        answer = await one.plain()
        assert (answer.error_code, answer.error_message) == (
            Code.SASL_AUTHENTICATION_FAILED,
            "SASL mechanism 'PLAIN' requested by client is not supported for re-authentication of "
            "mechanism 'SCRAM-SHA-256'",
        )
        assert await one.is_closed()


async def test_a_wrong_password_ends_a_session(short: Entrance) -> None:
    """KAFKA-13848."""
    async with peer(short) as one:
        await one.scram()
        await asyncio.sleep(1.1)
        answer = await one.scram(password="wrong")
        assert (answer.error_code, answer.error_message) == (
            Code.SASL_AUTHENTICATION_FAILED,
            "Authentication failed during re-authentication due to invalid credentials with SASL "
            "mechanism SCRAM-SHA-256",
        )
        assert await one.is_closed()


async def test_nothing_else_comes_amid_a_renewal(short: Entrance) -> None:
    async with peer(short) as one:
        await one.scram()
        await asyncio.sleep(1.1)
        await one.handshake()
        with pytest.raises(asyncio.IncompleteReadError):
            await one.metadata()


async def test_a_session_is_renewed_once_a_second_at_most(short: Entrance) -> None:
    async with peer(short) as one:
        await one.scram()
        assert (await one.scram()).error_code == 0
        answer = await one.handshake()
        assert (answer.error_code, list(answer.mechanisms)) == (Code.ILLEGAL_SASL_STATE, [])
        assert (await one.metadata()).controller_id == 1


# --- changes ---


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("how", ["deleted", "changed", "by psql"])
async def test_whose_password_is_gone_is_disconnected(
    at: Entrance, mechanism: str, how: str
) -> None:
    async with peer(at) as one:
        await log_in(one, mechanism, "alice", "wonderland")
        with capture_logs() as logs:
            if how == "deleted":
                await at.delete(("alice", SHA_256))
            elif how == "changed":
                await at.put(("alice", Verifier.of_password(SHA_256, b"s", 4096, "another")))
            else:
                with psycopg.connect(at.broker.database.url) as connection:
                    connection.execute("DELETE FROM scram_credential")
            assert await one.is_closed()
        reasons = [each["reason"] for each in logs if each["event"] == "connection closed"]
        assert reasons == ["user alice was deleted, or its password was changed"]
    async with peer(at) as one:
        answer = await log_in(one, mechanism, "alice", "wonderland")
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED


async def test_other_changes_disconnect_nobody(at: Entrance) -> None:
    async with peer(at) as one:
        await one.scram()
        await at.put(
            ("bob", Verifier.of_password(SHA_256, b"s", 4096, "b")),
            ("alice", Verifier.of_password(SHA_512, b"s", 4096, "another")),
            ("alice", ALICE),
        )
        await at.broker.users.refresh()
        assert at.broker.users.find("alice", SHA_512) is not None
        assert (await one.metadata()).controller_id == 1


async def test_who_is_logging_in_when_it_changes_is_not_let_in(at: Entrance) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "wonderland")
    async with peer(at) as one:
        await one.handshake()
        challenge = await one.token(client.first())
        await at.put(("alice", Verifier.of_password(SHA_256, b"s", 4096, "another")))
        await at.broker.users.refresh()
        answer = await one.token(client.final(bytes(challenge.auth_bytes)))
        assert (answer.error_code, answer.error_message) == (
            *(Code.SASL_AUTHENTICATION_FAILED, WRONG + "SCRAM-SHA-256"),
        )


# --- who is there ---


async def test_handlers_are_told_who_asks(at: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    alter = at.broker.users.alter

    async def noting(*arguments: Any, principal: Principal, **others: Any) -> Any:
        seen.append(principal)
        return await alter(*arguments, principal=principal, **others)

    monkeypatch.setattr(at.broker.users, "alter", noting)
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[])
    async with peer(at) as one:
        await one.versions()
        await one.scram()
        await one.ask(request, 0)
    assert [str(each) for each in seen] == ["User:alice"]
