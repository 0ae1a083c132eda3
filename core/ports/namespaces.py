"""What the runtime asks of the store for tenants and namespaces.

Implemented by `storage`; knows no SQL. Every call may raise `core.ports.log.StoreUnavailable`.
They are changed as topics are: `core.ports.topics.MetadataChange`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from core.namespace.values import FullName, Namespace, Tenant


@dataclass(frozen=True, slots=True)
class StoredNamespaces:
    """All tenants by name, and all namespaces, from one snapshot."""

    tenants: Mapping[str, Tenant]
    namespaces: Mapping[FullName, Namespace]


class NamespaceStore(Protocol):
    """Tenants and namespaces."""

    async def read(self) -> StoredNamespaces:
        """All of them."""
