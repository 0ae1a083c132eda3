"""ListTransactions: which transactional ids there are, through every filter."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gateway.kafka.codec import ListTransactionsRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.gateway.kafka.handlers.producing import create
from tests.gateway.kafka.handlers.transacting import producer_of
from tests.kafka_codes import Code
from tests.keys import named

VERSIONS = range(3)
HOUR_MS = 3_600_000


async def ask(broker: Broker, version: int = 2, **filters: Any) -> Any:
    request = ListTransactionsRequest(
        **{"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
    )
    return await broker.ask(request, version)


async def listed(broker: Broker, version: int = 2, **filters: Any) -> dict[str, str]:
    """The states by id."""
    answer = await ask(broker, version, **filters)
    assert answer.error_code == Code.NONE
    return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


@pytest.fixture
async def three(log_broker: Broker) -> Broker:
    """A broker with an id that has done nothing, one with an open transaction, and a third."""
    await create(log_broker)
    await producer_of(log_broker, "idle")
    await (await producer_of(log_broker, "open")).begin()
    done = await (await producer_of(log_broker, "done")).begin()
    await done.end()
    return log_broker


EVERY = {"idle": "Empty", "open": "Ongoing", "done": "CompleteCommit"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_filters_all_are_listed(three: Broker, version: int) -> None:
    assert await listed(three, version) == EVERY


@pytest.mark.parametrize("version", VERSIONS)
async def test_by_state(three: Broker, version: int) -> None:
    async def states(*names: str) -> tuple[set[str], list[str]]:
        answer = await ask(three, version, state_filters=list(names))
        found = {each.transactional_id for each in answer.transaction_states}
        return found, answer.unknown_state_filters

    assert await states("Ongoing") == ({"open"}, [])
    assert await states("Empty", "CompleteCommit") == ({"idle", "done"}, [])
    assert await states("Ongoing", "Sleeping") == ({"open"}, ["Sleeping"])
    assert await states("Sleeping", "ongoing") == (set(), ["Sleeping", "ongoing"])
    others = "PrepareCommit", "PrepareAbort", "CompleteAbort", "PrepareEpochFence", "Dead"
    assert await states(*others) == (set(), [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_by_producer(three: Broker, version: int) -> None:
    answer = await ask(three, version)
    ids = {each.transactional_id: each.producer_id for each in answer.transaction_states}
    wanted = [ids["open"], ids["done"], 10**9]
    assert set(await listed(three, version, producer_id_filters=wanted)) == {"open", "done"}
    found = await listed(
        three, version, producer_id_filters=wanted, state_filters=["Ongoing", "Empty"]
    )
    assert set(found) == {"open"}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_by_how_long_it_is_open(three: Broker, database_url: str, version: int) -> None:
    """By the database's clock, on which it began."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE transaction_state SET started_at = started_at - %s WHERE started_at >= 0",
            [HOUR_MS],
        )
    assert set(await listed(three, version, duration_filter=0)) == {"open"}
    assert set(await listed(three, version, duration_filter=HOUR_MS)) == {"open"}
    assert await listed(three, version, duration_filter=2 * HOUR_MS) == {}
    assert await listed(three, version, duration_filter=-5) == EVERY


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (None, {"idle", "open", "done"}),
        ("", {"idle", "open", "done"}),
        ("open", {"open"}),
        ("ope", set()),
        (".*", {"idle", "open", "done"}),
        ("(idle|do.e)", {"idle", "done"}),
        ("i.*|pen", {"idle"}),
    ],
)
async def test_by_pattern(three: Broker, pattern: str | None, found: set[str]) -> None:
    """The whole id has to match, as with Matcher.matches."""
    assert set(await listed(three, transactional_id_pattern=pattern)) == found


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "[", r"\1"])
async def test_invalid_pattern_is_refused(three: Broker, pattern: str) -> None:
    answer = await ask(three, transactional_id_pattern=pattern)
    assert answer.error_code == Code.INVALID_REGULAR_EXPRESSION
    assert (answer.unknown_state_filters, answer.transaction_states) == ([], [])


async def test_each_of_several_brokers_lists_its_own(make_broker: MakeBroker) -> None:
    """Clients put together what all brokers answer, so nothing may be there twice."""
    brokers = [(await make_broker()).with_log() for _ in range(3)]
    for broker in brokers:
        await broker.cluster.heartbeat()
    names = {f"id{number}" for number in range(30)}
    for name in names:
        await producer_of(brokers[0], name)
    answers = [await listed(broker) for broker in brokers]
    assert all(answers)
    assert sorted(name for answer in answers for name in answer) == sorted(names)
    for broker, answer in zip(brokers, answers, strict=True):
        mine = broker.cluster.broker_id
        assert {broker.cluster.coordinator_of(named(name)).broker_id for name in answer} == {mine}
        await broker.close_log()


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    cut_off.with_log()
    answer = await ask(cut_off, version)
    assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
    await cut_off.close_log()
