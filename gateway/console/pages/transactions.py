"""Transactions of both protocols: what is open, whom it holds back, and its abort.

An abort is what `penstock txn abort` and Pulsar's REST do, by the coordinator of this broker: any
broker can end any transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import Error
from core.security.page_operations import (
    ABORT_PULSARS_TRANSACTION,
    ABORT_TRANSACTION,
    GROUP_SHOWN,
    PRODUCERS_SHOWN,
    PULSARS_TRANSACTION_SHOWN,
    TOPIC_SHOWN,
    TRANSACTION_SHOWN,
)
from core.transaction.key import TransactionKey
from core.transaction.shown_ids import pulsar_key
from core.transaction.values import InitProducerId, ProducerIdAndEpoch
from gateway.console.api import Done, Page, action, page
from gateway.console.paging import part_of
from gateway.console.rendering import link
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.ports.console.transactions import (
        NamedTransaction,
        TransactionParticipant,
        TransactionPlace,
        TransactionRow,
        WrittenThere,
    )
    from core.security.operations import Requirement
    from gateway.console.visit import Visit

MOST: Final = 10_000
"""Transactions that are listed, page by page; a search finds the others."""
_NOT_THERE: Final = "There is no such transaction, or you may not see it"


class Listed(NamedTuple):
    """A transaction with what of it may be seen. places: those that hold back others first."""

    row: TransactionRow
    link: str
    places: Sequence[TransactionPlace]
    groups: Sequence[TransactionParticipant]
    subscriptions: Sequence[TransactionParticipant]

    @property
    def waiting(self) -> int:
        """Records that readers of committed data are not given because of it."""
        return sum(each.waiting or 0 for each in self.places)

    @property
    def held_places(self) -> int:
        """In how many partitions they are."""
        return sum(1 for each in self.places if each.waiting)


@page("/transactions")
async def transactions(visit: Visit) -> Page:
    """Open ones by age, or all."""
    reads = visit.runtime.console.transactions
    is_open = visit.text("show") != "all"
    search = visit.text("q").strip()
    names = await reads.names(search, MOST, is_open=is_open)
    found = part_of([each for each in names if may_see(visit, each)], visit.number("page", 1))
    rows = await _listed(visit, await reads.rows([each.producer_id for each in found.rows]))
    hanging = [each for each in await reads.hanging() if visit.may(PRODUCERS_SHOWN, each.topic)]
    return Page(
        "transactions.html",
        {
            "refresh_s": 5,
            "is_open": is_open,
            "search": search,
            "found": found,
            "rows": rows,
            "hanging": hanging,
            "is_cut": len(names) == MOST,
            "to": lambda number: link(
                "/transactions", show=None if is_open else "all", q=search or None, page=number
            ),
        },
    )


@page("/transaction")
async def transaction(visit: Visit) -> Page | Refused:
    """One of them: who, where, whom it holds back, and what has become of those before it."""
    row = await _asked_for(visit)
    if row is None:
        return await _hanging(visit)
    (listed,) = await _listed(visit, [row])
    reads = visit.runtime.console.transactions
    aborted = [] if row.is_pulsars else await reads.aborted(row.producer_id)
    held_back = await reads.held_back(row.producer_id) if row.is_open else []
    return Page(
        "transaction.html",
        {
            "refresh_s": 5,
            "listed": listed,
            "row": row,
            "written": await _written(visit, row),
            "held_back": [
                each
                for each in held_back
                if visit.may(TOPIC_SHOWN, each.topic)
                and (not each.is_group or visit.may(GROUP_SHOWN, each.name))
            ],
            "aborted": [each for each in aborted if visit.may(TOPIC_SHOWN, each.topic)],
            "is_offered": row.is_open and visit.offers(_abort_of(row), row.shown_id),
            "abort": _abort_link(row),
        },
    )


async def _hanging(visit: Visit) -> Page | Refused:
    """What a producer has open that no coordinator knows of."""
    if not visit.text("producer_id"):
        return Refused(404, _NOT_THERE)
    producer_id = visit.number("producer_id", -1)
    found = await visit.runtime.console.transactions.hanging(producer_id)
    hanging = [each for each in found if visit.may(PRODUCERS_SHOWN, each.topic)]
    if not hanging:
        return Refused(404, _NOT_THERE)
    values = {"refresh_s": 5, "producer_id": producer_id, "hanging": hanging}
    return Page("hanging_transaction.html", values)


@page("/transaction/abort")
async def confirm_abort(visit: Visit) -> Page | Refused:
    """Names what an abort loses."""
    row = await _asked_for(visit)
    if row is None:
        return Refused(404, _NOT_THERE)
    visit.require(_abort_of(row), row.shown_id)
    if not row.is_open:
        return Refused(409, f"{row.shown_id} has nothing open: there is nothing to abort")
    (listed,) = await _listed(visit, [row])
    return Page(
        "abort_transaction.html",
        {
            "listed": listed,
            "row": row,
            "written": await _written(visit, row),
            "abort": _abort_link(row),
            "which": which(row),
        },
    )


@action("/transaction/abort")
async def abort(visit: Visit) -> Done | Refused:
    """Aborts the transaction that was shown, and no later one of its producer's."""
    form = await visit.form()
    row = await _asked_for(visit)
    if row is None:
        return Refused(404, _NOT_THERE)
    visit.require(_abort_of(row), row.shown_id)
    if not row.is_open or form.text("which") != which(row):
        reason = f"The transaction of {row.shown_id} that was shown has ended meanwhile"
        return Refused(409, f"{reason}: nothing was aborted")
    answer = await _aborted(visit, row)
    if answer is not None:
        return answer
    said = f"Aborted {row.shown_id}."
    if not row.is_pulsars:
        said += " Its producer is fenced: the next thing it asks for is refused."
    return Done(link_to(row), said)


