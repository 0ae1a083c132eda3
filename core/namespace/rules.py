"""What may become of tenants and namespaces, which policies are legal, and which one wins.

Refusals have Pulsar's sentences. Sources: NamedEntity, NamespacesBase, TenantsBase, AdminResource,
AbstractTopic.updateTopicPolicyByNamespacePolicy, AutoTopicCreationOverride.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from core.errors import Error, Refusal
from core.namespace.values import (
    AutoTopicCreation,
    BacklogQuota,
    Policies,
    QuotaPolicy,
    QuotaType,
    Retention,
    TopicType,
)
from core.schema.values import CompatibilityStrategy, SchemaPolicy
from core.subscription.values import DispatchSettings

MAX_NAME_LENGTH: Final = 249
"""Ours: a topic's name in the log, which has both names in it, may not be longer."""
DEDUPLICATION_CONFIG: Final = "penstock.deduplication.enabled"
AUTO_UPDATE_STRATEGIES: Final = {
    "AutoUpdateDisabled": CompatibilityStrategy.ALWAYS_INCOMPATIBLE,
    "Backward": CompatibilityStrategy.BACKWARD,
    "Forward": CompatibilityStrategy.FORWARD,
    "Full": CompatibilityStrategy.FULL,
    "AlwaysCompatible": CompatibilityStrategy.ALWAYS_COMPATIBLE,
    "BackwardTransitive": CompatibilityStrategy.BACKWARD_TRANSITIVE,
    "ForwardTransitive": CompatibilityStrategy.FORWARD_TRANSITIVE,
    "FullTransitive": CompatibilityStrategy.FULL_TRANSITIVE,
}
"""SchemaAutoUpdateCompatibilityStrategy, and which strategy each name means."""

_Value = TypeVar("_Value")

_NAMED_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_REDUCED_TO: Final = 0.9  # Pulsar evicts a little more than it has to
_MB: Final = 2**20
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


def is_named_entity(name: str) -> bool:
    """Whether it has the letters of a tenant's or a namespace's name (Pulsar's NamedEntity)."""
    return _NAMED_ENTITY.fullmatch(name) is not None


def is_legal_name(name: str) -> bool:
    """Whether a tenant or a namespace may be called so."""
    return len(name) <= MAX_NAME_LENGTH and is_named_entity(name)


# --- which policies are legal ---


def check_policies(policies: Policies) -> Refusal | None:
    """Why a namespace may not have these policies: INVALID_CONFIG, or INVALID_REQUEST where Pulsar
    calls it a bad request."""
    for value, what in (
        (policies.message_ttl_s, "Invalid value for message TTL, message TTL must >= 0"),
        (policies.max_unacked_per_consumer, "maxUnackedMessagesPerConsumer must be 0 or more"),
        (
            policies.max_unacked_per_subscription,
            "maxUnackedMessagesPerSubscription must be 0 or more",
        ),
    ):
        if value is not None and not 0 <= value <= _INT_MAX:
            return Refusal(Error.INVALID_CONFIG, what)
    if policies.retention is not None and (refusal := _check_retention(policies.retention)):
        return refusal
    if policies.auto_topic_creation is not None and (
        wrong := _why_not_created(policies.auto_topic_creation)
    ):
        prefix = "Invalid configuration for autoTopicCreationOverride. the detail is "
        return Refusal(Error.INVALID_CONFIG, prefix + wrong)
    return _check_quotas(policies.backlog_quotas, policies.retention)


def _check_retention(retention: Retention) -> Refusal | None:
    time, size = retention.time_minutes, retention.size_mb
    wrong = None
    if not -1 <= size <= _INT_MAX:
        wrong = "size limit must be >= -1"
    elif not -1 <= time <= _INT_MAX:
        wrong = "time limit must be >= -1"
    elif (time == 0) != (size == 0):
        wrong = (
            "Setting a single time or size limit to 0 is invalid when one of the limits has a "
            "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
            "disable retention both limits must be set to 0."
        )
    return Refusal(Error.INVALID_REQUEST, f"Invalid retention policy: {wrong}") if wrong else None


def _why_not_created(wanted: AutoTopicCreation) -> str | None:
    if not wanted.is_allowed:
        return None
    count = wanted.default_partitions
    if wanted.type is None:
        return "Unknown topic type [null]"
    if wanted.type is TopicType.PARTITIONED:
        if count is None:
            return "[defaultNumPartitions] cannot be null when the type is partitioned."
        if not 1 <= count <= _INT_MAX:
            return "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif count is not None:
        return "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    return None


