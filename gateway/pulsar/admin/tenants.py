"""Tenants: listed, made, changed, deleted.

Behavior: roles are kept and told, and nobody asks for them; the only cluster may be allowed.
Sources: TenantsBase, TenantInfo; sentences as Pulsar 4.2.4 gave them.
"""

from __future__ import annotations

from typing import Any

from core.errors import Error, Refusal
from core.namespace.values import Tenant
from core.security.pulsar_operations import (
    CHANGE_CLUSTER,
    SEE_CLUSTER,
    SEE_TENANT,
)
from gateway.pulsar.admin.api import CLUSTER, AdminCall, endpoint
from gateway.web.api import Refused
from gateway.web.call import ClientError

_TENANT = "/admin/v2/tenants/{tenant}"
_STATUS = {
    Error.RESOURCE_NOT_FOUND: 404,
    Error.TOPIC_ALREADY_EXISTS: 409,
    Error.NON_EMPTY_GROUP: 409,
    Error.INVALID_CONFIG: 412,
}


def refused_change(refusal: Refusal | None) -> Refused | None:
    """A change of a tenant or a namespace that was not made."""
    if refusal is None:
        return None
    return Refused(_STATUS.get(refusal.error, 400), refusal.message or refusal.error.name)


@endpoint("GET", "/admin/v2/tenants", SEE_CLUSTER)
async def tenants(call: AdminCall) -> list[str]:
    """The names of all tenants."""
    return await call.services.pulsar.namespaces.tenants()


@endpoint("GET", _TENANT, SEE_TENANT)
async def tenant(call: AdminCall) -> dict[str, Any] | Refused:
    """A tenant's roles, and the clusters that it may use."""
    found = await call.services.pulsar.namespaces.tenant(call.name("tenant"))
    if found is None:
        return Refused(404, "Tenant does not exist")
    return {
        "adminRoles": list(found.admin_roles),
        "allowedClusters": list(found.allowed_clusters),
    }


@endpoint("PUT", _TENANT, CHANGE_CLUSTER)
async def create(call: AdminCall) -> Refused | None:
    """Make a tenant."""
    return await _put(call, is_new=True)


@endpoint("POST", _TENANT, CHANGE_CLUSTER)
async def update(call: AdminCall) -> Refused | None:
    """Give a tenant other roles and clusters."""
    return await _put(call, is_new=False)


@endpoint("DELETE", _TENANT, CHANGE_CLUSTER)
async def delete(call: AdminCall) -> Refused | None:
    """Delete a tenant that has no namespaces."""
    if call.flag("force"):
        return Refused(405, "Broker doesn't allow forced deletion of tenants")
    namespaces = call.services.pulsar.namespaces
    return refused_change(await namespaces.delete_tenant(call.name("tenant")))


async def _put(call: AdminCall, *, is_new: bool) -> Refused | None:
    given = await call.json()
    if given is None:
        return Refused(412, "TenantInfo is null")
    if not isinstance(given, dict):
        return Refused(400, 'A tenant is {"adminRoles": […], "allowedClusters": […]}')
    clusters = given.get("allowedClusters")
    if clusters is None:
        return Refused(412, "Clusters cannot be null")
    clusters = _texts(clusters)
    if not clusters or not all(map(str.strip, clusters)):
        return Refused(412, "Clusters cannot be empty or blank")
    if set(clusters) != {CLUSTER}:
        return Refused(412, "Clusters do not exist")
    wanted = Tenant(call.name("tenant"), _texts(given.get("adminRoles") or []), clusters)
    services = call.services.pulsar
    refusal = await services.namespaces.put_tenant(wanted, is_new=is_new)
    # Here its roles count when it is answered, at other brokers within a second.
    await services.acls.look_at_admins()
    return refused_change(refusal)


def _texts(given: Any) -> tuple[str, ...]:
    """Without repetitions, as Pulsar has sets of them. Raises ClientError."""
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ClientError(400, "Roles and clusters are lists of names")
    return tuple(dict.fromkeys(given))
