"""SaslHandshake, and what a connection may ask before, amid and after a login."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from gateway.kafka.codec import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from gateway.kafka.login import LoginState
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.logging_in import (
    QUICK,
    Entrance,
    Peer,
    entrance,
    framed,
    peer,
    refusals,
)
from tests.kafka_codes import Code

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture
async def at(make_broker: MakeBroker) -> AsyncIterator[Entrance]:
    async with entrance(await make_broker(QUICK)) as made:
        yield made


async def test_where_nobody_is_asked_it_is_out_of_place(broker: Broker) -> None:
    for version in range(2):
        answer = await broker.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
        assert (answer.error_code, list(answer.mechanisms)) == (Code.ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_mechanism_is_chosen(at: Entrance, mechanism: str, version: int) -> None:
    async with peer(at) as one:
        answer = await one.handshake(mechanism, version)
        assert (answer.error_code, list(answer.mechanisms)) == (0, MECHANISMS)


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "plain", "OAUTHBEARER", "x\n" * 500])
async def test_one_that_is_not_offered_is_refused(
    at: Entrance, mechanism: str, version: int
) -> None:
    with capture_logs() as logs:
        async with peer(at) as one:
            answer = await one.handshake(mechanism, version)
            assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
            assert list(answer.mechanisms) == MECHANISMS
            assert await one.is_closed()
    [(user, reason)] = refusals(logs)
    assert user is None
    assert "\n" not in reason
    assert len(reason) < 250
    assert at.counted == [("unsupported", "failure")]


async def test_what_is_offered_may_change(at: Entrance) -> None:
    step = ConfigOperation("sasl.enabled.mechanisms", 0, "SCRAM-SHA-512")
    configs = at.broker.configs
    change = ConfigAlteration(ConfigResource(4, str(at.broker.cluster.broker_id)), (step,))
    assert await configs.alter([change], validate_only=False) == [None]
    await configs.load()
    async with peer(at) as one:
        answer = await one.handshake("PLAIN")
        assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert list(answer.mechanisms) == ["SCRAM-SHA-512"]


# --- (state, event) ---

# What each request does to a connection in each state: it goes on, in which state; it is told no
# and closed; or closed without a word.
CLOSED, REFUSED = "closed", "refused"
STATES = ("new", "told versions", "token", "bare token", "in")
TABLE: dict[str, dict[str, Any]] = {
    "versions": {
        "new": LoginState.HANDSHAKE,
        "told versions": CLOSED,
        "token": CLOSED,
        "bare token": CLOSED,  # a frame like any other, and no token
        "in": LoginState.LOGGED_IN,
    },
    "versions that are not served": {
        "new": LoginState.VERSIONS_OR_HANDSHAKE,
        "told versions": CLOSED,
        "token": CLOSED,
        "bare token": CLOSED,
        "in": LoginState.LOGGED_IN,
    },
    "handshake": {
        "new": LoginState.TOKEN,
        "told versions": LoginState.TOKEN,
        "token": REFUSED,
        "bare token": CLOSED,
        "in": LoginState.LOGGED_IN,  # ILLEGAL_SASL_STATE, and goes on
    },
    "token": {
        "new": CLOSED,
        "told versions": CLOSED,
        "token": LoginState.LOGGED_IN,
        "bare token": CLOSED,
        "in": LoginState.LOGGED_IN,
    },
    "wrong token": {
        "new": CLOSED,
        "told versions": CLOSED,
        "token": REFUSED,
        "bare token": CLOSED,
        "in": LoginState.LOGGED_IN,
    },
    "metadata": {
        "new": CLOSED,
        "told versions": CLOSED,
        "token": CLOSED,
        "bare token": CLOSED,
        "in": LoginState.LOGGED_IN,
    },
    "garbage": dict.fromkeys(STATES, CLOSED),
}


async def brought_to(state: str, one: Peer) -> None:
    if state == "told versions":
        await one.versions()
    elif state in ("token", "bare token"):
        await one.handshake("PLAIN", version=0 if state == "bare token" else 1)
    elif state == "in":
        await one.plain()


async def happens(event: str, one: Peer) -> Any:
    match event:
        case "versions":
            return await one.versions()
        case "versions that are not served":
            # The answer is of version 0.
            frame = bytearray(framed(ApiVersionsRequest(), 4, 7))
            struct.pack_into(">h", frame, 2, 99)
            one.send(bytes(frame))
            return await one.receive()
        case "handshake":
            return await one.handshake("PLAIN")
        case "token":
            return await one.token(b"\0alice\0wonderland")
        case "wrong token":
            return await one.token(b"\0alice\0wrong")
        case "metadata":
            return await one.metadata()
    one.send(b"\xffgarbage" * 9)
    return await one.receive()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", TABLE)
async def test_every_request_in_every_state(at: Entrance, state: str, event: str) -> None:
    async with peer(at) as one:
        await brought_to(state, one)
        [connection] = at.listener._connections
        expected = TABLE[event][state]
        if expected is CLOSED:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await happens(event, one)
            return
        answer = await happens(event, one)
        login = connection._login  # type: ignore[attr-defined]
        if expected is REFUSED:
            assert answer.error_code in (Code.ILLEGAL_SASL_STATE, Code.SASL_AUTHENTICATION_FAILED)
            assert await one.is_closed()
            assert login.state is LoginState.FAILED
        else:
            assert login.state is expected
            assert login.awaits_login == (expected is not LoginState.LOGGED_IN)


async def test_requests_that_come_too_early_are_closed_with_one_line(at: Entrance) -> None:
    with capture_logs() as logs:
        async with peer(at) as one:
            with pytest.raises(asyncio.IncompleteReadError):
                await one.metadata()
    lines = [each for each in logs if each["log_level"] == "warning"]
    assert [each["reason"] for each in lines] == ["a request of Metadata before a login"]


FRAMES = (
    framed(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1),
    framed(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1, 2),
    framed(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"), 2, 3),
    framed(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=abc,p=AAAA"), 0, 4),
    framed(ApiVersionsRequest(), 0, 5),
    framed(MetadataRequest(topics=[]), 9, 6),
    b"\0alice\0wrong",
    b"",
)


@pytest.mark.parametrize("number", range(8))
async def test_whatever_is_sent_nobody_is_in_and_nothing_breaks(at: Entrance, number: int) -> None:
    """Requests in any order, cut, with bytes changed, all at once or one by one."""
    chance = random.Random(number)
    with capture_logs() as logs:
        for _ in range(25):
            async with peer(at) as one:
                for _ in range(chance.randint(1, 6)):
                    frame = bytearray(chance.choice(FRAMES))
                    for _ in range(chance.choice((0, 0, 1, 5))):
                        if frame:
                            frame[chance.randrange(len(frame))] = chance.randrange(256)
                    one.send(bytes(frame[: chance.choice((len(frame), len(frame) // 2))]))
                    if chance.random() < 0.5:
                        await asyncio.sleep(0.001)
                with contextlib.suppress(TimeoutError, OSError):
                    if chance.random() < 0.5:
                        one.writer.write_eof()
                    async with asyncio.timeout(0.05):
                        await one.reader.read()
            assert not at.door._inside
    assert not [each for each in logs if each["log_level"] == "error"]
    assert ("PLAIN", "success") not in at.counted
    async with peer(at) as good:
        assert (await good.scram()).error_code == 0


# --- limits ---


async def test_a_large_request_is_taken_only_of_who_is_in(make_broker: MakeBroker) -> None:
    small = QUICK | {"sasl.server.max.receive.size": "2000"}
    async with entrance(await make_broker(small)) as at:
        for filled in (1900, 2100):
            async with peer(at) as one:
                await one.handshake("PLAIN")
                if filled < 2000:
                    answer = await one.token(b"x" * filled)
                    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
                else:
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                        await one.token(b"x" * filled)
        async with peer(at) as one:
            await one.plain()
            topics = [f"topic-{number}" * 10 for number in range(100)]
            asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
            assert len((await one.ask(request, 9)).topics) == 100


async def test_a_size_is_refused_before_it_is_sent(at: Entrance) -> None:
    async with peer(at) as one:
        one.writer.write(struct.pack(">i", 524_289))
        assert await one.is_closed()


async def test_who_does_not_log_in_is_closed(make_broker: MakeBroker) -> None:
    impatient = QUICK | {"penstock.login.timeout.ms": "3000"}
    async with entrance(await make_broker(impatient)) as at:
        with capture_logs() as logs:
            async with peer(at) as silent, peer(at) as slow, peer(at) as quick:
                await quick.plain()
                await slow.handshake()
                slow.writer.write(b"\0\0")  # half a token, or less
                assert await silent.is_closed()
                assert await slow.is_closed()
                assert (await quick.metadata()).controller_id == 1
        reasons = [each["reason"] for each in logs if each["event"] == "connection closed"]
        assert reasons == ["it has not logged in in time"] * 2


async def test_who_is_not_in_holds_one_request_in_memory(make_broker: MakeBroker) -> None:
    """CVE-2022-34917. What waits behind it stays in the socket."""
    slow = QUICK | {"connection.failed.authentication.delay.ms": "60000"}
    async with entrance(await make_broker(slow)) as at, peer(at) as one:
        await one.handshake("PLAIN")
        token = b"\0alice\0" + b"x" * 100_000
        for number in range(50):
            one.send(framed(SaslAuthenticateRequest(auth_bytes=token), 2, number))
        deadline = asyncio.get_running_loop().time() + 30
        while not at.counted:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        [connection] = at.listener._connections
        assert 100_000 < connection._memory.held_bytes < 400_000  # type: ignore[attr-defined]
