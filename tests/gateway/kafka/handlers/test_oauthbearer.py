"""Logins by OAUTHBEARER, message by message: RFC 7628, KIP-255, KIP-368."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from core.config.listeners import BearerSettings
from gateway.kafka import mechanisms
from gateway.runtime.bearer_tokens import BearerTokens, bearer_tokens_of
from gateway.runtime.key_sets import KeySets, KeySource
from tests.gateway.kafka.handlers.conftest import MakeBroker
from tests.gateway.kafka.handlers.logging_in import (
    INVALID,
    QUICK,
    WRONG,
    Entrance,
    entrance,
    peer,
    refusals,
)
from tests.gateway.runtime.test_bearer_tokens import SETTINGS
from tests.issuer import Issuer
from tests.kafka_codes import Code

OFFERED = {"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def bearers(issuer: Issuer, tmp_path: Path) -> BearerTokens:
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.key_set())
    known = BearerSettings(**SETTINGS)
    return BearerTokens(known, KeySets(KeySource(file.as_uri())))


@pytest.fixture
async def at(make_broker: MakeBroker, bearers: BearerTokens) -> AsyncIterator[Entrance]:
    async with entrance(await make_broker(QUICK | OFFERED), bearers=bearers) as made:
        yield made


async def test_who_has_a_good_token_is_let_in(at: Entrance, issuer: Issuer) -> None:
    expires = int(time.time()) + 100
    with capture_logs() as logs:
        async with peer(at) as one:
            answer = await one.bearer(issuer.token("bö", exp=expires))
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
            assert 95_000 < answer.session_lifetime_ms <= 100_000
            assert (await one.metadata()).controller_id == 1
    assert at.counted == [("OAUTHBEARER", "success")]
    assert [each["user"] for each in logs if each["event"] == "logged_in"] == ["bö"]


async def test_who_has_none_is_told_so_and_acknowledges_it(at: Entrance, issuer: Issuer) -> None:
    """It is one line in the log, which says more, and the token is not in it."""
    token = issuer.token(aud="others")
    with capture_logs() as logs:
        async with peer(at) as one:
            answer = await one.bearer(token)
            assert (answer.error_code, answer.error_message) == (
                Code.SASL_AUTHENTICATION_FAILED,
                INVALID.decode(),
            )
            assert await one.is_closed()
    assert refusals(logs) == [(None, "the token is for another audience")]
    assert at.counted == [("OAUTHBEARER", "failure")]
    assert token not in str(logs)


async def test_who_does_not_acknowledge_is_noted_as_well(at: Entrance, issuer: Issuer) -> None:
    """aiokafka and kafka-python take the answer for a good one."""
    message = f"n,,\x01auth=Bearer {issuer.token(exp=1)}\x01\x01".encode()
    for goes_on in (False, True):
        with capture_logs() as logs:
            async with peer(at) as one:
                await one.handshake("OAUTHBEARER")
                assert bytes((await one.token(message)).auth_bytes) == INVALID
                if goes_on:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await one.metadata()
        assert refusals(logs) == [(None, "the token has expired")]


async def test_a_second_token_is_not_looked_at(at: Entrance, issuer: Issuer) -> None:
    async with peer(at) as one:
        await one.handshake("OAUTHBEARER")
        for token in (issuer.token(exp=1), issuer.token()):
            answer = await one.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert await one.is_closed()


async def test_nobody_acts_as_another(at: Entrance, issuer: Issuer) -> None:
    async with peer(at) as one:
        assert (await one.bearer(issuer.token("alice"), "alice")).error_code == 0
    async with peer(at) as one:
        answer = await one.bearer(issuer.token("alice"), "bob")
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert "authorization id" in answer.error_message


@pytest.mark.parametrize("message", [b"", b"\x01", b"n,,\x01\x01", b"\0alice\0x", b"\xff" * 1000])
async def test_what_is_no_message_is_refused(at: Entrance, message: bytes) -> None:
    async with peer(at) as one:
        await one.handshake("OAUTHBEARER")
        answer = await one.token(message)
        assert (answer.error_code, answer.error_message) == (
            *(Code.SASL_AUTHENTICATION_FAILED, f"{WRONG}OAUTHBEARER"),
        )
        assert await one.is_closed()


async def test_a_message_without_a_request_around_it(at: Entrance, issuer: Issuer) -> None:
    async with peer(at) as one:
        await one.handshake("OAUTHBEARER", version=0)
        one.send(f"n,,\x01auth=Bearer {issuer.token()}\x01\x01".encode())
        assert await one.receive() == b""
        assert (await one.metadata()).controller_id == 1
    async with peer(at) as one:
        await one.handshake("OAUTHBEARER", version=0)
        one.send(f"n,,\x01auth=Bearer {issuer.token(exp=1)}\x01\x01".encode())
        assert await one.receive() == INVALID
        one.send(b"\x01")
        assert await one.is_closed()


# --- sessions ---


async def test_a_session_ends_with_its_token(at: Entrance, issuer: Issuer) -> None:
    async with peer(at) as one:
        answer = await one.bearer(issuer.token(exp=int(time.time()) + 5))
        assert 0 < answer.session_lifetime_ms <= 5000
        await asyncio.sleep(answer.session_lifetime_ms / 1000 + 0.1)
        with pytest.raises(asyncio.IncompleteReadError):
            await one.metadata()


async def test_a_session_is_renewed_by_a_newer_token(at: Entrance, issuer: Issuer) -> None:
    async with peer(at) as one:
        await one.bearer(issuer.token(exp=int(time.time()) + 5))
        await asyncio.sleep(1.1)
        answer = await one.bearer(issuer.token())
        assert (answer.error_code, answer.session_lifetime_ms > 200_000) == (0, True)
        await asyncio.sleep(4.1)
        assert (await one.metadata()).controller_id == 1


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        (
            "bob",
            {},
            "Cannot change principals during re-authentication from User.alice: User.bob",
        ),
        ("alice", {"exp": 1}, INVALID.decode()),
    ],
)
async def test_a_session_is_not_renewed_by_any_token(
    at: Entrance, issuer: Issuer, name: str, changed: dict[str, int], told: str
) -> None:
    async with peer(at) as one:
        await one.bearer(issuer.token())
        answer = await one.bearer(issuer.token(name, **changed))
        assert (answer.error_code, answer.error_message) == (Code.SASL_AUTHENTICATION_FAILED, told)
        assert await one.is_closed()


async def test_the_shorter_of_two_limits_counts(
    make_broker: MakeBroker, bearers: BearerTokens, issuer: Issuer
) -> None:
    limit = {"connections.max.reauth.ms": "60000"}
    async with (
        entrance(await make_broker(QUICK | OFFERED | limit), bearers=bearers) as at,
        peer(at) as one,
        peer(at) as other,
    ):
        assert (await one.bearer(issuer.token())).session_lifetime_ms == 60_000
        answer = await other.bearer(issuer.token(exp=int(time.time()) + 30))
        assert 25_000 < answer.session_lifetime_ms <= 30_000


# --- closed when in doubt ---


async def test_without_what_it_needs_it_is_not_offered(
    make_broker: MakeBroker, issuer: Issuer
) -> None:
    """Though the mechanism is enabled, as it may be in the database (CVE-2026-110985)."""
    async with entrance(await make_broker(QUICK | OFFERED)) as at, peer(at) as one:
        answer = await one.handshake("OAUTHBEARER")
        assert (answer.error_code, list(answer.mechanisms)) == (
            *(Code.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"]),
        )
        assert await one.is_closed()


async def test_while_there_are_no_keys_clients_try_again(
    make_broker: MakeBroker, issuer: Issuer, tmp_path: Path
) -> None:
    """Nobody is told that a token is bad of which nobody knows."""
    file = tmp_path / "later.json"
    bearers = bearer_tokens_of(BearerSettings(**SETTINGS | {"url": file.as_uri()}))
    async with entrance(await make_broker(QUICK | OFFERED), bearers=bearers) as at:
        message = f"n,,\x01auth=Bearer {issuer.token()}\x01\x01".encode()
        with capture_logs() as logs:
            async with peer(at) as one:
                await one.handshake("OAUTHBEARER")
                with pytest.raises(asyncio.IncompleteReadError):
                    await one.token(message)
        reasons = [each["reason"] for each in logs if each["event"] == "login_impossible"]
        assert reasons == [f"no keys are known from {file.as_uri()}"]
        file.write_bytes(issuer.key_set())
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(asyncio.IncompleteReadError):
                async with peer(at) as one:
                    assert (await one.bearer(issuer.token())).error_code == 0
                    break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    message=st.one_of(
        st.binary(max_size=200),
        st.from_regex(rb"n,(a=[a-z=,]*)?,?\x01?auth=Bearer [a-z.]*\x01?[a-z=]*\x01?\x01?"),
    )
)
async def test_any_bytes_end_the_login_or_are_refused(
    bearers: BearerTokens, message: bytes
) -> None:
    exchange = mechanisms._OAuthBearer(bearers)
    assert isinstance(await exchange.receive(message), mechanisms.No | mechanisms.Refused)
