"""Policies as JSON, with the names that Pulsar's Policies have: for the store, and for REST.

Reads what it wrote, and what Pulsar's clients send: names that it does not know are passed over, as
Pulsar does; what is of a wrong type raises ValueError with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

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

Json = Any
_Value = TypeVar("_Value")


def write_policies(policies: Policies) -> dict[str, Json]:
    """Those that are set."""
    found = {name: write(getattr(policies, field)) for name, (field, write, _) in _FORMS.items()}
    return {name: value for name, value in found.items() if value not in (None, {})}


def read_policies(form: Mapping[str, Json]) -> Policies:
    """The policies that a form sets; null is as good as nothing."""
    return Policies(
        **{
            field: read(form[name])
            for name, (field, _, read) in _FORMS.items()
            if form.get(name) is not None
        }
    )


# --- parts, which REST has by themselves too ---


def write_quota(quota: BacklogQuota) -> dict[str, Json]:
    """`limit` is how clients of before 2.8 call `limitSize`."""
    return {
        "limit": quota.limit_size,
        "limitSize": quota.limit_size,
        "limitTime": quota.limit_time,
        "policy": quota.policy.value,
    }


def read_quota(form: Json) -> BacklogQuota:
    """ValueError as well where there is no policy."""
    form = _mapping(form)
    try:
        policy = QuotaPolicy(form.get("policy"))
    except ValueError as error:
        raise ValueError("the attribute policy cannot be null") from error
    size = form.get("limitSize")
    size = form.get("limit") if size is None else size
    time = form.get("limitTime")
    return BacklogQuota(policy, read_int(size or 0), read_int(time or 0))


def write_quotas(quotas: Mapping[QuotaType, BacklogQuota]) -> dict[str, Json]:
    """By type."""
    return {kind.value: write_quota(quotas[kind]) for kind in QuotaType if kind in quotas}


def read_quotas(form: Json) -> dict[QuotaType, BacklogQuota]:
    """The opposite; ValueError as well where there is no such type."""
    return {QuotaType(kind): read_quota(quota) for kind, quota in _mapping(form).items()}


def write_retention(retention: Retention | None) -> dict[str, Json] | None:
    """Null where nothing is set."""
    if retention is None:
        return None
    return {
        "retentionTimeInMinutes": retention.time_minutes,
        "retentionSizeInMB": retention.size_mb,
    }


def read_retention(form: Json) -> Retention:
    """What is left out is 0."""
    form = _mapping(form)
    time, size = (form.get(f"retention{part}", 0) for part in ("TimeInMinutes", "SizeInMB"))
    return Retention(read_int(time), read_int(size))


def write_auto_topic_creation(wanted: AutoTopicCreation | None) -> dict[str, Json] | None:
    """Null where nothing is set."""
    if wanted is None:
        return None
    form: dict[str, Json] = {"allowAutoTopicCreation": wanted.is_allowed}
    if wanted.type is not None:
        form["topicType"] = wanted.type.value
    if wanted.default_partitions is not None:
        form["defaultNumPartitions"] = wanted.default_partitions
    return form


def read_auto_topic_creation(form: Json) -> AutoTopicCreation:
    """ValueError as well where there is no such type of topic."""
    form = _mapping(form)
    kind, count = form.get("topicType"), form.get("defaultNumPartitions")
    if kind is not None and kind not in [each.value for each in TopicType]:
        raise ValueError(f"Unknown topic type [{kind}]")
    return AutoTopicCreation(
        read_bool(form.get("allowAutoTopicCreation", False)),
        None if kind is None else TopicType(kind),
        None if count is None else read_int(count),
    )


def write_auto_subscription(is_allowed: bool | None) -> dict[str, Json] | None:
    """Null where nothing is set."""
    return None if is_allowed is None else {"allowAutoSubscriptionCreation": is_allowed}


def read_auto_subscription(form: Json) -> bool:
    """The opposite."""
    return read_bool(_mapping(form).get("allowAutoSubscriptionCreation", False))


def read_strategy(form: Json) -> CompatibilityStrategy:
    """By its name; ValueError where there is none of it."""
    try:
        return CompatibilityStrategy[form]
    except (KeyError, TypeError) as error:
        raise ValueError(f"there is no schema compatibility strategy {form!r}") from error


def read_auto_update_strategy(form: Json) -> str:
    """By its name; ValueError where there is none of it."""
    if not isinstance(form, str) or form not in AUTO_UPDATE_STRATEGIES:
        raise ValueError(f"there is no schema auto update compatibility strategy {form!r}")
    return form


def read_bool(form: Json) -> bool:
    """ValueError for anything but true and false."""
    if not isinstance(form, bool):
        raise ValueError(f"{form!r} is neither true nor false")
    return form


def read_int(form: Json) -> int:
    """ValueError for anything but a whole number."""
    if isinstance(form, bool) or not isinstance(form, int):
        raise ValueError(f"{form!r} is no whole number")
    return form


def _mapping(form: Json) -> Mapping[str, Json]:
    if not isinstance(form, Mapping):
        raise ValueError(f"{form!r} is no object")
    return form


def _as_it_is(value: _Value) -> _Value:
    return value


_FORMS: Final[dict[str, tuple[str, Callable[[Any], Json], Callable[[Json], Any]]]] = {
    "schema_compatibility_strategy": (
        "compatibility_strategy",
        lambda value: None if value is None else value.name,
        read_strategy,
    ),
    "schema_auto_update_compatibility_strategy": (
        "auto_update_strategy",
        _as_it_is,
        read_auto_update_strategy,
    ),
    "is_allow_auto_update_schema": ("allows_schema_auto_update", _as_it_is, read_bool),
    "schema_validation_enforced": ("is_schema_enforced", _as_it_is, read_bool),
    "deduplicationEnabled": ("is_deduplicated", _as_it_is, read_bool),
    "autoTopicCreationOverride": (
        "auto_topic_creation",
        write_auto_topic_creation,
        read_auto_topic_creation,
    ),
    "autoSubscriptionCreationOverride": (
        "allows_auto_subscription",
        write_auto_subscription,
        read_auto_subscription,
    ),
    "max_unacked_messages_per_consumer": ("max_unacked_per_consumer", _as_it_is, read_int),
    "max_unacked_messages_per_subscription": (
        "max_unacked_per_subscription",
        _as_it_is,
        read_int,
    ),
    "message_ttl_in_seconds": ("message_ttl_s", _as_it_is, read_int),
    "backlog_quota_map": ("backlog_quotas", write_quotas, read_quotas),
    "retention_policies": ("retention", write_retention, read_retention),
}
