"""Delegation tokens by the requests of admin clients, and logins by them."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from core.security.acls import Operation, ResourceType
from core.security.principal import ANONYMOUS, Principal
from gateway.kafka.codec import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED
from storage.delegation_tokens import DelegationTokenStore
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.logging_in import (
    QUICK,
    WRONG,
    Entrance,
    Peer,
    entrance,
    peer,
    refusals,
)
from tests.gateway.kafka.handlers.test_rights import AUTHORIZER, binding, grant
from tests.kafka_codes import Code

ALICE, BOB = Principal("alice"), Principal("bob")
KEY = {"delegation.token.secret.key": "a key of the tests"}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
Renewer = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    made = await make_broker(KEY)
    made.principal = ALICE
    return made


async def create(
    broker: Broker,
    *renewers: str,
    owner: str | None = None,
    lifetime_ms: int = -1,
    version: int = 3,
    kind: str = "User",
) -> Any:
    named = [Renewer(principal_type=kind, principal_name=each) for each in renewers]
    fields = {"owner_principal_type": owner and "User", "owner_principal_name": owner}
    request = CreateDelegationTokenRequest(
        renewers=named, max_lifetime_ms=lifetime_ms, **(fields if version > 2 else {})
    )
    return await broker.ask(request, version)


async def renew(broker: Broker, secret: bytes, period_ms: int = -1) -> Any:
    return await broker.ask(RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms), 2)


async def expire(broker: Broker, secret: bytes, period_ms: int = -1) -> Any:
    request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
    return await broker.ask(request, 2)


async def described(broker: Broker, owners: Sequence[str] | None = None) -> list[str]:
    named = owners and [Owner(principal_type="User", principal_name=each) for each in owners]
    answer = await broker.ask(
        DescribeDelegationTokenRequest(owners=[] if owners == [] else named), 3
    )
    assert answer.error_code == 0
    return [each.token_id for each in answer.tokens]


# --- requests ---


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_token_is_made_and_described(broker: Broker, version: int) -> None:
    before = time.time() * 1000
    made = await create(broker, "bob", "carol", version=version)
    assert made.error_code == 0
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    assert before - 1 <= made.issue_timestamp_ms <= time.time() * 1000
    assert made.expiry_timestamp_ms == made.issue_timestamp_ms + DAY_MS
    assert made.max_timestamp_ms == made.issue_timestamp_ms + 7 * DAY_MS
    assert len(made.token_id) == 22 and len(made.hmac) == 64
    answer = await broker.ask(DescribeDelegationTokenRequest(owners=None), version)
    [token] = answer.tokens
    assert (token.token_id, bytes(token.hmac)) == (made.token_id, bytes(made.hmac))
    assert [each.principal_name for each in token.renewers] == ["bob", "carol"]
    times = (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp)
    assert times == (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms)
    if version > 2:
        assert made.token_requester_principal_name == "alice"
        assert token.token_requester_principal_name == "alice"


async def test_renewed_moved_and_ended(broker: Broker) -> None:
    made = await create(broker, "bob", lifetime_ms=2 * HOUR_MS)
    secret = bytes(made.hmac)
    assert made.expiry_timestamp_ms == made.max_timestamp_ms
    moved = await expire(broker, secret, HOUR_MS)
    assert moved.error_code == 0
    assert abs(moved.expiry_timestamp_ms - made.issue_timestamp_ms - HOUR_MS) < 60_000
    broker.principal = BOB
    renewed = await renew(broker, secret)
    assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, made.max_timestamp_ms)
    ended = await expire(broker, secret)
    assert ended.error_code == 0
    assert await described(broker) == []
    for again in (await renew(broker, secret), await expire(broker, secret)):
        assert again.error_code == Code.DELEGATION_TOKEN_NOT_FOUND
        assert again.expiry_timestamp_ms == 0


async def test_one_that_is_over_can_only_be_deleted(broker: Broker) -> None:
    made = await create(broker, lifetime_ms=1)
    await asyncio.sleep(0.01)
    secret = bytes(made.hmac)
    assert (await renew(broker, secret)).error_code == Code.DELEGATION_TOKEN_EXPIRED
    assert (await expire(broker, secret, 1)).error_code == Code.DELEGATION_TOKEN_EXPIRED
    assert (await expire(broker, secret)).error_code == 0


def change_amid(monkeypatch: pytest.MonkeyPatch, url: str, *statements: str) -> None:
    """Another broker's, one each time that this one has decided and not yet written."""
    left, move_end = list(statements), DelegationTokenStore.move_end

    async def move_end_later(self: DelegationTokenStore, *how: Any) -> bool:
        if left:
            with psycopg.connect(url) as connection:
                connection.execute(left.pop(0))
        return await move_end(self, *how)

    monkeypatch.setattr(DelegationTokenStore, "move_end", move_end_later)


