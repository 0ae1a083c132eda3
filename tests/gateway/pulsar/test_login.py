"""gateway.pulsar.login: who is let in, when a client is asked again, and what is said to others."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from hashlib import pbkdf2_hmac
from typing import Any

import jwt
import psycopg
import pytest
from structlog.testing import capture_logs

from core.security.credentials import Deletion, Upsertion
from core.security.principal import ANONYMOUS, Caller, Principal
from core.security.verifier import ScramMechanism
from gateway.pulsar.commands import CommandType, ServerError, TxnAction
from gateway.pulsar.commands_pb2 import (
    AuthData,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandAuthResponse,
    CommandConnect,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandLookupTopic,
    CommandPing,
    FeatureFlags,
)
from gateway.pulsar.framing import encode_frame
from gateway.pulsar.login import Door
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation
from tests.gateway.pulsar.handlers.test_consumers import TOPIC
from tests.gateway.pulsar.handlers.test_transactions import (
    abort,
    add_partition,
    add_subscription,
    begin,
    commit,
)

SECRET = bytes(range(32))
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": "token,basic",
    "authenticationRefreshCheckSeconds": "1",
    "connection.failed.authentication.delay.ms": "30",
    "proxyRoles": "proxy,other-proxy",
    "tokenSecretKey": base64.b64encode(SECRET).decode(),
}
PASSWORD = "wonder:land,ß"
SHA_256 = ScramMechanism.SHA_256


class Clock:
    """Of tokens: it can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Gate:
    """A broker whose clients log in, and its clock."""

    def __init__(self, broker: Broker, outcomes: list[tuple[str, str]], clock: Clock) -> None:
        self.broker = broker
        self.outcomes = outcomes
        self.clock = clock
        self.last = b""

    def ending(self, left_s: float) -> bytes:
        """A token that runs out in that time, by the broker's clock; the clock is put forward."""
        ends = int(time.time()) + 100
        self.clock.ahead_s = ends - left_s - time.time()
        self.last = jwt.encode({"sub": "alice", "exp": ends}, SECRET).encode()
        return self.last

    def call(self, **connect: Any) -> Conversation:
        """A connection that has said CONNECT."""
        client = self.broker.call()
        client.say(connecting(**connect))
        return client

    async def refused(self, **connect: Any) -> tuple[ServerError, str]:
        """What is answered to CONNECT; then the connection is closed."""
        client = self.call(**connect)
        error = await client.hear(CommandType.ERROR)
        assert error.request_id == 2**64 - 1
        await client.ended()
        return ServerError(error.error), error.message

    async def caller(self, **connect: Any) -> Caller:
        client = self.call(**connect)
        await client.hear(CommandType.CONNECTED)
        return caller_of(client)

    async def put(self, user: str, password: str) -> None:
        """As an administrator does."""
        salted = pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
        upsertion = Upsertion(user, SHA_256, 4096, b"salt", salted)
        await self.alter([], [upsertion])

    async def alter(self, deletions: list[Deletion], upsertions: list[Upsertion]) -> None:
        users = self.broker.runtime.users
        found = await users.alter(deletions, upsertions, principal=ANONYMOUS, peer="test")
        assert set(found.values()) == {None}


def caller_of(client: Conversation) -> Caller:
    return client.connection._session.caller


MakeGate = Callable[..., Awaitable[Gate]]


@pytest.fixture
def make_gate(make_broker: Any) -> MakeGate:
    async def make(**settings: str) -> Gate:
        broker: Broker = await make_broker({**SETTINGS, **settings})
        outcomes: list[tuple[str, str]] = []
        clock = Clock()
        runtime = broker.runtime
        broker.front_end.door = Door(
            "pulsar",
            runtime.authentication,
            runtime.configs,
            lambda method, outcome: outcomes.append((method, outcome)),
            clock,
        )
        return Gate(broker, outcomes, clock)

    return make


@pytest.fixture
async def gate(make_gate: MakeGate) -> Gate:
    return await make_gate()


def token(role: str = "alice", lasts_s: float | None = None, key: bytes = SECRET) -> bytes:
    ends = {} if lasts_s is None else {"exp": int(time.time() + lasts_s)}
    return jwt.encode({"sub": role, **ends}, key).encode()


def basic(user: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"auth_method_name": "basic", "auth_data": f"{user}:{password}".encode()}


