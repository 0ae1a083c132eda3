"""Which requests of REST a caller may make, by the ACLs that Kafka's clients go by as well.

Asked before anything is looked up, so that nobody learns what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.security.permissions import namespace_prefix, tenant_prefix
from core.security.pulsar_operations import COMMANDS, Need, Scope
from core.subscription.group_ids import SubscriptionName
from gateway.pulsar.admin.places import name_of, namespace_of, subscription_of
from gateway.runtime.rights import rights_of
from gateway.web.api import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.pulsar.admin.api import AdminCall
    from gateway.web.api import Endpoint

_NO: Refused = Refused(403, "Unauthorized: there is no permission, and no ACL, that allows it")
(_LISTED,) = COMMANDS["GET_TOPICS_OF_NAMESPACE"]


def refuse(call: AdminCall, endpoint: Endpoint) -> Refused | None:
    """Why the caller may not, or None. Raises ClientError where the path names nothing."""
    need: Need | None = endpoint.needs
    acls = call.services.pulsar.acls
    if need is None or not acls.is_on:
        return None
    asked = [(need.requirement, _resource(call, need.scope))]
    if need.subscription is not None and "subscription" in call.request.path_params:
        name, log_name = name_of(call)
        of_it = SubscriptionName(log_name, max(name.partition, 0), subscription_of(call))
        asked.append((need.subscription, of_it.group_id))
    what = f"{endpoint.method} {endpoint.path}"
    may = all(
        each.may(requirement, resource, what)
        for each in rights_of(acls, call.services.on_refused, call.caller)
        for requirement, resource in asked
    )
    return None if may else _NO


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
