"""DescribeConfigs: values, sources, synonyms, types, and what cannot be described."""

import pytest

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.topic.rules import NewTopic
from gateway.kafka.codec import DescribeConfigsRequest, DescribeConfigsResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(1, 5)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT_BROKER, FROM_STATIC, FROM_DEFAULT = 1, 2, 3, 4, 5
FROM_GROUP = 8
LONG = 5


async def ask(
    broker: Broker, *resources: tuple[int, str, list[str] | None], version: int = 4, **fields: bool
) -> list[DescribeConfigsResponse]:
    wanted = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys
        )
        for kind, name, keys in resources
    ]
    return (await broker.ask(DescribeConfigsRequest(resources=wanted, **fields), version)).results


async def set_config(broker: Broker, kind: int, name: str, key: str, value: str) -> None:
    step = ConfigAlteration(ConfigResource(kind, name), (ConfigOperation(key, 0, value),))
    assert await broker.configs.alter([step], validate_only=False) == [None]


@pytest.mark.parametrize("version", VERSIONS)
async def test_topics_setting_shows_value_and_source(broker: Broker, version: int) -> None:
    await broker.topics.create([NewTopic("t", configs=(("retention.ms", "60000"),))])
    (result,) = await ask(broker, (TOPIC, "t", None), version=version)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
    entries = {entry.name: entry for entry in result.configs}
    own, default = entries["retention.ms"], entries["max.message.bytes"]
    assert (own.value, own.config_source, own.read_only) == ("60000", FROM_TOPIC, False)
    assert (default.value, default.config_source) == ("1048588", FROM_DEFAULT)
    assert own.synonyms == []
    if version >= 3:
        assert (own.config_type, own.documentation) == (LONG, None)
    assert len(entries) > 25


async def test_synonyms_run_from_the_topic_to_the_default(make_broker: MakeBroker) -> None:
    broker = await make_broker({"log.segment.bytes": "3000000"})
    await broker.topics.create([NewTopic("t", configs=(("segment.bytes", "6000000"),))])
    await set_config(broker, BROKER, "", "log.segment.bytes", "4000000")
    await set_config(broker, BROKER, str(broker.cluster.broker_id), "log.segment.bytes", "5000000")
    (result,) = await ask(broker, (TOPIC, "t", ["segment.bytes"]), include_synonyms=True)
    (entry,) = result.configs
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("segment.bytes", "6000000", FROM_TOPIC),
        ("log.segment.bytes", "5000000", FROM_BROKER),
        ("log.segment.bytes", "4000000", FROM_DEFAULT_BROKER),
        ("log.segment.bytes", "3000000", FROM_STATIC),
        ("log.segment.bytes", "1073741824", FROM_DEFAULT),
    ]


async def test_documentation_comes_on_request(broker: Broker) -> None:
    own = str(broker.cluster.broker_id)
    (result,) = await ask(broker, (BROKER, own, ["num.partitions"]), include_documentation=True)
    (entry,) = result.configs
    assert "Partitions" in entry.documentation
    assert (entry.value, entry.read_only) == ("1", True)


async def test_own_broker_and_all_brokers(broker: Broker) -> None:
    own = str(broker.cluster.broker_id)
    await set_config(broker, BROKER, "", "log.retention.ms", "60000")
    whole, for_all = await ask(broker, (BROKER, own, []), (BROKER, "", None))
    values = {entry.name: entry for entry in whole.configs}
    assert values["log.retention.ms"].value == "60000"
    assert values["log.retention.ms"].config_source == FROM_DEFAULT_BROKER
    assert len(values) > 50
    assert [(each.name, each.value) for each in for_all.configs] == [("log.retention.ms", "60000")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_groups_default_is_the_brokers_value(make_broker: MakeBroker, version: int) -> None:
    """Whether there is such a group or not; a value of its own hides the default, as in Kafka."""
    broker = await make_broker({"group.consumer.session.timeout.ms": "50000"})
    await set_config(broker, GROUP, "g", "consumer.heartbeat.interval.ms", "7000")
    (result,) = await ask(broker, (GROUP, "g", None), version=version, include_synonyms=True)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, GROUP, "g")
    entries = {entry.name: entry for entry in result.configs}
    told = {
        name: (entry.value, entry.config_source, [each.name for each in entry.synonyms])
        for name, entry in entries.items()
        if name.startswith("consumer.")
    }
    assert told == {
        "consumer.heartbeat.interval.ms": ("7000", FROM_GROUP, ["consumer.heartbeat.interval.ms"]),
        "consumer.session.timeout.ms": ("50000", FROM_DEFAULT, ["consumer.session.timeout.ms"]),
    }
    assert not any(entry.read_only for entry in result.configs)
    assert {"share.isolation.level", "streams.num.standby.replicas"} <= entries.keys()


