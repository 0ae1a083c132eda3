"""AlterUserScramCredentials: users made, changed, deleted; Kafka's refusals."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from core.security.verifier import ScramMechanism
from gateway.kafka.codec import AlterUserScramCredentialsRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.logging_in import QUICK, SHA_256, entrance, peer
from tests.kafka_codes import Code

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
SALT = b"0123456789abcdef"


def upsertion(name: str, password: str = "secret", mechanism: int = 1, rounds: int = 4096) -> Any:
    hashed = ScramMechanism.SHA_512 if mechanism == 2 else SHA_256
    return Upsertion(
        name=name,
        mechanism=mechanism,
        iterations=rounds,
        salt=SALT,
        salted_password=hashed.salted_password(password, SALT, max(rounds, 1)),
    )


async def alter(broker: Broker, *each: Any) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[one for one in each if isinstance(one, Deletion)],
        upsertions=[one for one in each if isinstance(one, Upsertion)],
    )
    answer = await broker.ask(request, 0)
    return {one.user: (one.error_code, one.error_message) for one in answer.results}


async def test_what_is_right_is_done_and_the_rest_refused(broker: Broker) -> None:
    name = "bö=b,\t" + "x" * 900
    assert await alter(broker, upsertion(name), upsertion("carol", mechanism=2)) == {
        name: (0, None),
        "carol": (0, None),
    }
    assert await alter(
        broker,
        Deletion(name=name, mechanism=1),
        Deletion(name="carol", mechanism=1),
        Deletion(name="dave", mechanism=3),
        upsertion("eve", rounds=4095),
        upsertion("frank", rounds=16_385),
        upsertion(""),
        upsertion("n\0l"),
        upsertion("y" * 1001),
        upsertion("twice"),
        upsertion("twice", mechanism=2),
        upsertion("grace"),
    ) == {
        name: (0, None),
        "carol": (
            Code.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        "dave": (Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "eve": (Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        "frank": (Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "": (Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "n\0l": (Code.UNACCEPTABLE_CREDENTIAL, "Username must not contain NUL"),
        "y" * 1001: (Code.UNACCEPTABLE_CREDENTIAL, "Username must not be longer than 1000 bytes"),
        "twice": (
            Code.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        "grace": (0, None),
    }
    await broker.users.refresh()
    assert sorted(await broker.users.describe(None)) == ["carol", "grace"]


async def test_nothing_asked_is_nothing_answered(broker: Broker) -> None:
    assert await alter(broker) == {}


@pytest.mark.parametrize("mechanism", [1, 2])
async def test_whoever_is_made_may_log_in_at_once(make_broker: MakeBroker, mechanism: int) -> None:
    broker = await make_broker(QUICK)
    async with entrance(broker) as at:
        assert await alter(broker, upsertion("bob", "builder", mechanism)) == {"bob": (0, None)}
        async with peer(at) as one:
            name = "SCRAM-SHA-512" if mechanism == 2 else "SCRAM-SHA-256"
            assert (await one.scram("bob", "builder", name)).error_code == 0
            assert await alter(broker, Deletion(name="bob", mechanism=mechanism)) == {
                "bob": (0, None)
            }
            assert await one.is_closed()


async def test_at_another_broker_it_counts_within_a_second(make_broker: MakeBroker) -> None:
    broker, other = await make_broker(QUICK), await make_broker(QUICK)
    async with entrance(broker) as at, peer(at) as one:
        await one.plain()
        await alter(other, upsertion("alice", "another"))
        assert await one.is_closed()
        async with peer(at) as again:
            assert (await again.plain("alice", "another")).error_code == 0


async def test_changes_are_logged_without_a_secret(broker: Broker) -> None:
    with capture_logs() as logs:
        await alter(broker, upsertion("bob\n", "swordfish"))
        await alter(broker, Deletion(name="bob\n", mechanism=1), upsertion("eve", rounds=1))
    lines = [each for each in logs if each["event"] == "user_changed"]
    assert [(each["user"], each["change"], each["principal"]) for each in lines] == [
        ("bob\\n", "set", "User:ANONYMOUS"),
        ("bob\\n", "deleted", "User:ANONYMOUS"),
    ]
    assert lines[0]["mechanism"] == "SCRAM-SHA-256"
    assert "swordfish" not in str(logs)


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    answers = await alter(cut_off, upsertion("a"), Deletion(name="b", mechanism=1))
    assert {name: code for name, (code, _) in answers.items()} == dict.fromkeys(
        "ab", Code.NOT_CONTROLLER
    )
