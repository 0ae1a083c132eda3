"""The inbox: what waits in it, who watches it, and how it is emptied. Implements InboxStore.

Its session holds an advisory lock as long as this broker looks for all: a transaction that commits
tries for the same one, to know whether it has to wake anybody. The lock ends with the broker.
Knows no rule.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import text

from core.inbox.values import InboxPosition, Look, WaitingRecord
from core.ports.log import EffectRefused, RowLocked, StoreUnavailable
from storage.connection.binary import integer, loaded_rows, rows_of
from storage.connection.pool import DEADLINE_S, HotConnection
from storage.connection.session import HotSession, Statement
from storage.schema import INBOX_SLOTS

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from storage.connection.pool import Database

_T = TypeVar("_T")

WATCH_LOCK: Final = 5784113066287911025
"""Any number that no other advisory lock has; `sql_doors/produce.sql` tries for it."""
MOST_TRANSACTIONS: Final = 1_000
"""So many are ordered in one look; where there are more, they are read in order."""
SLOT_BYTES: Final = 32 * 2**20
"""A slot of that size is written to no more, if another one is empty."""
_POSITIONS_KEPT: Final = 1_000


def _of_all_slots(select: str) -> str:
    return "\n    UNION ALL\n".join(select.replace("{slot}", str(n)) for n in range(INBOX_SLOTS))


_RECORDS: Final = _of_all_slots(
    """
                  (SELECT * FROM penstock.inbox_record_{slot}
                   WHERE xid = o.xid AND era = $2::integer
                   ORDER BY number LIMIT $3::integer + 1)"""
)
# WaitingRecord's fields.
_COLUMNS: Final = """f.stamp, f.number, f.xid, f.topic_id, f.topic, f.partition,
       f.timestamp_ms, f.key, f.value, f.header_names, f.header_values"""
_fields: Final = itemgetter(slice(len(WaitingRecord._fields)))

# What follows `ordered`: its transactions' records in order, up to a number and a size. Only what
# is given is read: the size of what lies out of line is known without it. A loop goes through the
# transactions in order, and stops at the limit: to sort all records of all of them first took
# 0.13 s for 200,000. is_over: beyond that. A transaction without any is a row, too: else it would
# not be seen that more follow.
_FOUND: Final = f"""found AS (
    SELECT *, row_number() OVER place > 1
              AND (row_number() OVER place > $3::integer OR sum(size) OVER place > $4::bigint
                   OR rank > {MOST_TRANSACTIONS}) AS is_over
    FROM (SELECT o.stamp, o.committed_at, o.rank, r.*,
                 coalesce(octet_length(r.key), 0) + coalesce(octet_length(r.value), 0) + 100 AS size
          FROM (SELECT * FROM ordered ORDER BY stamp) AS o
          LEFT JOIN LATERAL (SELECT * FROM ({_RECORDS}
              ) AS of_slots ORDER BY number LIMIT $3::integer + 1) AS r ON true
          LIMIT $3::integer + 1) AS first
    WINDOW place AS (ORDER BY stamp, number)
)
SELECT {_COLUMNS}, head.*, (SELECT era FROM penstock.sql_door),
       EXISTS (SELECT FROM found WHERE is_over),
       (SELECT extract(epoch FROM clock_timestamp() - min(committed_at)) FROM found
        WHERE NOT is_over)::float8
