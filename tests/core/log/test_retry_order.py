"""Batches behind one that was refused for now wait; nothing else does."""

from __future__ import annotations

from dataclasses import replace

from core.log.producer_state import ProducerState
from core.log.retry_order import REMEMBERED_FOR_S, RetryOrder, Unresolved
from core.types import BatchFormat, RecordBatch

FIRST = RecordBatch(
    10, 0, 100, BatchFormat.KAFKA_V2, producer_id=7, producer_epoch=0, base_sequence=20
)
SECOND = replace(FIRST, base_sequence=30)
UNKNOWN = ProducerState(7)
BEFORE = UNKNOWN.replay_append(replace(FIRST, base_sequence=10), 100)
AFTER = BEFORE.replay_append(FIRST, 110)


def retry_order() -> RetryOrder:
    refused = RetryOrder()
    refused.note(1, FIRST, 0.0)
    return refused


def test_what_follows_waits_until_the_first_has_come_again() -> None:
    refused = retry_order()
    assert refused.must_wait(1, SECOND, BEFORE, 1.0)
    assert not refused.must_wait(1, FIRST, BEFORE, 1.0)
    refused.note_stored(1, FIRST, is_new=True)
    assert not refused.must_wait(1, SECOND, BEFORE, 1.0), "the truth: it is out of order"


def test_an_unknown_producers_later_batch_is_not_taken_for_its_first() -> None:
    assert UNKNOWN.refusal(SECOND) is None
    assert retry_order().must_wait(1, SECOND, UNKNOWN, 1.0)
    assert not retry_order().must_wait(1, FIRST, UNKNOWN, 1.0)


def test_where_the_refused_batch_was_stored_after_all_what_follows_goes_on() -> None:
    refused = retry_order()
    assert not refused.must_wait(1, SECOND, AFTER, 1.0)
    refused.note_stored(1, SECOND, is_new=True)
    later = replace(SECOND, base_sequence=60)
    assert not refused.must_wait(1, later, AFTER.replay_append(SECOND, 120), 1.0)


def test_a_duplicate_is_answered_and_proves_nothing_of_the_first() -> None:
    refused = retry_order()
    duplicate = replace(FIRST, base_sequence=10)
    assert not refused.must_wait(1, duplicate, BEFORE, 1.0)
    refused.note_stored(1, duplicate, is_new=False)
    assert refused.must_wait(1, SECOND, BEFORE, 1.0)
    refused.note_stored(1, FIRST, is_new=False)
    assert not refused.must_wait(1, SECOND, BEFORE, 1.0)


def test_the_earliest_refused_one_counts() -> None:
    refused = retry_order()
    refused.note(1, SECOND, 1.0)
    assert not refused.must_wait(1, FIRST, BEFORE, 1.0)
    assert refused.must_wait(1, SECOND, BEFORE, 1.0)


def test_the_earliest_refused_one_of_an_unknown_producer_may_come_again() -> None:
    refused = retry_order()
    refused.note(1, SECOND, 1.0)
    assert not refused.must_wait(1, FIRST, UNKNOWN, 1.0)
    assert refused.must_wait(1, SECOND, UNKNOWN, 1.0)


def test_where_the_earliest_one_was_forgotten_the_next_refused_one_counts() -> None:
    refused = retry_order()
    refused.note(1, SECOND, REMEMBERED_FOR_S)
    assert not refused.must_wait(1, SECOND, UNKNOWN, REMEMBERED_FOR_S)
    assert refused.must_wait(1, FIRST, UNKNOWN, REMEMBERED_FOR_S)


def test_others_do_not_wait() -> None:
    refused = retry_order()
    assert not refused.must_wait(2, SECOND, BEFORE, 1.0)
    other = replace(SECOND, producer_id=8)
    assert not refused.must_wait(1, other, ProducerState(8), 1.0)
    new_epoch = replace(SECOND, producer_epoch=1)
    assert not refused.must_wait(1, new_epoch, BEFORE, 1.0)
    fenced = replace(SECOND, producer_epoch=0)
    assert not refused.must_wait(1, fenced, replace(BEFORE, producer_epoch=1), 1.0)


def test_a_producer_that_does_not_come_again_is_forgotten() -> None:
    refused = retry_order()
    assert refused.must_wait(1, SECOND, BEFORE, REMEMBERED_FOR_S - 1)
    assert not refused.must_wait(1, SECOND, BEFORE, REMEMBERED_FOR_S)
    for producer_id in range(5_000):
        refused.note(1, replace(FIRST, producer_id=producer_id), REMEMBERED_FOR_S + producer_id)
    assert len(refused._first) < 1_100


def test_many_at_once_are_remembered_and_forgotten() -> None:
    refused = retry_order()
    for producer_id in range(100, 20_000):
        refused.note(1, replace(FIRST, producer_id=producer_id), 0.0)
    assert refused.is_early(1, replace(SECOND, producer_id=19_999), 1.0)
    assert refused.is_early(1, SECOND, 1.0)
    for producer_id in range(20_000, 60_000):
        refused.note(1, replace(FIRST, producer_id=producer_id), REMEMBERED_FOR_S + 1)
    assert len(refused) == 40_000


def test_a_producer_without_idempotence_never_waits() -> None:
    refused = RetryOrder()
    plain = RecordBatch(10, 0, 100, BatchFormat.KAFKA_V2)
    refused.note(1, plain, 0.0)
    assert not refused.must_wait(1, plain, UNKNOWN, 0.0)


def test_what_was_noted_before_the_topic_was_known_counts_once_it_is() -> None:
    refused = RetryOrder()
    refused.note(Unresolved("t", 1), FIRST, 0.0)
    refused.note(Unresolved("t", 1), SECOND, 0.0)
    assert refused.has_unresolved
    refused.resolve("other", [1], 1.0)
    assert not refused.is_early(1, SECOND, 1.0)
    refused.resolve("t", [8, 1], 1.0)
    assert not refused.has_unresolved
    assert refused.is_early(1, SECOND, 1.0)
    assert not refused.is_early(1, FIRST, 1.0)
    assert not refused.is_early(8, SECOND, 1.0)


def test_what_was_noted_while_the_topic_was_known_came_before() -> None:
    refused = retry_order()
    refused.note(Unresolved("t", 0), SECOND, 0.0)
    refused.resolve("t", [1], 1.0)
    assert refused.is_early(1, SECOND, 1.0)


def test_what_is_over_does_not_hide_what_came_after() -> None:
    refused = retry_order()
    later = REMEMBERED_FOR_S + 1
    refused.note(Unresolved("t", 0), SECOND, later)
    refused.resolve("t", [1], later)
    assert refused.is_early(1, FIRST, later)
    assert not refused.is_early(1, SECOND, later)


def test_of_partitions_never_known_nothing_is_kept() -> None:
    refused = RetryOrder()
    refused.note(Unresolved("gone", 3), FIRST, 0.0)
    refused.resolve("gone", [1], 1.0)
    assert len(refused) == 0
    for number in range(5_000):
        refused.note(Unresolved(number, 0), FIRST, number * REMEMBERED_FOR_S / 10)
    assert len(refused) < 1_100
    assert len(refused._unresolved) < 1_100


def test_another_history_forgets_everything() -> None:
    refused = retry_order()
    refused.forget_everything()
    assert not refused.must_wait(1, SECOND, BEFORE, 1.0)
