"""What is wrong, in sentences, the weightiest first, each with a way to the cure.

Pure: rows as `core.ports.console.overview` has them in, findings out. Who may see what is asked
before. What a group or a subscription waits for in detail is on its own page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from core.ports.console.overview import (
    BrokerRow,
    DatabaseState,
    InboxState,
    OpenTransaction,
    StuckPlace,
)
from gateway.console.rendering import count, duration, link, size

Key = TypeVar("Key")

STUCK_AFTER_S: Final = 60.0
OPEN_AFTER_S: Final = 60.0
HIDDEN: Final = ""
"""Instead of the id of a transaction that who looks may not see."""
_SNAPSHOT_S: Final = 300.0
_STANDBY_S: Final = 30.0
_INBOX_S: Final = 30.0
_GONE_S: Final = 24 * 3600.0
_CONNECTIONS: Final = 0.9
_NAMED_MAX: Final = 3
_LONGEST: Final = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """text: sentences. to: the page where it is seen in full and cured; cure: that in words. also:
    further pages, with their words. is_bad: somebody waits; else it may become so. cause: the
    producer whose transaction it tells of."""

    text: str
    to: str | None = None
    cure: str | None = None
    is_bad: bool = True
    also: Sequence[tuple[str, str]] = ()
    cause: int | None = None


def of_groups(places: Iterable[StuckPlace]) -> Iterator[Finding]:
    """A group a finding: its worst partition, and how many more there are. Those that one
    transaction holds at one place are one finding."""
    for together in _by_cause(_by_reader(places, lambda each: each.reader)):
        names, worst = [reader for reader, _ in together], together[0][1][0]
        yield _of_readers(
            f"{_named(names)} {'has' if len(names) == 1 else 'have'} read nothing of "
            f"{_place(worst)} for {duration(worst.waits_s)}: {_why_group(worst)}.",
            [found for _, found in together],
            [(link("/group", id=name), "group", name) for name in names],
        )


def of_subscriptions(places: Iterable[StuckPlace]) -> Iterator[Finding]:
    """The same of subscriptions."""
    for together in _by_cause(_by_reader(places, lambda each: (each.topic, each.reader))):
        names, worst = [reader for (_, reader), _ in together], together[0][1][0]
        several = len(names) > 1
        yield _of_readers(
            f"Subscription{'s' * several} {_named(names)} {'have' if several else 'has'} left a "
            f"message of {_place(worst)} unacknowledged for {duration(worst.waits_s)}: "
            f"{_why_subscription(worst)}.",
            [found for _, found in together],
            [
                (link("/subscription", topic=topic, name=name), "subscription", name)
                for (topic, name), _ in together
            ],
        )


def _of_readers(
    sentence: str, places: Sequence[Sequence[StuckPlace]], pages: Sequence[tuple[str, str, str]]
) -> Finding:
    """places: of each reader, the worst first. pages: of each reader, what it is, its name."""
    worst = places[0][0]
    is_hidden = worst.hold is not None and worst.hold.held_id == HIDDEN
    cure = _to_cure(worst)
    if cure is None:
        to, noun, _ = pages[0]
        cure = (to, f"Look at the {noun}")
        pages = pages[1:]
    return Finding(
        f"{sentence} {_unread(places[0])}",
        *cure,
        is_bad=any(found[0].hold is not None or found[0].members > 0 for found in places),
        also=[(to, f"Look at {noun} {_cut(name)}") for to, noun, name in pages[:_NAMED_MAX]],
        cause=None if worst.hold is None or is_hidden else worst.hold.held_producer_id,
    )


def of_transactions(
    found: Sequence[OpenTransaction], told: Collection[int | None] = ()
) -> Iterator[Finding]:
    """A transaction a finding, with the partitions where it is the oldest. told: producers of which
    other findings tell already; what nobody will end is told of all the same."""
    for producer_id in dict.fromkeys(
        each.producer_id
        for each in found
        if each.producer_id not in told or each.transactional_id is None
    ):
        its = [each for each in found if each.producer_id == producer_id]
        first = its[0]
        places = ", ".join(f"{each.topic}-{each.partition}" for each in its[:_NAMED_MAX])
        more = f" and {len(its) - _NAMED_MAX} more" if len(its) > _NAMED_MAX else ""
        waiting = sum(each.records_waiting for each in its)
        name, host = first.transactional_id, first.client_host
        if name is None:
            text = (
                f"A transaction of producer {producer_id} hangs: no coordinator will end it. It "
                f"holds back {count(waiting)} records of {places}{more}."
            )
        else:
            left = first.timeout_left_s
            ends = "" if left is None else f" Its timeout aborts it in {duration(max(left, 0))}."
            text = (
                f"Transaction {_cut(name)}{_of(host)} is open for {duration(first.age_s)} and "
                f"holds back {count(waiting)} records of {places}{more}.{ends}"
            )
        to = (
            link("/transaction", id=name) if name else link("/transaction", producer_id=producer_id)
        )
        yield Finding(text, to, "Look at the transaction", is_bad=name is None)


def of_brokers(brokers: Iterable[BrokerRow]) -> Iterator[Finding]:
    """Those that have gone lately without a word: who leaves in order is forgotten."""
    for each in brokers:
        if each.state != "live" and each.silent_s < _GONE_S:
            yield Finding(
                f"Broker {each.broker_id} at {each.address or 'an unknown address'} has not been "
                f"heard of for {duration(each.silent_s)}. Others do its work meanwhile.",
                is_bad=False,
            )


def of_database(state: DatabaseState) -> Iterator[Finding]:
    """What PostgreSQL will suffer from."""
    if state.snapshot_s is not None and state.snapshot_s > _SNAPSHOT_S:
        yield Finding(
            f"A transaction in the database is open for {duration(state.snapshot_s)}, and keeps "
            f"PostgreSQL from removing old row versions: {state.snapshot_holder}. End it: "
            "everything becomes slower meanwhile."
        )
    if state.connections > _CONNECTIONS * state.max_connections:
        yield Finding(
            f"{state.connections} of the database's {state.max_connections} connections are taken. "
            "Raise max_connections: a broker that gets none stops serving."
        )
    if state.standby_s is not None and state.standby_s > _STANDBY_S:
        yield Finding(
            f"A standby is {duration(state.standby_s)} ({size(state.standby_bytes)}) behind.",
            is_bad=False,
        )


def of_inbox(state: InboxState) -> Iterator[Finding]:
    """What applications have produced by SQL."""
    if state.oldest_s is not None and state.oldest_s > _INBOX_S:
        yield Finding(
            f"{count(state.waiting)} records that applications have committed by SQL wait to be "
            f"published, for up to {duration(state.oldest_s)}. A transaction that stays open holds "
            "them back, or no broker is at work (docs/sql.md)."
        )
    if state.refused:
        yield Finding(
            f"{count(state.refused)} records that applications have committed by SQL within a day "
            "could not be published: SELECT * FROM penstock.v_inbox_refused says why."
        )


def sorted_by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Those where somebody waits first; among them as they come."""
    return sorted(findings, key=lambda each: not each.is_bad)


