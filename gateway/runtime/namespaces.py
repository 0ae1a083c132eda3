"""Tenants and namespaces: a cache of all of them, and the changes that administrators ask for.

Changed as topics are: one after the other over all brokers, and every broker is told. Which
namespace a topic of the log is in is handed in, for only a wire knows. Core has the rules; this
knows no wire and no SQL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from core.errors import Error, Refusal
from core.namespace.rules import (
    check_policies,
    is_legal_name,
    topic_settings,
    with_quota,
)
from core.namespace.values import (
    BacklogQuota,
    FullName,
    Namespace,
    Policies,
    QuotaType,
    Tenant,
)
from core.ports.namespaces import NamespaceStore, StoredNamespaces

if TYPE_CHECKING:
    from core.ports.topics import MetadataChange, TopicStore
    from core.topic.topic import Topic

log = structlog.get_logger(__name__)

NamespaceOf = Callable[[str], FullName | None]
"""The namespace of a topic, by the log's name of that; None where it is in none."""

NO_TENANT: Final = Refusal(Error.RESOURCE_NOT_FOUND, "Tenant does not exist")
NO_NAMESPACE: Final = Refusal(Error.RESOURCE_NOT_FOUND, "Namespace does not exist")
_TENANT_THERE: Final = Refusal(Error.TOPIC_ALREADY_EXISTS, "Tenant already exist")
_NAMESPACE_THERE: Final = Refusal(Error.TOPIC_ALREADY_EXISTS, "Namespace already exists")
_TENANT_NAME: Final = Refusal(Error.INVALID_CONFIG, "Tenant name is not valid")
_NAMESPACE_NAME: Final = Refusal(Error.INVALID_CONFIG, "Namespace name is not valid")
_HAS_NAMESPACES: Final = Refusal(Error.NON_EMPTY_GROUP, "The tenant still has active namespaces")
_HAS_TOPICS: Final = Refusal(Error.NON_EMPTY_GROUP, "Cannot delete non empty namespace")
NAMESPACE_NOT_FOUND: Final = Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, "Namespace not found")
_NONE: Final = Policies()
_NOTHING: Final = StoredNamespaces({}, {})


