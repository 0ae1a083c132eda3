"""What consumers acknowledged in transactions, against what a subscription delivers afterwards.

A message that a committed transaction has acknowledged never comes again, from the answer to the
acknowledgement on; one of an aborted transaction does. Must not know any client, broker or
database; `pulsar_txn_load.py` notes, `test_transactions_of_both.py` reads.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.faults.txn_history import Ending, TxnHistory, Value, parse


class AckFlaw(Enum):
    """A broken promise."""

    LOST = "acknowledged in a committed transaction, but delivered again"
    NOT_WITHHELD = "pending in an open transaction, but delivered"
    OUTLIVES = "acknowledged in no committed transaction, but not delivered again"
    TWICE = "consumed by two committed transactions"
    DIRTY = "delivered, but not committed"
    OTHER = "delivered, but with another value"
    CONTRADICTED = "told otherwise than before"
    FORGOTTEN = "not there, though something of it was stored"


@dataclass(frozen=True, slots=True)
class AckAnomaly:
    """One broken promise and where."""

    flaw: AckFlaw
    where: str


class Place(NamedTuple):
    """A subscription of one partition."""

    subscription: str
    partition: int


@dataclass(slots=True)
class Consumed:
    """Offsets from start on, below end, that a transaction has acknowledged.

    since: when that was answered. until: before which the transaction cannot have been aborted;
    times are of one monotonic clock, in seconds. A cumulative one starts at 0.
    """

    of: tuple[str, int]
    place: Place
    start: int
    end: int
    since: float
    until: float = math.inf
    is_cumulative: bool = False


class Delivery(NamedTuple):
    """A message as it came."""

    at: float
    place: Place
    offset: int
    value: bytes


@dataclass(slots=True)
class Consumption:
    """Everything that was acknowledged and delivered; written by one thread.

    wrong: answers that no broker may give, with their flaw.
    """

    consumed: list[Consumed] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    wrong: list[AckAnomaly] = field(default_factory=list)


Visible = Mapping[int, Mapping[int, bytes]]
"""By partition: committed values by offset."""


def fates(history: TxnHistory, visible: Visible) -> dict[tuple[str, int], bool | None]:
    """Which transactions are committed; None where nobody can tell. What its client does not know,
    its records tell."""
    found = {
        (value.producer, value.number)
        for values in visible.values()
        for raw in values.values()
        if (value := parse(raw))
    }
    known: dict[tuple[str, int], bool | None] = {}
    for of, attempt in history.attempts.items():
        if attempt.ending is Ending.UNKNOWN:
            known[of] = of in found if attempt.partitions else None
        else:
            known[of] = attempt.ending is Ending.COMMITTED
    return known


def left_over(
    consumption: Consumption,
    place: Place,
    visible: Visible,
    fate: Mapping[tuple[str, int], bool | None],
) -> set[int]:
    """Offsets that the subscription has to deliver in the end."""
    left = set(visible[place.partition])
    for each in consumption.consumed:
        if each.place == place and fate[each.of] is not False:
            left -= {offset for offset in left if each.start <= offset < each.end}
    return left


def check_consumption(
    history: TxnHistory,
    consumption: Consumption,
    visible: Visible,
    drained: Mapping[Place, Collection[int]],
) -> list[AckAnomaly]:
    """Every anomaly, once all transactions have ended. drained: what each subscription delivered
    when nobody wrote or acknowledged any more; those deliveries are in `consumption` too."""
    fate = fates(history, visible)
    return [
        *consumption.wrong,
        *_check_values(consumption, visible),
        *_check_twice(consumption, fate),
        *_check_again(consumption, fate),
        *(
            AckAnomaly(AckFlaw.OUTLIVES, f"{place}: {sorted(missing)[:5]}, {len(missing)} in all")
            for place, offsets in drained.items()
            if (missing := left_over(consumption, place, visible, fate) - set(offsets))
        ),
    ]


def _check_values(consumption: Consumption, visible: Visible) -> Iterator[AckAnomaly]:
    for each in consumption.deliveries:
        value = visible[each.place.partition].get(each.offset)
        if value is None:
            yield AckAnomaly(AckFlaw.DIRTY, f"{each}")
        elif value != each.value:
            yield AckAnomaly(AckFlaw.OTHER, f"{each}, not {value!r}")


def _check_twice(
    consumption: Consumption, fate: Mapping[tuple[str, int], bool | None]
) -> Iterator[AckAnomaly]:
    """Cumulative ones contain each other by nature: what they deliver again tells of them."""
    of: dict[tuple[Place, int], tuple[str, int]] = {}
    for each in consumption.consumed:
        if each.is_cumulative or not fate[each.of]:
            continue
        for offset in range(each.start, each.end):
            before = of.setdefault((each.place, offset), each.of)
            if before != each.of:
                where = f"{each.place} offset {offset}: {before} and {each.of}"
                yield AckAnomaly(AckFlaw.TWICE, where)


def _check_again(
    consumption: Consumption, fate: Mapping[tuple[str, int], bool | None]
) -> Iterator[AckAnomaly]:
    by_place: dict[Place, list[Delivery]] = defaultdict(list)
    for delivery in consumption.deliveries:
        by_place[delivery.place].append(delivery)
    for deliveries in by_place.values():
        deliveries.sort(key=lambda each: each.offset)
    for each in consumption.consumed:
        is_committed = fate[each.of] is True
        deliveries = by_place[each.place]
        first = bisect.bisect_left(deliveries, each.start, key=lambda of: of.offset)
        last = bisect.bisect_left(deliveries, each.end, key=lambda of: of.offset)
        for delivery in deliveries[first:last]:
            if each.since < delivery.at and (is_committed or delivery.at < each.until):
                flaw = AckFlaw.LOST if is_committed else AckFlaw.NOT_WITHHELD
                where = f"{delivery} of {each}: {delivery.at - each.since:.3f} s later"
                yield AckAnomaly(flaw, where)


def written_late(history: TxnHistory, everything: Mapping[int, Mapping[int, bytes]]) -> list[Value]:
    """What was sent after its transaction's end, and is in the log all the same."""
    late = []
    for values in everything.values():
        for raw in values.values():
            value = parse(raw)
            attempt = history.attempts.get((value.producer, value.number)) if value else None
            if value and attempt and value.index >= len(attempt.partitions):
                late.append(value)
    return late
