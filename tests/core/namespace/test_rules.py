"""Policies: which are legal, which one wins, when a backlog is too much."""

from __future__ import annotations

import pytest

from core.config.values import topic_config
from core.errors import Error
from core.log.retention import (
    acknowledged_bytes_kept,
    acknowledged_may_go,
    oldest_acknowledged_kept,
)
from core.namespace.rules import (
    auto_topic_creation,
    blocks_producers,
    bytes_left_by_eviction,
    check_policies,
    dispatch_settings,
    evicts_before,
    exceeded_quota,
    expires_before,
    is_legal_name,
    schema_policy,
    topic_settings,
    with_quota,
)
from core.namespace.values import (
    AutoTopicCreation,
    BacklogQuota,
    Policies,
    QuotaPolicy,
    QuotaType,
    Retention,
    TopicType,
)
from core.schema.values import CompatibilityStrategy as Strategy
from core.subscription.values import DispatchSettings

NOW = 1_700_000_000_000
SIZE, AGE = QuotaType.DESTINATION_STORAGE, QuotaType.MESSAGE_AGE
HOLD, FAIL = QuotaPolicy.PRODUCER_REQUEST_HOLD, QuotaPolicy.PRODUCER_EXCEPTION
EVICT = QuotaPolicy.CONSUMER_BACKLOG_EVICTION
MB = 2**20
PARTITIONED, PLAIN = TopicType.PARTITIONED, TopicType.NON_PARTITIONED


@pytest.mark.parametrize(
    ("name", "is_legal"),
    [
        ("a-tenant", True),
        ("a=b:c.d_e", True),
        ("a" * 249, True),
        ("a" * 250, False),
        ("", False),
        ("a b", False),
        ("a/b", False),
        ("ä", False),
        ("a\0", False),
    ],
)
def test_names(name: str, is_legal: bool) -> None:
    assert is_legal_name(name) is is_legal


# Answers of Pulsar 4.2.4, asked by REST.
@pytest.mark.parametrize(
    ("policies", "error"),
    [
        (Policies(message_ttl_s=0), None),
        (Policies(message_ttl_s=-5), Error.INVALID_CONFIG),
        (Policies(message_ttl_s=2**31 - 1), None),
        (Policies(message_ttl_s=2**31), Error.INVALID_CONFIG),
        (Policies(max_unacked_per_consumer=0), None),
        (Policies(max_unacked_per_consumer=-1), Error.INVALID_CONFIG),
        (Policies(max_unacked_per_subscription=-1), Error.INVALID_CONFIG),
        (Policies(retention=Retention(10, 20)), None),
        (Policies(retention=Retention(-1, -1)), None),
        (Policies(retention=Retention(0, 0)), None),
        (Policies(retention=Retention(0, 20)), Error.INVALID_REQUEST),
        (Policies(retention=Retention(5, 0)), Error.INVALID_REQUEST),
        (Policies(retention=Retention(-2, 20)), Error.INVALID_REQUEST),
        (Policies(retention=Retention(1, -2)), Error.INVALID_REQUEST),
        (Policies(auto_topic_creation=AutoTopicCreation(True, PARTITIONED, 3)), None),
        (Policies(auto_topic_creation=AutoTopicCreation(True, PLAIN)), None),
        (Policies(auto_topic_creation=AutoTopicCreation(False)), None),
        (Policies(auto_topic_creation=AutoTopicCreation(True)), Error.INVALID_CONFIG),
        (Policies(auto_topic_creation=AutoTopicCreation(True, PARTITIONED)), Error.INVALID_CONFIG),
        (
            Policies(auto_topic_creation=AutoTopicCreation(True, PARTITIONED, 0)),
            Error.INVALID_CONFIG,
        ),
        (Policies(auto_topic_creation=AutoTopicCreation(True, PLAIN, 3)), Error.INVALID_CONFIG),
    ],
)
def test_legal_policies(policies: Policies, error: Error | None) -> None:
    refusal = check_policies(policies)
    assert (None if refusal is None else refusal.error) is error


@pytest.mark.parametrize(
    ("kind", "quota", "is_legal"),
    [
        (SIZE, BacklogQuota(FAIL, 30_000_000, -1), False),
        (SIZE, BacklogQuota(HOLD, 1_000_000), True),
        (SIZE, BacklogQuota(HOLD, 20 * MB - 1), True),
        (SIZE, BacklogQuota(HOLD, 20 * MB), False),
        (SIZE, BacklogQuota(FAIL, -1), True),
        (SIZE, BacklogQuota(FAIL, 1_000, 599), True),
        (SIZE, BacklogQuota(FAIL, 1_000, 600), False),
        (AGE, BacklogQuota(FAIL, 1_000_000_000, 100), True),
        (AGE, BacklogQuota(FAIL, 0, 1_000), True),
    ],
)
def test_a_quota_beside_retention(kind: QuotaType, quota: BacklogQuota, is_legal: bool) -> None:
    policies = with_quota(Policies(retention=Retention(10, 20)), kind, quota)
    assert (check_policies(policies) is None) is is_legal
    assert check_policies(with_quota(policies, kind, None)) is None
    assert check_policies(with_quota(Policies(retention=Retention(0, 0)), kind, quota)) is None


@pytest.mark.parametrize("kind", [SIZE, AGE])
@pytest.mark.parametrize(
    ("size", "time", "is_legal"),
    [
        (2**63 - 1, 2**31 - 1, True),
        (-(2**63) + 1, -(2**31) + 1, True),
        (2**63, 0, False),
        (-(2**63), 0, False),
        (0, 2**31, False),
        (0, -(2**31), False),
    ],
)
def test_bounds_of_quotas(kind: QuotaType, size: int, time: int, is_legal: bool) -> None:
    policies = with_quota(Policies(), kind, BacklogQuota(HOLD, size, time))
    assert (check_policies(policies) is None) is is_legal


