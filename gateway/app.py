"""The life of a broker's process: starts everything in order, stops it in the opposite order.

What is wired to what is in `compose.py`. Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from core.config.listeners import bearer_settings
from core.config.types import ConfigError
from core.config.values import broker_int, broker_list, broker_text
from core.ports.log import StoreUnavailable
from core.ports.topics import BrokerIdTaken
from core.quota.connections import read_connections_per_ip
from core.quota.entities import QuotaKey
from core.security.oauthbearer import OAUTHBEARER
from core.types import Endpoint
from gateway import logs
from gateway.compose import cluster_of, compose
from gateway.config import METRICS, ListenAddress, Settings, SettingsError
from gateway.connection_account import AccountLimits, ConnectionAccount, Most
from gateway.console.part import console
from gateway.embedded import kept_running
from gateway.front_ends import FrontEnd, FrontEndFactory, Surroundings
from gateway.kafka.front_end import FRONT_END as KAFKA
from gateway.listener import ConnectionLimits
from gateway.listeners import LateFrontEnd, Listeners, listening_on
from gateway.metrics.groups import watch_groups
from gateway.metrics.inbox import watch_inbox
from gateway.metrics.registry import Metrics
from gateway.metrics.staging import watch_staging
from gateway.metrics.subscriptions import watch_subscriptions
from gateway.metrics.transactions import watch_transactions
from gateway.pulsar.front_end import FRONT_END as PULSAR
from gateway.pulsar.front_end import rest as pulsar_rest
from gateway.pulsar.names import name_in_acls, named_by_client
from gateway.request_memory import RequestMemory
from gateway.runtime.authentication import read_tokens
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.runtime import Runtime
from gateway.tls import TlsContexts, TlsError
from gateway.web.front_end import front_end
from storage.connection.pool import Database
from storage.flush.handover import Handover
from storage.migrate import upgrade
from storage.server.embedded import EmbeddedPostgres

log = structlog.get_logger(__name__)

FRONT_ENDS: Final[tuple[FrontEndFactory, ...]] = (
    KAFKA,
    PULSAR,
    front_end({PULSAR.listener: pulsar_rest}, partial(console, name_in_acls, named_by_client)),
)
"""What this process speaks, in the order in which addresses are bound, front-ends made and opened:
HTTP is last, for others bring what it serves."""

LEAVE_TIMEOUT_S = 3.0
TURN_S = 0.3  # a round trip of a busy client, and some


OnReady = Callable[[Mapping[str, int]], None]


def _silent(ports: Mapping[str, int]) -> None:
    pass


class BrokerFailed(Exception):
    """The broker stopped, in order, since something in it went wrong; the log says what."""


new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with contextlib.suppress(ImportError):  # uvloop and epoll are not there on every platform
    from gateway.event_loop import new_event_loop


def run(
    settings: Settings,
    server: EmbeddedPostgres | None = None,
    *,
    reader: tuple[int, int] | None = None,
    on_ready: OnReady = _silent,
) -> None:
    """Serves until SIGTERM or SIGINT.

    server: the embedded PostgreSQL, started; stopped in the end. None: settings.database_url.
    reader: the uid and gid of the PostgreSQL there, if it is another process's embedded one, and
    so reads payload from files.
    on_ready: called with the port of each listener, and of metrics, once clients are served.
    Raises StoreUnavailable, SchemaRefused, EmbeddedPostgresError, BrokerIdTaken or SettingsError
    (an address, a certificate) where the broker cannot start; BrokerIdTaken also where another
    process takes its place later, and BrokerFailed where it cannot go on.
    """
    logs.configure(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, server, reader, on_ready))


async def _serve(
    settings: Settings,
    server: EmbeddedPostgres | None,
    reader: tuple[int, int] | None,
    on_ready: OnReady,
) -> None:
    async with contextlib.AsyncExitStack() as ends:
        url = settings.database_url
        if server is not None:
            ends.push_async_callback(asyncio.to_thread, server.stop)
            url, reader = server.url, server.user
        assert url is not None, "without a server of its own, a URL is given"
        await asyncio.to_thread(upgrade, url)
        handover = None if reader is None else Handover.make(reader)
        if handover is not None:
            ends.callback(handover.remove)
        metrics = Metrics()
        database = Database(url, observe=metrics.observe_query, handover=handover)
        ends.push_async_callback(database.close)
        await _Broker(settings, database, server, metrics, on_ready).run()


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
        self._tls = TlsContexts()
        self._stop = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._further: dict[str, int] = {}  # ports that are no front-end's

    async def run(self) -> None:
        """Starts, serves, and stops in order."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        settings = self._settings
        static = settings.static_broker_values(-1, {})
        try:
            read_tokens(static)
            _check_key_sets(settings, static)
        except ConfigError as error:
            raise SettingsError(f"Broker properties: {error}.") from error
        listeners = Listeners(_limits(static), _account(settings, static))
        try:
            bound = await _bind(settings, listeners, self._tls)
            if (endpoint := settings.metrics_listen) is not None:
                with listening_on(endpoint, "--metrics-listen"):
                    port, _ = self._metrics.serve(endpoint.host, endpoint.port)
                self._further[METRICS] = port
            # Ports are known once they are bound, and the id once the database has given it.
            cluster = cluster_of(
                self._database,
                static,
                endpoints=_endpoints(settings, bound),
                broker_id=settings.broker_id,
                rack=settings.rack,
            )
            await cluster.join()
            static = settings.static_broker_values(cluster.broker_id, _ports(bound))
            await self._serve(await compose(self._database, cluster, static), listeners, bound)
        finally:
            await listeners.shutdown(0)

    async def _serve(
        self, runtime: Runtime, listeners: Listeners, bound: Mapping[str, LateFrontEnd]
    ) -> None:
        memory = RequestMemory(listeners.limits)
        front_ends: dict[str, FrontEnd] = {}
        around = Surroundings(self._settings, listeners.limits, memory, self._metrics, front_ends)
        for each in FRONT_ENDS:
            first, *others = self._settings.listen_addresses(each.listener) or (None,)
            if first is None:
                continue
            front_ends[first.key] = each.make(runtime, around)
            for address in others:
                assert each.beside is not None, "it may have several addresses"
                front_ends[address.key] = each.beside(
                    runtime, around, front_ends[first.key], address
                )
        self._watch(runtime, listeners)
        listeners.account.rate_of = lambda ip: runtime.quotas.rules.connection_rate(ip)
        listeners.account.observe = partial(
            runtime.throttles.observe, QuotaKey.CONNECTION_CREATION_RATE.value
        )
        runtime.start()
        await runtime.cluster.heartbeat()  # leases rest on it
        for work in (*runtime.background(), _follow_limits(self._settings, runtime, listeners)):
            self._start(work)
        if self._tls.are_there:
            self._start(self._tls.keep_up(listeners.close_revoked))
        if self._server is not None:
            self._start(kept_running(self._server))
        # What is alive now stays alive: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.enable()
        for key, made in front_ends.items():
            bound[key].open(made)
        _warn_of_open_places(self._settings)
        self._on_ready({**_ports(bound), **self._further})
        await self._stop.wait()
        log.info("stopping")
        if self._server is not None:
            _warn_of_others(runtime.cluster)
        timeout_s = runtime.configs.broker_int("penstock.shutdown.timeout.ms") / 1000
        await self._stop_in_order(
            # First of all, so that clients turn to other brokers while this one finishes.
            *runtime.stopping(),
            partial(_leave, runtime.cluster),
            runtime.partitions.stop,
            partial(_let_clients_turn, runtime.cluster),
            partial(listeners.shutdown, timeout_s),
            partial(_drain, front_ends.values(), timeout_s),
            *runtime.closing(),
            self._end_background,
            runtime.feed.close,
        )

    def _watch(self, runtime: Runtime, listeners: Listeners) -> None:
        for name, help_text, read in (
            (
                "kafka_server_connection_count",
                "Open connections.",
                lambda: listeners.connection_count,
            ),
            (
                "penstock_tail_cache_bytes",
                "Newest batches in memory.",
                lambda: runtime.partitions.tail_cache_bytes,
            ),
            (
                "penstock_oldest_snapshot_seconds",
                "Age of the oldest transaction that keeps old row versions in the database.",
                lambda: runtime.snapshots.seconds,
            ),
        ):
            self._metrics.watch(name, help_text, read)
        watch_groups(self._metrics, runtime.groups, runtime.leases)
        watch_transactions(self._metrics, runtime.transactions, runtime.flusher)
        watch_staging(self._metrics, runtime.staging)
        watch_inbox(self._metrics, runtime.inbox)
        watch_subscriptions(self._metrics, runtime.subscriptions)

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


