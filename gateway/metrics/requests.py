"""Requests answered: how many, how long they took, their bytes; put into metrics when asked for.

Every request of every client is counted here, a Pulsar client's every message. So counting is a few
additions to plain numbers: prometheus_client's own metrics take ten times as long, most of it for
locks that nobody else wants.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# (key, version, seconds, request_bytes, response_bytes)
RequestObserver = Callable[[int, int, float, int, int], None]

_MS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000)
_BOUNDS: Final = (*map(floatToGoString, _MS), "+Inf")
_PREFIX: Final = "kafka_network_requestmetrics_"


class _Answered:
    """One request in one version. buckets: how many took so long, each counted in one of them."""

    __slots__ = ("buckets", "milliseconds", "received", "sent")

    def __init__(self) -> None:
        self.buckets = [0] * len(_BOUNDS)
        self.milliseconds = 0.0
        self.received = 0
        self.sent = 0


class Requests(Collector):
    """Those of all front-ends of a process. Its numbers are read in the scraping thread."""

    def __init__(self) -> None:
        self._answered: dict[tuple[str, int], _Answered] = defaultdict(_Answered)

    def observer(self, names: Mapping[int, str]) -> RequestObserver:
        """What a front-end calls for each request it has answered.

        names: of its requests, by key, as values of the label `request`; no two front-ends share
        one. A key without a name is counted under its number.
        """
        by_key: dict[tuple[int, int], _Answered] = {}

        def observe(
            key: int, version: int, seconds: float, request_bytes: int, response_bytes: int
        ) -> None:
            found = by_key.get((key, version))
            if found is None:
                name = names.get(key, str(key))
                found = by_key[key, version] = self._answered[name, version]
            milliseconds = seconds * 1000
            found.buckets[bisect_left(_MS, milliseconds)] += 1
            found.milliseconds += milliseconds
            found.received += request_bytes
            found.sent += response_bytes

        return observe

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        counts = CounterMetricFamily(
            f"{_PREFIX}requests", "Requests answered.", labels=("request", "version")
        )
        times = HistogramMetricFamily(
            f"{_PREFIX}totaltimems",
            "Milliseconds from a request's last byte to its answer.",
            labels=("request",),
        )
        received = CounterMetricFamily(
            f"{_PREFIX}requestbytes", "Bytes of requests answered.", labels=("request",)
        )
        sent = CounterMetricFamily(
            f"{_PREFIX}responsebytes", "Bytes of answers.", labels=("request",)
        )
        by_name: dict[str, list[_Answered]] = defaultdict(list)
        for (name, version), each in list(self._answered.items()):
            counts.add_metric((name, str(version)), sum(each.buckets))
            by_name[name].append(each)
        for name, those in by_name.items():
            buckets = accumulate(map(sum, zip(*(each.buckets for each in those), strict=True)))
            times.add_metric(
                (name,),
                list(zip(_BOUNDS, buckets, strict=True)),
                sum(each.milliseconds for each in those),
            )
            received.add_metric((name,), sum(each.received for each in those))
            sent.add_metric((name,), sum(each.sent for each in those))
        yield from (counts, times, received, sent)
