"""Tenants and namespaces: read, put, deleted. Implements NamespaceStore. Knows no rule.

Changes are functions for `storage/topics.py`, which runs them under the lock of all such changes.
"""

from __future__ import annotations

from sqlalchemy import and_, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.namespace.forms import read_policies, write_policies
from core.namespace.values import FullName, Namespace, Tenant
from core.ports.namespaces import StoredNamespaces
from storage.connection.client_text import read, written
from storage.connection.pool import Database
from storage.schema import namespace, tenant


class NamespaceStore:
    """`core.ports.namespaces.NamespaceStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> StoredNamespaces:
        """See NamespaceStore."""
        async with self._database.begin("read_namespaces") as connection:
            return await read_all(connection)


async def read_all(connection: AsyncConnection) -> StoredNamespaces:
    """All tenants and namespaces, in order of names."""
    # One statement, one snapshot; a tenant without namespaces has a row all the same.
    query = (
        select(
            tenant.c.name,
            tenant.c.admin_roles,
            tenant.c.allowed_clusters,
            namespace.c.name.label("namespace"),
            namespace.c.policies,
        )
        .join(namespace, namespace.c.tenant == tenant.c.name, isouter=True)
        .order_by(tenant.c.name, namespace.c.name)
    )
    tenants: dict[str, Tenant] = {}
    namespaces: dict[FullName, Namespace] = {}
    for name, roles, clusters, namespace_name, policies in await connection.execute(query):
        tenants[name] = Tenant(name, tuple(map(read, roles)), tuple(map(read, clusters)))
        if namespace_name is not None:
            found = Namespace(name, namespace_name, read_policies(policies))
            namespaces[found.full_name] = found
    return StoredNamespaces(tenants, namespaces)


async def put_tenant(connection: AsyncConnection, wanted: Tenant) -> None:
    """Inserts a tenant, or gives it these roles and clusters."""
    values = {
        "admin_roles": list(map(written, wanted.admin_roles)),
        "allowed_clusters": list(map(written, wanted.allowed_clusters)),
    }
    statement = insert(tenant).values(name=wanted.name, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


async def delete_tenant(connection: AsyncConnection, name: str) -> None:
    """Deletes a tenant, which has no namespaces any more."""
    await connection.execute(delete(tenant).where(tenant.c.name == name))


async def put_namespace(connection: AsyncConnection, wanted: Namespace) -> None:
    """Inserts a namespace, or gives it these policies."""
    policies = write_policies(wanted.policies)
    statement = insert(namespace).values(tenant=wanted.tenant, name=wanted.name, policies=policies)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant", "name"], set_={"policies": policies}
        )
    )


async def delete_namespace(connection: AsyncConnection, full_name: FullName) -> None:
    """Deletes a namespace; its topics are deleted as topics are."""
    tenant_name, name = full_name
    its = and_(namespace.c.tenant == tenant_name, namespace.c.name == name)
    await connection.execute(delete(namespace).where(its))