def test_schemas() -> None:
    assert schema_policy(Policies()).effective_strategy is Strategy.FULL
    assert schema_policy(Policies()).allows_auto_update
    assert not schema_policy(Policies()).is_enforced
    older = Policies(auto_update_strategy="Forward")
    assert schema_policy(older).effective_strategy is Strategy.FORWARD
    undefined = Policies(Strategy.UNDEFINED, "AutoUpdateDisabled")
    assert schema_policy(undefined).effective_strategy is Strategy.ALWAYS_INCOMPATIBLE
    both = Policies(Strategy.BACKWARD, "Forward", False, True)
    assert schema_policy(both).effective_strategy is Strategy.BACKWARD
    assert not schema_policy(both).allows_auto_update
    assert schema_policy(both).is_enforced


def test_a_namespace_overrides_the_broker_and_yields_to_the_topic() -> None:
    broker = {"penstock.broker.deduplication.enabled": "true"}
    name = "penstock.deduplication.enabled"
    for policy, own, wanted in (
        (None, None, True),
        (False, None, False),
        (True, None, True),
        (False, "true", True),
        (True, "false", False),
    ):
        overrides = topic_settings(Policies(is_deduplicated=policy))
        if own is not None:
            overrides[name] = own
        assert topic_config(overrides, broker).deduplication_enabled is wanted


def test_limits_of_dispatch() -> None:
    broker = DispatchSettings(max_unacked_per_consumer=5, max_unacked=6, max_delayed=7)
    assert dispatch_settings(Policies(), broker) == broker
    limited = dispatch_settings(Policies(max_unacked_per_consumer=0), broker)
    assert (limited.max_unacked_per_consumer, limited.max_unacked) == (0, 6)
    limited = dispatch_settings(Policies(max_unacked_per_subscription=1), broker)
    assert (limited.max_unacked_per_consumer, limited.max_unacked) == (5, 1)
    assert limited.max_delayed == 7


def test_making_topics() -> None:
    assert auto_topic_creation(Policies(), is_allowed_by_broker=True).is_allowed
    assert not auto_topic_creation(Policies(), is_allowed_by_broker=False).is_allowed
    wanted = AutoTopicCreation(True, PARTITIONED, 3)
    made = auto_topic_creation(Policies(auto_topic_creation=wanted), is_allowed_by_broker=False)
    assert made == wanted


def test_what_expires() -> None:
    assert expires_before(Policies(), NOW) is None
    assert expires_before(Policies(message_ttl_s=0), NOW) is None
    assert expires_before(Policies(message_ttl_s=3), NOW) == NOW - 3_000


@pytest.mark.parametrize(
    ("quotas", "backlog_bytes", "age_ms", "exceeded"),
    [
        ({}, 10**12, 10**12, None),
        ({SIZE: BacklogQuota(HOLD, 100)}, 99, 0, None),
        ({SIZE: BacklogQuota(HOLD, 100)}, 100, 0, SIZE),
        ({SIZE: BacklogQuota(HOLD, 0)}, 1, 0, SIZE),
        ({SIZE: BacklogQuota(HOLD, 0)}, 0, None, None),
        ({SIZE: BacklogQuota(HOLD, -1)}, 10**12, 10**12, None),
        ({SIZE: BacklogQuota(HOLD, 100, 1)}, 0, 10**12, None),
        ({AGE: BacklogQuota(HOLD, 1, 10)}, 10**12, 10_000, None),
        ({AGE: BacklogQuota(HOLD, 1, 10)}, 1, 10_001, AGE),
        ({AGE: BacklogQuota(HOLD, 1, 0)}, 1, 10_001, None),
        ({AGE: BacklogQuota(HOLD, 1, 10)}, 0, None, None),
        ({AGE: BacklogQuota(HOLD, 1, 10)}, 1, NOW + 1, None),  # -1: it has no timestamp
        ({AGE: BacklogQuota(HOLD, 0, 10), SIZE: BacklogQuota(FAIL, 5)}, 5, 10_001, SIZE),
    ],
)
def test_exceeded_quotas(
    quotas: dict[QuotaType, BacklogQuota],
    backlog_bytes: int,
    age_ms: int | None,
    exceeded: QuotaType | None,
) -> None:
    oldest = None if age_ms is None else NOW - age_ms
    found = exceeded_quota(Policies(backlog_quotas=quotas), backlog_bytes, oldest, NOW)
    assert found == (None if exceeded is None else (exceeded, quotas[exceeded]))


def test_what_eviction_leaves() -> None:
    assert blocks_producers(BacklogQuota(HOLD))
    assert blocks_producers(BacklogQuota(FAIL))
    assert not blocks_producers(BacklogQuota(EVICT))
    assert bytes_left_by_eviction(BacklogQuota(EVICT, 1_000)) == 900
    assert evicts_before(BacklogQuota(EVICT, 0, 10), NOW) == NOW - 9_000


def test_what_everybody_has_acknowledged() -> None:
    assert not acknowledged_may_go(topic_config({}, {}))
    own = {"penstock.pulsar.retention": "true"}
    assert acknowledged_may_go(topic_config(own, {}))
    assert not acknowledged_may_go(topic_config({**own, "cleanup.policy": "compact"}, {}))
    assert oldest_acknowledged_kept(Retention(-1, 5), NOW) is None
    assert oldest_acknowledged_kept(Retention(2, 5), NOW) == NOW - 120_000
    assert acknowledged_bytes_kept(Retention(2, -1)) is None
    assert acknowledged_bytes_kept(Retention(2, 5)) == 5 * MB
