"""The first page: what there is, what goes on, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from core.ports.console.overview import StuckPlace
from core.security.page_operations import (
    GROUP_SHOWN,
    SEE_CLUSTER,
    TOPIC_SHOWN,
)
from gateway.console import findings
from gateway.console.api import Page, page
from gateway.console.findings import HIDDEN
from gateway.console.history import SPAN_S
from gateway.console.plots import Plot, rate_plot
from gateway.console.visit import Visit

_FINDINGS_MAX: Final = 12


@page("/")
async def overview(visit: Visit) -> Page:
    """Brokers, the database, what is produced and consumed, what is wrong."""
    shared = visit.console.overview
    await shared.look()
    sees_cluster = visit.may(SEE_CLUSTER)
    brokers = await shared.brokers.get() if sees_cluster else None
    database = await shared.database.get() if sees_cluster else None
    transactions = [
        each
        for each in await shared.open_transactions.get()
        if visit.may(TOPIC_SHOWN, each.topic) and visit.may_see_transaction(each.transactional_id)
    ]
    # Its offsets are of all topics: only who may see the cluster is told.
    slowest = [
        each
        for each in await shared.slowest_groups.get()
        if sees_cluster and visit.may(GROUP_SHOWN, each.group_id)
    ]
    groups = [
        each
        for each in _visible(visit, await shared.stuck_groups.get())
        if visit.may(GROUP_SHOWN, each.reader)
    ]
    long_open = [each for each in transactions if each.is_long_open]
    found = [
        *findings.of_groups(groups),
        *findings.of_subscriptions(_visible(visit, await shared.stuck_subscriptions.get())),
    ]
    found += list(findings.of_transactions(long_open, {each.cause for each in found}))
    if brokers is not None and database is not None:
        found += [*findings.of_brokers(brokers), *findings.of_database(database)]
        found += findings.of_inbox(await shared.inbox.get())
    found = findings.sorted_by_weight(found)
    return Page(
        "overview.html",
        {
            "refresh_s": 5,
            "totals": await shared.totals.get() if sees_cluster else None,
            "brokers": brokers,
            "database": database,
            "plots": _plots(visit) if sees_cluster else [],
            "findings": found[:_FINDINGS_MAX],
            "more": max(0, len(found) - _FINDINGS_MAX),
            "slowest": next(iter(slowest), None),
            "oldest": next(iter(transactions), None),
        },
    )


def _visible(visit: Visit, places: Iterable[StuckPlace]) -> Iterator[StuckPlace]:
    """Those of topics that who looks may see; of a transaction, only that it is there, if he may
    not see it."""
    for each in places:
        if visit.may(TOPIC_SHOWN, each.topic):
            hold = each.hold
            if hold is None or visit.may_see_transaction(hold.held_id):
                yield each
            else:
                yield replace(each, hold=replace(hold, held_id=HIDDEN, held_host=None))


def _plots(visit: Visit) -> list[Plot]:
    history = visit.console.histories.totals()
    return [
        rate_plot(words, history.get(name, ()), time.time(), SPAN_S)
        for name, words in (("appended", "Produced"), ("committed", "Consumed, as committed"))
    ]
