"""ACLs: read, made, deleted. Implements AclStore. Knows no rule.

A trigger counts all changes, whoever makes them, so that a broker can ask every half second whether
anything is new. It then reads the keys of all, 16 bytes each, and only the rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, LargeBinary, Uuid, any_, cast, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.acls import AclKey, StoredAcls
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from storage.connection.pool import Database
from storage.schema import acl, acl_version

_ROW: Final = acl.c
_PAGE: Final = 1000
_KEY_BYTES: Final = 16

_VERSION: Final = select(acl_version.c.version)
_KEYS: Final = select(
    func.string_agg(
        func.uuid_send(_ROW.acl_key, type_=LargeBinary), literal(b""), type_=LargeBinary
    )
)
_COLUMNS: Final = (
    _ROW.acl_key,
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
        async with self._database.begin("read_acls") as connection:
            # Reads the version first: the rows may then be newer than it says, never older.
            version = await connection.scalar(_VERSION)
            assert version is not None, "its row is there"
            if version == known.version:
                return None
            packed = bytes(await connection.scalar(_KEYS) or b"")
            keys = [packed[at : at + _KEY_BYTES] for at in range(0, len(packed), _KEY_BYTES)]
            bindings = {key: each for key in keys if (each := known.bindings.get(key)) is not None}
            unreadable = 0
            # By pages: other work of the process goes on between them.
            for page in _pages(key for key in keys if key not in bindings):
                query = select(*_COLUMNS).where(_ROW.acl_key == any_(_uuids(page)))
                for key, *values in await connection.execute(query):
                    binding = _binding(*values)
                    if binding is None:
                        unreadable += 1
                    else:
                        bindings[key.bytes] = binding
        return StoredAcls(version, bindings, unreadable)

    async def create(self, bindings: Sequence[AclBinding]) -> set[AclBinding]:
        """See AclStore."""
        made: set[AclBinding] = set()
        async with self._database.begin("create_acls") as connection:
            for page in _pages(bindings):
                new = insert(acl).values([_values(each) for each in page])
                stored = new.on_conflict_do_nothing().returning(*_COLUMNS[1:])
                for row in await connection.execute(stored):
                    binding = _binding(*row)
                    assert binding is not None, "this version has written it"
                    made.add(binding)
        return made

    async def delete(self, keys: Collection[AclKey]) -> set[AclKey]:
        """See AclStore."""
        gone: set[AclKey] = set()
        async with self._database.begin("delete_acls") as connection:
            for page in _pages(sorted(keys)):
                gone |= await _delete(connection, page)
        return gone


async def _delete(connection: AsyncConnection, keys: Sequence[AclKey]) -> set[AclKey]:
    statement = delete(acl).where(_ROW.acl_key == any_(_uuids(keys))).returning(_ROW.acl_key)
    return {key.bytes for (key,) in await connection.execute(statement)}


def _uuids(keys: Sequence[AclKey]) -> Any:
    return cast([UUID(bytes=key) for key in keys], ARRAY(Uuid))


def _pages(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while page := list(islice(iterator, _PAGE)):
        yield page


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
