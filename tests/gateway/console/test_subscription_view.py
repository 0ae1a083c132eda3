"""gateway.console.subscription_view: what is said of a subscription that does not go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from core.group.progress import HeldPartition
from core.ports.console.subscriptions import ConsumerRow, PendingAckRow, SubscriptionPlace
from gateway.console.subscription_view import backlog_plot, why

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = SubscriptionPlace("t", 0, "s", "Shared", 2, 0, 5, 0, 0, 10, 10, "here:6650", {}, NOW)
WORKER = ConsumerRow(
    "t", 0, "s", "worker", "Shared", 9, 0, True, False, 0, "10.0.0.1:5", "cpp", 1, NOW, NOW
)


def said(
    consumers: Sequence[ConsumerRow],
    places: Sequence[SubscriptionPlace] = (PLACE,),
    held: Sequence[HeldPartition] = (),
    pending: Sequence[PendingAckRow] = (),
) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in why(places, consumers, held, pending)]


def test_nobody_reads() -> None:
    assert said([]) == [("empty", "No consumer is connected. 5 messages wait for one.")]
    assert said([], [replace(PLACE, backlog=0)])[0][1].endswith("Nothing waits for one.")
    ((kind, text),) = said([WORKER], [replace(PLACE, backlog=0), replace(PLACE, partition=1)])[:1]
    assert (kind, "partition 1, where" in text) == ("empty", True)


def test_a_consumer_that_has_too_much_or_asks_for_nothing_is_named() -> None:
    blocked = replace(WORKER, unacknowledged=50, is_blocked=True)
    ((kind, text),) = said([blocked])
    assert kind == "blocked"
    assert "worker at 10.0.0.1:5 has partition 0, and gets no more: it has 50 messages" in text
    assert said([replace(WORKER, permits=0)])[0][0] == "no_permits"
    assert said([replace(WORKER, unacknowledged=3)])[0][0] == "unacknowledged"


def test_one_that_could_take_more_is_not_blamed() -> None:
    assert said([WORKER, replace(WORKER, permits=0)])[0][0] == "delayed"
    assert said([replace(WORKER, permits=0)], [replace(PLACE, backlog=0)])[0][0] == "up_to_date"
    idle = replace(WORKER, consumer="standby", is_active=False)
    assert said([idle, replace(WORKER, permits=0)])[0][0] == "no_permits"


def test_transactions_are_named() -> None:
    held = HeldPartition("t", 0, "tx", 4, 8, 2, 65.0)
    acks = [PendingAckRow(0, "other", 5, "pending", n, n + 1, 7.0) for n in range(2)]
    done = replace(acks[0], state="committed", transactional_id="done", producer_id=6)
    (first, one), (second, two) = said([WORKER], held=[held], pending=[*acks, done])
    assert (first, second) == ("transaction", "pending")
    assert one.startswith("t 0: transaction tx, open for 1 min 5 s, holds back")
    assert two.startswith("Transaction other, open for 7 s, has acknowledged messages")


def test_what_only_a_transaction_has_is_not_waiting() -> None:
    assert said([WORKER], [replace(PLACE, pending=5)])[0][0] == "up_to_date"


def test_few_partitions_have_lines_and_many_their_sum() -> None:
    def drawn(partitions: int) -> tuple[int, str]:
        history = {f"{n}": [(0.0, 1.0), (5.0, 3.0)] for n in range(partitions)}
        found = backlog_plot(history, 10.0, 600.0)
        return len(found.lines), found.words

    within = "over the last 10 s"
    assert drawn(0) == (0, "Its backlog over time: looking…")
    assert drawn(1) == (1, f"Messages in its backlog {within}: 3")
    assert drawn(2) == (
        2,
        f"Messages in its backlog in all 2 partitions {within}: 6. Partition 0: 3, 1: 3",
    )
    assert drawn(9) == (1, f"Messages in its backlog in all 9 partitions {within}: 27")
