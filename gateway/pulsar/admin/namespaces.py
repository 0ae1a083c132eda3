"""Namespaces: listed, made, deleted, and their policies.

Behavior: what is not set is answered with nothing (200), as Pulsar does it. Policies that this
broker does not hold are not stored: 501. There is one cluster, and one bundle, whatever is asked
for. A namespace is deleted with its topics only by `force`, which Pulsar has to be set up for.
Sources: NamespacesBase, v2/Namespaces; sentences and statuses as Pulsar 4.2.4 gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from core.namespace import forms
from core.namespace.values import Namespace, QuotaType
from core.schema.values import CompatibilityStrategy
from core.security.pulsar_operations import (
    DELETE_EACH_TOPIC,
    DELETE_NAMESPACE,
    MAKE_NAMESPACE,
    OPEN,
    SEE_POLICIES,
    SEE_TENANT,
    SET_POLICIES,
)
from gateway.pulsar.admin.api import CLUSTER, AdminCall, endpoint
from gateway.pulsar.admin.places import namespace_of
from gateway.pulsar.admin.rights import refuse_topics, what_may_be_seen
from gateway.pulsar.admin.tenants import refused_change
from gateway.pulsar.names import namespace_of as namespace_of_topic
from gateway.pulsar.topic_lists import list_names
from gateway.web.api import Refused
from gateway.web.call import ClientError

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_NOT_FOUND: Final = Refused(404, "Namespace does not exist")
_BUNDLES: Final = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
_UNDEFINED: Final = CompatibilityStrategy.UNDEFINED
# What a namespace has besides in Pulsar's form, where nothing is set.
_OTHERS: Final[dict[str, Any]] = {
    "auth_policies": {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    },
    "replication_clusters": [CLUSTER],
    "allowed_clusters": [],
    "bundles": _BUNDLES,
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": _UNDEFINED.name,
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
_EMPTY: Final = object()
"""An answer without a body, and 200."""
_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, {}, [])
_GIVEN_BY_ALL: Final = ("bundles", "replication_clusters")


async def _found(call: AdminCall) -> Namespace:
    """Raises ClientError, StoreUnavailable."""
    found = await call.services.pulsar.namespaces.get(*namespace_of(call))
    if found is None:
        raise ClientError(*_NOT_FOUND)
    return found


# --- namespaces ---


@endpoint("GET", "/admin/v2/namespaces/{tenant}", SEE_TENANT)
async def namespaces(call: AdminCall) -> list[str] | Refused:
    """The full names of a tenant's namespaces."""
    tenant = call.name("tenant")
    names = await call.services.pulsar.namespaces.of_tenant(tenant)
    if names is None:
        return Refused(404, "Tenant not found")
    return [f"{tenant}/{name}" for name in names]


@endpoint("GET", _NAMESPACE, SEE_POLICIES)
async def policies(call: AdminCall) -> dict[str, Any]:
    """All policies of a namespace."""
    return {**_OTHERS, **forms.write_policies((await _found(call)).policies)}


@endpoint("PUT", _NAMESPACE, MAKE_NAMESPACE)
async def create(call: AdminCall) -> Refused | None:
    """Make a namespace, with policies where some are given."""
    tenant, name = namespace_of(call)
    given = await call.json({}) or {}
    if not isinstance(given, dict):
        return Refused(400, "Policies are an object")
    clusters = given.get("replication_clusters") or [CLUSTER]
    if not isinstance(clusters, list) or clusters != [CLUSTER]:
        reason = f"is not in the list of allowed clusters list for tenant [{tenant}]"
        return Refused(403, f"Cluster {clusters} {reason}".replace("'", ""))
    ours = forms.write_policies(_read(forms.read_policies, given))
    for policy, value in given.items():
        is_ours = policy in ours or policy in _GIVEN_BY_ALL
        if not is_ours and value not in (*_NOTHING, _OTHERS.get(policy)):
            return Refused(501, f"Penstock does not keep the policy {policy[:100]}")
    wanted = {policy: value for policy, value in ours.items() if value != _OTHERS.get(policy)}
    made = forms.read_policies(wanted)
    return refused_change(await call.services.pulsar.namespaces.create(tenant, name, made))


