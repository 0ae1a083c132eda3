"""Drafts, replay, and what memory takes over from reads of the store."""

import dataclasses

import pytest

from core.errors import Error
from core.log import partition_log
from core.log.aborted_txns import AbortedIndex, AbortedTransaction
from core.log.effects import LogEffects, OpenTransaction
from core.log.named_sequences import NamedSequence, SequencedBatch
from core.log.partition_log import (
    FENCED,
    TERMINATED,
    Appended,
    Duplicate,
    LogDraft,
    PartitionLog,
    PartitionState,
    Refused,
)
from core.log.producer_state import ProducerState
from core.transaction.values import Marker
from core.types import RecordBatch
from tests.batches import T0, batch, control_batch, incoming

P = 7


def of(producer: int, sequence: int, records: int = 1, epoch: int = 0) -> RecordBatch:
    return batch(records, producer=producer, epoch=epoch, sequence=sequence)


def log_at(next_offset: int = 0, **fields: int) -> PartitionLog:
    return PartitionLog(PartitionState(P, next_offset, **fields))


def effects_of(draft: LogDraft) -> LogEffects:
    effects = draft.effects()
    assert effects is not None
    return effects


def test_the_last_offsets_there_are() -> None:
    draft = log_at(2**63 - 3).draft()
    assert isinstance(draft.prepare_append(incoming(batch(3))), Refused)
    assert draft.prepare_append(incoming(batch(2))) == Appended(2**63 - 3)
    assert draft.prepare_append(incoming(batch(1))) == Refused(
        Error.INVALID_RECORD, "the partition has no offsets left"
    )
    assert effects_of(draft).next_offset == 2**63 - 1


def test_of_an_earlier_topic_epoch_nothing_enters() -> None:
    log = log_at(50)
    log.raise_topic_epoch(4)
    draft = log.draft()
    assert draft.prepare_append(incoming(batch(1)), topic_epoch=3) == FENCED
    assert draft.prepare_append(incoming(batch(1)), topic_epoch=4) == Appended(50)
    assert draft.prepare_append(incoming(batch(1)), topic_epoch=5) == Appended(51)
    assert draft.prepare_append(incoming(batch(1))) == Appended(52)
    assert effects_of(draft).topic_epoch == 4
    log.replay(effects_of(draft))
    assert (log.state.next_offset, log.state.topic_epoch) == (53, 4)
    # A read from before may come later; an epoch never falls.
    log.advance(PartitionState(P, 53, topic_epoch=3))
    log.raise_topic_epoch(2)
    assert log.state.topic_epoch == 4


def test_a_terminated_log_takes_markers_and_no_records() -> None:
    log = log_at(50)
    log.load(log.state, {1: None, 2: None})
    first = log.draft()
    first.prepare_append(incoming(of(1, 0)))
    log.replay(effects_of(first))
    assert effects_of(first).terminated_offset == -1
    log.advance(PartitionState(P, 51, terminated_offset=51))
    draft = log.draft()
    assert draft.prepare_append(incoming(batch(1))) == TERMINATED
    assert draft.prepare_append(incoming(of(1, 1))) == TERMINATED
    assert draft.prepare_append(incoming(of(2, 0))) == TERMINATED
    assert draft.prepare_append(incoming(of(1, 0))) == Duplicate(50, T0)  # it is in the log
    assert draft.effects() is None
    marker = Marker(1, 0, is_commit=True, coordinator_epoch=0)
    assert draft.prepare_marker(marker, incoming(control_batch(marker))) == Appended(51)
    assert effects_of(draft).terminated_offset == 51
    log.replay(effects_of(draft))
    assert (log.state.next_offset, log.state.terminated_offset) == (52, 51)
    # A read from before may come later; nothing takes a termination back.
    log.advance(PartitionState(P, 52))
    assert log.state.is_terminated
    assert log.draft().prepare_append(incoming(batch(1))) == TERMINATED


