"""The nouns of namespaces: tenants, namespaces, policies. Values only.

Names and defaults are Pulsar 4.2's. A policy that is None is not set: then the broker's setting, or
Pulsar's default, is in effect (`rules`). Sources: TenantInfo, Policies, BacklogQuota,
RetentionPolicies, AutoTopicCreationOverride.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from core.schema.values import CompatibilityStrategy

PUBLIC: Final = "public"
DEFAULT: Final = "default"
SYSTEM_TENANT: Final = "pulsar"
SYSTEM: Final = "system"
INITIAL: Final = ((PUBLIC, DEFAULT), (SYSTEM_TENANT, SYSTEM))
"""Tenants and namespaces that are there from the start."""

FullName = tuple[str, str]
"""A tenant's name, and its namespace's."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """admin_roles, allowed_clusters: kept and told; there is one cluster, and no authorization."""

    name: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class QuotaType(Enum):
    """What a quota of the backlog limits. The value is Pulsar's name."""

    DESTINATION_STORAGE = "destination_storage"
    MESSAGE_AGE = "message_age"


class QuotaPolicy(Enum):
    """What is done where it is exceeded. The value is Pulsar's name.

    The first two close producers and refuse new ones (a client holds its requests by the first, and
    fails them by the second); the third acknowledges the oldest messages.
    """

    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    PRODUCER_EXCEPTION = "producer_exception"
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How much a topic's slowest subscription may leave unacknowledged.

    limit_size: in bytes, limit_time: in seconds; only the one of its type counts.
    """

    policy: QuotaPolicy
    limit_size: int = 0
    limit_time: int = 0


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of what all subscriptions have acknowledged is kept: up to this age, and up to this
    size. -1: without limit. Both 0: nothing. Sizes are in 2**20 bytes, as in Pulsar."""

    time_minutes: int
    size_mb: int


class TopicType(Enum):
    """The kind of topic that clients make by using it. The value is Pulsar's name."""

    PARTITIONED = "partitioned"
    NON_PARTITIONED = "non-partitioned"


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether clients make topics by using them, and which. type: None where they may not."""

    is_allowed: bool
    type: TopicType | None = None
    default_partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """What holds for all topics of a namespace, where it is set.

    auto_update_strategy: what clients before Pulsar 2.4 set in place of `compatibility_strategy`.
    """

    compatibility_strategy: CompatibilityStrategy | None = None
    auto_update_strategy: str | None = None
    allows_schema_auto_update: bool | None = None
    is_schema_enforced: bool | None = None
    is_deduplicated: bool | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    allows_auto_subscription: bool | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    message_ttl_s: int | None = None
    backlog_quotas: Mapping[QuotaType, BacklogQuota] = field(default_factory=dict)
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as it is stored."""

    tenant: str
    name: str
    policies: Policies = field(default_factory=Policies)

    @property
    def full_name(self) -> FullName:
        """Its tenant's name and its own."""
        return self.tenant, self.name
