"""IncrementalAlterConfigs: SET, DELETE, APPEND, SUBTRACT, and Kafka's refusals."""

import pytest
from sqlalchemy import text

from core.topic.rules import NewTopic
from gateway.kafka.codec import IncrementalAlterConfigsRequest
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(2)
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
INVALID_CONFIG, INVALID_REQUEST = Code.INVALID_CONFIG, Code.INVALID_REQUEST
INVALID_TOPIC = Code.INVALID_TOPIC_EXCEPTION
SESSION = "consumer.session.timeout.ms"

Step = tuple[str, int, str | None]


async def alter(
    broker: Broker,
    *resources: tuple[int, str, list[Step]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    wanted = [
        kind(
            resource_type=number,
            resource_name=name,
            configs=[
                kind.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in steps
            ],
        )
        for number, name, steps in resources
    ]
    request = IncrementalAlterConfigsRequest(resources=wanted, validate_only=validate_only)
    answer = await broker.ask(request, version)
    told = [(each.resource_type, each.resource_name) for each in answer.responses]
    assert told == [(number, name) for number, name, _ in resources]
    return [(each.error_code, each.error_message) for each in answer.responses]


async def overrides(broker: Broker, name: str) -> dict[str, str]:
    broker.topics.invalidate()
    topic = await broker.topics.get(name)
    assert topic is not None
    return dict(topic.overrides)


@pytest.fixture
async def topic(broker: Broker) -> str:
    configs = (("retention.ms", "1000"), ("cleanup.policy", "compact"))
    await broker.topics.create([NewTopic("t", configs=configs)])
    return "t"


@pytest.mark.parametrize("version", VERSIONS)
async def test_steps_change_only_what_they_name(broker: Broker, topic: str, version: int) -> None:
    steps: list[Step] = [
        ("retention.ms", DELETE, None),
        ("segment.bytes", SET, "2000000"),
        ("cleanup.policy", APPEND, "delete"),
    ]
    assert await alter(broker, (TOPIC, topic, steps), version=version) == [(0, None)]
    assert await overrides(broker, topic) == {
        "segment.bytes": "2000000",
        "cleanup.policy": "compact,delete",
    }
    steps = [("cleanup.policy", SUBTRACT, "compact")]
    assert await alter(broker, (TOPIC, topic, steps), version=version) == [(0, None)]
    assert (await overrides(broker, topic))["cleanup.policy"] == "delete"


async def test_append_starts_from_the_default(broker: Broker) -> None:
    await broker.topics.create([NewTopic("t")])
    assert await alter(broker, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")])) == [(0, None)]
    assert await overrides(broker, "t") == {"cleanup.policy": "delete,compact"}


async def test_validate_only_changes_nothing(broker: Broker, topic: str) -> None:
    before = await overrides(broker, topic)
    steps: list[Step] = [("retention.ms", SET, "5")]
    assert await alter(broker, (TOPIC, topic, steps), validate_only=True) == [(0, None)]
    assert await overrides(broker, topic) == before


@pytest.mark.parametrize(
    ("kind", "name", "steps", "code", "message"),
    [
        (TOPIC, "t", [("retention.ms", SET, "soon")], INVALID_CONFIG, "Not a number of type LONG"),
        (TOPIC, "t", [("no.such", SET, "1")], INVALID_CONFIG, "Unknown topic config name: no.such"),
        (
            TOPIC,
            "t",
            [("retention.ms", APPEND, "1")],
            INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (TOPIC, "t", [("retention.ms", SET, None)], INVALID_REQUEST, "Null value not supported"),
        (TOPIC, "t", [("retention.ms", 9, "1")], INVALID_REQUEST, "Unknown operations type 9"),
        (
            TOPIC,
            "t",
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        (TOPIC, "t", [("retention.ms", SET, "1\0")], INVALID_CONFIG, "NUL"),
        (
            TOPIC,
            "none",
            [("retention.ms", SET, "1")],
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'none' does not exist.",
        ),
        (TOPIC, "none", [("retention.ms", SET, "x")], INVALID_CONFIG, "Not a number"),
        (TOPIC, "", [("retention.ms", SET, "1")], INVALID_REQUEST, "Default topic resources"),
        (TOPIC, "a/b", [("retention.ms", SET, "1")], INVALID_TOPIC, "Topic name is invalid"),
        (TOPIC, "nul\0", [("retention.ms", SET, "1")], INVALID_TOPIC, "Topic name is invalid"),
        (BROKER, "", [("num.partitions", SET, "2")], INVALID_REQUEST, "Cannot update these"),
        (BROKER, "1", [("num.partitions", SET, "2")], INVALID_REQUEST, "Cannot update these"),
        (BROKER, "", [("log.segment.bytes", SET, "1")], INVALID_REQUEST, "must be at least"),
        (BROKER, "", [("log.segment.bytes", APPEND, "1")], INVALID_CONFIG, "append is not allowed"),
        (BROKER, "", [("plug\0in", SET, "1")], INVALID_CONFIG, "NUL"),
        (BROKER, "", [("p" * 1001, SET, "1")], INVALID_CONFIG, "longer than allowed"),
        (BROKER, "", [("é" * 501, SET, "1")], INVALID_CONFIG, "longer than allowed"),
        (BROKER, "2", [("log.retention.ms", SET, "2")], INVALID_REQUEST, "expected 1, but receiv"),
        (BROKER, "one", [("log.retention.ms", SET, "2")], INVALID_REQUEST, "must be an integer"),
        (LOGGER, "1", [("root", SET, "INFO")], INVALID_REQUEST, "Unknown resource type 8"),
        (GROUP, "g", [("x", SET, "1")], INVALID_CONFIG, "Unknown group config name: x"),
        (GROUP, "", [(SESSION, SET, "50000")], INVALID_REQUEST, "Default group resources"),
        (GROUP, "nul\0", [(SESSION, SET, "50000")], INVALID_REQUEST, "NUL"),
        (GROUP, "é" * 1001, [(SESSION, SET, "50000")], INVALID_REQUEST, "longer than 2000 bytes"),
        (GROUP, "g", [(SESSION, SET, "40000")], INVALID_CONFIG, "greater than or equal to group."),
        (GROUP, "g", [(SESSION, SET, "60001")], INVALID_CONFIG, "less than or equal to group."),
        (GROUP, "g", [(SESSION, SET, "soon")], INVALID_CONFIG, "Not a number of type INT"),
        (GROUP, "g", [(SESSION, APPEND, "1")], INVALID_CONFIG, "its type is not LIST"),
        (GROUP, "g", [(SESSION, SET, None)], INVALID_REQUEST, "Null value not supported"),
        (BROKER, "1", [("ssl.client.auth", SET, "required")], INVALID_REQUEST, "cannot be changed"),
        (0, "g", [("x", SET, "1")], INVALID_REQUEST, "Unknown resource type 0"),
    ],
)
async def test_bad_step_is_refused_whole(
    broker: Broker, topic: str, kind: int, name: str, steps: list[Step], code: int, message: str
) -> None:
    before = await overrides(broker, topic)
    good: Step = ("segment.bytes", SET, "2000000")
    ((told, why),) = await alter(broker, (kind, name, [*steps, good] if kind == TOPIC else steps))
    assert told == code
    assert why is not None
    assert message in why
    assert await overrides(broker, topic) == before
    async with broker.database.begin("test") as connection:
        left = await connection.scalar(text("SELECT count(*) FROM penstock.config_entry"))
    assert left == len(before)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_groups_own_settings_are_what_it_goes_by(broker: Broker, version: int) -> None:
    longest = "g" * 2000
    steps: list[Step] = [(SESSION, SET, "50000"), ("consumer.heartbeat.interval.ms", SET, "6000")]
    told = await alter(broker, (GROUP, "g", steps), (GROUP, longest, steps), version=version)
    assert told == [(0, None)] * 2
    await broker.configs.load()
    for group_id in ("g", longest):
        settings = broker.configs.group_settings(group_id)
        assert settings.consumer_session_timeout_ms == 50_000
        assert settings.consumer_heartbeat_interval_ms == 6_000
    assert broker.configs.group_settings("other").consumer_session_timeout_ms == 45_000
    assert await broker.configs.groups_with_settings() == ["g", longest]
    assert await alter(broker, (GROUP, "g", [(SESSION, DELETE, None)])) == [(0, None)]
    await broker.configs.load()
    assert broker.configs.group_settings("g").consumer_session_timeout_ms == 45_000
    assert broker.configs.group_settings("g").consumer_heartbeat_interval_ms == 6_000


async def test_a_groups_settings_reach_other_brokers(make_broker: MakeBroker) -> None:
    one, other = await make_broker(), await make_broker()
    assert other.configs.group_settings("g").consumer_session_timeout_ms == 45_000
    assert await alter(one, (GROUP, "g", [(SESSION, SET, "50000")])) == [(0, None)]
    await other.configs.load()
    assert other.configs.group_settings("g").consumer_session_timeout_ms == 50_000


async def test_validating_a_groups_settings_changes_nothing(broker: Broker) -> None:
    steps: list[Step] = [(SESSION, SET, "50000")]
    assert await alter(broker, (GROUP, "g", steps), validate_only=True) == [(0, None)]
    assert await broker.configs.groups_with_settings() == []


async def test_one_resource_fails_and_another_does_not(broker: Broker, topic: str) -> None:
    results = await alter(
        broker,
        (TOPIC, topic, [("retention.ms", SET, "soon")]),
        (BROKER, "", [("log.retention.ms", SET, "60000")]),
    )
    assert [code for code, _ in results] == [INVALID_CONFIG, 0]
    await broker.configs.load()
    assert broker.configs.values.dynamic_default == {"log.retention.ms": "60000"}


async def test_resource_twice_in_one_request_is_refused(broker: Broker, topic: str) -> None:
    before = await overrides(broker, topic)
    steps: list[Step] = [("retention.ms", SET, "1")]
    results = await alter(broker, (TOPIC, topic, steps), (TOPIC, topic, steps))
    assert results == [(INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    assert await overrides(broker, topic) == before


async def test_settings_of_one_broker_win_over_those_of_all(make_broker: MakeBroker) -> None:
    broker = await make_broker({"log.retention.ms": "1"})
    own = str(broker.cluster.broker_id)
    await broker.topics.create([NewTopic("t")])
    for name, value in [("", "2"), (own, "3")]:
        assert await alter(broker, (BROKER, name, [("log.retention.ms", SET, value)])) == [
            (0, None)
        ]
        broker.topics.invalidate()
        topic = await broker.topics.get("t")
        assert topic is not None
        assert topic.config.retention_ms == int(value)
    assert await alter(broker, (BROKER, own, [("log.retention.ms", DELETE, None)])) == [(0, None)]
    broker.topics.invalidate()
    topic = await broker.topics.get("t")
    assert topic is not None
    assert topic.config.retention_ms == 2


@pytest.mark.parametrize("name", ["", "1"])
async def test_what_is_read_only_can_be_unset_beside_other_steps(broker: Broker, name: str) -> None:
    steps: list[Step] = [("num.partitions", DELETE, "3"), ("log.retention.ms", SET, "5")]
    assert await alter(broker, (BROKER, name, steps)) == [(0, None)]
    await broker.configs.load()
    assert broker.configs.broker_int("log.retention.ms") == 5


async def test_change_takes_effect_at_the_broker_that_made_it(broker: Broker, topic: str) -> None:
    before = await broker.topics.get(topic)
    assert before is not None
    await alter(broker, (TOPIC, topic, [("retention.ms", SET, "77")]))
    after = await broker.topics.get(topic)
    assert after is not None
    assert after.config.retention_ms == 77


async def test_without_a_database_clients_are_told_to_try_again(cut_off: Broker) -> None:
    results = await alter(cut_off, (TOPIC, "t", [("retention.ms", SET, "1")]))
    assert [code for code, _ in results] == [Code.REQUEST_TIMED_OUT]