def test_offsets_follow_each_other_within_a_draft() -> None:
    draft = log_at(50, max_timestamp=T0 + 5).draft()
    stamps = (T0, T0 + 9, T0 + 7)
    decided = [
        draft.prepare_append(incoming(batch(n, timestamp=stamp, size=10 * n), n))
        for n, stamp in zip((3, 1, 2), stamps, strict=True)
    ]
    assert decided == [Appended(50), Appended(53), Appended(54)]
    effects = effects_of(draft)
    assert (effects.partition_id, effects.expected_offset, effects.next_offset) == (P, 50, 56)
    assert (effects.max_timestamp, effects.added_bytes) == (T0 + 9, 60)
    assert [(row.base_offset, row.last_offset) for row in effects.rows] == [
        (50, 52),
        (53, 53),
        (54, 55),
    ]
    # The running maximum never falls, and counts what lay there before.
    assert [row.running_max_timestamp for row in effects.rows] == [T0 + 5, T0 + 9, T0 + 9]
    assert effects.producers == ()


def test_deciding_changes_nothing_until_it_is_replayed() -> None:
    log = log_at(5)
    log.load(log.state, {1: None})
    before = log.state
    draft = log.draft()
    draft.prepare_append(incoming(of(1, 0)))
    assert log.state is before
    assert log.draft().prepare_append(incoming(of(1, 0))) == Appended(5)
    log.replay(effects_of(draft))
    assert log.state.next_offset == 6
    assert log.draft().prepare_append(incoming(of(1, 0))) == Duplicate(5, T0)


def test_two_batches_of_one_producer_in_one_draft() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    assert draft.prepare_append(incoming(of(1, 0, records=2))) == Appended(0)
    assert draft.prepare_append(incoming(of(1, 2))) == Appended(2)
    assert draft.prepare_append(incoming(of(1, 0, records=2))) == Duplicate(0, T0)
    refused = draft.prepare_append(incoming(of(1, 9)))
    assert isinstance(refused, Refused)
    assert refused.error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    effects = effects_of(draft)
    assert len(effects.rows) == 2
    (state,) = effects.producers  # each producer once, with its whole state
    assert (state.last_sequence, len(state.batches)) == (2, 2)


def test_a_draft_that_appends_nothing_has_no_effects() -> None:
    log = log_at()
    log.load(log.state, {1: ProducerState(1).replay_append(of(1, 0), 0)})
    draft = log.draft()
    assert draft.prepare_append(incoming(of(1, 0))) == Duplicate(0, T0)
    assert isinstance(draft.prepare_append(incoming(of(1, 5))), Refused)
    assert draft.effects() is None


def test_a_producer_that_was_not_loaded_is_a_bug() -> None:
    with pytest.raises(KeyError):
        log_at().draft().prepare_append(incoming(of(1, 0)))


@pytest.mark.parametrize("producer_id", [-1, -2, -(2**63)])
def test_negative_producer_ids_are_no_producers(producer_id: int) -> None:
    # RecordBatch.hasProducerId: only ids greater than -1 are anybody's.
    log = log_at()
    strange = of(producer_id, 5)
    assert log.missing_producers([producer_id]) == set()
    draft = log.draft()
    assert draft.prepare_append(incoming(strange)) == Appended(0)
    assert draft.prepare_append(incoming(strange)) == Appended(1)
    assert effects_of(draft).producers == ()


def test_only_unknown_producers_have_to_be_loaded() -> None:
    log = log_at()
    assert log.missing_producers([1, 2, -1, 1]) == {1, 2}
    log.load(log.state, {1: None})
    assert log.missing_producers([1, 2, -1]) == {2}


def test_effects_of_another_version_are_not_replayed() -> None:
    log = log_at(5)
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(of(1, 0)))
    log.advance(PartitionState(P, 9))
    log.replay(effects_of(draft))
    assert log.state.next_offset == 9
    assert log.missing_producers([1]) == {1}