class Namespaces:
    """The tenants and namespaces of the cluster. One per process.

    Refusals of changes say why: RESOURCE_NOT_FOUND (there is none), TOPIC_ALREADY_EXISTS (there is
    one), NON_EMPTY_GROUP (something is in it), INVALID_CONFIG and INVALID_REQUEST (what is asked).
    """

    def __init__(
        self, store: NamespaceStore, topic_store: TopicStore, namespace_of: NamespaceOf
    ) -> None:
        self._store = store
        self._topic_store = topic_store
        self._namespace_of = namespace_of
        self._known = _NOTHING
        self._known_generation = 0
        self._is_fresh = False
        self._generation = 0
        self._on_alter: Callable[[], None] = self.invalidate

    def on_alter(self, listener: Callable[[], None]) -> None:
        """Registers a listener; it is called when something was, or may have been, changed here."""
        self._on_alter = listener

    # --- reading ---

    def invalidate(self) -> None:
        """They may have changed, here or at another broker: reads them before the next use."""
        self._is_fresh = False
        self._generation += 1

    async def ensure_loaded(self) -> None:
        """Reads all of them, unless nothing has changed. Raises StoreUnavailable."""
        if not self._is_fresh:
            generation = self._generation
            found = await self._store.read()
            if generation >= self._known_generation:  # else another read has overtaken this one
                self._known, self._known_generation = found, generation
            # Changes during the read are not in it.
            self._is_fresh = self._known_generation == self._generation

    async def tenants(self) -> list[str]:
        """Names, in order. Raises StoreUnavailable."""
        await self.ensure_loaded()
        return sorted(self._known.tenants)

    async def tenant(self, name: str) -> Tenant | None:
        """A tenant, if there is one of this name. Raises StoreUnavailable."""
        await self.ensure_loaded()
        return self._known.tenants.get(name)

    async def admins(self) -> dict[str, tuple[str, ...]]:
        """Roles that administer a tenant, by its name. Raises StoreUnavailable."""
        await self.ensure_loaded()
        return {name: each.admin_roles for name, each in self._known.tenants.items()}

    async def of_tenant(self, tenant: str) -> list[str] | None:
        """Names of a tenant's namespaces, in order, without its own; None where there is no such
        tenant. Raises StoreUnavailable."""
        await self.ensure_loaded()
        if tenant not in self._known.tenants:
            return None
        return sorted(name for owner, name in self._known.namespaces if owner == tenant)

    async def get(self, tenant: str, name: str) -> Namespace | None:
        """A namespace, if there is one of this name. Raises StoreUnavailable."""
        await self.ensure_loaded()
        return self._known.namespaces.get((tenant, name))

    async def all(self) -> Mapping[FullName, Namespace]:
        """Every namespace. Raises StoreUnavailable."""
        await self.ensure_loaded()
        return self._known.namespaces

    def policies_of(self, topic: Topic) -> Policies:
        """What holds for a topic, as last read: whoever has just found the topic has them of now.

        No policy is set where its namespace is not there: Kafka's clients may have made it.
        """
        return self._policies_of(topic.name)

    def policies(self, tenant: str, name: str) -> Policies:
        """What a namespace has set, as last read; nothing where it is not there."""
        found = self._known.namespaces.get((tenant, name))
        return _NONE if found is None else found.policies

    def topic_settings(self, topic_name: str) -> Mapping[str, str]:
        """Settings that the namespace makes for its topics, as last read."""
        return topic_settings(self._policies_of(topic_name))

    def _policies_of(self, topic_name: str) -> Policies:
        full_name = self._namespace_of(topic_name)
        return _NONE if full_name is None else self.policies(*full_name)

    # --- changing ---

    @asynccontextmanager
    async def _change(self, name: str) -> AsyncIterator[tuple[MetadataChange, StoredNamespaces]]:
        try:
            async with self._topic_store.change(name) as change:
                yield change, await change.read_namespaces()
        finally:
            # Also if the outcome of the commit is unknown: it may have succeeded.
            self._on_alter()

    async def put_tenant(self, tenant: Tenant, *, is_new: bool) -> Refusal | None:
        """Makes a tenant, or (not new) gives one other roles and clusters. Raises
        StoreUnavailable."""
        if is_new and not is_legal_name(tenant.name):
            return _TENANT_NAME
        async with self._change("put_tenant") as (change, there):
            if is_new and tenant.name in there.tenants:
                return _TENANT_THERE
            if not is_new and tenant.name not in there.tenants:
                return Refusal(Error.RESOURCE_NOT_FOUND, f"Tenant {tenant.name} not found")
            await change.put_tenant(tenant)
        return None

    async def delete_tenant(self, name: str) -> Refusal | None:
        """Deletes a tenant without namespaces. Raises StoreUnavailable."""
        async with self._change("delete_tenant") as (change, there):
            if name not in there.tenants:
                return NO_TENANT
            if any(owner == name for owner, _ in there.namespaces):
                return _HAS_NAMESPACES
            await change.delete_tenant(name)
        return None

    async def create(self, tenant: str, name: str, policies: Policies = _NONE) -> Refusal | None:
        """Makes a namespace. Raises StoreUnavailable."""
        if not is_legal_name(tenant) or not is_legal_name(name):
            return _NAMESPACE_NAME
        if refusal := check_policies(policies):
            return refusal
        async with self._change("create_namespace") as (change, there):
            if tenant not in there.tenants:
                return NO_TENANT
            if (tenant, name) in there.namespaces:
                return _NAMESPACE_THERE
            await change.put_namespace(Namespace(tenant, name, policies))
        return None

    async def delete(self, tenant: str, name: str, *, force: bool = False) -> Refusal | None:
        """Deletes a namespace without topics. force: with them. Raises StoreUnavailable."""
        full_name = tenant, name
        async with self._change("delete_namespace") as (change, there):
            if full_name not in there.namespaces:
                message = f"Namespace {tenant}/{name} does not exist."
                return Refusal(Error.RESOURCE_NOT_FOUND, message)
            names = await change.topic_names()
            topics = [each for each in names if self._namespace_of(each) == full_name]
            if topics and not force:
                return _HAS_TOPICS
            found = await change.find_topics(topics)
            await change.delete_topics([each.topic_id for each in found.values()])
            await change.delete_namespace(full_name)
        if topics:
            log.info("namespace_deleted", namespace=f"{tenant}/{name}", topics=len(topics))
        return None

    async def change(self, tenant: str, name: str, **policies: Any) -> Refusal | None:
        """Sets policies of a namespace, by the names that `Policies` has; None is not set any more.
        Raises StoreUnavailable."""
        return await self._alter(tenant, name, lambda old: replace(old, **policies))

    async def change_quota(
        self, tenant: str, name: str, kind: QuotaType, quota: BacklogQuota | None
    ) -> Refusal | None:
        """The same for one of the quotas of the backlog."""
        return await self._alter(tenant, name, lambda old: with_quota(old, kind, quota))

    async def _alter(
        self, tenant: str, name: str, alter: Callable[[Policies], Policies]
    ) -> Refusal | None:
        async with self._change("change_namespace") as (change, there):
            found = there.namespaces.get((tenant, name))
            if found is None:
                return NO_NAMESPACE
            policies = alter(found.policies)
            if refusal := check_policies(policies):
                return refusal
            if policies != found.policies:
                await change.put_namespace(replace(found, policies=policies))
        return None


async def check_there(change: MetadataChange, full_name: FullName) -> Refusal | None:
    """Why no topic can be made in a namespace: it is not there, and cannot come until the change
    commits."""
    there = await change.read_namespaces()
    return None if full_name in there.namespaces else NAMESPACE_NOT_FOUND
