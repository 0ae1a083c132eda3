"""The metrics registry and its names: Kafka's name where Kafka has the metric, else penstock_….

Kafka's names are spelt as its JMX beans usually appear in Prometheus (bean type, then attribute).
Rooms hand in numbers through the methods here and know no metric; the registry is per process and
not global, so that tests can have several.
"""

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from core.version import VERSION

_REQUEST_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000)
_QUERY_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)


# (key, version, seconds, request_bytes, response_bytes)
RequestObserver = Callable[[int, int, float, int, int], None]


class Metrics:
    """Everything counted in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "kafka_network_requestmetrics_requests",
            "Requests answered.",
            ("request", "version"),
            registry=self.registry,
        )
        self._request_ms = Histogram(
            "kafka_network_requestmetrics_totaltimems",
            "Milliseconds from a request's last byte to its answer.",
            ("request",),
            buckets=_REQUEST_MS,
            registry=self.registry,
        )
        self._request_bytes = Counter(
            "kafka_network_requestmetrics_requestbytes",
            "Bytes of requests answered.",
            ("request",),
            registry=self.registry,
        )
        self._response_bytes = Counter(
            "kafka_network_requestmetrics_responsebytes",
            "Bytes of answers.",
            ("request",),
            registry=self.registry,
        )
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
        """What a front-end calls for each request it has answered.

        names: of its requests, by key, as values of the label `request`; no two front-ends share
        one. A key without a name is counted under its number.
        """
        by_key: dict[tuple[int, int], tuple[Counter, Histogram, Counter, Counter]] = {}

        def observe(
            key: int, version: int, seconds: float, request_bytes: int, response_bytes: int
        ) -> None:
            found = by_key.get((key, version))
            if found is None:
                name = names.get(key, str(key))
                found = by_key[key, version] = (
                    self._requests.labels(name, str(version)),
                    self._request_ms.labels(name),
                    self._request_bytes.labels(name),
                    self._response_bytes.labels(name),
                )
            count, milliseconds, received, sent = found
            count.inc()
            milliseconds.observe(seconds * 1000)
            received.inc(request_bytes)
            sent.inc(response_bytes)

        return observe

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