def connecting(**connect: Any) -> CommandConnect:
    given = {"auth_method_name": "token", "auth_data": token()} | connect
    refreshes = given.pop("refreshes", True)
    flags = FeatureFlags(supports_auth_refresh=refreshes)
    return CommandConnect(
        **{"client_version": "test", "protocol_version": 21, "feature_flags": flags, **given}
    )


FAILED = (ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")
INVALID = (ServerError.AUTHORIZATION_ERROR, "Invalid roles.")


# --- who is let in ---


async def test_a_token_says_who_is_there(gate: Gate) -> None:
    client = gate.call()
    await client.hear(CommandType.CONNECTED)
    assert caller_of(client) == Caller(Principal("alice"), "127.0.0.1")
    client.say(CommandPing())
    await client.hear(CommandType.PONG)
    await client.produce_to("t")
    assert gate.outcomes == [("token", "success")]


async def test_a_user_of_sasl_logs_in_by_its_password(gate: Gate) -> None:
    await gate.put("alice", PASSWORD)
    assert (await gate.caller(**basic("alice"))).principal == Principal("alice")
    assert gate.outcomes == [("basic", "success")]


async def test_without_the_setting_nobody_is_asked(make_broker: Any) -> None:
    broker: Broker = await make_broker()
    assert not broker.runtime.authentication.is_on
    client = broker.call()
    client.say(connecting(auth_method_name="basic", auth_data=b"nobody:nothing"))
    await client.hear(CommandType.CONNECTED)
    assert caller_of(client).principal == ANONYMOUS


async def test_every_failure_looks_the_same(gate: Gate) -> None:
    """And no secret is in the log."""
    await gate.put("alice", PASSWORD)
    stranger = token(key=bytes(32))
    with capture_logs() as lines:
        for connect in (
            {"auth_data": stranger},
            {"auth_data": token(lasts_s=-10)},
            {"auth_data": b""},
            {"auth_data": b"\xff\0"},
            {"auth_method_name": "", "auth_data": b""},
            {"auth_method_name": "none"},
            {"auth_method_name": "tls", "auth_data": b""},
            {"auth_method_name": "x" * 1000},
            basic("alice", "guess"),
            basic("alice", ""),
            basic("nobody"),
            {"auth_method_name": "basic", "auth_data": b"alice"},
            {"auth_method_name": "basic", "auth_data": b"\xff:x"},
        ):
            began = time.monotonic()
            assert await gate.refused(**connect) == FAILED
            assert time.monotonic() - began >= 0.03
    assert {each["event"] for each in lines} == {"login_refused"}
    assert [each["reason"] for each in lines][:2] == [
        "the token is signed with another key",
        "the token has expired",
    ]
    assert len(lines) == 13
    for secret in (stranger.decode(), PASSWORD, "guess"):
        assert secret not in str(lines)
    assert set(gate.outcomes) == {
        ("token", "failure"),
        ("basic", "failure"),
        ("unsupported", "failure"),
    }


async def test_nothing_is_done_before_the_login(gate: Gate) -> None:
    for said in (CommandPing(), CommandLookupTopic(topic="t", request_id=1), CommandAuthResponse()):
        client = gate.broker.call()
        with capture_logs() as lines:
            client.say(said)
            await client.ended()
        assert "before CONNECT" in lines[0]["reason"]
        assert not client.transport.commands


async def test_what_comes_with_connect_waits_for_it(gate: Gate) -> None:
    await gate.put("alice", PASSWORD)
    ping = encode_frame(CommandPing())
    good = gate.broker.call()
    good.feed(encode_frame(connecting(**basic("alice"))) + ping)
    assert not good.transport.is_reading
    await good.hear(CommandType.CONNECTED)
    await good.hear(CommandType.PONG)
    assert good.transport.is_reading
    bad = gate.broker.call()
    bad.feed(encode_frame(connecting(**basic("alice", "guess"))) + ping * 100)
    await bad.hear(CommandType.ERROR)
    await bad.ended()
    assert not bad.transport.commands
    assert gate.broker.memory.held_bytes == 0


async def test_nobody_takes_longer_than_he_may(make_gate: MakeGate) -> None:
    gate = await make_gate(**{"penstock.login.timeout.ms": "3000"})
    await gate.broker.runtime.users.refresh()
    with capture_logs() as lines:
        silent, client = gate.broker.call(), gate.call()
        await client.hear(CommandType.CONNECTED)
        await silent.ended()
    closed = [each["reason"] for each in lines if each["event"] == "connection closed"]
    assert closed == ["no login within 3 s"]
    client.say(CommandPing())
    await client.hear(CommandType.PONG)


async def test_nobody_sends_more_than_he_may(make_gate: MakeGate) -> None:
    gate = await make_gate(**{"sasl.server.max.receive.size": "1000"})
    client = gate.broker.call()
    with capture_logs() as lines:
        client.feed((1001).to_bytes(4, "big"))
        await client.ended()
    assert "the limit is 1000" in lines[0]["reason"]
    client = gate.call()
    await client.hear(CommandType.CONNECTED)
    client.say(CommandLookupTopic(topic="t" * 2000, request_id=1))
    await client.hear(CommandType.LOOKUP_RESPONSE)


async def test_who_goes_while_it_logs_in_leaves_nothing(gate: Gate) -> None:
    for connect in ({}, {"auth_data": b"bad"}):
        client = gate.call(**connect)
        client.transport.close()
        await client.ended()
    await gate.broker.front_end.drain(10)
    assert not gate.broker.front_end.door._inside
    assert gate.broker.memory.held_bytes == 0


# --- how long ---


async def test_a_client_is_asked_before_its_token_runs_out(gate: Gate) -> None:
    """And not long before."""
    early = gate.call(auth_data=token(lasts_s=3600))
    await early.hear(CommandType.CONNECTED)
    client = gate.call(auth_data=gate.ending(1.0))
    await client.hear(CommandType.CONNECTED)
    asked = await client.hear(CommandType.AUTH_CHALLENGE)
    assert asked.challenge == AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh")
    assert asked.protocol_version == 21
    client.say(renewed(token(lasts_s=400)))
    await asyncio.sleep(1.0)  # its first token is over
    for each in (early, client):
        each.say(CommandPing())
        await each.hear(CommandType.PONG)
    assert gate.outcomes == [("token", "success")] * 3


async def test_a_token_without_an_end_ends_the_asking(gate: Gate) -> None:
    with capture_logs() as lines:
        client = await nearly_over(gate)
        client.say(renewed(token(lasts_s=None)))
        gate.clock.ahead_s += 100
        await asyncio.sleep(1.2)
        client.say(CommandPing())
        await client.hear(CommandType.PONG)
    assert [each for each in lines if each["log_level"] == "error"] == []


def renewed(data: bytes) -> CommandAuthResponse:
    response = AuthData(auth_method_name="token", auth_data=data)
    return CommandAuthResponse(client_version="test", response=response, protocol_version=21)


async def nearly_over(gate: Gate, **connect: Any) -> Conversation:
    """A client that was asked for another token."""
    client = gate.call(**{"auth_data": gate.ending(1.0), **connect})
    await client.hear(CommandType.CONNECTED)
    await client.hear(CommandType.AUTH_CHALLENGE)
    gate.clock.ahead_s -= 50  # however slow this machine is
    return client


@pytest.mark.parametrize("answers", [False, True])
async def test_who_gives_no_other_is_disconnected_in_time(gate: Gate, answers: bool) -> None:
    with capture_logs() as lines:
        client = await nearly_over(gate)
        if answers:
            client.say(renewed(gate.last))
        gate.clock.ahead_s += 60
        await client.ended()
    reason = "its token has run out, and it has given no other"
    closed = [each["reason"] for each in lines if each["event"] == "connection closed"]
    assert closed == [reason]
    assert len(client.transport.commands) <= 1, "nobody is asked all the time"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (token("bob", 86_400), "another role"),
        (token("alice", 86_400, bytes(32)), "the token is signed with another key"),
        (token("alice", -10), "the token has expired"),
    ],
    ids=["role", "key", "late"],
)
async def test_another_token_has_to_be_as_good(gate: Gate, data: bytes, reason: str) -> None:
    client = await nearly_over(gate)
    with capture_logs() as lines:
        client.say(renewed(data))
        error = await client.hear(CommandType.ERROR)
        await client.ended()
    assert (error.error, error.message) == FAILED
    assert [each["reason"] for each in lines] == [reason]


