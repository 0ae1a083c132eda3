"""DescribeUserScramCredentials: who is there, and with which mechanisms; no secret."""

from __future__ import annotations

from typing import Any

import pytest

from core.security.credentials import CredentialChanges
from core.security.verifier import Verifier
from gateway.kafka.codec import DescribeUserScramCredentialsRequest
from storage.users import UserStore
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.logging_in import ALICE, SHA_512
from tests.kafka_codes import Code

ALICE_512 = Verifier.of_password(SHA_512, b"salt", 8192, "wonderland")


@pytest.fixture
async def users(broker: Broker) -> Broker:
    changes = CredentialChanges(upserts=(("alice", ALICE), ("bob", ALICE_512)))
    await UserStore(broker.database).alter([], lambda _: changes)
    changes = CredentialChanges(upserts=(("alice", ALICE_512),))
    await UserStore(broker.database).alter([], lambda _: changes)
    return broker


async def describe(broker: Broker, *names: str) -> list[Any]:
    asked = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    answer = await broker.ask(DescribeUserScramCredentialsRequest(users=asked or None), 0)
    assert (answer.error_code, answer.error_message) == (0, "")
    return [
        (
            one.user,
            one.error_code,
            one.error_message,
            [(info.mechanism, info.iterations) for info in one.credential_infos],
        )
        for one in answer.results
    ]


async def test_all_or_those_asked_for(users: Broker) -> None:
    alice = ("alice", 0, "", [(1, 4096), (2, 8192)])
    bob = ("bob", 0, "", [(2, 8192)])
    assert await describe(users) == [alice, bob]
    assert await describe(users, "bob") == [bob]
    assert await describe(users, "bob", "alice") == [bob, alice]
    empty = await users.ask(DescribeUserScramCredentialsRequest(users=[]), 0)
    assert [one.user for one in empty.results] == ["alice", "bob"]


async def test_who_is_not_there_and_who_is_asked_for_twice(users: Broker) -> None:
    assert await describe(users, "carol", "alice", "alice") == [
        (
            *("carol", Code.RESOURCE_NOT_FOUND),
            *("Attempt to describe a user credential that does not exist: carol", []),
        ),
        (
            *("alice", Code.DUPLICATE_RESOURCE),
            "Cannot describe SCRAM credentials for the same user twice in a single request: alice",
            [],
        ),
    ]


async def test_nobody_is_there_at_first(broker: Broker) -> None:
    assert await describe(broker) == []


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    answer = await cut_off.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    assert (answer.error_code, list(answer.results)) == (Code.REQUEST_TIMED_OUT, [])
