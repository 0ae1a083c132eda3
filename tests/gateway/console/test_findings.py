"""gateway.console.findings: what is said of what is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.ports.console.overview import (
    BrokerRow,
    DatabaseState,
    Hold,
    InboxState,
    OpenTransaction,
    StuckPlace,
)
from gateway.console import findings
from gateway.console.findings import HIDDEN

HOLD = Hold("payments-7", 1000, 8112, "/10.0.0.5", 300)
PLACE = StuckPlace(
    reader="billing",
    state="Stable",
    topic="orders",
    partition=3,
    offset=8112,
    unread=40,
    waits_s=240,
    hold=None,
    members=2,
    owner="app-1",
    owner_host="/10.0.0.9",
)


def said(*places: StuckPlace) -> str:
    (found,) = findings.of_groups(places)
    return found.text


def test_a_transaction_that_holds_a_group() -> None:
    (found,) = findings.of_groups([replace(PLACE, hold=HOLD)])
    assert found.text == (
        "billing has read nothing of orders-3 for 4 min: transaction payments-7 of 10.0.0.5 has "
        "held its offset 8,112 open for 5 min. 40 offsets wait there."
    )
    assert (found.to, found.is_bad) == ("/transaction?id=payments-7", True)


def test_readers_that_one_transaction_holds_are_one_finding() -> None:
    held = replace(PLACE, hold=HOLD)
    places = [held, *(replace(held, reader=name) for name in ("audit", "mail", "risk"))]
    (found,) = findings.of_groups(places)
    assert found.text.startswith("billing, audit, mail and 1 more have read nothing of orders-3")
    assert found.to == "/transaction?id=payments-7"
    assert found.also[0] == ("/group?id=billing", "Look at group billing")
    (found,) = findings.of_subscriptions(places[:2])
    assert found.text.startswith("Subscriptions billing and audit have left a message")
    # At another place, or by nobody: each is told of by itself.
    elsewhere = replace(held, reader="audit", partition=4)
    assert len(list(findings.of_groups([held, elsewhere]))) == 2
    assert len(list(findings.of_groups([PLACE, replace(PLACE, reader="audit")]))) == 2


def test_a_transaction_is_told_of_once() -> None:
    def told(*places: StuckPlace) -> set[int | None]:
        return {each.cause for each in findings.of_groups(places)}

    held = replace(PLACE, hold=replace(HOLD, held_producer_id=OPEN.producer_id))
    assert not list(findings.of_transactions([OPEN], told(held, PLACE)))
    hidden = replace(held, hold=replace(HOLD, held_id=HIDDEN, held_producer_id=OPEN.producer_id))
    assert list(findings.of_transactions([OPEN], told(hidden)))
    hanging = replace(OPEN, transactional_id=None, state="hanging", timeout_left_s=None)
    assert list(findings.of_transactions([hanging], told(held)))
    # Of a group's other places nothing is told but that there are some.
    worse = replace(PLACE, partition=1, waits_s=900, hold=replace(HOLD, held_producer_id=7))
    assert list(findings.of_transactions([OPEN], told(held, worse)))


def test_one_that_may_not_be_seen() -> None:
    hidden = replace(HOLD, held_id=HIDDEN, held_host=None)
    (found,) = findings.of_groups([replace(PLACE, hold=hidden)])
    assert "a transaction that you may not see has held its offset" in found.text
    assert found.to == "/group?id=billing"


def test_one_that_nobody_will_end() -> None:
    (found,) = findings.of_groups([replace(PLACE, hold=replace(HOLD, held_id=None))])
    assert "a transaction of producer 1000, which no coordinator will end," in found.text
    assert found.to == "/transaction?producer_id=1000"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "app-1 of 10.0.0.9 has it and commits nothing there"),
        ({"owner": None}, "none of its members has this partition"),
        ({"members": 0, "owner": None, "state": "Empty"}, "no consumer reads for it"),
        ({"state": "PreparingRebalance"}, "it rebalances."),
        (
            {"state": "PreparingRebalance", "waiting_for": ["a", "b", "c", "d"]},
            "it rebalances, and waits for a, b, c.",
        ),
    ],
)
def test_why_a_group_stands(change: dict[str, object], why: str) -> None:
    assert why in said(replace(PLACE, **change))  # type: ignore[arg-type]


def test_a_group_is_one_finding_what_is_held_first() -> None:
    text = said(
        replace(PLACE, partition=1, waits_s=900),
        replace(PLACE, partition=2, hold=HOLD),
        replace(PLACE, partition=4),
    )
    assert "nothing of orders-2" in text
    assert "and it stands in 2 more partitions" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"members": 0}, "no consumer is connected"),
        ({"unacknowledged": 7}, "app-1 of 10.0.0.9 has 7 messages and does not acknowledge them"),
        ({"unacknowledged": 7, "is_blocked": True}, "get no more before they do"),
        ({}, "app-1 of 10.0.0.9 asks for no messages"),
        ({"hold": HOLD}, "transaction payments-7 of 10.0.0.5"),
    ],
)
def test_why_a_subscription_stands(change: dict[str, object], why: str) -> None:
    (found,) = findings.of_subscriptions([replace(PLACE, **change)])  # type: ignore[arg-type]
    assert why in found.text


def test_subscriptions_of_one_name_are_their_topics() -> None:
    places = [PLACE, replace(PLACE, topic="taxis")]
    assert len(list(findings.of_subscriptions(places))) == 2
    assert len(list(findings.of_groups(places))) == 1


OPEN = OpenTransaction("orders", 3, "payments-7", 1000, "Ongoing", "/10.0.0.5", 40, 300, 20)


def test_an_open_transaction_with_all_its_places() -> None:
    places = [replace(OPEN, partition=number) for number in range(5)]
    (found,) = findings.of_transactions(places)
    assert found.text == (
        "Transaction payments-7 of 10.0.0.5 is open for 5 min and holds back 200 records of "
        "orders-0, orders-1, orders-2 and 2 more. Its timeout aborts it in 20 s."
    )
    assert not found.is_bad  # its timeout will end it


def test_a_hanging_one_is_bad() -> None:
    hanging = replace(OPEN, transactional_id=None, state="hanging", timeout_left_s=None)
    (found,) = findings.of_transactions([hanging])
    assert "hangs: no coordinator will end it" in found.text
    assert found.is_bad


def test_a_broker_that_was_killed() -> None:
    row = BrokerRow(2, "10.0.0.2:9092", None, "gone", datetime.now(UTC), 90, "0.1.0")
    (found,) = findings.of_brokers([row, replace(row, state="live"), replace(row, silent_s=1e6)])
    assert "Broker 2 at 10.0.0.2:9092 has not been heard of for 1 min 30 s" in found.text


GOOD = DatabaseState("18.4", 10**9, 20, 100, 3.0, "process 7", 1, 1000, 0.1)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"snapshot_s": 400.0}, "A transaction in the database is open for 6 min 40 s"),
        ({"connections": 95}, "95 of the database's 100 connections are taken"),
        ({"standby_s": 45.0, "standby_bytes": 2**30}, "A standby is 45 s (1.0 GiB) behind"),
    ],
)
def test_what_postgresql_will_suffer_from(change: dict[str, object], part: str) -> None:
    assert not list(findings.of_database(GOOD))
    assert not list(findings.of_database(replace(GOOD, snapshot_s=None, standby_s=None)))
    (found,) = findings.of_database(replace(GOOD, **change))  # type: ignore[arg-type]
    assert part in found.text


def test_the_inbox() -> None:
    assert not list(findings.of_inbox(InboxState(5, 2.0, 0)))
    assert not list(findings.of_inbox(InboxState(0, None, 0)))
    late, refused = findings.of_inbox(InboxState(5, 60.0, 3))
    assert "5 records that applications have committed by SQL wait" in late.text
    assert "3 records" in refused.text


def test_long_names_are_cut() -> None:
    assert len(said(replace(PLACE, reader="x" * 60_000))) < 500