async def test_nobody_answers_what_was_not_asked(gate: Gate) -> None:
    client = gate.call(auth_data=token(lasts_s=100))
    await client.hear(CommandType.CONNECTED)
    with capture_logs() as lines:
        client.say(renewed(token("bob")))
        await client.ended()
    assert lines[0]["reason"] == "AUTH_RESPONSE without AUTH_CHALLENGE"


@pytest.mark.parametrize("connect", [{"refreshes": False}, {"protocol_version": 13}])
async def test_who_cannot_be_asked_stays_as_long_as_its_token(
    gate: Gate, connect: dict[str, Any]
) -> None:
    client = gate.call(auth_data=gate.ending(1000), **connect)
    await client.hear(CommandType.CONNECTED)
    gate.clock.ahead_s += 999.5
    client.say(CommandPing())
    await client.hear(CommandType.PONG)
    gate.clock.ahead_s += 1
    with capture_logs() as lines:
        await client.ended()
    assert "run out" in lines[0]["reason"]
    assert not client.transport.commands


async def test_whose_password_changes_is_disconnected(gate: Gate) -> None:
    clients = {}
    for user in ("alice", "bob", "carol"):
        await gate.put(user, PASSWORD)
        clients[user] = gate.call(**basic(user))
        await clients[user].hear(CommandType.CONNECTED)
    by_token = gate.call(auth_data=token("alice"))
    await by_token.hear(CommandType.CONNECTED)
    with capture_logs() as lines:
        await gate.put("alice", "another")
        await gate.alter([Deletion("bob", SHA_256)], [])
        await clients["alice"].ended()
        await clients["bob"].ended()
    closed = [each["reason"] for each in lines if each["event"] == "connection closed"]
    assert closed == [
        f"user {name} was deleted, or its password was changed" for name in ("alice", "bob")
    ]
    for stays in (clients["carol"], by_token):
        stays.say(CommandPing())
        await stays.hear(CommandType.PONG)
    assert await gate.refused(**basic("alice")) == FAILED
    assert (await gate.caller(**basic("alice", "another"))).principal == Principal("alice")


