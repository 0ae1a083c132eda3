"""core.config.definitions, inert and types: Kafka's table, and its sentences.

`kafka_configs.json` is what Apache Kafka 4.1.1 itself says of every property.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from core.config.definitions import BROKER_CONFIGS, DEVIATIONS, GROUP_CONFIGS, TOPIC_CONFIGS
from core.config.inert import ONLY_DEFAULT
from core.config.rules import check_static_broker_config, check_topic_configs
from core.config.types import ConfigDef, ConfigError, parse, to_text
from core.config.values import (
    BrokerValues,
    ConfigEntry,
    ConfigSource,
    describe_broker_config,
    describe_group_config,
    describe_topic_config,
)

KAFKA: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("kafka_configs.json").read_text()
)
OURS = {"broker": BROKER_CONFIGS, "group": GROUP_CONFIGS, "topic": TOPIC_CONFIGS}
EVERY = [(kind, name) for kind, table in OURS.items() for name in table if name in KAFKA[kind]]
NOTHING = BrokerValues({}, {}, {})

ANY_CASE = re.compile(r"\(case insensitive\) \[(.+)\]")
READ_AT_START = {"listener.security.protocol.map"}  # Kafka changes it while it runs
RANGE = re.compile(r"\[(-?[\d.]+),\.\.\.(?:,([\d.]+))?\]")
WORDS = re.compile(r"\[(\w[^.:]*)\]")


def described(kind: str, name: str) -> ConfigEntry:
    match kind:
        case "broker":
            return describe_broker_config(name, NOTHING)
        case "group":
            return describe_group_config(name, {}, {})
        case _:
            return describe_topic_config(name, {}, NOTHING)


def definition(kind: str, name: str) -> ConfigDef:
    return OURS[kind][name]


@pytest.mark.parametrize("kind", OURS)
def test_every_property_of_kafka_is_there_and_no_other(kind: str) -> None:
    others = set(OURS[kind]) - set(KAFKA[kind])
    assert set(KAFKA[kind]) <= set(OURS[kind])
    # Those of StandardAuthorizer's are not among the broker's own in Kafka.
    of_authorizer = {"allow.everyone.if.no.acl.found", "super.users"} if kind == "broker" else set()
    assert of_authorizer <= others
    # Pulsar's have its names.
    of_pulsar = {name for name in others if "." not in name}
    assert bool(of_pulsar) == (kind == "broker")
    assert all(name.startswith("penstock.") for name in others - of_authorizer - of_pulsar)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_property_is_kafkas(kind: str, name: str) -> None:
    kafka, entry = KAFKA[kind][name], described(kind, name)
    assert (entry.type.name, entry.is_sensitive) == (kafka["type"], kafka["sensitive"])
    if definition(kind, name).set_by is None and name not in READ_AT_START:
        assert entry.is_read_only == kafka["read_only"]
    if name in DEVIATIONS and kind == "broker":
        assert entry.value != kafka["default"]
    elif not entry.is_sensitive:
        assert entry.value == kafka["default"]
    assert entry.source is ConfigSource.DEFAULT_CONFIG
    if kind == "topic":
        assert [each.name for each in entry.synonyms] == kafka["synonyms"]


def test_deviations_are_of_kafkas_properties() -> None:
    assert DEVIATIONS.keys() <= KAFKA["broker"].keys()


@pytest.mark.parametrize(
    ("kind", "name"), [each for each in EVERY if KAFKA[each[0]][each[1]]["valid"]]
)
def test_a_property_takes_what_kafka_takes(kind: str, name: str) -> None:
    row, valid = definition(kind, name), KAFKA[kind][name]["valid"]
    good: list[str] = []
    bad: list[str] = []
    if found := RANGE.fullmatch(valid):
        low, high = found.groups()
        good, bad = [low], [str(float(low) - 1) if "." in low else str(int(low) - 1)]
        if high is not None:
            good.append(high)
            bad.append(str(float(high) + 1) if "." in high else str(int(high) + 1))
    elif found := ANY_CASE.fullmatch(valid) or WORDS.fullmatch(valid):
        good, bad = found[1].split(", "), ["nonsense"]
    if name == "group.coordinator.rebalance.protocols":  # one of them has to be there
        good = ["classic", ",".join(good)]
    if name in ONLY_DEFAULT:
        good, bad = [row.default] if row.default is not None else [], ["nonsense"]
    for text in good:
        assert parse(name, text, row) is not None
    for text in bad:
        with pytest.raises(ConfigError):
            parse(name, text, row)


@pytest.mark.parametrize("name", sorted(ONLY_DEFAULT))
def test_a_promise_that_cannot_be_kept_is_refused_without_repeating_it(name: str) -> None:
    kind = BROKER_CONFIGS[name].type.name
    other = {"BOOLEAN": "true", "INT": "77", "LONG": "77", "SHORT": "77", "DOUBLE": "0.7"}
    wrong = check_static_broker_config(name, other.get(kind, "swordfish"))
    assert wrong is not None
    assert wrong.startswith(f"{name} cannot be changed: ")
    assert "swordfish" not in wrong


@pytest.mark.parametrize("kind", OURS)
def test_every_default_passes_its_own_check(kind: str) -> None:
    for name, row in OURS[kind].items():
        if row.default is not None:
            assert to_text(parse(name, row.default, row)) == row.default
        assert row.documentation


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1e7, "1.0E7"),
        (1e-4, "1.0E-4"),
        (123456789.5, "1.234567895E8"),
        (0.001, "0.001"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("max.message.bytes", "１２", "Not a number of type INT"),  # noqa: RUF001 - digits, but not ASCII's
        ("segment.bytes", "1000", "Value must be at least 1048576"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        (
            "message.timestamp.type",
            "createtime",
            "String must be one of: CreateTime, LogAppendTime",
        ),
        (
            "compression.type",
            "none",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.zstd.level", "23", "Value must be no more than 22"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ],
)
def test_a_bad_value_gets_kafkas_sentence(name: str, text: str, sentence: str) -> None:
    wanted = f"Invalid value {text} for configuration {name}: {sentence}"
    assert check_topic_configs({name: text}) == wanted


def test_sentences_with_a_form_of_their_own() -> None:
    assert check_topic_configs({"nope": "1"}) == "Unknown topic config name: nope"
    assert check_topic_configs({"retention.ms": None}) == (
        "Null value not supported for topic configs: retention.ms"
    )
    assert check_topic_configs({"min.cleanable.dirty.ratio": "2"}) == (
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: "
        "Value must be no more than 1"
    )
    assert check_topic_configs({"remote.storage.enable": "true"}) == (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )
    name = "leader.replication.throttled.replicas"
    assert check_topic_configs({name: "foo"}) == (
        f"Invalid value [foo] for configuration {name}: {name} must be the literal '*' or a list "
        "of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


@pytest.mark.parametrize("text", ["*", "", "0:1", "0:1, 1:2"])
def test_throttled_replicas_pass(text: str) -> None:
    assert check_topic_configs({"follower.replication.throttled.replicas": text}) is None


def test_compaction_lags_may_not_cross_with_the_brokers_values_either() -> None:
    conflict = "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)"
    both = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "3"}
    assert check_topic_configs(both) == conflict
    broker = {"log.cleaner.max.compaction.lag.ms": "3"}
    assert check_topic_configs({"min.compaction.lag.ms": "5"}, broker) == conflict
    assert check_topic_configs({"min.compaction.lag.ms": "5"}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("delete", ("delete",)), (" compact , delete ", ("compact", "delete")), ("", ())],
)
def test_lists_are_split_at_commas(text: str, value: tuple[str, ...]) -> None:
    assert parse("cleanup.policy", text, TOPIC_CONFIGS["cleanup.policy"]) == value


def test_numbers_and_booleans_are_read_as_java_reads_them() -> None:
    assert parse("retention.ms", " +7 ", TOPIC_CONFIGS["retention.ms"]) == 7
    assert parse("preallocate", "TRUE", TOPIC_CONFIGS["preallocate"]) is True
    ratio = TOPIC_CONFIGS["min.cleanable.dirty.ratio"]
    assert parse("min.cleanable.dirty.ratio", "5e-1", ratio) == 0.5
