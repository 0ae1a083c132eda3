"""The metrics registry and its names: Kafka's name where Kafka has the metric, else penstock_….

Kafka's names are spelt as its JMX beans usually appear in Prometheus (bean type, then attribute).
Rooms hand in numbers through the methods here and know no metric; the registry is per process and
not global, so that tests can have several.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from core.version import VERSION
from gateway.metrics.logins import Logins
from gateway.metrics.refusals import Refusals
from gateway.metrics.requests import RequestObserver, Requests
from gateway.metrics.throttled import Throttled

_QUERY_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)


class Metrics:
    """Everything counted in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Requests()
        self.registry.register(self._requests)
        self._query_s = Histogram(
            "penstock_query_seconds",
            "Seconds a database query took, by the query's name.",
            ("query",),
            buckets=_QUERY_S,
            registry=self.registry,
        )
        Info("penstock", "What runs here.", registry=self.registry).info({"version": VERSION})
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        # Looking a labelled metric up by its labels costs more than counting.
        self._by_query: dict[str, Histogram] = {}
        self._watched: dict[str, Gauge] = {}

    def requests(self, names: Mapping[int, str]) -> RequestObserver:
        """What a front-end calls for each request it has answered; see `Requests.observer`."""
        return self._requests.observer(names)

    @cached_property
    def logins(self) -> Logins:
        """What listeners that ask who comes count; a metric from the first use on."""
        return Logins(self.registry)

    @cached_property
    def refusals(self) -> Refusals:
        """What front-ends count that ask for rights; a metric from the first use on."""
        return Refusals(self.registry)

    @cached_property
    def throttled(self) -> Throttled:
        """What quotas hold back; a metric from the first time on."""
        return Throttled(self.registry)

    def observe_query(self, name: str, seconds: float) -> None:
        """One query done; a `storage.connection.pool.QueryObserver`."""
        found = self._by_query.get(name)
        if found is None:
            found = self._by_query[name] = self._query_s.labels(name)
        found.observe(seconds)

    def watch(
        self,
        name: str,
        documentation: str,
        read: Callable[[], float],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A value that is asked for at each scrape, in the scraping thread: it must only read.

        Connections are kafka_server_socketservermetrics_connection_count.
        labels: with their values; the same ones for every value of this name.
        """
        gauge = self._watched.get(name)
        if gauge is None:
            gauge = Gauge(name, documentation, tuple(labels or ()), registry=self.registry)
            self._watched[name] = gauge
        (gauge.labels(**labels) if labels else gauge).set_function(read)

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serves /metrics in a thread; gives the port listened on, and what ends it.

        host: empty is every address. Raises OSError where it cannot listen.
        """
        server, thread = start_http_server(port, host or "0.0.0.0", registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return int(server.server_port), stop
