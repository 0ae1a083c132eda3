"""Client quotas: read, set, deleted. Implements QuotaStore. Knows no rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Text, Uuid, cast, delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.quotas import StoredQuota, StoredQuotas
from core.quota.changes import QuotaChanges
from core.quota.entities import QuotaEntity, QuotaKey
from storage.connection.pool import Database
from storage.schema import client_quota, client_quota_version
from storage.watched_rows import WatchedTable, pages

_ROW: Final = client_quota.c
_COLUMNS: Final = (_ROW.user_name, _ROW.client_id, _ROW.ip, _ROW.quota_key, _ROW.value)
_KEY: Final = cast(func.md5(cast(_ROW.quota_id, Text) + cast(_ROW.value, Text)), Uuid)


class QuotaStore:
    """`core.ports.quotas.QuotaStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, known: StoredQuotas) -> StoredQuotas | None:
        """See QuotaStore."""
        return await _TABLE.read(self._database, known)

    async def alter(self, changes: QuotaChanges) -> Sequence[StoredQuota]:
        """See QuotaStore."""
        changed: list[StoredQuota] = []
        async with self._database.begin("alter_quotas") as connection:
            for entity, key in changes.deletions:
                changed += await _delete(connection, entity, key)
            for page in pages(changes.upserts.items()):
                changed += await _upsert(connection, page)
        return changed


async def _delete(
    connection: AsyncConnection, entity: QuotaEntity, key: QuotaKey
) -> Sequence[StoredQuota]:
    values = _values(entity, key)
    here = [_ROW[name].is_not_distinct_from(value) for name, value in values.items()]
    found = await connection.execute(delete(client_quota).where(*here))
    return [StoredQuota(entity, key, None)] if found.rowcount else []


async def _upsert(
    connection: AsyncConnection, page: Collection[tuple[tuple[QuotaEntity, QuotaKey], float]]
) -> Sequence[StoredQuota]:
    new = insert(client_quota).values([{**_values(*of), "value": value} for of, value in page])
    stored = new.on_conflict_do_update(
        index_elements=[_ROW.quota_id],
        set_={"value": new.excluded.value, "changed_at": func.clock_timestamp()},
        where=_ROW.value != new.excluded.value,
    ).returning(*_COLUMNS)
    found = [_quota(*row) for row in await connection.execute(stored)]
    return [each for each in found if each is not None]


def _values(entity: QuotaEntity, key: QuotaKey) -> Mapping[str, Any]:
    return {
        "user_name": entity.user,
        "client_id": entity.client_id,
        "ip": entity.ip,
        "quota_key": key.value,
    }


def _quota(
    user: str | None, client_id: str | None, ip: str | None, key: str, value: float
) -> StoredQuota | None:
    """None if another version of Penstock has written it, with a word that is not known here."""
    try:
        return StoredQuota(QuotaEntity(user, client_id, ip), QuotaKey(key), value)
    except ValueError:
        return None


_TABLE: Final = WatchedTable(
    "read_quotas", client_quota, client_quota_version, _KEY, _COLUMNS, _quota
)