def test_a_partition_that_moved_on_forgets_its_producers() -> None:
    log = log_at(5)
    log.load(log.state, {1: None, 2: None})
    log.load(PartitionState(P, 6), {2: None})
    assert log.missing_producers([1, 2]) == {1}


def test_a_read_of_the_same_version_adds_producers() -> None:
    log = log_at(5)
    log.load(log.state, {1: None})
    log.load(PartitionState(P, 5), {2: None})
    assert log.missing_producers([1, 2]) == set()


def test_an_older_read_is_ignored() -> None:
    log = log_at(5, log_start_offset=2, max_timestamp=T0)
    before = log.state
    log.load(PartitionState(P, 4, 3), {1: None})
    assert log.state == before
    assert log.missing_producers([1]) == {1}


def test_an_older_read_of_the_same_version_moves_nothing_back() -> None:
    # DeleteRecords and a new history move these without moving next_offset.
    log = log_at(5, log_start_offset=3, leader_epoch=2)
    log.advance(PartitionState(P, 5, 1, 1))
    assert (log.state.log_start_offset, log.state.leader_epoch) == (3, 2)
    log.advance(PartitionState(P, 5, 4, 3))
    assert (log.state.log_start_offset, log.state.leader_epoch) == (4, 3)


def test_replay_keeps_what_readers_have_learnt_meanwhile() -> None:
    log = log_at(5)
    draft = log.draft()
    draft.prepare_append(incoming(batch(timestamp=T0)))
    log.advance(PartitionState(P, 5, 4, 1))
    log.replay(effects_of(draft))
    assert log.state == PartitionState(P, 6, 4, 1, T0)


def test_states_are_replaced_never_changed() -> None:
    log = log_at(5)
    before = dataclasses.replace(log.state)
    held = log.state
    draft = log.draft()
    draft.prepare_append(incoming(batch()))
    log.replay(effects_of(draft))
    assert held == before
    assert log.state is not held
    assert (log.state.high_watermark, log.state.last_stable_offset) == (6, 6)


def test_the_producers_unheard_of_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_log, "PRODUCERS_IN_MEMORY", 3)
    log = log_at()
    for producer in (1, 2, 3, 1, 4):
        log.load(log.state, dict.fromkeys(log.missing_producers([producer])))
        draft = log.draft()
        sequence = 1 if producer == 1 and log.state.next_offset else 0
        assert isinstance(draft.prepare_append(incoming(of(producer, sequence))), Appended)
        log.replay(effects_of(draft))
    log.trim()
    assert log.missing_producers([1, 2, 3, 4]) == {2}


# Transactions.


def in_txn(producer: int, sequence: int, records: int = 1, epoch: int = 0) -> RecordBatch:
    return batch(records, producer=producer, epoch=epoch, sequence=sequence, transactional=True)


def end(draft: LogDraft, producer: int, *, is_commit: bool, epoch: int = 0) -> Appended:
    marker = Marker(producer, epoch, is_commit, 0)
    return draft.prepare_marker(marker, incoming(control_batch(marker)))


def replayed(log: PartitionLog, draft: LogDraft) -> PartitionLog:
    log.replay(effects_of(draft))
    return log


def test_the_last_stable_offset_is_the_first_record_of_the_oldest_open_transaction() -> None:
    log = log_at(10)
    log.load(log.state, {1: None, 2: None})
    draft = log.draft()
    draft.prepare_append(incoming(batch(5)))
    draft.prepare_append(incoming(in_txn(1, 0, records=3)))
    draft.prepare_append(incoming(in_txn(2, 0)))
    draft.prepare_append(incoming(in_txn(1, 3)))
    effects = effects_of(draft)
    assert effects.open_transactions == (OpenTransaction(1, 15), OpenTransaction(2, 18))
    assert log.state.last_stable_offset == 10  # nothing is true before it is committed
    log.replay(effects)
    assert (log.state.last_stable_offset, log.state.high_watermark) == (15, 20)

    # The older one ends; plain records behind the other are still held back.
    draft = log.draft()
    assert end(draft, 1, is_commit=True) == Appended(20)
    draft.prepare_append(incoming(batch(4)))
    replayed(log, draft)
    assert (log.state.last_stable_offset, log.state.high_watermark) == (18, 25)

    draft = log.draft()
    assert end(draft, 2, is_commit=False) == Appended(25)
    replayed(log, draft)
    assert (log.state.last_stable_offset, log.state.high_watermark) == (26, 26)
    assert log.aborted.transactions == (AbortedTransaction(2, 18, 25),)