def _warn_of_others(cluster: Cluster) -> None:
    """The embedded PostgreSQL stops with its broker, and other brokers may use it."""
    others = cluster.live_ids - {cluster.broker_id}
    if others:
        log.warning(
            "database_stops_for_other_brokers",
            brokers=sorted(others),
            what_to_do="start this one again with the same --data; the others then go on",
        )


async def _leave(cluster: Cluster) -> None:
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await cluster.leave()
    except (StoreUnavailable, TimeoutError) as error:
        log.info("left_without_notice", reason=str(error))


async def _let_clients_turn(cluster: Cluster) -> None:
    """What clients have sent before they knew is read and refused, rather than cut off: they would
    not know what became of it, and send it again behind what they have sent to others meanwhile."""
    if not cluster.is_alone:
        await asyncio.sleep(TURN_S)


async def _bind(
    settings: Settings, listeners: Listeners, tls: TlsContexts
) -> dict[str, LateFrontEnd]:
    """Listens on the addresses of each front-end, by address."""
    bound = {}
    for address in _listen_addresses(settings):
        try:
            its_tls = None if address.tls is None else tls.of(address.tls)
        except TlsError as error:
            raise SettingsError(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        bound[address.key] = await listeners.open(
            address.listen, address.flag, its_tls, address.by_name or ""
        )
    return bound


def _listen_addresses(settings: Settings) -> list[ListenAddress]:
    return [address for each in FRONT_ENDS for address in settings.listen_addresses(each.listener)]


def _ports(bound: Mapping[str, LateFrontEnd]) -> dict[str, int]:
    return {key: late.port for key, late in bound.items()}


def _endpoints(settings: Settings, bound: Mapping[str, LateFrontEnd]) -> list[Endpoint]:
    """What other brokers are told of this one's addresses."""
    endpoints = []
    for address in _listen_addresses(settings):
        advertised = address.advertised(bound[address.key].port)
        endpoints += [Endpoint(name, advertised.host, advertised.port) for name in address.names]
    return endpoints


def _warn_of_open_places(settings: Settings) -> None:
    """Once, in one line."""
    found = [
        f"{address.by_name or address.key} {address.listen}"
        for address in _listen_addresses(settings)
        if address.is_open
    ]
    if found:
        log.warning(
            "open_to_others_without_login",
            listeners=", ".join(found),
            what_to_do="see docs/security.md; whoever reaches them can read and write everything",
        )


def _check_key_sets(settings: Settings, static: Mapping[str, str]) -> None:
    """Of OAUTHBEARER, those that are files; endpoints may be down just now. Raises ConfigError."""
    if OAUTHBEARER not in broker_list("sasl.enabled.mechanisms", static):
        return
    from gateway.runtime.key_sets import check_file  # it takes a tenth of a second to load

    for each in settings.named_listeners:
        found = bearer_settings(each.name, static) if each.protocol.is_sasl else None
        if found is not None:
            check_file(found.url)


async def _drain(front_ends: Iterable[FrontEnd], timeout_s: float) -> None:
    await asyncio.gather(*(each.drain(timeout_s) for each in front_ends))


def _limits(static: Mapping[str, str]) -> ConnectionLimits:
    """As the process starts: they are needed before the database is asked for settings."""
    value = partial(broker_int, broker=static)
    queued_max = value("queued.max.request.bytes")
    return ConnectionLimits(
        socket_request_max_bytes=value("socket.request.max.bytes"),
        connections_max_idle_ms=value("connections.max.idle.ms"),
        request_receive_timeout_ms=value("penstock.request.receive.timeout.ms"),
        queued_max_request_bytes=sys.maxsize if queued_max == -1 else queued_max,
        listen_backlog=value("socket.listen.backlog.size"),
    )


def _account(settings: Settings, static: Mapping[str, str]) -> ConnectionAccount:
    """What an address may do at once is what Kafka lets it in its first windows."""
    windows = max(1, broker_int("quota.window.num", static) - 1)
    burst_s = windows * broker_int("quota.window.size.seconds", static)
    return ConnectionAccount(_account_limits(settings, static), float(burst_s))


def _account_limits(settings: Settings, values: Mapping[str, str]) -> AccountLimits:
    """values: in effect on the broker, by name."""

    def most(prefix: str) -> Most:
        own = {
            name: values[f"{prefix}{name}"]
            for name in ("max.connections", "max.connection.creation.rate")
            if f"{prefix}{name}" in values
        }
        return Most(
            broker_int("max.connections", own), broker_int("max.connection.creation.rate", own)
        )

    names = [each.by_name for each in _listen_addresses(settings) if each.by_name is not None]
    return AccountLimits(
        most(""),
        broker_int("max.connections.per.ip", values),
        read_connections_per_ip(broker_text("max.connections.per.ip.overrides", values)),
        {name: most(f"listener.name.{name.lower()}.") for name in names},
    )


async def _follow_limits(settings: Settings, runtime: Runtime, listeners: Listeners) -> None:
    """Limits that may change while the broker runs reach the listeners, until cancelled."""
    configs, changed = runtime.configs, runtime.changed
    changed.set()
    while True:
        await changed.wait()
        changed.clear()
        try:
            await configs.ensure_loaded()
        except StoreUnavailable:
            await asyncio.sleep(1)
            changed.set()
            continue
        listeners.account.limits = _account_limits(settings, configs.values.merged())
