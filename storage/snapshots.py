"""The oldest snapshot held open in the database, which makes hot rows bloat.

Knows no limit and does not warn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.ports.snapshots import HeldSnapshot

if TYPE_CHECKING:
    from storage.connection.pool import Database

# A transaction with an id holds back others' snapshots, even without a snapshot of its own.
# PostgreSQL ignores VACUUM's. A role sees this of other roles' sessions only with
# pg_read_all_stats.
OLDEST = """
SELECT extract(epoch FROM clock_timestamp() - started)::double precision, holder
FROM (
    SELECT xact_start, 'process ' || pid || ' (' || coalesce(usename, '') || ', '
           || coalesce(application_name, '') || ')'
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
      AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT prepared, 'prepared transaction ' || gid
    FROM pg_prepared_xacts WHERE database = current_database()
) AS held (started, holder)
WHERE started IS NOT NULL ORDER BY started LIMIT 1
"""


class PostgresSnapshots:
    """Reads PostgreSQL's sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def oldest(self) -> HeldSnapshot | None:
        """The oldest snapshot that this role may see. Raises StoreUnavailable."""
        async with self._database.reader("oldest_snapshot") as cursor:
            await cursor.execute(OLDEST)
            row = await cursor.fetchone()
            return HeldSnapshot(*row) if row else None
