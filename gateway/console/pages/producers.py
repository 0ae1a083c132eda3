"""Producers: what partitions remember of them, which are fenced, and who they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from core.ports.console.transactions import NamedTransaction
from core.security.page_operations import PRODUCERS_SHOWN
from gateway.console.api import Page, page
from gateway.console.pages.transactions import MOST, link_to, may_see
from gateway.console.paging import ROWS, Found
from gateway.console.rendering import link
from gateway.web.api import Refused

if TYPE_CHECKING:
    from core.ports.console.producers import ProducerRow
    from core.ports.console.transactions import TransactionRow
    from gateway.console.visit import Visit

_MOST_PLACES: Final = 500


@page("/producers")
async def producers(visit: Visit) -> Page:
    """Those that partitions remember by id, or (Pulsar's) by name; who wrote last comes first."""
    reads = visit.runtime.console.producers
    is_named = visit.text("by") == "name"
    topic, search = visit.text("topic").strip(), visit.text("q").strip()
    topics = await _topics(visit, topic)
    producer_ids = None if is_named or not search else await _producer_ids(visit, search)
    if is_named:
        total = await reads.named_count(topics, search, MOST)
    else:
        total = await reads.count(topics, producer_ids, MOST)
    number = min(visit.number("page", 1, least=1), max(1, -(-total // ROWS)))
    skipped = (number - 1) * ROWS
    rows: Sequence[object]
    if is_named:
        rows = await reads.named_page(topics, search, skipped, ROWS)
    else:
        rows = await reads.page(topics, producer_ids, skipped, ROWS)
    fenced = visit.runtime.transactions.fenced + visit.runtime.flusher.fenced
    return Page(
        "producers.html",
        {
            "refresh_s": 5,
            "is_named": is_named,
            "topic": topic,
            "search": search,
            "found": Found(rows, number, total),
            "is_cut": total == MOST,
            "fenced": fenced,
            "named": lambda row: _named(visit, row),
            "link_to": link_to,
            "to": lambda number: link(
                "/producers",
                by="name" if is_named else None,
                topic=topic or None,
                q=search or None,
                page=number,
            ),
        },
    )


@page("/producer")
async def producer(visit: Visit) -> Page | Refused:
    """One producer id over all partitions: whose it is, as far as that is known."""
    visit.needed("id")
    producer_id = visit.number("id", -1)
    found = await visit.runtime.console.producers.of_producer(producer_id, _MOST_PLACES)
    rows = [each for each in found if visit.may(PRODUCERS_SHOWN, each.topic)]
    transaction = await _transaction(visit, producer_id)
    if not rows and transaction is None:
        return Refused(
            404,
            f"Nothing is known of producer {producer_id}: no partition that you may look at "
            "remembers it (they forget one that has not written for producer.id.expiration.ms)",
        )
    return Page(
        "producer.html",
        {
            "refresh_s": 5,
            "producer_id": producer_id,
            "rows": rows,
            "is_cut": len(found) == _MOST_PLACES,
            "transaction": transaction,
            "client": await visit.runtime.console.producers.client(producer_id) if rows else None,
            "to": None if transaction is None else link_to(transaction),
        },
    )


async def _transaction(visit: Visit, producer_id: int) -> TransactionRow | None:
    for each in await visit.runtime.console.transactions.rows([producer_id]):
        if may_see(visit, each):
            return each
    return None


async def _topics(visit: Visit, topic: str) -> Collection[str] | None:
    """Those whose producers may be looked at, of one name or all; None: every topic."""
    if topic:
        return [topic] if visit.may(PRODUCERS_SHOWN, topic) else []
    if not visit.runtime.acls.is_on:
        return None
    every = await visit.runtime.topics.all()
    return [each.name for each in every if visit.may(PRODUCERS_SHOWN, each.name)]


async def _producer_ids(visit: Visit, search: str) -> Collection[int]:
    """Of a number its own, and of a text those of transactions that may be seen, and of clients
    without any."""
    reads = visit.runtime.console
    named = await reads.transactions.names(search, MOST, is_open=False)
    found = {each.producer_id for each in named if may_see(visit, each)}
    found.update(await reads.producers.ids_of_clients(search, MOST))
    if search.isdecimal() and len(search) < 19:
        found.add(int(search))
    return found


def _named(visit: Visit, row: ProducerRow) -> NamedTransaction | None:
    """The transaction that a producer has, if it may be seen."""
    if row.transactional_id is None or row.kind is None:
        return None
    named = NamedTransaction(row.producer_id, row.kind, row.transactional_id)
    return named if may_see(visit, named) else None
