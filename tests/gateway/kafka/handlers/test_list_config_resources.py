"""ListConfigResources: topics, brokers, and groups with settings of their own."""

import pytest

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.topic.rules import NewTopic
from gateway.kafka.codec import ListConfigResourcesRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def listed(broker: Broker, *kinds: int) -> list[tuple[int, str]]:
    answer = await broker.ask(ListConfigResourcesRequest(resource_types=list(kinds)), 1)
    assert answer.error_code == 0
    return [(each.resource_type, each.resource_name) for each in answer.config_resources]


async def test_each_type_lists_its_own_and_none_lists_all(make_broker: MakeBroker) -> None:
    one, two = await make_broker(), await make_broker()
    await one.cluster.heartbeat()
    await one.topics.create([NewTopic("a"), NewTopic("b")])
    step = ConfigOperation("consumer.session.timeout.ms", 0, "50000")
    change = ConfigAlteration(ConfigResource(GROUP, "payments"), (step,))
    assert await two.configs.alter([change], validate_only=False) == [None]
    topics, brokers = [(TOPIC, "a"), (TOPIC, "b")], [(BROKER, "1"), (BROKER, "2")]
    groups = [(GROUP, "payments")]
    assert await listed(one, TOPIC) == topics
    assert await listed(one, BROKER) == brokers
    assert await listed(one, GROUP) == groups
    assert await listed(one, TOPIC, GROUP, TOPIC) == [*groups, *topics]
    assert await listed(one, LOGGER, METRICS) == []
    assert await listed(one) == [*groups, *brokers, *topics]


@pytest.mark.parametrize("kinds", [[0], [99], [TOPIC, 99], [-1]])
async def test_an_unknown_type_is_not_supported(broker: Broker, kinds: list[int]) -> None:
    answer = await broker.ask(ListConfigResourcesRequest(resource_types=kinds), 1)
    assert (answer.error_code, list(answer.config_resources)) == (Code.UNSUPPORTED_VERSION, [])


async def test_the_first_version_lists_client_metrics_only(broker: Broker) -> None:
    await broker.topics.create([NewTopic("a")])
    answer = await broker.ask(ListConfigResourcesRequest(), 0)
    assert (answer.error_code, list(answer.config_resources)) == (0, [])


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    for kind in (TOPIC, GROUP):
        answer = await cut_off.ask(ListConfigResourcesRequest(resource_types=[kind]), 1)
        assert answer.error_code == Code.REQUEST_TIMED_OUT