FROM head LEFT JOIN found f ON NOT f.is_over ORDER BY f.stamp, f.number
"""
# Computed once, not for each record.
_HEAD: Final = "pg_current_snapshot()::text AS snapshot, {} AS is_crowded"

# By the ids of transactions alone: what has ended since a snapshot. The cost does not depend on
# what others hold open, here or anywhere in the cluster.
_NEW: Final = _of_all_slots(
    """
        SELECT * FROM penstock.inbox_commit_{slot}
        WHERE xid >= pg_snapshot_xmax($1::text::pg_snapshot)
        UNION ALL
        SELECT * FROM penstock.inbox_commit_{slot}
        WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))"""
)
LOOK: Final = f"""
WITH new AS MATERIALIZED (
    SELECT xid, stamp, committed_at FROM ({_NEW}
    ) AS c WHERE era = $2::integer LIMIT {MOST_TRANSACTIONS + 1}
), head AS MATERIALIZED (
    SELECT {_HEAD.format(f"count(*) > {MOST_TRANSACTIONS}")} FROM new
), ordered AS (
    SELECT xid, max(stamp) AS stamp, max(committed_at) AS committed_at, 0 AS rank
    FROM new WHERE NOT (SELECT is_crowded FROM head) GROUP BY xid
), {_FOUND}"""

# What a backlog has in order, from a stamp on. Of a transaction's stamps the last counts.
_IN_ORDER: Final = _of_all_slots(
    f"""
            (SELECT * FROM penstock.inbox_commit_{{slot}} c
             WHERE c.stamp > $6::bigint AND c.era = $2::integer
               AND pg_visible_in_snapshot(c.xid, $5::text::pg_snapshot)
               AND NOT pg_visible_in_snapshot(c.xid, $1::text::pg_snapshot)
             ORDER BY c.stamp LIMIT {MOST_TRANSACTIONS + 1})"""
)
_LATER: Final = _of_all_slots(
    """
            SELECT FROM penstock.inbox_commit_{slot} later
            WHERE later.xid = c.xid AND later.era = c.era AND later.stamp > c.stamp"""
)
LOOK_IN_ORDER: Final = f"""
WITH head AS MATERIALIZED (SELECT {_HEAD.format("false")}),
ordered AS (
    SELECT xid, stamp, committed_at, row_number() OVER (ORDER BY stamp) AS rank FROM (
        SELECT * FROM ({_IN_ORDER}
        ) AS c
        WHERE NOT EXISTS ({_LATER}
        ) ORDER BY stamp LIMIT {MOST_TRANSACTIONS + 1}
    ) AS first
), {_FOUND}"""

_OF_ONE: Final = _of_all_slots(
    """
              (SELECT * FROM penstock.inbox_record_{slot}
               WHERE xid = $1::text::xid8 AND era = $2::integer AND number > $3::bigint
               ORDER BY number LIMIT $4::integer)"""
)
PAGE: Final = f"""
WITH found AS (
    SELECT *, row_number() OVER place > 1 AND sum(size) OVER place > $5::bigint AS is_over
    FROM (SELECT 0::bigint AS stamp, r.*,
                 coalesce(octet_length(r.key), 0) + coalesce(octet_length(r.value), 0) + 100 AS size
          FROM ({_OF_ONE}
          ) AS r ORDER BY r.number LIMIT $4::integer) AS first
    WINDOW place AS (ORDER BY number)
)
SELECT {_COLUMNS} FROM found f WHERE NOT f.is_over ORDER BY f.number
"""

POSITION: Final = """
SELECT version, era, published::text, target::text, after_stamp
FROM penstock.inbox_position ORDER BY version DESC LIMIT 1
"""
# A broker that works asks something on that connection, even if it takes long to publish.
BREAK_THE_WATCH: Final = f"""
SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l
WHERE NOT EXISTS (
    SELECT FROM pg_stat_get_activity(l.pid) AS a
    WHERE a.query_start > clock_timestamp() - make_interval(secs => $1::float8))
  AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = {WATCH_LOCK >> 32} AND objid = {WATCH_LOCK & 0xFFFFFFFF} AND pid <> pg_backend_pid()
"""

IS_WATCHED: Final = f"""
SELECT CASE WHEN pg_try_advisory_lock_shared({WATCH_LOCK})
            THEN NOT pg_advisory_unlock_shared({WATCH_LOCK}) ELSE true END
"""
# Whoever has drawn a stamp holds such a lock until it has ended.
ARE_STAMPED: Final = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation = ANY (ARRAY[{tables}]::regclass[]))
""".replace("{tables}", ", ".join(f"'penstock.inbox_commit_{slot}'" for slot in range(INBOX_SLOTS)))

# The same as long as no transaction that has written ends, in the whole cluster: a tenth of a look.
SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"

STATEMENTS: Final[Mapping[bytes, str]] = {
    b"snapshot": SNAPSHOT,
    b"look": LOOK,
    b"look_in_order": LOOK_IN_ORDER,
    b"page": PAGE,
    b"position": POSITION,
    b"break_the_watch": BREAK_THE_WATCH,
    b"is_watched": IS_WATCHED,
    b"are_stamped": ARE_STAMPED,
    b"watch": f"SELECT pg_advisory_lock({WATCH_LOCK})",
    b"leave": f"SELECT pg_advisory_unlock({WATCH_LOCK})",
    # How long to wait for who commits and tries for it at this moment.
    b"be_short": "SET lock_timeout = '100ms'",
}

