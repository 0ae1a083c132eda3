"""FindCoordinator: groups have one, a transactional id may ask any broker, the rest is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.kafka.codec import FindCoordinatorRequest, FindCoordinatorResponse
from tests.gateway.kafka.handlers.conftest import Broker
from tests.gateway.kafka.handlers.grouping import stable
from tests.kafka_codes import Code

VERSIONS = range(7)
GROUP, TRANSACTION, SHARE = range(3)


async def ask(
    broker: Broker, version: int, key_type: int, *keys: str
) -> list[FindCoordinatorResponse]:
    """What is answered for each key, wherever the version puts it."""
    if version >= 4:
        fields = {"coordinator_keys": list(keys)}
    else:
        [key] = keys
        fields = {"key": key}
    if version >= 1:
        fields["key_type"] = key_type
    answer = await broker.ask(FindCoordinatorRequest(**fields), version)
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_broker_alone_coordinates_every_group(group_broker: Broker, version: int) -> None:
    for key in ("g", "", "ü\0", "g" * 32_000):
        [answer] = await ask(group_broker, version, GROUP, key)
        assert (answer.error_code, answer.error_message) == (
            Code.NONE,
            "NONE" if 1 <= version <= 3 else "",
        )
        [me] = group_broker.context().brokers
        assert (answer.node_id, answer.host, answer.port) == (me.broker_id, me.host, me.port)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_broker_names_the_groups_coordinator(
    two_group_brokers: tuple[Broker, Broker], version: int
) -> None:
    for coordinator, group in zip(two_group_brokers, ("one", "another"), strict=True):
        await stable(coordinator, group)
        for broker in two_group_brokers:
            [answer] = await ask(broker, version, GROUP, group)
            assert answer.error_code == Code.NONE
            assert answer.node_id == coordinator.cluster.broker_id


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION], ids=["group", "transactional id"])
async def test_every_broker_names_the_same_coordinator_for_an_unknown_key(
    two_group_brokers: tuple[Broker, Broker], key_type: int
) -> None:
    keys = [f"k{number}" for number in range(40)]
    for broker in two_group_brokers:
        await broker.cluster.heartbeat()  # both know of both
    named = [
        [answer.node_id for answer in await ask(broker, 6, key_type, *keys)]
        for broker in two_group_brokers
    ]
    assert named[0] == named[1]
    assert set(named[0]) == {broker.cluster.broker_id for broker in two_group_brokers}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_a_broker_alone_coordinates_every_transaction(broker: Broker, version: int) -> None:
    for key in ("t", "", "ü\0", "t" * 32_000):
        [answer] = await ask(broker, version, TRANSACTION, key)
        assert answer.error_code == Code.NONE
        [me] = broker.context().brokers
        assert (answer.node_id, answer.host, answer.port) == (me.broker_id, me.host, me.port)


@pytest.mark.parametrize("version", VERSIONS[4:])
async def test_each_of_several_keys_is_answered(group_broker: Broker, version: int) -> None:
    answers = await ask(group_broker, version, GROUP, "a", "ü\0", "", "a")
    assert [answer.key for answer in answers] == ["a", "ü\0", "", "a"]
    assert {answer.error_code for answer in answers} == {Code.NONE}
    assert await ask(group_broker, version, GROUP) == []


async def test_share_groups_are_known_from_version_6_on(broker: Broker) -> None:
    [answer] = await ask(broker, 6, SHARE, "g:t:0")
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert "share groups" in answer.error_message
    for version in VERSIONS[1:6]:
        [answer] = await ask(broker, version, SHARE, "g:t:0")
        assert answer.error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("key_type", [-1, 3, 127])
@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_an_unknown_type_of_key_is_an_invalid_request(
    broker: Broker, version: int, key_type: int
) -> None:
    [answer] = await ask(broker, version, key_type, "k")
    assert answer.error_code == Code.INVALID_REQUEST
    assert f"type {key_type}" in answer.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_database(cut_off: Broker, version: int) -> None:
    await cut_off.with_groups(alive=False)
    [answer] = await ask(cut_off, version, GROUP, "g")
    assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
    await cut_off.groups.close()


async def test_a_coordinator_without_this_listener_is_not_named(group_broker: Broker) -> None:
    services = group_broker.context().services
    elsewhere = replace(group_broker.context(), services=replace(services, listener="other"))
    assert elsewhere.brokers == []
    assert elsewhere.node(group_broker.cluster.this) is None
