"""FindCoordinator: every key is refused, in the words and codes that clients act on."""

import pytest

from gateway.kafka.codec import FindCoordinatorRequest, FindCoordinatorResponse
from tests.gateway.kafka.handlers.conftest import Broker

VERSIONS = range(7)
GROUP, TRANSACTION, SHARE = range(3)
COORDINATOR_NOT_AVAILABLE, UNSUPPORTED_VERSION, INVALID_REQUEST = 15, 35, 42
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53


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
async def test_a_group_has_no_coordinator(broker: Broker, version: int) -> None:
    [answer] = await ask(broker, version, GROUP, "g")
    expected = COORDINATOR_NOT_AVAILABLE if version == 2 else UNSUPPORTED_VERSION
    assert answer.error_code == expected
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
    if version >= 1:
        assert "does not serve consumer groups yet" in answer.error_message


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_a_transactional_id_has_no_coordinator(broker: Broker, version: int) -> None:
    [answer] = await ask(broker, version, TRANSACTION, "t")
    final = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if version == 2 else UNSUPPORTED_VERSION
    assert answer.error_code == final
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
    assert "does not serve transactions yet" in answer.error_message


@pytest.mark.parametrize("version", VERSIONS[4:])
async def test_each_of_several_keys_is_answered(broker: Broker, version: int) -> None:
    answers = await ask(broker, version, GROUP, "a", "ü\0", "")
    assert [answer.key for answer in answers] == ["a", "ü\0", ""]
    assert {answer.error_code for answer in answers} == {UNSUPPORTED_VERSION}
    assert await ask(broker, version, GROUP) == []


async def test_share_groups_are_known_from_version_6_on(broker: Broker) -> None:
    [answer] = await ask(broker, 6, SHARE, "g:t:0")
    assert answer.error_code == UNSUPPORTED_VERSION
    assert "share groups" in answer.error_message
    for version in VERSIONS[1:6]:
        [answer] = await ask(broker, version, SHARE, "g:t:0")
        assert answer.error_code == INVALID_REQUEST


@pytest.mark.parametrize("key_type", [-1, 3, 127])
@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_an_unknown_type_of_key_is_an_invalid_request(
    broker: Broker, version: int, key_type: int
) -> None:
    [answer] = await ask(broker, version, key_type, "k")
    assert answer.error_code == INVALID_REQUEST
    assert f"type {key_type}" in answer.error_message


async def test_without_a_database_the_answer_is_the_same(cut_off: Broker) -> None:
    [answer] = await ask(cut_off, 6, GROUP, "g")
    assert answer.error_code == UNSUPPORTED_VERSION
