"""ListGroups: every group here, by state and type."""

from __future__ import annotations

import pytest

from gateway.kafka.codec import ListGroupsRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import commit, consumer, joined, stable, topic_of
from tests.gateway.kafka.handlers.transacting import producer_of
from tests.kafka_codes import Code

GROUPS = {
    "simple": ("", "Empty", "classic"),
    "completing": ("consumer", "CompletingRebalance", "classic"),
    "stable": ("consumer", "Stable", "classic"),
    "new": ("consumer", "Stable", "consumer"),
}


@pytest.fixture
async def four_groups(group_broker: Broker) -> Broker:
    await topic_of(group_broker)
    await commit(group_broker, {"t": {0: 5}}, group="simple")
    await joined(group_broker, "completing")
    await stable(group_broker, "stable")
    await consumer(group_broker, "new")
    return group_broker


async def listed(
    broker: Broker, version: int = 5, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
) -> dict[str, tuple[str, str, str]]:
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    answer = await broker.ask(request, version)
    assert answer.error_code == 0
    return {
        each.group_id: (each.protocol_type, each.group_state, each.group_type)
        for each in answer.groups
    }


@pytest.mark.parametrize("version", range(6))
async def test_all_groups_are_listed(four_groups: Broker, version: int) -> None:
    found = await listed(four_groups, version)
    shown = 1 if version < 4 else 2 if version < 5 else 3
    assert {group: what[:shown] for group, what in found.items()} == {
        group: what[:shown] for group, what in GROUPS.items()
    }
    assert all(what[shown:] == ("",) * (3 - shown) for what in found.values())


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (("Stable",), (), {"stable", "new"}),
        ((" STABLE ", "empty"), (), {"stable", "new", "simple"}),
        (("completingrebalance",), ("classic",), {"completing"}),
        ((), ("CONSUMER",), {"new"}),
        (("Stable",), ("classic",), {"stable"}),
        ((), ("classic", "consumer"), set(GROUPS)),
        (("nonsense",), (), set()),
        ((), ("nonsense",), set()),
        (("Dead",), (), set()),
    ],
)
async def test_filters(
    four_groups: Broker, states: tuple[str, ...], types: tuple[str, ...], expected: set[str]
) -> None:
    assert set(await listed(four_groups, 5, states, types)) == expected
    if not types:
        assert set(await listed(four_groups, 4, states)) == expected


async def test_group_known_only_from_a_transaction_is_listed(txn_broker: Broker) -> None:
    await topic_of(txn_broker)
    producer = await producer_of(txn_broker)
    assert await producer.commit_offsets({"t": {0: 5}}, version=5) == {"t": [Code.NONE]}
    assert await listed(txn_broker) == {"g": ("", "Empty", "classic")}


async def test_each_broker_lists_its_own(two_group_brokers: tuple[Broker, Broker]) -> None:
    one, other = two_group_brokers
    await stable(one, "mine")
    assert set(await listed(one)) == {"mine"}
    assert set(await listed(other)) == set()