# --- proxies ---


@pytest.mark.parametrize(
    ("role", "original", "caller"),
    [
        ("proxy", "alice", Caller(Principal("alice"), "127.0.0.1", Principal("proxy"))),
        ("proxy", "", None),
        ("proxy", "  ", None),
        ("proxy", "proxy", None),
        ("proxy", "other-proxy", None),
        ("alice", "", Caller(Principal("alice"), "127.0.0.1")),
        ("alice", "  ", Caller(Principal("alice"), "127.0.0.1")),
        ("alice", "admin", None),
        ("alice", "alice", None),
    ],
)
async def test_only_a_proxy_says_for_whom_it_asks(
    gate: Gate, role: str, original: str, caller: Caller | None
) -> None:
    """As ServerCnx and AuthorizationService.isValidOriginalPrincipal of Pulsar 4 decide."""
    connect = {"auth_data": token(role), "original_principal": original}
    if caller is None:
        assert await gate.refused(**connect) == INVALID
    else:
        assert await gate.caller(**connect) == caller


async def test_only_a_proxy_says_that_it_is_one(gate: Gate) -> None:
    error, told = await gate.refused(proxy_version="4.0")
    assert error is ServerError.AUTHORIZATION_ERROR
    assert told == "Must not set proxyVersion without connecting as a ProxyRole."
    connect = {"auth_data": token("proxy"), "original_principal": "a", "proxy_version": "4.0"}
    assert (await gate.caller(**connect)).proxy == Principal("proxy")


async def test_what_a_proxys_client_has_shown_is_checked_where_that_is_set(
    make_gate: MakeGate,
) -> None:
    gate = await make_gate(authenticateOriginalAuthData="true")
    await gate.put("carol", PASSWORD)
    by_proxy = {"auth_data": token("proxy"), "original_principal": "admin"}
    good = {**by_proxy, "original_auth_method": "token", "original_auth_data": token().decode()}
    caller = Caller(Principal("alice"), "127.0.0.1", Principal("proxy"))
    assert await gate.caller(**good) == caller, "not who the proxy says it is"
    for bad in (
        {"original_auth_data": token(key=bytes(32)).decode()},
        {"original_auth_data": token(lasts_s=-10).decode()},
        {"original_auth_data": ""},
        {"original_auth_method": ""},
    ):
        assert await gate.refused(**{**good, **bad}) == FAILED
    # The connection ends with what either of the two rests on.
    by_password = {"original_auth_method": "basic", "original_auth_data": f"carol:{PASSWORD}"}
    client = gate.call(**{**by_proxy, **by_password})
    await client.hear(CommandType.CONNECTED)
    await gate.put("carol", "another")
    await client.ended()


