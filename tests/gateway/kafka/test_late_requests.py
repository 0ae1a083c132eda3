"""What counts as late, and what does not."""

from __future__ import annotations

from dataclasses import replace

from core.transaction.values import OpenTransaction, ProducerIdAndEpoch
from gateway.kafka.late_requests import LateRequests, kept_name

PRODUCER = ProducerIdAndEpoch(7, 3)
END = "EndTxn"


def order_after(*carried: tuple[ProducerIdAndEpoch, int], kept: int = 10) -> LateRequests:
    made = LateRequests(kept)
    for producer, connection in carried:
        made.carried(producer, END, connection)
    return made


def test_an_older_connection_is_late() -> None:
    order = order_after((PRODUCER, 5))
    assert order.is_late(PRODUCER, END, 4)
    assert order.refused == 1


def test_the_same_connection_a_newer_one_and_a_first_request_are_not() -> None:
    order = order_after((PRODUCER, 5))
    assert not order.is_late(PRODUCER, END, 5)
    assert not order.is_late(PRODUCER, END, 6)
    assert not order.is_late(ProducerIdAndEpoch(8, 3), END, 4)
    assert order.refused == 0


def test_apis_and_partitions_are_compared_each_for_itself() -> None:
    order = order_after((PRODUCER, 5))
    order.carried(PRODUCER, ("Produce", "t", 0), 5)
    assert not order.is_late(PRODUCER, ("Produce", "t", 1), 4)
    assert not order.is_late(PRODUCER, "AddPartitionsToTxn", 4)


def test_a_request_only_asked_is_not_remembered() -> None:
    order = LateRequests()
    assert not order.is_late(PRODUCER, END, 9)
    assert not order.is_late(PRODUCER, END, 4)


def test_a_connection_once_passed_stays_so() -> None:
    order = order_after((PRODUCER, 5), (PRODUCER, 4))
    assert order.is_late(PRODUCER, END, 4)


def test_another_epoch_is_judged_by_fencing_alone() -> None:
    """A new instance may use connections older than those of a zombie that has come back."""
    newer = replace(PRODUCER, producer_epoch=4)
    assert not order_after((PRODUCER, 5)).is_late(newer, END, 4)
    assert not order_after((newer, 5)).is_late(PRODUCER, END, 4)
    order = order_after((newer, 4), (PRODUCER, 9))  # the zombie's does not count
    assert not order.is_late(newer, END, 4)


def test_the_longest_unused_is_forgotten() -> None:
    first, second, third = (ProducerIdAndEpoch(number, 0) for number in range(3))
    order = order_after((first, 5), (second, 5), (first, 5), (third, 5), kept=2)
    assert not order.is_late(second, END, 4)
    assert order.is_late(first, END, 4)
    assert order.is_late(third, END, 4)


def test_of_long_names_only_a_digest_is_kept() -> None:
    assert kept_name("g" * 100) == "g" * 100
    found = {kept_name("g" * 32_766 + last) for last in "ab\ud800"}
    assert [len(each) for each in found] == [64] * 3


def test_a_connection_has_asked_in_one_transaction_at_a_time() -> None:
    order = LateRequests(kept=2)
    first, second = OpenTransaction(1, 5), OpenTransaction(1, 9)
    assert not order.has_asked(first, 1)
    order.note_asked(first, 1)
    assert order.has_asked(first, 1)
    assert not order.has_asked(first, 2)  # another connection of the same producer
    order.note_asked(first, 2)
    assert order.has_asked(first, 1)
    order.note_asked(second, 2)  # the next transaction
    assert not order.has_asked(second, 1)
    assert not order.has_asked(first, 1)
    others = OpenTransaction(2, 9), OpenTransaction(3, 9)
    for each in others:  # one too many: the oldest is forgotten
        order.note_asked(each, 1)
    assert [order.has_asked(each, 1) for each in others] == [True, True]
    assert not order.has_asked(second, 2)
