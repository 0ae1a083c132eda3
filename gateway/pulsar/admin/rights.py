"""Which requests of REST a caller may make, by the ACLs that Kafka's clients go by as well.

Asked before anything is looked up, so that nobody learns what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.security.permissions import namespace_prefix, tenant_prefix
from core.security.pulsar_operations import COMMANDS, USE_SUBSCRIPTION, Need, Scope
from core.subscription.group_ids import SubscriptionName
from gateway.pulsar.admin.places import has_subscription, name_of, namespace_of, subscription_of
from gateway.runtime.rights import rights_of
from gateway.web.api import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from core.security.operations import Requirement
    from gateway.pulsar.admin.api import AdminCall
    from gateway.web.api import Endpoint

_NO: Refused = Refused(403, "Unauthorized: there is no permission, and no ACL, that allows it")
(_LISTED,) = COMMANDS["GET_TOPICS_OF_NAMESPACE"]


async def refuse(call: AdminCall, endpoint: Endpoint) -> Refused | None:
    """Why the caller may not, or None. Raises ClientError where the path names nothing."""
    need: Need | None = endpoint.needs
    acls = call.services.pulsar.acls
    if need is None or not acls.is_on:
        return None
    asked = [(need.requirement, _resource(call, need.scope))]
    if need.topic is not None:
        asked.append((need.topic, name_of(call)[1]))
    if need.subscription is not None and has_subscription(call):
        asked.append((need.subscription, _group_id(call, subscription_of(call))))
    return _refuse(call, asked, f"{endpoint.method} {endpoint.path}")


def refuse_topics(
    call: AdminCall, requirement: Requirement, names: Iterable[str]
) -> Refused | None:
    """Why the caller may not do something to all of these topics of the log, or None."""
    return _refuse(call, [(requirement, name) for name in names], call.request.url.path)


def refuse_subscriptions(call: AdminCall, names: Iterable[str]) -> Refused | None:
    """Why the caller may not use all of these subscriptions of the path's topic, or None."""
    asked = [(USE_SUBSCRIPTION, _group_id(call, name)) for name in names]
    return _refuse(call, asked, call.request.url.path)


def _refuse(call: AdminCall, asked: Iterable[tuple[Requirement, str]], what: str) -> Refused | None:
    acls = call.services.pulsar.acls
    if not acls.is_on:
        return None
    both = rights_of(acls, call.services.on_refused, call.caller)
    may = all(each.may(*one, what) for one in asked for each in both)
    return None if may else _NO


def _group_id(call: AdminCall, subscription: str) -> str:
    name, log_name = name_of(call)
    return SubscriptionName(log_name, max(name.partition, 0), subscription).group_id


def what_may_be_seen(call: AdminCall) -> Callable[[str], bool] | None:
    """Whether the caller may know of a topic, by the log's name; None where all may be known."""
    acls = call.services.pulsar.acls
    if not acls.is_on:
        return None
    both = rights_of(acls, call.services.on_refused, call.caller)
    return lambda name: all(each.still_may(_LISTED, name) for each in both)


def _resource(call: AdminCall, scope: Scope) -> str:
    match scope:
        case Scope.TOPIC:
            return name_of(call)[1]
        case Scope.NAMESPACE:
            return namespace_prefix(*namespace_of(call))
        case Scope.TENANT:
            return tenant_prefix(call.name("tenant"))
        case Scope.CLUSTER:
            return ""
