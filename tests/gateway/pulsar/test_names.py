"""Topic names: what Pulsar takes; and the log's names: legal, reversible, and no other topic's."""

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from core.errors import Error, Refusal
from core.topic.rules import check_topic_name
from gateway.pulsar import names
from gateway.pulsar.names import TopicName, log_topic_name, parse_topic_name, pulsar_topic_name

entity = st.text(string.ascii_letters + string.digits + "-=:._", min_size=1, max_size=12)
local = st.one_of(
    st.text(string.ascii_letters + string.digits + "-._", min_size=1, max_size=30),
    st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12),
    st.sampled_from([".", "..", "pulsar.a.b.c", "pulsar.public.default.x-2Ey", "a-partition-b"]),
    st.builds("pulsar.{}.{}.{}".format, entity, entity, entity),
)
topics = st.builds(
    TopicName, st.just("public") | entity, st.just("default") | entity, local
).filter(lambda topic: parse_topic_name(str(topic)) == topic)
kafka_names = st.one_of(
    st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=40),
    st.builds("pulsar.{}.{}.{}".format, entity, entity, entity),
).filter(lambda name: check_topic_name(name) is None)


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("orders", TopicName("public", "default", "orders")),
        ("acme/eu/orders", TopicName("acme", "eu", "orders")),
        ("persistent://acme/eu/orders", TopicName("acme", "eu", "orders")),
        ("persistent://acme/eu/o-partition-12", TopicName("acme", "eu", "o", 12)),
        ("non-persistent://a/b/c", TopicName("a", "b", "c", domain="non-persistent")),
        ("a-partition-01", TopicName("public", "default", "a-partition-01")),
        ("a-partition-", TopicName("public", "default", "a-partition-")),
        ("a-partition--1", TopicName("public", "default", "a-partition--1")),
        ("a-partition-2147483648", TopicName("public", "default", "a-partition-2147483648")),
        ("a-partition-1-partition-2", TopicName("public", "default", "a-partition-1", 2)),
        ("größe %", TopicName("public", "default", "größe %")),
    ],
)
def test_names_that_are_taken(name: str, topic: TopicName) -> None:
    assert parse_topic_name(name) == topic


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a/b",
        "topic://a/b/c",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent://a//c",
        "persistent://a/cluster/b/c",
        "persistent://a/b/c/d/e",
        "persistent://ä/b/c",
        "persistent://a b/c/d",
        "-partition-0",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    refusal = parse_topic_name(name)
    assert isinstance(refusal, Refusal)
    assert refusal.error is Error.INVALID_TOPIC_EXCEPTION
    assert refusal.message


def test_full_names_come_back() -> None:
    name = "persistent://acme/eu/orders-partition-3"
    topic = parse_topic_name(name)
    assert isinstance(topic, TopicName)
    assert str(topic) == name
    assert topic.full_namespace == "acme/eu"
    assert topic.is_persistent


@pytest.mark.parametrize(
    ("name", "kafka"),
    [
        ("orders", "orders"),
        ("orders-partition-3", "orders"),
        ("my.orders_v-2", "my.orders_v-2"),
        ("acme/eu/orders", "pulsar.acme.eu.orders"),
        ("acme/eu-west/new orders", "pulsar.acme.eu-2Dwest.new-20orders"),
        ("größe", "pulsar.public.default.gr-C3-B6-C3-9Fe"),
        (".", "pulsar.public.default.-2E"),
        ("pulsar.acme.eu.orders", "pulsar.public.default.pulsar-2Eacme-2Eeu-2Eorders"),
        ("pulsar.news", "pulsar.news"),
    ],
)
def test_names_in_the_log(name: str, kafka: str) -> None:
    topic = parse_topic_name(name)
    assert isinstance(topic, TopicName)
    assert log_topic_name(topic) == kafka
    whole = TopicName(topic.tenant, topic.namespace, topic.local_name)
    assert pulsar_topic_name(kafka) == whole


@pytest.mark.parametrize(
    "topic",
    [
        TopicName("public", "default", "x" * 250),
        TopicName("acme", "eu", "é" * 50),
        TopicName("public", "default", "a-partition-0", 1),
        TopicName("acme", "eu", "t", domain="non-persistent"),
    ],
    ids=lambda topic: str(topic)[:40],
)
def test_topics_that_the_log_cannot_name(topic: TopicName) -> None:
    refusal = log_topic_name(topic)
    assert isinstance(refusal, Refusal)
    assert refusal.error is Error.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a-partition-0", "pulsar.a.b.c-partition-7"])
def test_a_kafka_topic_named_like_a_partition_is_not_pulsars(name: str) -> None:
    assert pulsar_topic_name(name) is None


@given(topics, topics)
def test_names_of_topics_are_legal_reversible_and_their_own(one: TopicName, two: TopicName) -> None:
    name = log_topic_name(one)
    assume(isinstance(name, str))
    assert isinstance(name, str)
    assert check_topic_name(name) is None
    assert pulsar_topic_name(name) == one
    assert (name == log_topic_name(two)) == (one == two)


@given(kafka_names)
@example("pulsar.a.b.c")
@example("pulsar.public.default.c")
@example("pulsar.public.default.c-2Dd")
@example("pulsar.public.default.pulsar-2Ea-2Eb-2Ec")
def test_every_kafka_topic_has_a_name_for_pulsar(name: str) -> None:
    topic = pulsar_topic_name(name)
    if topic is None:
        assert names.parse_topic_name(name) != TopicName("public", "default", name)
        return
    assert parse_topic_name(str(topic)) == topic
    assert log_topic_name(topic) == name


def test_namespaces() -> None:
    assert names.parse_namespace("acme/eu") == ("acme", "eu")
    for wrong in ("acme", "acme/", "a/b/c", "a/ü"):
        assert isinstance(names.parse_namespace(wrong), Refusal)
