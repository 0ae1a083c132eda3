"""What the pages of topics make of names, settings and schemas. Without a broker."""

from __future__ import annotations

import struct

import pytest

from core.config.types import ConfigType
from core.config.values import ConfigEntry, ConfigSource
from core.schema.values import Schema, SchemaType
from gateway.console.pages.topic_schemas import definitions_of
from gateway.console.pages.topic_settings import setting_of
from gateway.console.pages.topics import Order, read_settings
from gateway.console.topics import Names
from gateway.web.call import ClientError


@pytest.mark.parametrize(
    ("name", "pulsar", "is_system"),
    [
        ("orders", None, False),
        ("__consumer_offsets", None, True),
        ("orders__", None, False),
        ("pulsar.acme.shop.orders-2Deu", "persistent://acme/shop/orders-eu", False),
        ("pulsar.acme.shop.__change_events", "persistent://acme/shop/__change_events", True),
        ("pulsar.pulsar.system.health", "persistent://pulsar/system/health", True),
    ],
)
def test_system_topics_are_told_by_their_names(
    name: str, pulsar: str | None, is_system: bool
) -> None:
    assert Names(name, pulsar).is_system is is_system


def test_a_topic_is_found_by_each_of_its_names() -> None:
    names = Names("pulsar.acme.shop.Orders-2Deu", "persistent://acme/shop/Orders-eu")
    for text in ("orders-2d", "orders-eu", "acme/shop", "pulsar.acme"):
        assert names.has(text)
    assert not names.has("orders.eu")


def test_the_order_turns_round_with_a_second_click() -> None:
    assert Order.read("-size") == ("size", True)
    assert Order.read("nothing") == Order.read("") == ("name", False)
    assert str(Order.read("name").after_click("name")) == "-name"
    assert str(Order.read("name").after_click("size")) == "-size"
    assert str(Order.read("-size").after_click("size")) == "size"
    assert str(Order.read("-size").after_click("name")) == "name"


def test_settings_are_lines() -> None:
    text = "retention.ms=1000\r\n\r\n  cleanup.policy = delete \nx=a=b\n"
    assert read_settings(text) == (
        ("retention.ms", "1000"),
        ("cleanup.policy", "delete"),
        ("x", "a=b"),
    )
    with pytest.raises(ClientError, match=r"'retention.ms 5' has no '='"):
        read_settings("retention.ms 5")


def test_a_definition_in_json_has_a_line_for_each_member() -> None:
    (found,) = definitions_of(Schema(SchemaType.AVRO, b'{"type":"int","doc":"\xc3\x9f"}'))
    assert found.lines == ["{", '  "type": "int",', '  "doc": "ß"', "}"]


@pytest.mark.parametrize("data", [b"", b"no json", b"[" * 100_000, b"\xff\x00"])
def test_any_other_definition_is_shown_as_it_is(data: bytes) -> None:
    (found,) = definitions_of(Schema(SchemaType.PROTOBUF_NATIVE, data))
    assert "".join(found.lines) == data.decode(errors="replace")


def test_key_and_value_are_shown_by_themselves() -> None:
    value = b'{"type":"string"}'
    data = struct.pack(">i", 0) + struct.pack(">i", len(value)) + value
    properties = {"key.schema.type": "INT32", "value.schema.type": "AVRO"}
    key, value_shown = definitions_of(Schema(SchemaType.KEY_VALUE, data, "", properties))
    assert (key.part, key.type, key.lines) == ("Key", "INT32", [])
    assert (value_shown.part, value_shown.type) == ("Value", "AVRO")
    assert value_shown.lines[1] == '  "type": "string"'
    (malformed,) = definitions_of(Schema(SchemaType.KEY_VALUE, b"\x00", "", properties))
    assert malformed.part is None


def entry(source: ConfigSource, **how: bool) -> ConfigEntry:
    flags = {"is_sensitive": False, "is_read_only": False, **how}
    return ConfigEntry(
        "a.b", "1", source, synonyms=(), type=ConfigType.INT, documentation="", **flags
    )


@pytest.mark.parametrize(
    ("source", "of_namespace", "value", "words", "is_own"),
    [
        (ConfigSource.DYNAMIC_TOPIC_CONFIG, {"a.b": "2"}, "1", "this topic", True),
        (ConfigSource.DEFAULT_CONFIG, {}, "1", "default", False),
        (ConfigSource.DEFAULT_CONFIG, {"a.b": "2"}, "2", "its namespace's policies", False),
        (ConfigSource.STATIC_BROKER_CONFIG, {}, "1", "broker 7, set when it was started", False),
        (ConfigSource.DYNAMIC_BROKER_CONFIG, {}, "1", "broker 7, set while it runs", False),
        (
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            {"a.c": "2"},
            "1",
            "all brokers, set while they run",
            False,
        ),
    ],
)
def test_a_setting_says_where_it_comes_from(
    source: ConfigSource, of_namespace: dict[str, str], value: str, words: str, is_own: bool
) -> None:
    found = setting_of(entry(source), of_namespace, 7, may_change=True)
    assert (found.value, found.source, found.is_own) == (value, words, is_own)


def test_a_secret_is_not_shown_and_what_cannot_be_changed_not_offered() -> None:
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert setting_of(entry(own, is_sensitive=True), {}, 7, may_change=True).value is None
    assert not setting_of(entry(own, is_read_only=True), {}, 7, may_change=True).is_changeable
    assert not setting_of(entry(own), {}, 7, may_change=False).is_changeable
    assert setting_of(entry(own), {}, 7, may_change=True).is_changeable
