"""What operators ask of a broker by HTTP: /metrics and /health."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from core.version import VERSION
from gateway.metrics.registry import Metrics
from gateway.runtime.cluster.membership import Cluster
from gateway.web.api import Refused, Registry
from gateway.web.call import Call

OPERATIONS: Final = Registry()
METRICS: Final = "/metrics"
HEALTH: Final = "/health"

_DATABASE_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Operations:
    """What these handlers may ask."""

    cluster: Cluster
    metrics: Metrics


@OPERATIONS.endpoint("GET", METRICS)
async def metrics(call: Call[Operations]) -> Response:
    """Metrics in Prometheus's text format."""
    text = generate_latest(call.services.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@OPERATIONS.endpoint("GET", HEALTH)
async def health(call: Call[Operations]) -> dict[str, Any] | Refused:
    """Whether this broker serves: it has just renewed its session in the database, else 503."""
    cluster = call.services.cluster
    if cluster.has_left:
        return Refused(503, "The broker stops")
    try:
        async with asyncio.timeout(_DATABASE_WITHIN_S):
            live = await cluster.look_now()
    except TimeoutError:
        return Refused(503, "The database does not answer")
    return {
        "status": "ok",
        "version": VERSION,
        "broker": cluster.broker_id,
        "brokers": [each.broker_id for each in live],
    }