def test_the_last_stable_offset_does_not_depend_on_the_order_they_are_read_in() -> None:
    state = PartitionState(P, 30, open_transactions=(OpenTransaction(5, 20), OpenTransaction(4, 9)))
    assert state.last_stable_offset == 9


def test_the_last_stable_offset_is_never_below_the_log_start() -> None:
    state = PartitionState(P, 30, 12, open_transactions=(OpenTransaction(4, 9),))
    assert state.last_stable_offset == 12


def test_a_transaction_that_begins_and_ends_in_one_draft() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, 0, records=2)))
    end(draft, 1, is_commit=False, epoch=1)
    assert draft.prepare_append(incoming(in_txn(1, 0, epoch=1))) == Appended(3)
    effects = effects_of(draft)
    assert effects.aborted == (AbortedTransaction(1, 0, 2),)
    assert effects.open_transactions == (OpenTransaction(1, 3),)
    (producer,) = effects.producers
    assert (producer.producer_epoch, producer.txn_first_offset) == (1, 3)
    assert [row.incoming.batch.is_control for row in effects.rows] == [False, True, False]


def test_a_committed_transaction_and_one_that_wrote_nothing_are_not_in_the_index() -> None:
    log = log_at()
    log.load(log.state, {1: None, 2: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, 0)))
    end(draft, 1, is_commit=True)
    assert end(draft, 2, is_commit=False) == Appended(2)
    effects = effects_of(draft)
    assert (effects.aborted, effects.open_transactions) == ((), ())
    assert effects.next_offset == 3
    assert {each.producer_id for each in effects.producers} == {1, 2}


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_the_last_marker_of_a_producer_has_it_forgotten(
    *, is_commit: bool, is_at_once: bool
) -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, -1)))
    if not is_at_once:
        log.replay(effects_of(draft))
        assert log.state.open_transactions == (OpenTransaction(1, 0),)
        draft = log.draft()
    marker = Marker(1, 0, is_commit, 0, is_last=True)
    draft.prepare_marker(marker, incoming(control_batch(marker)))
    effects = effects_of(draft)
    assert (effects.producers, effects.forgotten) == ((), (1,))
    assert effects.aborted == (() if is_commit else (AbortedTransaction(1, 0, 1),))
    log.replay(effects)
    assert log.state.open_transactions == ()
    assert log.missing_producers([1]) == {1}


def test_an_unknown_producers_v2_transaction_is_refused_from_the_middle_on() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    middle = incoming(in_txn(1, 5))
    refused = log.draft().prepare_append(middle, starts_at_zero=True)
    assert isinstance(refused, Refused)
    assert refused.error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.draft().prepare_append(middle) == Appended(0)  # V1, unless the caller says otherwise


def test_a_markers_timestamp_becomes_its_producers_last() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    marker = Marker(1, 0, True, 0)
    draft.prepare_marker(marker, incoming(control_batch(marker, timestamp=T0 + 9)))
    (producer,) = effects_of(draft).producers
    assert producer.last_timestamp == T0 + 9


def test_a_draft_does_not_see_other_drafts_transactions() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    first, second = log.draft(), log.draft()
    first.prepare_append(incoming(in_txn(1, 0)))
    second.prepare_append(incoming(batch()))
    assert effects_of(second).open_transactions == ()