def _by_reader(
    places: Iterable[StuckPlace], key: Callable[[StuckPlace], Key]
) -> Iterator[tuple[Key, list[StuckPlace]]]:
    """Each reader's, what is held by a transaction first, then what has waited longest."""
    found: dict[Key, list[StuckPlace]] = {}
    for each in places:
        found.setdefault(key(each), []).append(each)
    for reader, its in found.items():
        yield reader, sorted(its, key=lambda each: (each.hold is None, -each.waits_s))


def _by_cause(
    readers: Iterable[tuple[Key, list[StuckPlace]]],
) -> Iterator[list[tuple[Key, list[StuckPlace]]]]:
    """Readers that one transaction holds at one place together, all others alone."""
    found: dict[object, list[tuple[Key, list[StuckPlace]]]] = {}
    for reader, its in readers:
        worst = its[0]
        cause: object = reader
        if worst.hold is not None:
            cause = (worst.hold.held_producer_id, worst.topic, worst.partition)
        found.setdefault(cause, []).append((reader, its))
    yield from found.values()


def _named(names: Sequence[str]) -> str:
    shown = [_cut(each) for each in names[:_NAMED_MAX]]
    if more := len(names) - len(shown):
        return f"{', '.join(shown)} and {count(more)} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _why_group(place: StuckPlace) -> str:
    if place.hold is not None:
        return _held(place)
    if place.state in ("PreparingRebalance", "CompletingRebalance"):
        late = ", ".join(map(_cut, place.waiting_for[:_NAMED_MAX]))
        return f"it rebalances, and waits for {late}" if late else "it rebalances"
    if not place.members:
        return "no consumer reads for it"
    if place.owner is None:
        return "none of its members has this partition"
    return (
        f"{_owner(place)} has it and commits nothing there: it hangs on a record, or never commits"
    )


def _why_subscription(place: StuckPlace) -> str:
    if place.hold is not None:
        return _held(place)
    if not place.members:
        return "no consumer is connected"
    if place.is_blocked:
        return (
            f"its consumers have {count(place.unacknowledged)} messages that they have not "
            "acknowledged, and get no more before they do"
        )
    if place.unacknowledged:
        return (
            f"{_owner(place)} has {count(place.unacknowledged)} messages and "
            "does not acknowledge them"
        )
    return f"{_owner(place)} asks for no messages"


def _held(place: StuckPlace) -> str:
    hold = place.hold
    assert hold is not None
    if hold.held_id == HIDDEN:
        whose = "a transaction that you may not see"
    elif hold.held_id is not None:
        whose = f"transaction {_cut(hold.held_id)}{_of(hold.held_host)}"
    else:
        whose = f"a transaction of producer {hold.held_producer_id}, which no coordinator will end,"
    return f"{whose} has held its offset {count(hold.held_from)} open for {duration(hold.held_s)}"


def _to_cure(place: StuckPlace) -> tuple[str, str] | None:
    """Where the transaction is that holds a place, and may be seen."""
    hold = place.hold
    if hold is None or hold.held_id == HIDDEN:
        return None
    return _to_transaction(hold.held_id, hold.held_producer_id), "Look at the transaction"


def _to_transaction(transactional_id: str | None, producer_id: int) -> str:
    if transactional_id is not None:
        return link("/transaction", id=transactional_id)
    return link("/transaction", producer_id=producer_id)


def _cut(name: str) -> str:
    """Names may be long, and a sentence is to be read."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _owner(place: StuckPlace) -> str:
    return f"{_cut(place.owner or 'a consumer')}{_of(place.owner_host)}"


def _place(place: StuckPlace) -> str:
    return f"{place.topic}-{place.partition}"


def _of(host: str | None) -> str:
    return f" of {host.lstrip('/')}" if host else ""


def _unread(found: Sequence[StuckPlace]) -> str:
    more = len(found) - 1
    others = f", and it stands in {more} more partition{'s' * (more > 1)}" if more else ""
    return f"{count(found[0].unread)} offsets wait there{others}."