async def test_a_client_is_asked_through_its_proxy_if_that_passes_on_what_it_shows(
    make_gate: MakeGate,
) -> None:
    gate = await make_gate(authenticateOriginalAuthData="true")
    client = await nearly_over(
        gate,
        auth_data=token("proxy"),
        original_principal="alice",
        original_auth_method="token",
        original_auth_data=gate.ending(1.0).decode(),
    )
    client.say(renewed(token("proxy", 300)))  # the role it is about is the client's
    assert (await client.hear(CommandType.ERROR)).message == FAILED[1]
    await client.ended()


# --- whose transaction it is ---


async def test_a_transaction_is_its_owners(make_gate: MakeGate, database_url: str) -> None:
    gate = await make_gate(superUserRoles="root,proxy")
    alice, bob, root = [gate.call(auth_data=token(each)) for each in ("alice", "bob", "root")]
    by_proxy = [
        gate.call(auth_data=token(proxy), original_principal=original)
        for proxy, original in (("proxy", "alice"), ("proxy", "bob"), ("other-proxy", "root"))
    ]
    for client in (alice, bob, root, *by_proxy):
        await client.hear(CommandType.CONNECTED)
    await alice.produce_to(TOPIC)
    opened = await begin(alice)  # in memory alone, until something joins
    joined = await begin(alice)
    assert await add_partition(alice, joined) is None
    ended = await begin(alice)
    assert await commit(alice, ended) is None
    refusal = "Client ({}) is neither the owner of the transaction ({},{}) nor a super user"
    for txn in (opened, joined, ended):
        for client, name in ((bob, "bob"), (by_proxy[1], "bob"), (by_proxy[2], "root")):
            told = refusal.format(name, *txn.values())
            with capture_logs() as lines:
                for message, answer in (
                    (CommandEndTxn(txn_action=TxnAction.ABORT, **txn), "END_TXN"),
                    (CommandAddPartitionToTxn(partitions=[TOPIC], **txn), "ADD_PARTITION_TO_TXN"),
                    (CommandAddSubscriptionToTxn(**txn), "ADD_SUBSCRIPTION_TO_TXN"),
                    (CommandEndTxnOnPartition(topic=TOPIC, **txn), "END_TXN_ON_PARTITION"),
                    (CommandEndTxnOnSubscription(**txn), "END_TXN_ON_SUBSCRIPTION"),
                ):
                    found = await client.ask(message, CommandType[f"{answer}_RESPONSE"])
                    assert (found.error, found.message) == (
                        ServerError.TRANSACTION_NOT_FOUND,
                        told,
                    )
            assert [each["event"] for each in lines] == ["refused"] * 5
    assert await commit(by_proxy[0], opened) is None
    assert await abort(root, joined) is None
    with psycopg.connect(database_url) as connection:
        owners = connection.execute("SELECT DISTINCT owner FROM v_transaction").fetchall()
    assert owners == [("User:alice",)]


async def test_another_broker_knows_whose_transaction_it_is(make_gate: MakeGate) -> None:
    gate, other = await make_gate(), await make_gate()
    alice = gate.call()
    await alice.hear(CommandType.CONNECTED)
    txn = await begin(alice)
    assert await add_subscription(alice, txn) is None  # now it has a row
    clients = [other.call(auth_data=token(each)) for each in ("bob", "alice")]
    for client in clients:
        await client.hear(CommandType.CONNECTED)
        client.connection._session.coordinators.add(3)  # though it may be the other broker's
    bob, alice_there = clients
    assert await commit(bob, txn) is ServerError.TRANSACTION_NOT_FOUND
    assert await commit(alice_there, txn) is None


async def test_a_transaction_without_an_owner_is_everybodys(
    make_gate: MakeGate, make_broker: Any
) -> None:
    open_to_all: Broker = await make_broker()
    nobody = await open_to_all.client()
    txn = await begin(nobody)
    assert await add_subscription(nobody, txn) is None
    gate = await make_gate()
    alice = gate.call()
    await alice.hear(CommandType.CONNECTED)
    alice.connection._session.coordinators.add(3)
    assert await commit(alice, txn) is None