async def test_a_group_id_of_any_length_can_be_described(broker: Broker) -> None:
    (long, nul) = await ask(broker, (GROUP, "g" * 32_000, None), (GROUP, "nul\0", None))
    assert (long.error_code, nul.error_code) == (0, 0)
    assert {entry.config_source for entry in [*long.configs, *nul.configs]} == {FROM_DEFAULT}


async def test_change_at_another_broker_shows_at_once(make_broker: MakeBroker) -> None:
    one, other = await make_broker(), await make_broker()
    await one.topics.create([NewTopic("t")])
    await ask(other, (TOPIC, "t", None))
    await set_config(one, TOPIC, "t", "retention.ms", "1")
    await set_config(one, BROKER, "", "message.max.bytes", "77777")
    (result,) = await ask(other, (TOPIC, "t", ["retention.ms", "max.message.bytes"]))
    values = {entry.name: entry.value for entry in result.configs}
    assert values == {"retention.ms": "1", "max.message.bytes": "77777"}


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "none", Code.UNKNOWN_TOPIC_OR_PARTITION, None),
        (TOPIC, "a/b", Code.INVALID_TOPIC_EXCEPTION, "contains one or more characters"),
        (TOPIC, "nul\0", Code.INVALID_TOPIC_EXCEPTION, "contains one or more characters"),
        (TOPIC, "", Code.INVALID_TOPIC_EXCEPTION, "the empty string is not allowed"),
        (BROKER, "99", Code.INVALID_REQUEST, "expected 1 or empty string, but received 99"),
        (BROKER, "one", Code.INVALID_REQUEST, "Broker id must be an integer, but it is: one"),
        (LOGGER, "1", Code.INVALID_REQUEST, "Unsupported resource type: BROKER_LOGGER"),
        (METRICS, "m", Code.INVALID_REQUEST, "Unsupported resource type: CLIENT_METRICS"),
        (GROUP, "", Code.INVALID_REQUEST, "Group name must not be empty"),
        (99, "x", Code.INVALID_REQUEST, "Unexpected resource type UNKNOWN for resource x"),
    ],
)
async def test_invalid_resource_is_refused(
    broker: Broker, kind: int, name: str, code: int, message: str | None
) -> None:
    (result,) = await ask(broker, (kind, name, None))
    assert (result.error_code, result.configs) == (code, [])
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert result.error_message == message or message in result.error_message


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    (result,) = await ask(cut_off, (TOPIC, "t", None))
    assert result.error_code == Code.REQUEST_TIMED_OUT


@pytest.mark.parametrize("name", ["", "1"])
async def test_unknown_property_that_is_set_is_shown(broker: Broker, name: str) -> None:
    await set_config(broker, BROKER, name, "plugin.password", "secret")
    for keys in (["plugin.password"], None):
        (result,) = await ask(broker, (BROKER, name, keys), include_synonyms=True)
        (entry,) = [each for each in result.configs if each.name == "plugin.password"]
        assert (entry.value, entry.is_sensitive, entry.read_only) == (None, True, True)
        source = FROM_BROKER if name else FROM_DEFAULT_BROKER
        assert (entry.config_type, entry.config_source) == (0, source)
        assert [(each.value, each.source) for each in entry.synonyms] == [(None, source)]
