"""What an alteration of settings comes to (the handlers' tests cover each refusal's code)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.definitions import TOPIC_CONFIGS
from core.config.rules import (
    AlterOperation,
    ConfigAlteration,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    alter,
    check_alterable,
    check_dynamic_broker_configs,
    check_group_configs,
    check_static_bounds,
    check_static_broker_config,
    check_storable,
    decide_alteration,
    parse_broker_id,
)
from core.config.types import ConfigError
from core.config.values import BrokerValues
from core.errors import Error, Refusal

TOPIC = ConfigResource(2, "t")
NOTHING = BrokerValues({}, {}, {})
SET, DELETE, APPEND, SUBTRACT = range(4)


def steps(*operations: tuple[str, int, str | None]) -> ConfigAlteration:
    return ConfigAlteration(TOPIC, tuple(ConfigOperation(*each) for each in operations))


def test_unknown_numbers_are_an_unknown_type() -> None:
    assert ConfigResource(2, "t").type is ConfigResourceType.TOPIC
    assert ConfigResource(3, "t").type is ConfigResourceType.UNKNOWN
    assert ConfigResource(-1, "t").type is ConfigResourceType.UNKNOWN


def test_steps_leave_the_rest_alone() -> None:
    current = {"retention.ms": "1", "segment.bytes": "2000000"}
    wanted = steps(("retention.ms", SET, "2"))
    assert decide_alteration(wanted, current, NOTHING) == {"retention.ms": "2"}


def test_replacement_deletes_the_rest() -> None:
    current = {"retention.ms": "1", "segment.bytes": "2000000"}
    wanted = ConfigAlteration(
        TOPIC, (ConfigOperation("retention.ms", SET, "2"),), replaces_all=True
    )
    decided = decide_alteration(wanted, current, NOTHING)
    assert decided == {"retention.ms": "2", "segment.bytes": None}


def test_settings_are_checked_together_with_those_that_stay() -> None:
    wanted = steps(("min.compaction.lag.ms", SET, "10"))
    refused = decide_alteration(wanted, {"max.compaction.lag.ms": "5"}, NOTHING)
    assert isinstance(refused, Refusal)
    assert refused.error is Error.INVALID_CONFIG
    broker = BrokerValues({"log.cleaner.max.compaction.lag.ms": "5"}, {}, {})
    assert isinstance(decide_alteration(wanted, {}, broker), Refusal)
    assert not isinstance(decide_alteration(wanted, {}, NOTHING), Refusal)


def test_delete_needs_no_value_and_others_do() -> None:
    assert check_alterable(steps(("retention.ms", DELETE, None)), 1) is None
    for operation in (SET, APPEND, SUBTRACT):
        refusal = check_alterable(steps(("retention.ms", operation, None)), 1)
        assert refusal is not None
        assert refusal.error is Error.INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "broker_id"),
    [("1", 1), ("+1", 1), ("-1", -1), ("007", 7), ("", None), ("1.0", None), ("१", None)],
)
def test_broker_ids_are_read_as_java_reads_integers(name: str, broker_id: int | None) -> None:
    assert parse_broker_id(name) == broker_id


@given(st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5)))
def test_text_postgresql_cannot_hold_is_refused(changes: dict[str, str | None]) -> None:
    text = "".join(changes) + "".join(value or "" for value in changes.values())
    assert (check_storable(changes) is not None) == ("\0" in text)


def test_read_only_properties_do_not_change_while_brokers_run() -> None:
    wrong = check_dynamic_broker_configs({"num.partitions": "3"}, per_broker=True)
    assert wrong == "Cannot update these configs dynamically: Set(num.partitions)"
    assert check_dynamic_broker_configs({"log.retention.ms": "3"}, per_broker=False) is None
    assert check_dynamic_broker_configs({"log.retention.ms": None}, per_broker=False) is None
    assert check_dynamic_broker_configs({"somebody.elses": "x"}, per_broker=True) is None
    wrong = check_dynamic_broker_configs({"log.retention.ms": "x"}, per_broker=False)
    assert wrong == (
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG"
    )


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        ("sasl.kerberos.min.time.before.relogin", "58000", True),
        ("sasl.login.refresh.window.factor", "0.7", True),
        ("sasl.kerberos.min.time.before.relogin", "soon", False),
        ("sasl.enabled.mechanisms", "PLAIN", True),
        ("sasl.enabled.mechanisms", "PLAIN,GSSAPI", False),
        ("sasl.enabled.mechanisms", "", False),
        ("connections.max.reauth.ms", "1000", False),
        ("listener.security.protocol.map", "A:SSL", False),
        ("sasl.jaas.config", "x required;", False),
        ("principal.builder.class", "x", False),
    ],
)
def test_of_logins_only_what_promises_safety_is_refused(
    name: str, value: str, is_taken: bool
) -> None:
    assert (check_dynamic_broker_configs({name: value}, per_broker=True) is None) is is_taken


def test_what_cannot_be_set_can_be_unset() -> None:
    values = {"num.partitions": None, "listener.name.out.ssl.client.auth": None}
    assert check_dynamic_broker_configs(values, per_broker=False) is None


def test_a_listeners_own_value_is_held_to_the_propertys_rules() -> None:
    prefix = "listener.name.plaintext."
    for per_broker in (True, False):
        for name, wrong in (
            ("max.connections", "many"),
            ("ssl.client.auth", "required"),
            ("scram-sha-256.sasl.jaas.config", "x required;"),
            ("sasl.enabled.mechanisms", "PLAIN"),  # right, and would have no effect
            ("plain.connections.max.reauth.ms", "1000"),
        ):
            values = {prefix + name: wrong}
            assert check_dynamic_broker_configs(values, per_broker=per_broker) is not None
        values = {f"{prefix}max.connections": "5"}
        assert check_dynamic_broker_configs(values, per_broker=per_broker) is None
    values = {f"{prefix}somebody.elses": "x"}
    assert check_dynamic_broker_configs(values, per_broker=True) is None
    assert check_dynamic_broker_configs(values, per_broker=False) == (
        "Cannot update these configs at default cluster level, broker id must be specified:"
        " Set(listener.name.plaintext.somebody.elses)"
    )


def test_a_mechanism_that_lacks_what_it_needs_cannot_be_enabled() -> None:
    """It is given when the broker starts, on each listener that asks."""
    listeners = {"listeners": "PLAINTEXT://:1,SASL_SSL://:2"}
    needed = {f"sasl.oauthbearer.expected.{name}": "x" for name in ("issuer", "audience")}
    needed["sasl.oauthbearer.jwks.endpoint.url"] = "file:///x"
    own = {f"listener.name.sasl_ssl.{name}": value for name, value in needed.items()}
    values = "PLAIN,OAUTHBEARER"
    for static, wrong in (
        (listeners, "sasl.oauthbearer.jwks.endpoint.url and sasl.oauthbearer.expected.issuer and"),
        (
            listeners | needed | {"sasl.oauthbearer.expected.audience": ""},
            "needs sasl.oauthbearer.",
        ),
        (listeners | needed, None),
        (listeners | own, None),
    ):
        answer = decide_alteration(
            ConfigAlteration(
                ConfigResource(ConfigResourceType.BROKER.value, "1"),
                (ConfigOperation("sasl.enabled.mechanisms", 0, values),),
            ),
            {},
            BrokerValues(static, {}, {}),
        )
        if wrong is None:
            assert answer == {"sasl.enabled.mechanisms": values}
        else:
            assert isinstance(answer, Refusal)
            assert wrong in answer.message
    for name in (*needed, *own):
        assert check_dynamic_broker_configs({name: "x"}, per_broker=True) is not None


def test_the_classic_protocol_cannot_be_switched_off() -> None:
    name = "group.coordinator.rebalance.protocols"
    assert check_static_broker_config(name, "classic") is None
    assert check_static_broker_config(name, "consumer") == (
        "Disabling the 'classic' protocol is not supported."
    )
    assert "String must be one of" in (check_static_broker_config(name, "classic,x") or "")


def test_static_properties_must_be_known_and_settable() -> None:
    assert check_static_broker_config("log.retention.hours", "24") is None
    assert check_static_broker_config("penstock.flush.max.bytes", "1") is None
    assert check_static_broker_config("nope", "1") == "Unknown broker property: nope"
    assert check_static_broker_config("node.id", "1") == "node.id is set by --broker-id"
    assert check_static_broker_config("retention.ms", "1") == (
        "retention.ms is a topic's property; for all topics set log.retention.ms"
    )


@pytest.mark.parametrize(
    ("operation", "value", "current", "after"),
    [
        (AlterOperation.SET, "compact", "delete", "compact"),
        (AlterOperation.DELETE, None, "compact", None),
        (AlterOperation.APPEND, "compact", None, "delete,compact"),
        (AlterOperation.APPEND, "delete", "delete", "delete"),
        (AlterOperation.SUBTRACT, "delete", "delete,compact", "compact"),
        (AlterOperation.SUBTRACT, "delete", None, ""),
        (AlterOperation.SUBTRACT, "compact", "delete", "delete"),
    ],
)
def test_one_step_of_an_incremental_alteration(
    operation: AlterOperation, value: str | None, current: str | None, after: str | None
) -> None:
    definition = TOPIC_CONFIGS["cleanup.policy"]
    assert alter(operation, "cleanup.policy", value, current, definition) == after


@pytest.mark.parametrize("operation", [AlterOperation.APPEND, AlterOperation.SUBTRACT])
def test_only_lists_take_parts(operation: AlterOperation) -> None:
    definition = TOPIC_CONFIGS["retention.ms"]
    with pytest.raises(ConfigError, match=rf"^Can't {operation.name} to key retention.ms because"):
        alter(operation, "retention.ms", "1", "2", definition)


# --- groups ---


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_a_groups_times_are_bounded_by_the_brokers(kind: str) -> None:
    session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    for name, low, high in ((session, 45_000, 60_000), (interval, 5_000, 15_000)):
        what = name.removeprefix(f"{kind}.")
        least, most = f"group.{kind}.min.{what}", f"group.{kind}.max.{what}"
        assert check_group_configs({name: str(low)}) is None
        assert check_group_configs({name: str(high)}) is None
        assert check_group_configs({name: str(low - 1)}) == (
            f"{name} must be greater than or equal to {least}"
        )
        assert check_group_configs({name: str(high + 1)}) == (
            f"{name} must be less than or equal to {most}"
        )
        assert check_group_configs({name: str(high + 1)}, {most: str(high + 1)}) is None
    broker = {f"group.{kind}.min.session.timeout.ms": "1"}
    assert check_group_configs({session: "5000"}, broker) == (
        f"{session} must be greater than {interval}"
    )
    assert check_group_configs({session: "5001"}, broker) is None


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("nope", "1", "Unknown group config name: nope"),
        ("consumer.session.timeout.ms", "0", "Value must be at least 1"),
        ("streams.num.standby.replicas", "3", "less than or equal to group.streams.max.standby"),
        ("share.record.lock.duration.ms", "1000", "equal to group.share.min.record.lock"),
        ("share.isolation.level", "READ_COMMITTED", "String must be one of"),
        ("share.auto.offset.reset", "EARLIEST", "must be either 'earliest', 'latest' or"),
        ("share.auto.offset.reset", "by_duration:P", "must be either 'earliest', 'latest' or"),
        ("share.auto.offset.reset", "by_duration:P1DT", "must be either 'earliest', 'latest' or"),
    ],
)
def test_a_groups_bad_value_gets_kafkas_sentence(name: str, text: str, wrong: str) -> None:
    assert wrong in (check_group_configs({name: text}) or "")


@pytest.mark.parametrize("text", ["earliest", "by_duration:PT1H", "by_duration:-P1DT2.5S"])
def test_a_groups_good_value_passes(text: str) -> None:
    assert check_group_configs({"share.auto.offset.reset": text}) is None


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, None),
        (
            {"group.consumer.session.timeout.ms": "44999"},
            "group.consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"group.consumer.heartbeat.interval.ms": "15001"},
            "group.consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"group.consumer.max.session.timeout.ms": "44999"},
            "group.consumer.max.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {
                "group.consumer.session.timeout.ms": "5000",
                "group.consumer.min.session.timeout.ms": "1",
            },
            "group.consumer.heartbeat.interval.ms must be less than "
            "group.consumer.session.timeout.ms",
        ),
        (
            {"group.max.session.timeout.ms": "5999"},
            "group.max.session.timeout.ms must be greater than or equal to "
            "group.min.session.timeout.ms",
        ),
    ],
)
def test_a_brokers_bounds_may_not_contradict_each_other(
    values: dict[str, str], wrong: str | None
) -> None:
    assert check_static_bounds(values) == wrong