@endpoint("DELETE", _NAMESPACE, DELETE_NAMESPACE)
async def delete(call: AdminCall) -> Refused | None:
    """Delete a namespace. `force`: with its topics."""
    tenant, name = namespace_of(call)
    pulsar, force = call.services.pulsar, call.flag("force")
    if force:
        all_topics = await pulsar.topics.all()
        inside = [
            each.name for each in all_topics if namespace_of_topic(each.name) == (tenant, name)
        ]
        if no := refuse_topics(call, DELETE_EACH_TOPIC, inside):
            return no
    return refused_change(await pulsar.namespaces.delete(tenant, name, force=force))


@endpoint("GET", f"{_NAMESPACE}/topics", OPEN)
async def topics(call: AdminCall) -> list[str]:
    """The names of a namespace's topics, partitions one by one. `mode`: all are persistent."""
    found = await _found(call)
    if call.request.query_params.get("mode") == "NON_PERSISTENT":
        return []
    all_topics = await call.services.pulsar.topics.all()
    return list_names(all_topics, found.full_name, "", what_may_be_seen(call)).names


@endpoint("GET", f"{_NAMESPACE}/bundles", SEE_POLICIES)
async def bundles(call: AdminCall) -> dict[str, Any]:
    """One bundle: namespaces are not cut."""
    await _found(call)
    return _BUNDLES


@endpoint("GET", f"{_NAMESPACE}/replication", SEE_POLICIES)
async def replication(call: AdminCall) -> list[str]:
    """The clusters that have it: this one."""
    await _found(call)
    return [CLUSTER]


@endpoint("POST", f"{_NAMESPACE}/replication", SET_POLICIES)
async def set_replication(call: AdminCall) -> Refused | None:
    """Only this cluster can have it."""
    await _found(call)
    given = await call.json()
    if not isinstance(given, list) or not given:
        return Refused(412, "ClusterIds should not be null or empty")
    others = [each for each in given if each != CLUSTER]
    return Refused(403, f"Invalid cluster id: {others[0]}") if others else None


# --- policies, one by one ---


class _Policy(NamedTuple):
    """path: its last segment. field: of `Policies`. unset: what is told where it is not set.

    method: which sets it. is_removable: whether DELETE takes it back; is_nullable: whether nothing
    in place of a value does. about: what it is.
    """

    path: str
    field: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    about: str
    unset: Any = _EMPTY
    method: str = "POST"
    is_removable: bool = True
    is_nullable: bool = False


def _same(value: Any) -> Any:
    return value


def _strategy(given: Any) -> CompatibilityStrategy | None:
    strategy = forms.read_strategy(given)
    return None if strategy is _UNDEFINED else strategy


_POLICIES: Final = (
    _Policy(
        "retention",
        "retention",
        forms.write_retention,
        forms.read_retention,
        "How much is kept of what all subscriptions have acknowledged",
        is_nullable=True,
    ),
    _Policy(
        "messageTTL",
        "message_ttl_s",
        _same,
        forms.read_int,
        "After how many seconds messages are acknowledged for everybody",
    ),
    _Policy(
        "deduplication",
        "is_deduplicated",
        _same,
        forms.read_bool,
        "Whether a message is stored once, however often it is sent",
    ),
    _Policy(
        "schemaCompatibilityStrategy",
        "compatibility_strategy",
        lambda value: value.name,
        _strategy,
        "Which schema may follow which",
        unset=_UNDEFINED.name,
        method="PUT",
        is_removable=False,
    ),
    _Policy(
        "schemaAutoUpdateCompatibilityStrategy",
        "auto_update_strategy",
        _same,
        forms.read_auto_update_strategy,
        "The same, as clients of before Pulsar 2.4 say it",
        unset=None,
        method="PUT",
        is_removable=False,
    ),
    _Policy(
        "isAllowAutoUpdateSchema",
        "allows_schema_auto_update",
        _same,
        forms.read_bool,
        "Whether clients register schemas by using them",
        unset=True,
        is_removable=False,
    ),
    _Policy(
        "schemaValidationEnforced",
        "is_schema_enforced",
        _same,
        forms.read_bool,
        "Whether producers need a schema where the topic has one",
        unset=False,
        is_removable=False,
    ),
    _Policy(
        "autoTopicCreation",
        "auto_topic_creation",
        forms.write_auto_topic_creation,
        forms.read_auto_topic_creation,
        "Whether clients make topics by using them, and which",
        is_nullable=True,
    ),
    _Policy(
        "autoSubscriptionCreation",
        "allows_auto_subscription",
        forms.write_auto_subscription,
        forms.read_auto_subscription,
        "Whether clients make subscriptions by using them",
        is_nullable=True,
    ),
    _Policy(
        "maxUnackedMessagesPerConsumer",
        "max_unacked_per_consumer",
        _same,
        forms.read_int,
        "How many messages a consumer may have unacknowledged",
    ),
    _Policy(
        "maxUnackedMessagesPerSubscription",
        "max_unacked_per_subscription",
        _same,
        forms.read_int,
        "How many messages all consumers of a subscription may have unacknowledged",
    ),
)


