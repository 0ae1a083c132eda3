"""AlterConfigs: the whole of a resource's settings is replaced."""

import pytest

from core.topic.rules import NewTopic
from gateway.kafka.codec import AlterConfigsRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code

VERSIONS = range(3)
TOPIC, BROKER = 2, 4


async def alter(
    broker: Broker,
    *resources: tuple[int, str, list[tuple[str, str | None]]],
    version: int = 2,
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    kind = AlterConfigsRequest.AlterConfigsResource
    wanted = [
        kind(
            resource_type=number,
            resource_name=name,
            configs=[kind.AlterableConfig(name=key, value=value) for key, value in configs],
        )
        for number, name, configs in resources
    ]
    request = AlterConfigsRequest(resources=wanted, validate_only=validate_only)
    answer = await broker.ask(request, version)
    return [(each.error_code, each.error_message) for each in answer.responses]


async def overrides(broker: Broker) -> dict[str, str]:
    topic = await broker.topics.get("t")
    assert topic is not None
    return dict(topic.overrides)


@pytest.mark.parametrize("version", VERSIONS)
async def test_settings_that_are_not_named_are_gone(broker: Broker, version: int) -> None:
    configs = (("retention.ms", "1"), ("segment.bytes", "2000000"))
    await broker.topics.create([NewTopic("t", configs=configs)])
    wanted = (TOPIC, "t", [("retention.ms", "2"), ("compression.type", "lz4")])
    assert await alter(broker, wanted, version=version, validate_only=True) == [(0, None)]
    assert await overrides(broker) == dict(configs)
    assert await alter(broker, wanted, version=version) == [(0, None)]
    assert await overrides(broker) == {"retention.ms": "2", "compression.type": "lz4"}
    assert await alter(broker, (TOPIC, "t", []), version=version) == [(0, None)]
    assert await overrides(broker) == {}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "t", [("retention.ms", "soon")], Code.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", None)], Code.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "2")], Code.INVALID_REQUEST),
        (TOPIC, "none", [("retention.ms", "1")], Code.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "", [("num.partitions", "2")], Code.INVALID_REQUEST),
        (8, "1", [("root", "INFO")], Code.INVALID_REQUEST),
    ],
)
async def test_bad_wish_changes_nothing(
    broker: Broker, kind: int, name: str, configs: list[tuple[str, str | None]], code: int
) -> None:
    await broker.topics.create([NewTopic("t", configs=(("segment.bytes", "2000000"),))])
    ((told, _),) = await alter(broker, (kind, name, configs))
    assert told == code
    broker.topics.invalidate()
    assert await overrides(broker) == {"segment.bytes": "2000000"}


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    ((code, _),) = await alter(cut_off, (TOPIC, "t", []))
    assert code == Code.REQUEST_TIMED_OUT
