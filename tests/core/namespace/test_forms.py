"""Policies as JSON: what is written is read, and what Pulsar's clients send is understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.namespace.forms import (
    read_auto_topic_creation,
    read_policies,
    read_quota,
    read_retention,
    write_policies,
)
from core.namespace.rules import AUTO_UPDATE_STRATEGIES
from core.namespace.values import (
    AutoTopicCreation,
    BacklogQuota,
    Policies,
    QuotaPolicy,
    QuotaType,
    Retention,
    TopicType,
)
from core.schema.values import CompatibilityStrategy

INTEGERS = st.integers(-(2**31), 2**31 - 1)
MAYBE_INT, MAYBE_BOOL = st.none() | INTEGERS, st.none() | st.booleans()
QUOTAS = st.builds(BacklogQuota, st.sampled_from(QuotaPolicy), INTEGERS, INTEGERS)
POLICIES = st.builds(
    Policies,
    st.none() | st.sampled_from(CompatibilityStrategy),
    st.none() | st.sampled_from(sorted(AUTO_UPDATE_STRATEGIES)),
    MAYBE_BOOL,
    MAYBE_BOOL,
    MAYBE_BOOL,
    st.none()
    | st.builds(
        AutoTopicCreation, st.booleans(), st.none() | st.sampled_from(TopicType), MAYBE_INT
    ),
    MAYBE_BOOL,
    MAYBE_INT,
    MAYBE_INT,
    MAYBE_INT,
    st.dictionaries(st.sampled_from(QuotaType), QUOTAS),
    st.none() | st.builds(Retention, INTEGERS, INTEGERS),
)


@given(POLICIES)
def test_what_is_written_is_read(policies: Policies) -> None:
    assert read_policies(json.loads(json.dumps(write_policies(policies)))) == policies


def test_what_is_not_set_is_not_written() -> None:
    assert write_policies(Policies()) == {}
    assert write_policies(Policies(message_ttl_s=0, is_deduplicated=False)) == {
        "message_ttl_in_seconds": 0,
        "deduplicationEnabled": False,
    }


def test_as_pulsar_has_it() -> None:
    policies = Policies(
        auto_topic_creation=AutoTopicCreation(True, TopicType.PARTITIONED, 3),
        allows_auto_subscription=False,
        backlog_quotas={
            QuotaType.MESSAGE_AGE: BacklogQuota(
                QuotaPolicy.CONSUMER_BACKLOG_EVICTION, limit_time=10
            )
        },
        retention=Retention(10, 20),
    )
    assert write_policies(policies) == {
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
        "backlog_quota_map": {
            "message_age": {
                "limit": 0,
                "limitSize": 0,
                "limitTime": 10,
                "policy": "consumer_backlog_eviction",
            }
        },
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
    }


def test_what_clients_send() -> None:
    assert read_policies({"bundles": {}, "message_ttl_in_seconds": None}) == Policies()
    old = read_quota({"limit": 5, "policy": "producer_request_hold"})
    assert old == BacklogQuota(QuotaPolicy.PRODUCER_REQUEST_HOLD, 5)
    assert read_retention({"retentionTimeInMinutes": 5}) == Retention(5, 0)
    assert read_auto_topic_creation({}) == AutoTopicCreation(False)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"message_ttl_in_seconds": "x"}, "no whole number"),
        ({"message_ttl_in_seconds": True}, "no whole number"),
        ({"deduplicationEnabled": 1}, "neither true nor false"),
        ({"schema_compatibility_strategy": "FOO"}, "no schema compatibility strategy"),
        ({"schema_compatibility_strategy": []}, "no schema compatibility strategy"),
        ({"schema_auto_update_compatibility_strategy": "FOO"}, "auto update"),
        ({"retention_policies": []}, "no object"),
        ({"backlog_quota_map": {"foo": {"policy": "producer_exception"}}}, "foo"),
        ({"backlog_quota_map": {"message_age": {"limitTime": 10}}}, "policy cannot be null"),
        ({"backlog_quota_map": {"message_age": {"policy": []}}}, "policy cannot be null"),
        ({"autoTopicCreationOverride": {"topicType": "foo"}}, "Unknown topic type"),
    ],
)
def test_what_is_wrong(form: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_policies(form)