_TABLES: Final = ("record", "transaction", "commit", "offset")
_WRITING: Final = text("SELECT slot FROM penstock.sql_door")
_WRITE_TO: Final = text("UPDATE penstock.sql_door SET slot = :slot")
# By size: what is not committed yet, or was rolled back, takes room as well.
_IS_USED: Final = [
    text(
        "SELECT "
        + " + ".join(
            f"pg_relation_size('penstock.inbox_{each}_{slot}'::regclass)" for each in _TABLES
        )
        + " > 0"
    )
    for slot in range(INBOX_SLOTS)
]
_SIZES: Final = [
    text(
        "SELECT "
        + " + ".join(
            f"pg_total_relation_size('penstock.inbox_{each}_{slot}'::regclass)" for each in _TABLES
        )
    )
    for slot in range(INBOX_SLOTS)
]
_STAMPS: Final = _of_all_slots("SELECT xid, era, stamp FROM penstock.inbox_commit_{slot}")
# Whether something in a slot is not published, by the position that counts now: a transaction that
# has its stamp there, or a record, though the stamp is in another. Of two stamps the later counts.
_WAITS: Final = f"""
EXISTS (
    SELECT FROM ({_STAMPS}) AS c,
        (SELECT * FROM penstock.inbox_position ORDER BY version DESC LIMIT 1) AS p
    WHERE (c.era > p.era OR (c.era = p.era AND NOT pg_visible_in_snapshot(c.xid, p.published)
           AND NOT coalesce(pg_visible_in_snapshot(c.xid, p.target)
                            AND c.stamp <= p.after_stamp
                            AND NOT EXISTS (SELECT FROM ({_STAMPS}) AS later
                                WHERE later.xid = c.xid AND later.era = c.era
                                  AND later.stamp > p.after_stamp), false)))
      AND (EXISTS (SELECT FROM penstock.inbox_commit_{{slot}} o
                   WHERE o.xid = c.xid AND o.era = c.era)
           OR EXISTS (SELECT FROM penstock.inbox_record_{{slot}} r
                      WHERE r.xid = c.xid AND r.era = c.era)))
"""
# Whoever waits for a lock there waits behind us: so we do not wait. One statement, so that no lock
# stays where the broker stops in the middle.
_EMPTY_SLOT: Final = f"""
DO $$ BEGIN
    LOCK TABLE {{tables}} IN ACCESS EXCLUSIVE MODE NOWAIT;
    IF NOT ({_WAITS}) THEN
        TRUNCATE {{tables}};
    END IF;
END $$
"""
_FORGET_POSITIONS: Final = text(
    "DELETE FROM penstock.inbox_position WHERE version >= :low AND version < :high"
)

_BIGINT = struct.Struct(">q")
_INTEGER = struct.Struct(">i")
_DOUBLE = struct.Struct(">d")


