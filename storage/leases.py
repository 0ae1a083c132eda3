"""Leases: which broker has which shard. Implements LeaseStore. The table is `coordinator_lease`.

A lease is live while its holder's row in `broker`, of the same incarnation, has a live session; all
times are the database's. Does not know what is in a shard.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from core.ports.leases import Lease
from core.ports.log import StoreUnavailable
from storage.connection.binary import integer, integer_array, rows_of
from storage.connection.kept_session import KeptSession

if TYPE_CHECKING:
    from storage.connection.pool import Database

# A shard's first lease.
FIRST_LEASE = """
INSERT INTO penstock.coordinator_lease (shard, broker_id, incarnation, generation)
SELECT $1::integer, broker_id, incarnation, 0 FROM penstock.broker
WHERE broker_id = $2::integer AND incarnation = $3::uuid
  AND clock_timestamp() < heartbeat_at + make_interval(secs => session_timeout_s)
ON CONFLICT (shard) DO NOTHING
"""
# To acquire, a broker locks the lease, as a flush does, and the holder's row, as a renewal does. A
# later statement reads both (READ COMMITTED: after a wait it sees what was committed meanwhile). It
# sees a renewal that came first; a renewal that comes later sees that the lease is lost.
LOCK_LEASE = "SELECT FROM penstock.coordinator_lease WHERE shard = $1::integer FOR NO KEY UPDATE"
LOCK_HOLDER = """
SELECT FROM penstock.broker
WHERE broker_id = (SELECT broker_id FROM penstock.coordinator_lease WHERE shard = $1::integer)
FOR SHARE
"""
ACQUIRE = """
WITH seen AS MATERIALIZED (
    SELECT l.shard, h.broker_id,
           (l.broker_id, l.incarnation) = ($2::integer, $3::uuid) AS is_own,
           coalesce(clock_timestamp() < h.heartbeat_at + make_interval(secs => h.session_timeout_s),
                    false) AS is_live,
           EXISTS (SELECT FROM penstock.broker b
                   WHERE b.broker_id = $2::integer AND b.incarnation = $3::uuid
                     AND clock_timestamp()
                         < b.heartbeat_at + make_interval(secs => b.session_timeout_s)) AS may_hold
    FROM penstock.coordinator_lease l
    LEFT JOIN penstock.broker h ON h.broker_id = l.broker_id AND h.incarnation = l.incarnation
    WHERE l.shard = $1::integer
), taken AS (
    UPDATE penstock.coordinator_lease l
    SET broker_id = $2::integer, incarnation = $3::uuid, generation = l.generation + 1,
        acquired_at = clock_timestamp()
    FROM seen WHERE l.shard = seen.shard AND seen.may_hold AND (seen.is_own OR NOT seen.is_live)
    RETURNING l.generation
)
SELECT taken.generation, seen.is_own OR NOT seen.is_live, seen.broker_id
FROM seen LEFT JOIN taken ON true
"""

# No broker has this incarnation. The row stays, so that its generation never starts again.
RELEASE = """
WITH held AS MATERIALIZED (
    SELECT shard FROM penstock.coordinator_lease
    WHERE broker_id = $1::integer AND incarnation = $2::uuid
      AND ($3::integer[] IS NULL OR shard = ANY ($3::integer[]))
    ORDER BY shard FOR NO KEY UPDATE
)
UPDATE penstock.coordinator_lease SET incarnation = '00000000-0000-0000-0000-000000000000'
WHERE shard = ANY (ARRAY(SELECT shard FROM held))
  AND broker_id = $1::integer AND incarnation = $2::uuid
"""

STATEMENTS: Mapping[bytes, str] = {
    b"first_lease": FIRST_LEASE,
    b"lock_lease": LOCK_LEASE,
    b"lock_holder": LOCK_HOLDER,
    b"acquire": ACQUIRE,
    b"release": RELEASE,
}

HOLDERS = """
SELECT l.shard, b.broker_id
FROM penstock.coordinator_lease l JOIN penstock.broker b USING (broker_id, incarnation)
WHERE l.shard = ANY (%(shards)s::integer[])
  AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s)
"""
FREE = """
SELECT shard FROM penstock.coordinator_lease l
WHERE NOT EXISTS (
    SELECT FROM penstock.broker b WHERE b.broker_id = l.broker_id AND b.incarnation = l.incarnation
      AND clock_timestamp() < b.heartbeat_at + make_interval(secs => b.session_timeout_s))
ORDER BY shard
"""

_INTEGER = struct.Struct(">i")


class LeaseStore:
    """`core.ports.leases.LeaseStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session = KeptSession(database, STATEMENTS)

    async def acquire(self, shard: int, broker_id: int, incarnation: UUID) -> Lease | int:
        """See LeaseStore. One round trip, so that no lock waits for this process."""
        of_shard = (_INTEGER.pack(shard),)
        to_broker = (*of_shard, _INTEGER.pack(broker_id), incarnation.bytes)
        results = await self._session.run_or_fail(
            "acquire_lease",
            [
                (b"first_lease", to_broker),
                (b"lock_lease", of_shard),
                (b"lock_holder", of_shard),
                (b"acquire", to_broker),
            ],
        )
        for generation, is_for_taking, holder in rows_of(results[3]):
            if generation is not None:
                return Lease(shard, integer(generation))
            if is_for_taking != b"\1":
                return integer(holder)
        raise StoreUnavailable("this broker's own session has run out, so it cannot hold a lease")

    async def holders(self, shards: Sequence[int]) -> Mapping[int, int]:
        """See LeaseStore."""
        async with self._database.reader("lease_holders") as cursor:
            await cursor.execute(HOLDERS, {"shards": list(shards)})
            return dict(await cursor.fetchall())

    async def free(self) -> list[int]:
        """See LeaseStore."""
        async with self._database.reader("free_leases") as cursor:
            await cursor.execute(FREE)
            return [shard for (shard,) in await cursor.fetchall()]

    async def release(
        self, broker_id: int, incarnation: UUID, shards: Sequence[int] | None = None
    ) -> None:
        """See LeaseStore."""
        wanted = None if shards is None else integer_array(shards)
        parameters = (_INTEGER.pack(broker_id), incarnation.bytes, wanted)
        await self._session.run_or_fail("release_leases", [(b"release", parameters)])