END = "UPDATE delegation_token SET expires_at = issued_at"
SOONER = "UPDATE delegation_token SET expires_at = expires_at - interval '1 minute'"


async def test_what_another_broker_ends_meanwhile_is_not_renewed(
    broker: Broker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = bytes((await create(broker)).hmac)
    change_amid(monkeypatch, database_url, END)
    assert (await renew(broker, secret)).error_code == Code.DELEGATION_TOKEN_EXPIRED
    assert (await expire(broker, secret, HOUR_MS)).error_code == Code.DELEGATION_TOKEN_EXPIRED


async def test_what_another_broker_changes_meanwhile_is_decided_again(
    broker: Broker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await create(broker)
    secret = bytes(made.hmac)
    change_amid(monkeypatch, database_url, SOONER)
    renewed = await renew(broker, secret)
    assert renewed.expiry_timestamp_ms >= made.expiry_timestamp_ms
    change_amid(monkeypatch, database_url, SOONER)
    moved = await expire(broker, secret, HOUR_MS)
    assert moved.error_code == 0
    [token] = (await broker.ask(DescribeDelegationTokenRequest(owners=None), 3)).tokens
    assert token.expiry_timestamp == moved.expiry_timestamp_ms
    change_amid(monkeypatch, database_url, "DELETE FROM delegation_token")
    assert (await renew(broker, secret)).error_code == Code.DELEGATION_TOKEN_NOT_FOUND


async def test_who_never_gets_to_change_it_tries_again(
    broker: Broker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = bytes((await create(broker)).hmac)
    change_amid(monkeypatch, database_url, *[SOONER] * 10)
    for ask in (renew, expire):
        answer = await ask(broker, secret, HOUR_MS)
        assert answer.error_code == kafka_code(CHANGE_REFUSED.error)
    assert (await renew(broker, secret)).error_code == 0


async def test_another_may_neither_renew_nor_end_it(broker: Broker) -> None:
    made = await create(broker, "bob")
    broker.principal = Principal("carol")
    for answer in (await renew(broker, made.hmac), await expire(broker, made.hmac)):
        assert answer.error_code == Code.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await renew(broker, b"guessed")).error_code == Code.DELEGATION_TOKEN_NOT_FOUND


@pytest.mark.parametrize("who", [ANONYMOUS, Principal("alice", is_by_token=True)])
async def test_who_is_not_known_or_has_come_by_a_token_gets_none(
    broker: Broker, who: Principal
) -> None:
    made = await create(broker)
    broker.principal = who
    refused = [
        await create(broker),
        await renew(broker, made.hmac),
        await expire(broker, made.hmac),
        await broker.ask(DescribeDelegationTokenRequest(owners=None), 3),
    ]
    codes = {each.error_code for each in refused}
    assert codes == {Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
    assert refused[0].issue_timestamp_ms == refused[1].expiry_timestamp_ms == -1


async def test_without_a_key_there_are_none(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    broker.principal = ALICE
    answers = [
        await create(broker),
        await renew(broker, b"x"),
        await expire(broker, b"x"),
        await broker.ask(DescribeDelegationTokenRequest(owners=None), 3),
    ]
    assert {each.error_code for each in answers} == {Code.DELEGATION_TOKEN_AUTH_DISABLED}


async def test_renewers_are_users(broker: Broker) -> None:
    assert (await create(broker, "x", kind="Group")).error_code == Code.INVALID_PRINCIPAL_TYPE
    assert (await create(broker, "x\0y")).error_code == Code.INVALID_REQUEST
    assert await described(broker) == []


async def test_rights_on_others_tokens(make_broker: MakeBroker) -> None:
    broker = await make_broker(KEY | AUTHORIZER)
    await broker.acls.load()
    broker.principal = ALICE
    refused = await create(broker, owner="bob")
    assert refused.error_code == Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    await grant(broker, binding(Operation.CREATE_TOKENS, ResourceType.USER, name="User:bob"))
    made = await create(broker, owner="bob")
    assert made.error_code == 0
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    assert await described(broker) == []  # she may make it, and not see it
    await grant(broker, binding(Operation.DESCRIBE_TOKENS, ResourceType.USER, name="User:bob"))
    assert await described(broker) == [made.token_id]
    assert await described(broker, ["alice"]) == []
    broker.principal = Principal("carol")
    assert await described(broker) == []
    broker.principal = BOB
    assert await described(broker, ["bob"]) == [made.token_id]
    assert await described(broker, []) == []


async def test_the_right_to_describe_a_token(make_broker: MakeBroker) -> None:
    broker = await make_broker(KEY | AUTHORIZER)
    await broker.acls.load()
    broker.principal = BOB
    one, _ = (await create(broker)).token_id, await create(broker)
    broker.principal = ALICE
    await grant(broker, binding(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, name=one))
    assert await described(broker) == [one]


# --- logins ---


@pytest.fixture
async def at(make_broker: MakeBroker) -> AsyncIterator[Entrance]:
    async with entrance(await make_broker(QUICK | KEY)) as made:
        tokens = made.broker.delegation_tokens
        following = [asyncio.create_task(each) for each in (tokens.run(), tokens.run_ends())]
        made.broker.principal = ALICE
        yield made
        for each in following:
            each.cancel()


async def by_token(one: Peer, made: Any, mechanism: str = "SCRAM-SHA-256", **how: Any) -> Any:
    password = b64encode(bytes(made.hmac)).decode()
    return await one.scram(made.token_id, password, mechanism, extensions=",tokenauth=true", **how)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_who_has_a_token_is_its_owner(at: Entrance, mechanism: str) -> None:
    made = await create(at.broker, lifetime_ms=HOUR_MS)
    async with peer(at) as one:
        answer = await by_token(one, made, mechanism)
        assert answer.error_code == 0
        assert HOUR_MS - 60_000 < answer.session_lifetime_ms <= HOUR_MS
        refused = await one.ask(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 1)
        assert refused.error_code == Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert refused.principal_name == "alice"
    assert at.counted == [(mechanism, "success")]


async def test_a_token_is_no_password(at: Entrance) -> None:
    """Without the extension its id is a user, who is not there; and a user is no token."""
    made = await create(at.broker)
    secret = b64encode(bytes(made.hmac)).decode()
    with capture_logs() as logs:
        async with peer(at) as one:
            assert (await one.scram(made.token_id, secret)).error_message == WRONG + "SCRAM-SHA-256"
        async with peer(at) as one:
            answer = await one.scram("alice", "wonderland", extensions=",tokenauth=true")
            assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        async with peer(at) as one:
            answer = await one.scram(made.token_id, "x" + secret, extensions=",tokenauth=true")
            assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    assert {reason for _, reason in refusals(logs)} == {"wrong password, or no such user"}


async def test_a_token_that_ends_takes_its_connections_along(at: Entrance) -> None:
    made, other = await create(at.broker), await create(at.broker)
    async with peer(at) as one, peer(at) as two:
        assert (await by_token(one, made)).error_code == 0
        assert (await by_token(two, other)).error_code == 0
        assert (await expire(at.broker, bytes(made.hmac))).error_code == 0
        assert await one.is_closed()
        assert (await two.metadata()).controller_id == 1
    async with peer(at) as one:
        assert (await by_token(one, made)).error_code == Code.SASL_AUTHENTICATION_FAILED


async def test_a_token_deleted_by_sql_too(at: Entrance, database_url: str) -> None:
    made = await create(at.broker)
    async with peer(at) as one:
        assert (await by_token(one, made)).error_code == 0
        with psycopg.connect(database_url) as connection:
            connection.execute("DELETE FROM delegation_token")
        assert await one.is_closed()


async def test_a_row_that_nobody_can_read_stops_nobody(at: Entrance, database_url: str) -> None:
    made, spoilt = await create(at.broker), await create(at.broker)
    with capture_logs() as logs, psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE delegation_token DROP CONSTRAINT delegation_token_renewers_check"
        )
        connection.execute(
            "UPDATE delegation_token SET renewers = ARRAY[NULL] WHERE token_id = %s",
            (spoilt.token_id,),
        )
        await at.broker.delegation_tokens.refresh()
        async with peer(at) as one, peer(at) as two:
            assert (await by_token(one, made)).error_code == 0
            answer = await by_token(two, spoilt)
            assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
            connection.execute("DELETE FROM delegation_token")
            assert await one.is_closed()
    assert [each["rows"] for each in logs if each["event"] == "delegation_tokens_unreadable"] == [1]


@pytest.mark.parametrize("by", ["request", "sql"])
async def test_a_nearer_end_takes_its_connections_along(
    at: Entrance, database_url: str, by: str
) -> None:
    """When it comes, and not before."""
    made, other = await create(at.broker), await create(at.broker)
    async with peer(at) as one, peer(at) as two:
        assert (await by_token(one, made)).error_code == 0
        assert (await by_token(two, other)).error_code == 0
        if by == "request":
            end_ms = (await expire(at.broker, bytes(made.hmac), 4_000)).expiry_timestamp_ms
        else:
            end_ms = int(time.time() * 1000) + 4_000
            with psycopg.connect(database_url) as connection:
                connection.execute(
                    "UPDATE delegation_token SET expires_at = to_timestamp(%s / 1000.0) "
                    "WHERE token_id = %s",
                    (end_ms, made.token_id),
                )
        assert (await one.metadata()).controller_id == 1
        assert await one.is_closed()
        assert end_ms <= time.time() * 1000 < end_ms + 30_000
        assert (await two.metadata()).controller_id == 1


async def test_a_renewal_does_not_lengthen_a_session(at: Entrance) -> None:
    made = await create(at.broker)
    assert (await expire(at.broker, bytes(made.hmac), 4_000)).error_code == 0
    async with peer(at) as one:
        assert 0 < (await by_token(one, made)).session_lifetime_ms <= 4_000
        assert (await renew(at.broker, bytes(made.hmac))).error_code == 0
        await asyncio.sleep(4.1)
        with pytest.raises(asyncio.IncompleteReadError):
            await one.metadata()
    async with peer(at) as one:
        assert (await by_token(one, made)).error_code == 0


async def test_time_ends_a_token(at: Entrance) -> None:
    made = await create(at.broker, lifetime_ms=4_000)
    async with peer(at) as one:
        assert 0 < (await by_token(one, made)).session_lifetime_ms <= 4_000
        assert await one.is_closed()
    async with peer(at) as one:
        assert (await by_token(one, made)).error_code == Code.SASL_AUTHENTICATION_FAILED


async def test_other_brokers_know_a_token_and_expired_ones_are_deleted(
    make_broker: MakeBroker, database_url: str
) -> None:
    quick = {"delegation.token.expiry.check.interval.ms": "100"}
    first, second = await make_broker(KEY | quick), await make_broker(QUICK | KEY)
    first.principal = ALICE
    sweeping = asyncio.create_task(first.delegation_tokens.run_expiry())
    short, long = await create(first, lifetime_ms=300), await create(first)
    async with entrance(second) as other, peer(other) as one:
        assert (await by_token(one, long)).error_code == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        async with asyncio.timeout(20):
            while connection.execute("SELECT count(*) FROM delegation_token").fetchone() != (1,):
                await asyncio.sleep(0.05)
        rows = connection.execute("SELECT token_id, owner, renewers FROM v_delegation_token")
        assert rows.fetchall() == [(long.token_id, "User:alice", "")]
    sweeping.cancel()
    assert short.token_id != long.token_id


async def test_no_secret_is_in_the_log_or_the_database(broker: Broker, database_url: str) -> None:
    with capture_logs() as logs:
        made = await create(broker, "bob")
        await renew(broker, bytes(made.hmac))
        await expire(broker, bytes(made.hmac), HOUR_MS)
    changes = [each["change"] for each in logs if each["event"] == "delegation_token_changed"]
    assert changes == ["created", "renewed", "expiry changed"]
    with psycopg.connect(database_url) as connection:
        cursor = connection.execute("SELECT delegation_token::text FROM delegation_token")
        rows = str(cursor.fetchall())
    secret = bytes(made.hmac)
    for shown in (secret.hex(), b64encode(secret).decode(), *KEY.values()):
        assert shown not in str(logs) + rows