class InboxStore:
    """`core.ports.inbox.InboxStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: HotConnection[tuple[object, ...]] | None = None
        self._session: HotSession | None = None
        self._watching: HotSession | None = None  # the session that holds the lock
        self._turn = asyncio.Lock()
        self._nothing: tuple[InboxPosition, Look] | None = None  # found by the last look, and where
        self._forgotten_below = 0
        database.on_close(self.close)

    async def position(self) -> InboxPosition:
        """See InboxStore."""
        (row,) = rows_of(await self._run("inbox_position", (b"position", ())))
        version, era, published, target, after_stamp = row
        return InboxPosition(
            integer(version),
            integer(era),
            (published or b"").decode(),
            None if target is None else target.decode(),
            integer(after_stamp),
        )

    async def look(self, position: InboxPosition, *, records: int, max_bytes: int) -> Look:
        """See InboxStore."""
        known = self._nothing
        if known is not None and known[0] == position:
            ((snapshot,),) = rows_of(await self._run("inbox_look", (b"snapshot", ())))
            # A session that was opened for this question may be another database's.
            if self._nothing is known and snapshot == known[1].snapshot.encode():
                return known[1]
        look = await self._look(position, records, max_bytes)
        is_nothing = look.last_stamp == 0 and not look.is_crowded and position.target is None
        self._nothing = (position, look) if is_nothing else None
        return look

    async def _look(self, position: InboxPosition, records: int, max_bytes: int) -> Look:
        parameters = (
            position.published.encode(),
            _INTEGER.pack(position.era),
            _INTEGER.pack(records),
            _BIGINT.pack(max_bytes),
        )
        statement: Statement = (b"look", parameters)
        if position.target is not None:
            in_order = (position.target.encode(), _BIGINT.pack(position.after_stamp))
            statement = (b"look_in_order", (*parameters, *in_order))
        result = await self._run("inbox_look", statement)
        rows = loaded_rows(result)
        snapshot, is_crowded, era, is_cut, waited_s = rows[0][len(WaitingRecord._fields) :]
        waited_s, last_stamp = max(0.0, waited_s or 0.0), rows[-1][0] or 0
        return Look(snapshot, era, _records(rows), is_cut, is_crowded, waited_s, last_stamp)

    async def page(
        self, transaction: int, era: int, after_number: int, *, records: int, max_bytes: int
    ) -> list[WaitingRecord]:
        """See InboxStore."""
        parameters = (
            str(transaction).encode(),
            _INTEGER.pack(era),
            _BIGINT.pack(after_number),
            _INTEGER.pack(records),
            _BIGINT.pack(max_bytes),
        )
        result = await self._run("inbox_page", (b"page", parameters))
        return list(_records(loaded_rows(result)))

    # --- the watch ---

    @property
    def has_the_watch(self) -> bool:
        """See InboxStore."""
        watching = self._watching
        return watching is not None and watching is self._session and not watching.is_broken

    async def take_the_watch(self) -> bool:
        """See InboxStore."""
        if self.has_the_watch:  # a lock that is taken twice has to be given back twice
            return True
        try:
            await self._run("inbox_watch", (b"watch", ()))
        except RowLocked:
            return False
        self._watching = self._session
        return True

    async def leave_the_watch(self) -> None:
        """See InboxStore."""
        if self.has_the_watch:
            self._watching = None
            await self._run("inbox_watch", (b"leave", ()))

    async def break_the_watch(self, silent_s: float) -> bool:
        """See InboxStore."""
        statement = (b"break_the_watch", (_DOUBLE.pack(silent_s),))
        return bool(list(rows_of(await self._run("inbox_watch", statement))))

    async def is_watched(self) -> bool:
        """See InboxStore."""
        return await self._ask(b"is_watched")

    async def are_commits_under_way(self) -> bool:
        """See InboxStore."""
        return await self._ask(b"are_stamped")

    async def _ask(self, name: bytes) -> bool:
        ((answer,),) = rows_of(await self._run("inbox_watch", (name, ())))
        return answer == b"\1"

    # --- the session ---

    async def _run(self, name: str, statement: Statement) -> PGresult:
        """Raises StoreUnavailable, RowLocked."""
        results = await self._in_turn(name, lambda session: session.run([statement], commits=False))
        return results[0]

    async def _in_turn(self, name: str, work: Callable[[HotSession], Awaitable[_T]]) -> _T:
        async with self._turn:
            started = time.perf_counter()
            try:
                return await work(await self._open())
            except asyncio.CancelledError:
                await self.close()  # in the middle of a pipeline no other call can use it
                raise
            finally:
                self._database.observe(name, time.perf_counter() - started)

    async def _open(self) -> HotSession:
        if self._session is not None and not self._session.is_broken:
            return self._session
        await self.close()
        self._nothing = None
        connection = await self._database.connect(DEADLINE_S)
        session = HotSession(connection)
        try:
            await session.prepare_all(STATEMENTS)
            await session.run([(b"be_short", ())], commits=False)
            if self._database.is_closed:  # it has closed only the sessions it knew
                raise StoreUnavailable("the database is closed")
        except BaseException:
            await session.close()
            raise
        self._connection, self._session = connection, session
        return session

    async def close(self) -> None:
        """Closes the connection, and with it leaves the watch."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    # --- emptying ---

    async def empty(self, position: InboxPosition) -> None:
        """See InboxStore."""
        async with self._database.begin("inbox_slots") as connection:
            (writing,) = (await connection.execute(_WRITING)).scalars()
            used = [(await connection.scalar(each)) for each in _IS_USED]
            if (await connection.scalar(_SIZES[writing])) > SLOT_BYTES:
                others = (n % INBOX_SLOTS for n in range(writing + 1, writing + INBOX_SLOTS))
                following = next((slot for slot in others if not used[slot]), None)
                if following is not None:
                    await connection.execute(_WRITE_TO, {"slot": following})
            await connection.execute(
                _FORGET_POSITIONS,
                {"low": self._forgotten_below, "high": position.version - _POSITIONS_KEPT},
            )
        self._forgotten_below = max(0, position.version - _POSITIONS_KEPT)
        for slot, is_used in enumerate(used):
            if is_used and slot != writing:
                await self._empty_slot(slot)

    async def _empty_slot(self, slot: int) -> None:
        tables = ", ".join(f"penstock.inbox_{each}_{slot}" for each in _TABLES)
        sql = _EMPTY_SLOT.format(tables=tables, slot=slot).encode()
        try:
            await self._in_turn("inbox_empty", lambda session: session.execute(sql))
        except RowLocked:
            pass  # somebody still writes there
        except EffectRefused as error:
            if not error.out_of_space:  # it has to make new files first; then it is for later
                raise


def _records(rows: Iterable[tuple[Any, ...]]) -> tuple[WaitingRecord, ...]:
    """Of rows that begin with _COLUMNS, thousands a second; a transaction that has none is a row
    without a number."""
    of_records = [row for row in rows if row[1] is not None]
    return tuple(map(WaitingRecord._make, map(_fields, of_records)))
