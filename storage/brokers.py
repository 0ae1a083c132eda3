"""The brokers over this database: the live ones, and which process holds which broker id.

All times are the database's `clock_timestamp()`. Knows nothing of leaders or partitions.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Float,
    Text,
    Update,
    cast,
    delete,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.leases import Lease
from core.ports.topics import BrokerIdTaken, BrokerRegistration, Heartbeat
from core.types import Endpoint, LiveBroker
from storage.connection.binary import integer, rows_of
from storage.connection.kept_session import KeptSession
from storage.connection.pool import Database
from storage.notifications import BROKERS_CHANGED
from storage.schema import broker, broker_endpoint, cluster

FORGET_AFTER_S = 24 * 3600
"""The row of a broker that has been silent for so long is deleted when another registers."""

# A slower heartbeat comes too late to help; the next one tries another connection.
HEARTBEAT_DEADLINE_S = 3.0

RENEW = """
UPDATE penstock.broker SET heartbeat_at = clock_timestamp()
WHERE broker_id = $1::integer AND incarnation = $2::uuid RETURNING broker_id
"""
LIVE = """
SELECT broker_id, rack, listener, host, port
FROM penstock.broker JOIN penstock.broker_endpoint USING (broker_id)
WHERE clock_timestamp() < heartbeat_at + make_interval(secs => session_timeout_s)
ORDER BY broker_id, listener
"""
# A statement after RENEW: if RENEW waited for a broker that took a lease, this sees the result.
HELD_LEASES = """
SELECT shard, generation FROM penstock.coordinator_lease
WHERE broker_id = $1::integer AND incarnation = $2::uuid ORDER BY shard
"""
# Whether applications have produced something, should its news be lost, or have written at all.
LAST_STAMP = """
SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END,
       CASE WHEN n.is_called THEN n.last_value ELSE 0 END
