"""Composes the process: database, runtime, front-end, listener. The one file that sees every room.

Decides nothing about requests; starts things in order, stops them in the opposite order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import structlog

from core.ports.log import StoreUnavailable
from core.ports.topics import BrokerIdTaken
from core.version import VERSION
from gateway import logs
from gateway.config import Endpoint, Settings, SettingsError
from gateway.kafka.api import load_handlers
from gateway.kafka.connection import ConnectionLimits, KafkaFrontEnd
from gateway.kafka.connection_order import ConnectionOrder
from gateway.kafka.context import Services
from gateway.kafka.fetch_sessions import FetchSessions
from gateway.kafka.markers import control_batch
from gateway.listener import Listener
from gateway.metrics.groups import watch_groups
from gateway.metrics.registry import Metrics
from gateway.metrics.staging import watch_staging
from gateway.metrics.transactions import watch_transactions
from gateway.runtime.cluster.leases import CoordinatorLeases
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.cluster.news import Announcer, NewsReader
from gateway.runtime.cluster.snapshots import SnapshotWatch
from gateway.runtime.groups.groups import Groups
from gateway.runtime.log.partitions import Partitions
from gateway.runtime.log.retention import Janitor
from gateway.runtime.staging import Staging
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from gateway.runtime.transactions.coordinator import Transactions
from gateway.runtime.transactions.producer_ids import ProducerIds
from storage.brokers import ClusterStore
from storage.configs import ConfigStore
from storage.connection.pool import Database
from storage.groups.leases import LeaseStore
from storage.groups.store import GroupStore
from storage.log.retention import PostgresRetentionStore
from storage.log.store import PostgresLogStore
from storage.migrate import upgrade
from storage.notifications import PostgresChangeFeed
from storage.server.embedded import EmbeddedPostgres, EmbeddedPostgresError
from storage.snapshots import PostgresSnapshots
from storage.staging import PostgresStagingStore
from storage.topics import TopicStore
from storage.transactions import PostgresTransactionStore

log = structlog.get_logger(__name__)

SUPERVISE_INTERVAL_S = 0.2
LEAVE_TIMEOUT_S = 3.0


OnReady = Callable[[int], None]


def _silent(port: int) -> None:
    pass


class BrokerFailed(Exception):
    """The broker stopped, in order, since something in it went wrong; the log says what."""


new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with contextlib.suppress(ImportError):  # uvloop and epoll are not there on every platform
    from gateway.event_loop import new_event_loop


def run(
    settings: Settings, server: EmbeddedPostgres | None = None, *, on_ready: OnReady = _silent
) -> None:
    """Serves until SIGTERM or SIGINT.

    server: the embedded PostgreSQL, started; stopped in the end. None: settings.database_url.
    on_ready: called with the port once clients are served.
    Raises StoreUnavailable, SchemaRefused, EmbeddedPostgresError, BrokerIdTaken or SettingsError
    (an address, a certificate) where the broker cannot start; BrokerIdTaken also where another
    process takes its place later, and BrokerFailed where it cannot go on.
    """
    logs.configure(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, server, on_ready))


async def _serve(settings: Settings, server: EmbeddedPostgres | None, on_ready: OnReady) -> None:
    if server is None:
        assert settings.database_url is not None, "without a server of its own, a URL is given"
        await _serve_on(settings, settings.database_url, None, on_ready)
        return
    try:
        await _serve_on(settings, server.url, server, on_ready)
    finally:
        await asyncio.to_thread(server.stop)


async def _serve_on(
    settings: Settings, url: str, server: EmbeddedPostgres | None, on_ready: OnReady
) -> None:
    await asyncio.to_thread(upgrade, url)
    metrics = Metrics({served.key: served.name for served in load_handlers().table()})
    handover = server.handover if server else None
    database = Database(url, observe=metrics.observe_query, handover=handover)
    try:
        await _Broker(settings, database, server, metrics, on_ready).run()
    finally:
        await database.close()


class _Broker:
    """Everything that lives as long as the process serves."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        server: EmbeddedPostgres | None,
        metrics: Metrics,
        on_ready: OnReady,
    ) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._database = database
        self._server = server
        self._metrics = metrics
        self._stop = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Starts, serves, and stops in order."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        settings, database = self._settings, self._database
        static = settings.static_broker_values(-1, settings.listen.port)
        topic_store = TopicStore(database)
        config_store = ConfigStore(database)
        # The port is known once it is bound, and the id once the database has given it.
        limits = _limits(Configs(config_store, topic_store, -1, static))
        front_end = _LateFrontEnd()
        listener = Listener(
            front_end, settings.listen.host, settings.listen.port, limits, _tls(settings)
        )
        with _listening_on(settings.listen, "--listen"):
            await listener.start()
        try:
            if (endpoint := settings.metrics_listen) is not None:
                with _listening_on(endpoint, "--metrics-listen"):
                    self._metrics.serve(endpoint.host, endpoint.port)
            advertised = settings.advertised(listener.port)
            cluster = Cluster(
                ClusterStore(database),
                host=advertised.host,
                port=advertised.port,
                version=VERSION,
                session_timeout_s=_ms(static, "penstock.broker.session.timeout.ms") / 1000,
                broker_id=settings.broker_id,
                rack=settings.rack,
            )
            await cluster.join()
            await self._serve(cluster, topic_store, config_store, front_end, listener, limits)
        finally:
            await listener.shutdown(0)

    async def _serve(
        self,
        cluster: Cluster,
        topic_store: TopicStore,
        config_store: ConfigStore,
        front_end: _LateFrontEnd,
        listener: Listener,
        limits: ConnectionLimits,
    ) -> None:
        database = self._database
        static = self._settings.static_broker_values(cluster.broker_id, listener.port)
        configs = Configs(config_store, topic_store, cluster.broker_id, static)
        await configs.load()
        topics = Topics(topic_store, configs, lambda: cluster.live_ids)
        feed = PostgresChangeFeed(database)
        announcer = Announcer(feed, lambda: cluster.is_alone)
        log_store = PostgresLogStore(database)
        partitions = Partitions(
            log_store,
            tail_cache_bytes=configs.broker_int("penstock.tail.cache.bytes"),
            max_flush_bytes=configs.broker_int("penstock.flush.max.bytes"),
            announce=announcer.announce,
            make_marker=control_batch,
        )
        producer_ids = ProducerIds(log_store)
        leases = CoordinatorLeases(LeaseStore(database), cluster)
        transactions = Transactions(
            PostgresTransactionStore(database),
            partitions,
            producer_ids,
            max_timeout_ms=lambda: configs.broker_int("transaction.max.timeout.ms"),
            expiration_ms=lambda: configs.broker_int("transactional.id.expiration.ms"),
            expiration_interval_ms=lambda: configs.broker_int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            is_alone=lambda: cluster.is_alone,
        )
        groups = Groups(
            GroupStore(database), leases, topics, configs, transactions.unstable_partitions
        )

        staging = Staging(
            PostgresStagingStore(database),
            log_store,
            partitions,
            max_flush_bytes=configs.broker_int("penstock.flush.max.bytes"),
            max_bytes=lambda: configs.broker_int("penstock.staged.max.bytes"),
            expiration_ms=lambda: configs.broker_int("penstock.staged.expiration.ms"),
        )

        changed = asyncio.Event()
        changed.set()

        def on_metadata() -> None:
            configs.invalidate()
            topics.invalidate()
            changed.set()

        def on_other_history() -> None:
            log.warning("database_history_changed")
            partitions.forget_everything()
            producer_ids.forget()
            groups.forget_everything()
            staging.forget_everything()
            on_metadata()

        database.on_identity_change(on_other_history)
        news = NewsReader(feed, partitions, cluster, on_metadata)
        janitor = Janitor(
            PostgresRetentionStore(database),
            topics,
            configs,
            partitions,
            is_on_duty=lambda: cluster.is_lowest,
        )
        snapshots = SnapshotWatch(PostgresSnapshots(database).oldest)
        connection_order = ConnectionOrder()
        services = Services(
            topics=topics,
            partitions=partitions,
            cluster=cluster,
            configs=configs,
            producer_ids=producer_ids,
            groups=groups,
            transactions=transactions,
            staging=staging,
            connection_order=connection_order,
            fetch_sessions=FetchSessions(
                configs.broker_int("max.incremental.fetch.session.cache.slots")
            ),
            clock=_now_ms,
        )
        kafka = KafkaFrontEnd(load_handlers(), services, limits, self._metrics.observe_request)
        self._metrics.watch(
            "kafka_server_connection_count", "Open connections.", lambda: listener.connection_count
        )
        self._metrics.watch(
            "penstock_tail_cache_bytes",
            "Newest batches in memory.",
            lambda: partitions.tail_cache_bytes,
        )
        self._metrics.watch(
            "penstock_oldest_snapshot_seconds",
            "Age of the oldest transaction that keeps old row versions in the database.",
            lambda: snapshots.seconds,
        )
        watch_groups(self._metrics, groups, leases)
        watch_transactions(self._metrics, transactions, partitions, connection_order)
        watch_staging(self._metrics, staging)
        partitions.start()
        groups.start()
        await cluster.heartbeat()  # leases rest on it
        for work in (
            cluster.run(),
            groups.run(),
            groups.run_expiry(),
            transactions.run(),
            staging.run(),
            announcer.run(),
            news.listen(),
            news.run(),
            janitor.run(),
            snapshots.run(),
            _follow_limits(configs, changed, listener),
        ):
            self._start(work)
        if self._server is not None:
            self._start(self._supervise(self._server))
        # What is alive now stays alive: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        front_end.open(kafka)
        self._on_ready(listener.port)
        await self._stop.wait()
        log.info("stopping")
        timeout_s = configs.broker_int("penstock.shutdown.timeout.ms") / 1000
        await self._stop_in_order(
            # First of all, so that clients turn to other brokers while this one finishes.
            groups.stop,
            partial(_leave, cluster),
            partial(listener.shutdown, timeout_s),
            partial(kafka.drain, timeout_s),
            staging.close,
            partitions.close,
            groups.close,
            self._end_background,
            feed.close,
        )

    async def _stop_in_order(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Every step: what has broken the broker may break one of them, and others want the rest.

        Raises BrokerIdTaken or BrokerFailed where something had gone wrong, or does now.
        """
        for step in steps:
            try:
                await step()
            except Exception as error:  # a bug, or a database that is not ours any more
                log.exception("stopping_failed")
                self._failure = self._failure or error
        if isinstance(self._failure, BrokerIdTaken):
            raise self._failure
        if self._failure is not None:
            raise BrokerFailed from self._failure

    async def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work in the background; if it fails, the broker stops rather than limp on."""
        task = asyncio.create_task(work)
        self._background.append(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if error := task.exception():
            if isinstance(error, BrokerIdTaken):  # nothing is wrong with this process
                log.error("broker_id_taken", reason=str(error))
            else:
                log.error("background_work_failed", reason=str(error), exc_info=error)
            self._failure = self._failure or error
            self._stop.set()

    async def _supervise(self, server: EmbeddedPostgres) -> None:
        """Starts the embedded PostgreSQL again if it dies."""
        while True:
            await asyncio.sleep(SUPERVISE_INTERVAL_S)
            if server.pid is not None:
                continue
            log.warning("embedded_postgres_died")
            try:
                await asyncio.to_thread(server.start)
            except EmbeddedPostgresError as error:
                log.error("embedded_postgres_does_not_start", reason=str(error))
            else:
                log.info("embedded_postgres_restarted")


class _LateFrontEnd:
    """Stands in for the front-end between binding the port and being ready to serve."""

    def __init__(self) -> None:
        self._front_end: KafkaFrontEnd | None = None

    def open(self, front_end: KafkaFrontEnd) -> None:
        self._front_end = front_end

    def connection(self, on_lost: Any) -> Any:
        if self._front_end is None:
            return _NotYet(on_lost)
        return self._front_end.connection(on_lost)


class _NotYet(asyncio.Protocol):
    """Closes a connection that came too early; the client tries again."""

    def __init__(self, on_lost: Any) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def finish(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _leave(cluster: Cluster) -> None:
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await cluster.leave()
    except (StoreUnavailable, TimeoutError) as error:
        log.info("left_without_notice", reason=str(error))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ms(static: dict[str, str], name: str) -> int:
    from core.config.values import broker_int

    return broker_int(name, static)


def _limits(configs: Configs) -> ConnectionLimits:
    queued_max = configs.broker_int("queued.max.request.bytes")
    return ConnectionLimits(
        socket_request_max_bytes=configs.broker_int("socket.request.max.bytes"),
        max_connections=configs.broker_int("max.connections"),
        max_connections_per_ip=configs.broker_int("max.connections.per.ip"),
        connections_max_idle_ms=configs.broker_int("connections.max.idle.ms"),
        request_receive_timeout_ms=configs.broker_int("penstock.request.receive.timeout.ms"),
        queued_max_request_bytes=sys.maxsize if queued_max == -1 else queued_max,
        listen_backlog=configs.broker_int("socket.listen.backlog.size"),
    )


async def _follow_limits(configs: Configs, changed: asyncio.Event, listener: Listener) -> None:
    """Limits that may change while the broker runs reach the listener, until cancelled."""
    while True:
        await changed.wait()
        changed.clear()
        try:
            await configs.ensure_loaded()
        except StoreUnavailable:
            await asyncio.sleep(1)
            changed.set()
            continue
        listener.limit(
            configs.broker_int("max.connections"), configs.broker_int("max.connections.per.ip")
        )


@contextlib.contextmanager
def _listening_on(endpoint: Endpoint, flag: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:  # names of hosts may be too long to be looked up
        raise SettingsError(
            f"Cannot listen on {endpoint} ({getattr(error, 'strerror', None) or error}): "
            f"stop what listens there, or choose another address with {flag}."
        ) from error


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a password would be asked for at the terminal, if there is one.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=bytes)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"TLS cannot be had from {settings.tls_cert} and {settings.tls_key} ({error}): name a "
            "certificate and its key, in PEM and without a password, with --tls-cert and --tls-key."
        ) from error
    return context