def _serve(policy: _Policy) -> None:
    """Enters the endpoints of one policy."""
    path = f"{_NAMESPACE}/{policy.path}"

    async def get(call: AdminCall) -> Any:
        value = getattr((await _found(call)).policies, policy.field)
        if value is None:
            return Response() if policy.unset is _EMPTY else policy.unset
        return policy.write(value)

    async def put(call: AdminCall) -> Refused | None:
        given = await call.json()
        if given is None and not policy.is_nullable:
            return Refused(400, "The request entity cannot be empty.")
        return await _change(call, policy, None if given is None else _read(policy.read, given))

    async def remove(call: AdminCall) -> Refused | None:
        return await _change(call, policy, None)

    get.__doc__ = f"{policy.about}."
    put.__doc__ = f"Set it: {policy.about[0].lower()}{policy.about[1:]}."
    remove.__doc__ = "Let the broker's setting hold again."
    endpoint("GET", path, SEE_POLICIES)(get)
    endpoint(policy.method, path, SET_POLICIES)(put)
    if policy.is_removable:
        endpoint("DELETE", path, SET_POLICIES)(remove)


async def _change(call: AdminCall, policy: _Policy, value: Any) -> Refused | None:
    tenant, name = namespace_of(call)
    namespaces = call.services.pulsar.namespaces
    return refused_change(await namespaces.change(tenant, name, **{policy.field: value}))


def _read(read: Callable[[Any], Any], given: Any) -> Any:
    """Raises ClientError."""
    try:
        return read(given)
    except ValueError as error:
        status = 412 if str(error).startswith("Unknown topic type") else 400
        prefix = "Invalid configuration for autoTopicCreationOverride. the detail is "
        raise ClientError(status, f"{prefix if status == 412 else ''}{error}") from None


for _each in _POLICIES:
    _serve(_each)


# --- quotas of the backlog, one of each type ---


@endpoint("GET", f"{_NAMESPACE}/backlogQuotaMap", SEE_POLICIES)
async def quotas(call: AdminCall) -> dict[str, Any]:
    """How much a topic's slowest subscription may leave unacknowledged, by type."""
    return forms.write_quotas((await _found(call)).policies.backlog_quotas)


@endpoint("POST", f"{_NAMESPACE}/backlogQuota", SET_POLICIES)
async def set_quota(call: AdminCall) -> Refused | None:
    """Set it for the type `backlogQuotaType`."""
    tenant, name = namespace_of(call)
    kind = _kind(call)
    try:
        quota = forms.read_quota(await call.json())
    except ValueError as error:
        reason = f"Set namespace[{tenant}/{name}] backlog quota failed because the data validation"
        return Refused(400, f"{reason} failed. {error}")
    namespaces = call.services.pulsar.namespaces
    return refused_change(await namespaces.change_quota(tenant, name, kind, quota))


@endpoint("DELETE", f"{_NAMESPACE}/backlogQuota", SET_POLICIES)
async def remove_quota(call: AdminCall) -> Refused | None:
    """Lift it for the type `backlogQuotaType`."""
    namespaces = call.services.pulsar.namespaces
    return refused_change(await namespaces.change_quota(*namespace_of(call), _kind(call), None))


def _kind(call: AdminCall) -> QuotaType:
    """Raises ClientError."""
    given = call.request.query_params.get("backlogQuotaType", QuotaType.DESTINATION_STORAGE.value)
    try:
        return QuotaType(given)
    except ValueError:
        raise ClientError(404, f"There is no type of quota '{given[:100]}'") from None