def _check_quotas(
    quotas: Mapping[QuotaType, BacklogQuota], retention: Retention | None
) -> Refusal | None:
    """A backlog may not grow beyond what is retained all the same. Pulsar looks at the quota of the
    size only, but at both of its limits."""
    if any(abs(each.limit_size) > _LONG_MAX for each in quotas.values()):
        return Refusal(Error.INVALID_REQUEST, "A backlog quota's limitSize is out of bounds")
    if any(abs(each.limit_time) > _INT_MAX for each in quotas.values()):
        return Refusal(Error.INVALID_REQUEST, "A backlog quota's limitTime is out of bounds")
    size = quotas.get(QuotaType.DESTINATION_STORAGE)
    if size is None or retention is None:
        return None
    is_too_large = 0 < retention.size_mb * _MB <= size.limit_size
    is_too_old = 0 < retention.time_minutes * 60 <= size.limit_time
    if not is_too_large and not is_too_old:
        return None
    return Refusal(
        Error.INVALID_CONFIG,
        "Backlog Quota exceeds configured retention quota for namespace. "
        "Please increase retention quota and retry",
    )


def with_quota(policies: Policies, kind: QuotaType, quota: BacklogQuota | None) -> Policies:
    """The same with another quota, or without one (None)."""
    quotas = {each: value for each, value in policies.backlog_quotas.items() if each is not kind}
    if quota is not None:
        quotas[kind] = quota
    return replace(policies, backlog_quotas=quotas)


# --- which one wins ---


def schema_policy(policies: Policies) -> SchemaPolicy:
    """What holds for schemas of a namespace's topics."""
    strategy = policies.compatibility_strategy
    if strategy in (None, CompatibilityStrategy.UNDEFINED):
        strategy = AUTO_UPDATE_STRATEGIES.get(policies.auto_update_strategy or "")
    default = SchemaPolicy()
    return SchemaPolicy(
        strategy or default.strategy,
        _or(policies.allows_schema_auto_update, default.allows_auto_update),
        _or(policies.is_schema_enforced, default.is_enforced),
    )


def topic_settings(policies: Policies) -> dict[str, str]:
    """Settings that the namespace makes for its topics: they yield to a topic's own, and override
    the broker's."""
    if policies.is_deduplicated is None:
        return {}
    return {DEDUPLICATION_CONFIG: str(policies.is_deduplicated).lower()}


def dispatch_settings(policies: Policies, broker: DispatchSettings) -> DispatchSettings:
    """Limits of dispatch; broker: those where the namespace sets none."""
    return replace(
        broker,
        max_unacked_per_consumer=_or(
            policies.max_unacked_per_consumer, broker.max_unacked_per_consumer
        ),
        max_unacked=_or(policies.max_unacked_per_subscription, broker.max_unacked),
    )


def auto_topic_creation(policies: Policies, *, is_allowed_by_broker: bool) -> AutoTopicCreation:
    """Whether clients make topics here by using them, and which kind."""
    default = AutoTopicCreation(is_allowed_by_broker, TopicType.NON_PARTITIONED)
    return policies.auto_topic_creation or default


def allows_auto_subscription(policies: Policies) -> bool:
    """Whether clients make durable subscriptions by using them."""
    return _or(policies.allows_auto_subscription, True)


def _or(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value


# --- backlogs and ages ---


def expires_before(policies: Policies, now_ms: int) -> int | None:
    """Messages with an earlier timestamp (ms) are acknowledged for everybody; None: they stay."""
    return now_ms - policies.message_ttl_s * 1000 if policies.message_ttl_s else None


def exceeded_quota(
    policies: Policies, backlog_bytes: int, oldest_ms: int | None, now_ms: int
) -> tuple[QuotaType, BacklogQuota] | None:
    """Which quota a topic's backlog exceeds, if any.

    backlog_bytes, oldest_ms: size, and timestamp of the first message, of what the slowest durable
    subscription has not acknowledged; None: there is nothing. -1: it has no timestamp.
    """
    size = policies.backlog_quotas.get(QuotaType.DESTINATION_STORAGE)
    if size is not None and oldest_ms is not None and 0 <= size.limit_size <= backlog_bytes:
        return QuotaType.DESTINATION_STORAGE, size
    age = policies.backlog_quotas.get(QuotaType.MESSAGE_AGE)
    if age is None or age.limit_time <= 0 or oldest_ms is None or oldest_ms < 0:
        return None
    return (QuotaType.MESSAGE_AGE, age) if now_ms - oldest_ms > age.limit_time * 1000 else None


def blocks_producers(quota: BacklogQuota) -> bool:
    """Whether it is producers who feel it."""
    return quota.policy is not QuotaPolicy.CONSUMER_BACKLOG_EVICTION


def bytes_left_by_eviction(quota: BacklogQuota) -> int:
    """How much of a backlog stays once the oldest messages have been acknowledged."""
    return int(quota.limit_size * _REDUCED_TO)


def evicts_before(quota: BacklogQuota, now_ms: int) -> int:
    """Messages with an earlier timestamp (ms) are acknowledged."""
    return now_ms - int(quota.limit_time * 1000 * _REDUCED_TO)
