"""ACLs: read, made, deleted. Implements AclStore. Knows no rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import any_, delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.acls import StoredAcls
from core.ports.watched import RowKey
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from storage.connection.pool import Database
from storage.schema import acl, acl_version
from storage.watched_rows import WatchedTable, pages, uuids

_ROW: Final = acl.c

_COLUMNS: Final = (
    _ROW.resource_type,
    _ROW.resource_name,
    _ROW.pattern_type,
    _ROW.principal,
    _ROW.host,
    _ROW.operation,
    _ROW.permission,
)


class AclStore:
    """`core.ports.acls.AclStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, known: StoredAcls) -> StoredAcls | None:
        """See AclStore."""
        return await _TABLE.read(self._database, known)

    async def create(self, bindings: Sequence[AclBinding]) -> set[AclBinding]:
        """See AclStore."""
        made: set[AclBinding] = set()
        async with self._database.begin("create_acls") as connection:
            for page in pages(bindings):
                new = insert(acl).values([_values(each) for each in page])
                stored = new.on_conflict_do_nothing().returning(*_COLUMNS)
                for row in await connection.execute(stored):
                    binding = _binding(*row)
                    assert binding is not None, "this version has written it"
                    made.add(binding)
        return made

    async def delete(self, keys: Collection[RowKey]) -> set[RowKey]:
        """See AclStore."""
        gone: set[RowKey] = set()
        async with self._database.begin("delete_acls") as connection:
            for page in pages(sorted(keys)):
                gone |= await _delete(connection, page)
        return gone


async def _delete(connection: AsyncConnection, keys: Sequence[RowKey]) -> set[RowKey]:
    statement = delete(acl).where(_ROW.acl_key == any_(uuids(keys))).returning(_ROW.acl_key)
    return {key.bytes for (key,) in await connection.execute(statement)}


def _values(binding: AclBinding) -> Mapping[str, str]:
    return {
        "resource_type": binding.resource_type.value,
        "resource_name": binding.name,
        "pattern_type": binding.pattern_type.value,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.value,
        "permission": binding.permission.value,
    }


def _binding(
    resource_type: str,
    name: str,
    pattern_type: str,
    principal: str,
    host: str,
    operation: str,
    permission: str,
) -> AclBinding | None:
    """None if another version of Penstock has written it, with a word that is not known here."""
    try:
        return AclBinding(
            ResourceType(resource_type),
            name,
            PatternType(pattern_type),
            principal,
            host,
            Operation(operation),
            Permission(permission),
        )
    except ValueError:
        return None


_TABLE: Final = WatchedTable("read_acls", acl, acl_version, _ROW.acl_key, _COLUMNS, _binding)
