"""The first page: what there is, what goes on, and what is wrong."""

from __future__ import annotations

import time

from core.security.page_operations import SEE_CLUSTER
from gateway.console.api import Page, page
from gateway.console.history import SPAN_S
from gateway.console.plots import plot, rates
from gateway.console.rendering import count
from gateway.console.visit import Visit


@page("/")
async def overview(visit: Visit) -> Page:
    """Brokers, the database, what is produced and consumed, what is wrong."""
    reads = visit.runtime.console.overview
    sees_cluster = visit.may(SEE_CLUSTER)
    history = visit.console.histories.totals()
    plots = []
    for name, words in (("appended", "produced"), ("committed", "consumed, as committed")):
        line = rates(history.get(name, ()))
        now = f"{count(line[-1][1])} records/s" if line else "looking…"
        plots.append(plot([line], f"{words.capitalize()}: {now}", time.time(), SPAN_S))
    return Page(
        "overview.html",
        {
            "refresh_s": 5,
            "totals": await reads.totals(),
            "brokers": await reads.brokers() if sees_cluster else None,
            "database": await reads.database() if sees_cluster else None,
            "plots": plots,
        },
    )
