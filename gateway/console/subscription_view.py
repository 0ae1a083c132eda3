"""Why a subscription does not go on: what is known of it, put into sentences and a plot.

Pure: rows of `core.ports.console.subscriptions` in, findings as those of groups out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from core.group.progress import HeldPartition
from core.group.why import HIDDEN, Finding
from core.ports.console.subscriptions import ConsumerRow, PendingAckRow, SubscriptionPlace
from gateway.console.plots import Plot, plot
from gateway.console.rendering import count, duration

if TYPE_CHECKING:
    from gateway.console.plots import Series

_NAMED_MAX: Final = 5
_LINES_MAX: Final = 8


def why(
    places: Sequence[SubscriptionPlace],
    consumers: Sequence[ConsumerRow],
    held: Iterable[HeldPartition],
    pending: Sequence[PendingAckRow],
) -> list[Finding]:
    """Of one subscription, the weightiest first."""
    waiting = {each.partition: each for each in places if each.backlog > each.pending}
    found = [
        *_nobody(places, consumers),
        *_few(_held_back(places, held)),
        *_few(_pending(pending)),
        *_few(_stuck(waiting.keys(), consumers)),
    ]
    if found:
        return found
    if waiting:
        behind = count(sum(each.backlog for each in waiting.values()))
        return [
            Finding(
                "delayed",
                f"{behind} messages wait though its consumers ask for some: they are given out in "
                "a moment, or are to be delivered later (deliverAfter, deliverAt).",
            )
        ]
    return [Finding("up_to_date", "Nothing holds it back: it has acknowledged all that is there.")]


def _few(found: Iterator[Finding]) -> Iterator[Finding]:
    everything = list(found)
    yield from everything[:_NAMED_MAX]
    if len(everything) > _NAMED_MAX:
        yield Finding(
            everything[0].kind, f"The same {len(everything) - _NAMED_MAX} times more, elsewhere."
        )


def _nobody(
    places: Sequence[SubscriptionPlace], consumers: Sequence[ConsumerRow]
) -> Iterator[Finding]:
    if not consumers:
        behind = sum(each.backlog for each in places)
        waits = f"{count(behind)} messages wait" if behind else "Nothing waits"
        yield Finding("empty", f"No consumer is connected. {waits} for one.")
        return
    served = {each.partition for each in consumers}
    left = [each.partition for each in places if each.partition not in served and each.backlog]
    if left:
        yield Finding(
            "empty",
            f"No consumer is connected to partition{'s' * (len(left) > 1)} "
            f"{', '.join(map(str, left[:_NAMED_MAX]))}, where messages wait.",
        )


def _held_back(
    places: Iterable[SubscriptionPlace], held: Iterable[HeldPartition]
) -> Iterator[Finding]:
    its = {each.partition for each in places}
    for each in held:
        if each.partition not in its:
            continue
        since = "" if each.age_s is None else f", open for {duration(each.age_s)},"
        yield Finding(
            "transaction",
            f"{each.topic} {each.partition}: {_whose(each)}{since} holds back what lies behind it: "
            f"consumers get nothing from offset {each.first_offset} on before it ends; "
            f"{count(each.waiting)} offsets wait so far.",
            each,
        )


def _whose(held: HeldPartition) -> str:
    if held.transactional_id == HIDDEN:
        return "a transaction that you may not see"
    if held.transactional_id is None:
        return f"a transaction of producer {held.producer_id}"
    return f"transaction {held.transactional_id}"


def _pending(pending: Sequence[PendingAckRow]) -> Iterator[Finding]:
    """Of each open transaction that has acknowledged something."""
    by_transaction: dict[tuple[str | None, int], list[PendingAckRow]] = defaultdict(list)
    for each in pending:
        if each.state == "pending":
            by_transaction[each.transactional_id, each.producer_id].append(each)
    for (name, producer_id), acks in by_transaction.items():
        first = acks[0]
        held = HeldPartition("", first.partition, name, producer_id, first.end_offset, len(acks))
        since = "" if first.age_s is None else f", open for {duration(first.age_s)},"
        yield Finding(
            "pending",
            f"{_whose(held).capitalize()}{since} has acknowledged messages, and nobody is given "
            "them before it ends: if it commits they are done, if it is aborted they are delivered "
            "again.",
            held,
        )


def _stuck(waiting: Iterable[int], consumers: Sequence[ConsumerRow]) -> Iterator[Finding]:
    for partition in waiting:
        its = [each for each in consumers if each.partition == partition and each.is_active]
        if not its or any(_takes(each) for each in its):
            continue
        for each in its:
            yield _of_consumer(each)


def _takes(consumer: ConsumerRow) -> bool:
    """Whether it could be given a message now, and has done with those it was given."""
    return consumer.permits > 0 and not consumer.is_blocked and not consumer.unacknowledged


def _of_consumer(each: ConsumerRow) -> Finding:
    who = f"{each.consumer} at {each.address} has partition {each.partition}, and"
    has = f"{count(each.unacknowledged)} messages that it has not acknowledged"
    if each.is_blocked:
        return Finding(
            "blocked",
            f"{who} gets no more: it has {has}, which is the most that it may have "
            "(maxUnackedMessagesPerConsumer). It has to acknowledge some, or to go.",
        )
    if each.unacknowledged:
        return Finding(
            "unacknowledged",
            f"{who} has {has}: it works on them, hangs, or never acknowledges. When it goes, they "
            "are delivered to others.",
        )
    return Finding(
        "no_permits",
        f"{who} asks for no messages: its receiver queue is full, and it does not call receive().",
    )


def backlog_plot(history: Mapping[str, Series], until: float, span_s: float) -> Plot:
    """How large the backlog was over time: a line for each partition, or, of many, their sum."""
    lines = [line for line in history.values() if line]
    if not lines:
        return plot([], "Its backlog over time: looking…", until, span_s)
    now = {number: line[-1][1] for number, line in history.items() if line}
    begun = min(line[0][0] for line in lines)
    of_all = f" in all {len(lines)} partitions" if len(lines) > 1 else ""
    since = f"over the last {duration(max(1.0, until - begun))}"
    words = f"Messages in its backlog{of_all} {since}: {count(sum(now.values()))}"
    if len(lines) > _LINES_MAX:
        sums: dict[float, float] = defaultdict(float)
        for at, value in (sample for line in lines for sample in line):
            sums[at] += value
        return plot([sorted(sums.items())], words, until, span_s)
    if of_all:
        each = (f"{number}: {count(value)}" for number, value in now.items())
        words += f". Partition {', '.join(each)}"
    return plot(lines, words, until, span_s, [f"partition {number}" for number in now])
