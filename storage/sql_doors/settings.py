"""Brokers' settings as the functions in SQL read them. Implements SqlDoorStore. Knows no rule."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Final

from sqlalchemy import select, update

from core.ports.sql_doors import DoorSettings
from storage.connection.pool import Database
from storage.schema import sql_door

_READ: Final = select(*(sql_door.c[each.name] for each in fields(DoorSettings)))


class SqlDoorStore:
    """`core.ports.sql_doors.SqlDoorStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, settings: DoorSettings) -> DoorSettings | None:
        """See SqlDoorStore."""
        async with self._database.begin("put_sql_door") as connection:
            # Without a lock first: nearly always there is nothing to write, and nobody to wait for.
            for query in (_READ, _READ.with_for_update()):
                row = (await connection.execute(query)).one()
                before = DoorSettings(**{**row._asdict(), "super_users": tuple(row.super_users)})
                if before == settings:
                    return None
            values = {**asdict(settings), "super_users": list(settings.super_users)}
            await connection.execute(update(sql_door).values(values))
        return before
