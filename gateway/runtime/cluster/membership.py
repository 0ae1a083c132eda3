"""The brokers over one database, as this one sees them: live brokers, and leaders of partitions.

A hint that spreads clients and keeps caches warm; no answer's correctness depends on it. Knows no
wire and no SQL.
"""

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

import structlog

from core.leadership import choose_leader
from core.ports.log import StoreUnavailable
from core.ports.topics import BrokerIdTaken, BrokerRegistration, ClusterStore, Heartbeat
from core.transaction.key import TransactionKey
from core.types import Endpoint, LiveBroker
from gateway.runtime.topics.shared_read import SharedRead

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL_S: Final = 1.0

_CLOCK_ID: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def session_clock() -> float:
    """Seconds on a clock that runs, as the session does, while this process is stopped and, if the
    system has such a clock, while the machine sleeps."""
    return time.clock_gettime(_CLOCK_ID)


# Logged and raised if another process took the broker id while this one was cut off.
_TAKEN_OVER: Final = (
    "Broker id {} was taken over by another process, at the same address or while this one could "
    "not reach the database in time; this broker stops."
)


class Cluster:
    """This broker among the others. Call `join` first; then keep `run` running.

    on_change: called when a broker has come or gone.
    """

    def __init__(
        self,
        store: ClusterStore,
        *,
        endpoints: Sequence[Endpoint],
        version: str,
        session_timeout_s: float,
        broker_id: int | None = None,
        rack: str | None = None,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._registration = BrokerRegistration(
            broker_id=broker_id,
            incarnation=uuid4(),
            endpoints=tuple(endpoints),
            rack=rack,
            version=version,
            session_timeout_s=session_timeout_s,
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        self._on_change = on_change
        self._cluster_id = ""
        self._this = LiveBroker(-1, rack, tuple(endpoints))
        self._live: tuple[LiveBroker, ...] = ()
        self._listeners_of_others: set[str] = set()
        self._leaders: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._one_heartbeat = asyncio.Lock()
        self._has_left = False
        self._lives_until = float("inf")  # by `session_clock`, once there was a heartbeat
        self._fresh = SharedRead(self._read_live)
        self._on_heartbeat: list[Callable[[float, Heartbeat], None]] = []

    def on_heartbeat(self, listener: Callable[[float, Heartbeat], None]) -> None:
        """Registers a listener: called with the time of sending (`session_clock`) and the result of
        each heartbeat."""
        self._on_heartbeat.append(listener)

    @property
    def incarnation(self) -> UUID:
        """The id of this process, as holder of the broker id."""
        return self._registration.incarnation

    @property
    def has_left(self) -> bool:
        """Whether this broker has ended its session because it stops."""
        return self._has_left

    @property
    def has_lapsed(self) -> bool:
        """Whether the session is over, counted from before its last renewal was sent. This process
        stood still, or the database is away; clients may have moved to other brokers since."""
        return session_clock() >= self._lives_until

    @property
    def session_timeout_s(self) -> float:
        """How long this broker's session lasts after a heartbeat."""
        return self._registration.session_timeout_s

    @property
    def broker_id(self) -> int:
        """This broker's id; -1 before `join`."""
        return self._this.broker_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as Metadata shows it; "" before `join`."""
        return self._cluster_id

    @property
    def this(self) -> LiveBroker:
        """This broker, as the others see it."""
        return self._this

    @property
    def live(self) -> tuple[LiveBroker, ...]:
        """The live brokers at the last heartbeat, by id; always includes this one."""
        return self._live

    @property
    def live_ids(self) -> frozenset[int]:
        """The ids of the live brokers."""
        return frozenset(broker.broker_id for broker in self._live)

    @property
    def is_alone(self) -> bool:
        """Whether no other broker is known to be live, so that no news need be sent."""
        return len(self._live) <= 1

    def was_always_alone_at(self, listener: str) -> bool:
        """Whether no other broker with a listener of this name has been live since this one
        joined."""
        return listener not in self._listeners_of_others

    @property
    def is_lowest(self) -> bool:
        """Whether this broker has the lowest id of the known live ones, and so does the work that
        one broker can do for all. For a while two may think so, or none."""
        return self._this.broker_id == min(
            (broker.broker_id for broker in self._live), default=self._this.broker_id
        )

    def leader_of(self, partition_id: int) -> int:
        """The id of the live broker that clients are sent to for this partition."""
        if len(self._live) <= 1:
            return self._this.broker_id
        leader = self._leaders.get(partition_id)
        if leader is None:
            staying = self.live_ids - {self._this.broker_id} if self._has_left else self.live_ids
            chosen = choose_leader(partition_id, staying)
            leader = self._this.broker_id if chosen is None else chosen
            self._leaders[partition_id] = leader
        return leader

    def coordinator_of(self, key: TransactionKey) -> LiveBroker:
        """The live broker that clients are sent to for this transaction. Any could serve it."""
        chosen = choose_leader(zlib.crc32(key.name.encode()), self.live_ids)
        return self.find(chosen) or self._this

    def find(self, broker_id: int | None) -> LiveBroker | None:
        """The broker of this id, if it was live at the last heartbeat."""
        return next((each for each in self._live if each.broker_id == broker_id), None)

    async def join(self) -> None:
        """Takes a broker id and reads the live brokers.

        If another process holds the requested id, waits until its session would run out, as it does
        after a crash. Raises BrokerIdTaken if that session is renewed; StoreUnavailable.
        """
        self._cluster_id = await self._store.cluster_id()
        try:
            broker_id = await self._store.register(self._registration)
        except BrokerIdTaken as taken:
            log.info("waiting_for_broker_session", reason=str(taken))
            await asyncio.sleep(taken.seconds_left + 0.1)
            broker_id = await self._store.register(self._registration)
        self._this = replace(self._this, broker_id=broker_id)
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Renews the session and reads the live brokers.

        Raises StoreUnavailable; BrokerIdTaken if another process has taken this broker's id.
        """
        # One at a time, so that an earlier heartbeat's result never replaces a later one's.
        async with self._one_heartbeat:
            if not self._has_left:
                await self._heartbeat()

    async def _heartbeat(self) -> None:
        sent_at = session_clock()
        heartbeat = await self._store.heartbeat(self.broker_id, self.incarnation)
        self._lives_until = sent_at + self.session_timeout_s
        for listener in self._on_heartbeat:
            listener(sent_at, heartbeat)
        if not heartbeat.is_registered:
            await self._register_again()
        others = (each for each in heartbeat.live if each.broker_id != self.broker_id)
        live = tuple(sorted((*others, self._this), key=lambda each: each.broker_id))
        if live == self._live:
            return
        log.info("live_brokers", brokers=[each.broker_id for each in live])
        self._live = live
        self._listeners_of_others.update(
            each.listener
            for broker in live
            if broker is not self._this
            for each in broker.endpoints
        )
        self._leaders = {}
        if self._on_change is not None:
            self._on_change()

    async def _register_again(self) -> None:
        """The row is gone, or another incarnation's; a process that took the id keeps it."""
        try:
            again = replace(self._registration, broker_id=self.broker_id)
            await self._store.register(again, starts=False)
        except BrokerIdTaken as taken:
            raise BrokerIdTaken(_TAKEN_OVER.format(self.broker_id), 0) from taken

    async def run(self) -> None:
        """Heartbeats until cancelled. While the database is away, it goes on with what it last
        knew. Raises BrokerIdTaken, after which this broker must stop."""
        is_away = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_interval_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.heartbeat()
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("heartbeat_failed", reason=str(error))
                is_away = True
            else:
                is_away = False

    def look(self) -> None:
        """A broker has come or gone: makes `run` heartbeat at once."""
        self._wake.set()

    async def look_now(self) -> tuple[LiveBroker, ...]:
        """The live brokers, from a heartbeat that begins after this call; callers share it.

        Raises StoreUnavailable.
        """
        return (await self._fresh.find([None]))[None]

    async def _read_live(self, _: Collection[None]) -> Mapping[None, tuple[LiveBroker, ...]]:
        await self.heartbeat()
        return {None: self._live}

    async def leave(self) -> None:
        """Ends the session, so that clients turn to other brokers at once. Raises StoreUnavailable.

        Requests under way may still finish; they need no session.
        """
        self._has_left = True
        self._leaders = {}  # clients that still ask here are sent to the others, too
        async with self._one_heartbeat:
            await self._store.leave(self.broker_id, self.incarnation)