async def _aborted(visit: Visit, row: TransactionRow) -> Refused | None:
    """Why it was not. What is known of the producer stays, since it is still the last one."""
    coordinator = visit.runtime.transactions
    if row.is_pulsars:
        answer = await coordinator.end_single(row.key, row.producer_id, is_commit=False)
    else:
        request = InitProducerId(
            row.key,
            int(row.timeout.total_seconds() * 1000),
            ProducerIdAndEpoch(),
            row.client_id or "",
            row.client_host or "",
            row.owner or "",
        )
        answer = await coordinator.init_producer_id(request)
    if isinstance(answer, Unconfirmed):
        return Refused(503, answer.message)
    if answer.error is not Error.NONE:
        return Refused(409, f"{row.shown_id} was not aborted: {answer.error.name}")
    return None


# --- what may be seen ---


def may_see(visit: Visit, named: NamedTransaction) -> bool:
    """Whether who looks may know of a transaction."""
    shown = PULSARS_TRANSACTION_SHOWN if named.is_pulsars else TRANSACTION_SHOWN
    return visit.may(shown, named.shown_id)


def link_to(named: NamedTransaction) -> str:
    """Its page. By producer id, where that is its alone: a producer of Kafka's may have an id that
    looks like a TxnID."""
    if named.is_pulsars:
        return link("/transaction", producer_id=named.producer_id)
    return link("/transaction", id=named.name)


def which(row: TransactionRow) -> str:
    """Tells a producer's open transaction from its next one."""
    assert row.started_at is not None, "it is open"
    return f"{row.producer_id}:{row.producer_epoch}:{row.started_at.timestamp():.3f}"


def _abort_link(row: TransactionRow) -> str:
    return link_to(row).replace("/transaction?", "/transaction/abort?")


def _abort_of(row: NamedTransaction) -> Requirement:
    return ABORT_PULSARS_TRANSACTION if row.is_pulsars else ABORT_TRANSACTION


async def _asked_for(visit: Visit) -> TransactionRow | None:
    """The one of the query, if it may be seen. Raises ClientError."""
    reads = visit.runtime.console.transactions
    name, found = visit.text("id"), None
    if name:
        found = await reads.find(name)
        # As Kafka's tools are told it, or as Pulsar's clients and the views have it.
        key = pulsar_key(name) or TransactionKey.read_pulsar(name)
        if found is None and key is not None:
            rows = await reads.rows([key.txn_id[1]])
            found = next((each for each in rows if each.key == key), None)
    elif visit.text("producer_id"):
        found = next(iter(await reads.rows([visit.number("producer_id", -1)])), None)
    else:
        raise ClientError(400, "The address lacks ?id=… or ?producer_id=…")
    return found if found is not None and may_see(visit, found) else None


async def _listed(visit: Visit, rows: Iterable[TransactionRow]) -> list[Listed]:
    rows = list(rows)
    producer_ids = [each.producer_id for each in rows if each.is_open]
    reads = visit.runtime.console.transactions
    places = await reads.places(producer_ids) if producer_ids else []
    taking_part = await reads.participants(producer_ids) if producer_ids else []
    seen = [each for each in places if visit.may(TOPIC_SHOWN, each.topic)]
    groups = [e for e in taking_part if e.topic is None and visit.may(GROUP_SHOWN, e.name)]
    subscriptions = [
        e for e in taking_part if e.topic is not None and visit.may(TOPIC_SHOWN, e.topic)
    ]
    return [
        Listed(
            row,
            link_to(row),
            [each for each in seen if each.producer_id == row.producer_id],
            [each for each in groups if each.producer_id == row.producer_id],
            [each for each in subscriptions if each.producer_id == row.producer_id],
        )
        for row in rows
    ]


async def _written(visit: Visit, row: TransactionRow) -> Sequence[WrittenThere]:
    if not row.is_open:
        return []
    found = await visit.runtime.console.transactions.written(row.producer_id)
    return [each for each in found if visit.may(TOPIC_SHOWN, each.topic)]