def test_a_draft_of_duplicates_leaves_open_what_is_open() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, 0)))
    replayed(log, draft)
    draft = log.draft()
    assert draft.prepare_append(incoming(in_txn(1, 0))) == Duplicate(0, T0)
    assert draft.effects() is None
    draft.prepare_append(incoming(batch()))
    assert replayed(log, draft).state.last_stable_offset == 0


def test_a_partition_that_moved_on_takes_over_what_is_open_and_forgets_the_aborted() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, 0)))
    end(draft, 1, is_commit=False)
    replayed(log, draft)
    assert log.aborted.overlapping(0, 2) == [AbortedTransaction(1, 0, 1)]
    opened = (OpenTransaction(9, 4),)
    log.advance(PartitionState(P, 6, open_transactions=opened))
    assert (log.state.open_transactions, log.state.last_stable_offset) == (opened, 4)
    # Somebody else's markers may lie in between.
    assert log.aborted == AbortedIndex(known_from=6)


def test_effects_of_another_version_abort_nothing_in_memory() -> None:
    log = log_at()
    log.load(log.state, {1: None})
    draft = log.draft()
    draft.prepare_append(incoming(in_txn(1, 0)))
    end(draft, 1, is_commit=False)
    log.advance(PartitionState(P, 2))
    log.replay(effects_of(draft))
    assert log.aborted == AbortedIndex(known_from=2)


# Producers by name.


def named(highest: int, claim: int = 1) -> NamedSequence:
    return NamedSequence("p", highest, claim=claim)


def sent(sequence_id: int, claim: int = 1) -> SequencedBatch:
    return SequencedBatch("p", sequence_id, claim=claim)


def log_that_knows(highest: int, next_offset: int = 50) -> PartitionLog:
    log = log_at(next_offset)
    log.load(log.state, {}, {"p": named(highest)})
    return log


def test_a_named_producers_batches_are_stored_once() -> None:
    log = log_that_knows(5)
    draft = log.draft()
    decided = [draft.prepare_append(incoming(batch(2)), sequenced=sent(n)) for n in (5, 6, 6, 9)]
    assert decided == [Duplicate(), Appended(50), Duplicate(), Appended(52)]
    late = draft.prepare_append(incoming(batch(2)), sequenced=sent(10, claim=7))
    assert isinstance(late, Refused)
    assert late.error is Error.PRODUCER_FENCED
    effects = effects_of(draft)
    assert (effects.names, effects.next_offset) == ((named(9),), 54)
    log.replay(effects)
    assert log.draft().find_sequenced(sent(9)) == Duplicate()


def test_a_draft_of_named_duplicates_has_no_effects() -> None:
    draft = log_that_knows(5).draft()
    assert draft.prepare_append(incoming(batch()), sequenced=sent(5)) == Duplicate()
    assert draft.effects() is None


def test_a_refused_batch_does_not_count_under_its_name() -> None:
    log = log_that_knows(5, next_offset=2**63 - 2)
    draft = log.draft()
    assert isinstance(draft.prepare_append(incoming(batch(9)), sequenced=sent(6)), Refused)
    assert draft.prepare_append(incoming(batch(1)), sequenced=sent(6)) == Appended(2**63 - 2)


def test_names_are_forgotten_with_the_version_or_a_claim() -> None:
    log = log_that_knows(5)
    assert (log.is_name_missing("p"), log.is_name_missing("q")) == (False, True)
    log.advance(PartitionState(P, 51))
    assert log.is_name_missing("p")
    log = log_that_knows(5)
    log.forget_name("p")
    log.forget_name("q")
    assert log.is_name_missing("p")


def test_the_names_unheard_of_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "PRODUCERS_IN_MEMORY", 2)
    log = log_at()
    log.load(log.state, {}, {name: NamedSequence(name) for name in ("a", "p", "b")})
    draft = log.draft()
    draft.prepare_append(incoming(batch()), sequenced=SequencedBatch("a", 1))
    log.replay(effects_of(draft))
    log.trim()
    assert [log.is_name_missing(name) for name in ("a", "p", "b")] == [False, True, False]
