"""The metrics of all workers at one address, each sample with its worker's number.

Asks each worker at every scrape; keeps nothing.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.config import METRICS
from gateway.workers.worker import Worker

LABEL: Final = "worker"
_WITHIN_S: Final = 3.0


class Gathered(Collector):
    """A collector of prometheus_client, called in the thread that serves a scrape."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """A worker that does not serve just now has no samples but `penstock_worker_up`."""
        up = GaugeMetricFamily("penstock_worker_up", "Whether it serves.", labels=[LABEL])
        restarts = CounterMetricFamily(
            "penstock_worker_restarts", "How often it ended unasked.", labels=[LABEL]
        )
        with ThreadPoolExecutor(len(self._workers)) as pool:
            texts = list(pool.map(_text_of, self._workers))
        families: dict[str, Metric] = {}
        for worker, text in zip(self._workers, texts, strict=True):
            number = str(worker.number)
            up.add_metric([number], 0 if text is None else 1)
            restarts.add_metric([number], worker.restarts)
            for family in text_string_to_metric_families(text or ""):
                of_all = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                of_all.samples += [
                    each._replace(labels={**each.labels, LABEL: number}) for each in family.samples
                ]
        yield up
        yield restarts
        yield from families.values()


def _text_of(worker: Worker) -> str | None:
    if not worker.is_serving:
        return None
    connection = http.client.HTTPConnection("127.0.0.1", worker.ports[METRICS], timeout=_WITHIN_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
