"""The consumers' own messages: exact bytes, every version, and bytes that claim too much."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from core.group.consumer import protocol as consumer_protocol
from core.group.consumer.protocol import (
    Assignment,
    Malformed,
    Subscription,
    encode_assignment,
    parse_assignment,
    parse_subscribed_topics,
    parse_subscription,
)
from tests.core.group.subscription_bytes import encode_subscription

# As librdkafka and Java lay them out; made by hand from the schemas.
SUBSCRIPTION_V0 = bytes.fromhex("0000 00000002 0001 61 0002 6262 00000002 7575")
SUBSCRIPTION_V3 = bytes.fromhex(
    "0003 00000001 0001 61 ffffffff00000001 0001 61 00000002 00000000 000000070000000c 0002 7231"
)
ASSIGNMENT_V1 = bytes.fromhex("0001 00000001 0001 61 00000002 00000001 00000000 ffffffff")


def test_subscription_bytes() -> None:
    old = Subscription(0, ("a", "bb"), b"uu")
    assert parse_subscription(SUBSCRIPTION_V0) == old
    assert encode_subscription(old) == SUBSCRIPTION_V0
    new = Subscription(3, ("a",), None, {"a": (0, 7)}, 12, "r1")
    assert parse_subscription(SUBSCRIPTION_V3) == new
    assert encode_subscription(new) == SUBSCRIPTION_V3


def test_assignment_bytes() -> None:
    assignment = Assignment(1, {"a": (1, 0)}, None)
    assert parse_assignment(ASSIGNMENT_V1) == assignment
    assert encode_assignment(assignment) == ASSIGNMENT_V1


@pytest.mark.parametrize("version", range(4))
def test_what_kafka_python_writes_is_read(version: int) -> None:
    topic = ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[0, 7])
    theirs = ConsumerProtocolSubscription(
        topics=["a", "b"], user_data=b"u", owned_partitions=[topic], generation_id=9, rack_id="r"
    ).encode(version=version)
    ours = Subscription(
        version,
        ("a", "b"),
        b"u",
        {"a": (0, 7)} if version >= 1 else {},
        9 if version >= 2 else -1,
        "r" if version >= 3 else None,
    )
    assert parse_subscription(theirs) == ours


topic_names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
int32s = st.integers(-(2**31), 2**31 - 1)
topic_partitions = st.dictionaries(topic_names, st.lists(int32s, max_size=4).map(tuple), max_size=3)


@given(
    st.integers(0, 3),
    st.lists(topic_names, max_size=3).map(tuple),
    st.none() | st.binary(max_size=5),
    topic_partitions,
    int32s,
    st.none() | topic_names,
)
def test_what_is_encoded_is_read_again(
    version: int,
    topics: tuple[str, ...],
    user_data: bytes | None,
    owned: dict[str, tuple[int, ...]],
    generation_id: int,
    rack_id: str | None,
) -> None:
    subscription = Subscription(
        version,
        topics,
        user_data,
        owned if version >= 1 else {},
        generation_id if version >= 2 else -1,
        rack_id if version >= 3 else None,
    )
    encoded = encode_subscription(subscription)
    assert parse_subscription(encoded) == subscription
    assert parse_subscribed_topics(encoded) == topics
    assignment = Assignment(version, owned, user_data)
    assert parse_assignment(encode_assignment(assignment)) == assignment


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value(data: bytes) -> None:
    assert isinstance(parse_subscription(data), (Subscription, Malformed))
    assert isinstance(parse_assignment(data), (Assignment, Malformed))
    assert isinstance(parse_subscribed_topics(data), (tuple, Malformed))


@pytest.mark.parametrize("whole", [SUBSCRIPTION_V0, SUBSCRIPTION_V3])
def test_cut_subscriptions_are_malformed_except_before_a_later_field(whole: bytes) -> None:
    readable = [
        cut
        for cut in range(len(whole))
        if isinstance(parse_subscription(whole[:cut]), Subscription)
    ]
    assert readable == ([13] if whole is SUBSCRIPTION_V0 else [9, 13, 32, 36])


def test_a_version_without_its_fields_is_read_as_an_older_one() -> None:
    # A bug of some Go clients: version 1 with version 0's fields.
    claimed = b"\0\1" + SUBSCRIPTION_V0[2:]
    assert parse_subscription(claimed) == Subscription(1, ("a", "bb"), b"uu")


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    assert parse_subscription(b"\0\7" + SUBSCRIPTION_V3[2:] + b"new fields") == Subscription(
        7, ("a",), None, {"a": (0, 7)}, 12, "r1"
    )
    assert parse_assignment(b"\0\7" + ASSIGNMENT_V1[2:] + b"more") == Assignment(7, {"a": (1, 0)})


def test_a_topic_named_twice_has_all_its_partitions() -> None:
    topic = b"\0\1a\0\0\0\1\0\0\0\5"
    assert parse_assignment(b"\0\0\0\0\0\2" + topic + topic + b"\xff\xff\xff\xff") == Assignment(
        0, {"a": (5, 5)}
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "2 bytes expected, 0 left"),
        (b"\xff\xff", "unsupported version -1"),
        (b"\0\0\xff\xff\xff\xff", "an array is null"),
        (b"\0\0\x7f\xff\xff\xff", "an array of 2147483647 does not fit"),
        (b"\0\0\0\0\0\1\xff\xff\0\0\0\0", "a string is null"),
        (b"\0\0\0\0\0\1\0\x09\0\0\0\0", "9 bytes expected, 4 left"),
    ],
)
def test_reasons(data: bytes, reason: str) -> None:
    assert parse_assignment(data) == Malformed(reason)
    assert parse_subscribed_topics(data) == Malformed(reason)


def test_an_assignment_of_fifty_megabytes_is_refused_unread() -> None:
    count = 12_500_000
    data = struct.pack(">hih1si", 0, 1, 1, b"a", count) + bytes(4 * count)
    assert parse_assignment(data) == Malformed("more than 1000000 entries")


def test_text_that_is_not_utf8_is_replaced() -> None:
    assert parse_subscribed_topics(b"\0\0\0\0\0\1\0\2\xff\xfe") == ("��",)


def test_many_entries_in_many_topics_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_protocol, "MAX_ENTRIES", 3)
    assert isinstance(parse_assignment(ASSIGNMENT_V1), Assignment)
    two = encode_assignment(Assignment(0, {"a": (1,), "b": (1,)}))
    assert parse_assignment(two) == Malformed("more than 3 entries")