FROM penstock.inbox_stamp_seq s, penstock.inbox_number_seq n
"""
STATEMENTS: Mapping[bytes, str] = {
    b"last_stamp": LAST_STAMP,
    b"renew": RENEW,
    b"live": LIVE,
    b"held_leases": HELD_LEASES,
}

_INTEGER = struct.Struct(">i")


def _seconds(seconds: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)


_SESSION_END = broker.c.heartbeat_at + _seconds(broker.c.session_timeout_s)
_SECONDS_LEFT = cast(func.extract("epoch", _SESSION_END - func.clock_timestamp()), Float)
_IS_LIVE = func.clock_timestamp() < _SESSION_END


class ClusterStore:
    """`core.ports.topics.ClusterStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session = KeptSession(database, STATEMENTS, deadline_s=HEARTBEAT_DEADLINE_S)

    async def cluster_id(self) -> str:
        """The cluster's id, as Metadata shows it."""
        async with self._database.begin("cluster_id") as connection:
            return str((await connection.execute(select(cluster.c.cluster_id))).scalar_one())

    async def register(self, registration: BrokerRegistration, *, starts: bool = True) -> int:
        """See ClusterStore."""
        async with self._database.begin("register_broker") as connection:
            # One registration at a time; the row is locked for a few statements only.
            await connection.execute(select(cluster.c.only_row).with_for_update())
            silent_for = func.clock_timestamp() - _SESSION_END
            await connection.execute(
                delete(broker).where(silent_for > _seconds(literal(float(FORGET_AFTER_S))))
            )
            if registration.broker_id is None:
                broker_id = await _allocate(connection, registration)
            else:
                broker_id = registration.broker_id
                await _check_free(connection, broker_id, registration, starts)
            await _write(connection, broker_id, registration)
            if starts:
                await connection.execute(_end_others_there(broker_id, registration))
            await _announce(connection)
            return broker_id

    async def heartbeat(self, broker_id: int, incarnation: UUID) -> Heartbeat:
        """Renews the session; reads the live brokers, including the caller if it is registered, and
        the caller's leases.

        One round trip, so that no lock waits for this process: a broker that takes a lease waits
        for this row.
        """
        of_process = (_INTEGER.pack(broker_id), incarnation.bytes)
        renewed, live, held, stamp, *_ = await self._session.run_or_fail(
            "heartbeat",
            [
                (b"renew", of_process),
                (b"live", ()),
                (b"held_leases", of_process),
                (b"last_stamp", ()),
            ],
        )
        is_registered = renewed.ntuples == 1
        return Heartbeat(
            is_registered,
            _live_brokers(rows_of(live)),
            tuple(Lease(integer(shard), integer(generation)) for shard, generation in rows_of(held))
            if is_registered
            else (),
            integer(stamp.get_value(0, 0)),
            integer(stamp.get_value(0, 1)),
        )

    async def leave(self, broker_id: int, incarnation: UUID) -> None:
        """Ends the session at once. The row stays, so that the same address gets its id again."""
        leaving = (
            update(broker)
            .where(broker.c.broker_id == broker_id, broker.c.incarnation == incarnation)
            .values(heartbeat_at=func.clock_timestamp() - _seconds(broker.c.session_timeout_s))
        )
        async with self._database.begin("leave") as connection:
            await connection.execute(leaving)
            await _announce(connection)


async def _allocate(connection: AsyncConnection, registration: BrokerRegistration) -> int:
    """The id this address had; else the next free one.

    Even if that id's session has not run out: only one process can listen at an address, and a
    broker that was killed and started again must not be listed twice.
    """
    had = (
        select(broker.c.broker_id)
        .where(_is_at(registration))
        .order_by(broker.c.heartbeat_at.desc())
        .limit(1)
    )
    if (broker_id := await connection.scalar(had)) is not None:
        return int(broker_id)
    taken = set((await connection.execute(select(broker.c.broker_id))).scalars())
    broker_id = (await connection.execute(select(cluster.c.next_broker_id))).scalar_one()
    while broker_id in taken:
        broker_id += 1
    await connection.execute(update(cluster).values(next_broker_id=broker_id + 1))
    return int(broker_id)


async def _check_free(
    connection: AsyncConnection, broker_id: int, registration: BrokerRegistration, starts: bool
) -> None:
    holder = (
        await connection.execute(
            select(
                broker.c.incarnation,
                _is_at(registration).label("is_there"),
                _address_of(broker_id).label("address"),
                _SECONDS_LEFT.label("left"),
            ).where(broker.c.broker_id == broker_id)
        )
    ).one_or_none()
    if holder is None or holder.left <= 0 or holder.incarnation == registration.incarnation:
        return
    if starts and holder.is_there:
        return
    raise BrokerIdTaken(
        f"Broker id {broker_id} is in use by the broker at {holder.address}: "
        "stop that one, or start this one with another --broker-id or none.",
        holder.left,
    )


def _end_others_there(broker_id: int, registration: BrokerRegistration) -> Update:
    """Ends the sessions that this address had under other ids."""
    return (
        update(broker)
        .where(
            _is_at(registration),
            broker.c.broker_id != broker_id,
            _IS_LIVE,
        )
        .values(heartbeat_at=func.clock_timestamp() - _seconds(broker.c.session_timeout_s))
    )


async def _write(
    connection: AsyncConnection, broker_id: int, registration: BrokerRegistration
) -> None:
    columns = {
        "incarnation": registration.incarnation,
        "rack": registration.rack,
        "version": registration.version,
        "session_timeout_s": registration.session_timeout_s,
        "started_at": func.clock_timestamp(),
        "heartbeat_at": func.clock_timestamp(),
    }
    await connection.execute(
        insert(broker)
        .values(broker_id=broker_id, **columns)
        .on_conflict_do_update(index_elements=["broker_id"], set_=columns)
    )
    await connection.execute(
        delete(broker_endpoint).where(broker_endpoint.c.broker_id == broker_id)
    )
    await connection.execute(
        insert(broker_endpoint),
        [{"broker_id": broker_id, **asdict(each)} for each in registration.endpoints],
    )


def _is_at(registration: BrokerRegistration) -> ColumnElement[bool]:
    """Whether the broker is at this address: only one process can listen there."""
    first = registration.endpoints[0]
    return exists().where(
        broker_endpoint.c.broker_id == broker.c.broker_id,
        broker_endpoint.c.listener == first.listener,
        broker_endpoint.c.host == first.host,
        broker_endpoint.c.port == first.port,
    )


def _address_of(broker_id: int) -> ColumnElement[Any]:
    address = broker_endpoint.c.host + ":" + cast(broker_endpoint.c.port, Text)
    mine = broker_endpoint.c.broker_id == broker_id
    return select(func.string_agg(address, ", ")).where(mine).scalar_subquery()


def _live_brokers(rows: Iterable[Sequence[bytes | None]]) -> tuple[LiveBroker, ...]:
    """Brokers, from rows in order of brokers, one row per endpoint."""
    endpoints: dict[tuple[int, str | None], list[Endpoint]] = {}
    for broker_id, rack, listener, host, port in rows:
        key = (integer(broker_id), None if rack is None else rack.decode())
        address = ((listener or b"").decode(), (host or b"").decode(), integer(port))
        endpoints.setdefault(key, []).append(Endpoint(*address))
    return tuple(LiveBroker(*key, tuple(each)) for key, each in endpoints.items())


async def _announce(connection: AsyncConnection) -> None:
    """When this transaction commits, tells the others to read the live brokers again."""
    await connection.execute(select(func.pg_notify(BROKERS_CHANGED, "")))
