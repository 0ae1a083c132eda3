"""Sequences, epochs and duplicates of one producer on one partition.

Held to Kafka's ProducerAppendInfo (checkProducerEpoch, checkSequence) and ProducerStateEntry.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Error
from core.log.producer_state import (
    BATCHES_TO_RETAIN,
    MAX_SEQUENCE,
    ProducerState,
    next_sequence,
    previous_sequence,
)
from core.transaction.values import Marker
from core.types import RecordBatch
from tests.batches import T0, batch

PRODUCER = 1000


def of(sequence: int, records: int = 1, epoch: int = 0, timestamp: int = T0) -> RecordBatch:
    return batch(records, producer=PRODUCER, epoch=epoch, sequence=sequence, timestamp=timestamp)


def after(*batches: RecordBatch, state: ProducerState | None = None) -> ProducerState:
    """The state once the batches lie in the log, one after the other, from offset 100 on."""
    state = state or ProducerState(PRODUCER)
    offset = 100
    for each in batches:
        assert state.refusal(each) is None
        state = state.replay_append(each, offset)
        offset += each.record_count
    return state


def refused(state: ProducerState, each: RecordBatch) -> Error | None:
    refusal = state.refusal(each)
    return refusal[0] if refusal else None


@pytest.mark.parametrize("sequence", [0, 1, 77, MAX_SEQUENCE])
@pytest.mark.parametrize("epoch", [0, 5, 32767])
def test_unknown_producer_may_start_at_any_sequence(sequence: int, epoch: int) -> None:
    assert refused(ProducerState(PRODUCER), of(sequence, epoch=epoch)) is None


def test_next_batch_follows_the_last_sequence() -> None:
    state = after(of(0, records=10))
    assert state.last_sequence == 9
    assert refused(state, of(10)) is None
    for wrong in (0, 1, 8, 9, 11, MAX_SEQUENCE):
        assert refused(state, of(wrong)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_older_epoch_is_refused_whatever_its_sequence() -> None:
    state = after(of(0, epoch=3))
    for sequence in (0, 1, 5):
        assert refused(state, of(sequence, epoch=2)) is Error.INVALID_PRODUCER_EPOCH
        assert refused(state, of(sequence, epoch=-1)) is Error.INVALID_PRODUCER_EPOCH


def test_new_epoch_starts_at_zero_and_forgets_the_old_batches() -> None:
    state = after(of(0, epoch=3), of(1, epoch=3))
    assert refused(state, of(2, epoch=4)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, of(1, epoch=4)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, of(0, epoch=4)) is None
    risen = state.replay_append(of(0, epoch=4), 200)
    assert risen.producer_epoch == 4
    assert len(risen.batches) == 1
    assert risen.find_duplicate(of(0, epoch=3)) is None
    assert refused(risen, of(2, epoch=3)) is Error.INVALID_PRODUCER_EPOCH
    assert risen.find_duplicate(of(0, epoch=4)) is not None


def test_an_epoch_without_batches_goes_on_at_zero() -> None:
    # As after a marker, which raises the epoch and clears the batches (ProducerStateEntry.update).
    state = ProducerState(PRODUCER, producer_epoch=2)
    assert refused(state, of(0, epoch=2)) is None
    assert refused(state, of(1, epoch=2)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, of(0, epoch=1)) is Error.INVALID_PRODUCER_EPOCH
    assert state.last_sequence == -1


def test_the_last_five_batches_are_known_again_by_their_first_offset() -> None:
    batches = [of(sequence, records=3) for sequence in range(0, 21, 3)]
    state = after(*batches)
    assert len(state.batches) == BATCHES_TO_RETAIN == 5
    for index, each in enumerate(batches):
        known = state.find_duplicate(each)
        if index < len(batches) - 5:
            assert known is None
            assert refused(state, each) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            assert known is not None
            assert (known.base_offset, known.last_offset) == (100 + 3 * index, 102 + 3 * index)
            assert known.base_sequence == each.base_sequence


def test_a_batch_that_overlaps_a_known_one_in_part_is_no_duplicate() -> None:
    state = after(of(0, records=5), of(5, records=5))
    for partly in (of(5, records=4), of(5, records=6), of(6, records=4), of(3, records=7), of(4)):
        assert state.find_duplicate(partly) is None
        assert refused(state, partly) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    # Two known batches sent as one are not known either.
    assert state.find_duplicate(of(0, records=10)) is None


def test_a_duplicate_is_told_with_the_timestamp_it_was_stored_with() -> None:
    state = after(of(0, timestamp=5), of(1, timestamp=3))
    known = state.find_duplicate(of(0, timestamp=99))
    assert known is not None
    assert known.timestamp == 5
    assert state.last_timestamp == 3


@pytest.mark.parametrize(
    ("base", "records", "expected"),
    [
        (MAX_SEQUENCE, 1, 0),
        (MAX_SEQUENCE - 4, 5, 0),
        (MAX_SEQUENCE - 4, 10, 5),
        (MAX_SEQUENCE - 4, 4, MAX_SEQUENCE),
    ],
)
def test_sequences_wrap_after_two_to_the_31(base: int, records: int, expected: int) -> None:
    state = after(of(base, records=records))
    assert refused(state, of(expected)) is None
    assert refused(state, of((expected + 1) % 2**31)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    known = state.find_duplicate(of(base, records=records))
    assert known is not None
    assert (known.base_sequence, known.base_offset) == (base, 100)
    # The one after the wrap must not be taken for one before it.
    assert state.find_duplicate(of(expected, records=records)) is None


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))
def test_sequences_go_round_and_come_back(sequence: int, by: int) -> None:
    # DefaultRecordBatch.incrementSequence and decrementSequence, written as Kafka writes them.
    up = by - (MAX_SEQUENCE - sequence) - 1 if sequence > MAX_SEQUENCE - by else sequence + by
    down = MAX_SEQUENCE - (by - sequence) + 1 if sequence < by else sequence - by
    assert next_sequence(sequence, by) == up
    assert previous_sequence(sequence, by) == down
    assert previous_sequence(next_sequence(sequence, by), by) == sequence


# Transactions (ProducerAppendInfo.appendDataBatch and appendEndTxnMarker).


def in_txn(sequence: int, records: int = 1, epoch: int = 0) -> RecordBatch:
    return batch(records, producer=PRODUCER, epoch=epoch, sequence=sequence, transactional=True)


def marker(epoch: int = 0, *, is_commit: bool = True, coordinator_epoch: int = 0) -> Marker:
    return Marker(PRODUCER, epoch, is_commit, coordinator_epoch)


def test_the_first_transactional_batch_opens_the_transaction() -> None:
    state = after(of(0))
    assert state.txn_first_offset is None
    state = state.replay_append(in_txn(1, records=2), 200)
    state = state.replay_append(in_txn(3), 300)
    assert state.txn_first_offset == 200
    ended = state.replay_marker(marker(), T0 + 7)
    assert (ended.txn_first_offset, ended.last_timestamp) == (None, T0 + 7)
    assert ended.replay_append(in_txn(4), 400).txn_first_offset == 400


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_plain_batch_in_an_open_transaction_is_refused(epoch: int) -> None:
    state = after(in_txn(0))
    assert refused(state, of(0 if epoch else 1, epoch=epoch)) is Error.INVALID_TXN_STATE
    # What Kafka looks at first.
    assert refused(state, of(9)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, of(0, epoch=-1)) is Error.INVALID_PRODUCER_EPOCH
    assert state.find_duplicate(of(0)) is not None
    assert refused(state.replay_marker(marker(), T0), of(1)) is None


def test_a_marker_of_the_same_epoch_keeps_the_batches() -> None:
    state = after(in_txn(0), in_txn(1)).replay_marker(marker(), T0)
    assert state.find_duplicate(in_txn(0)) is not None
    assert refused(state, in_txn(2)) is None
    assert refused(state, in_txn(0)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_of_a_higher_epoch_forgets_them_and_sequences_restart() -> None:
    state = after(in_txn(0), in_txn(1)).replay_marker(marker(epoch=1), T0)
    assert (state.producer_epoch, state.batches) == (1, ())
    assert state.find_duplicate(in_txn(0)) is None
    assert refused(state, in_txn(2)) is Error.INVALID_PRODUCER_EPOCH
    assert refused(state, in_txn(2, epoch=1)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, in_txn(0, epoch=1)) is None


def test_a_marker_is_remembered_of_a_producer_that_has_not_written() -> None:
    state = ProducerState(PRODUCER).replay_marker(marker(epoch=4, coordinator_epoch=2), T0)
    assert state == ProducerState(PRODUCER, 4, T0, (), None, 2)
    assert refused(state, in_txn(0, epoch=4)) is None
    assert refused(state, in_txn(5, epoch=4)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, in_txn(0, epoch=3)) is Error.INVALID_PRODUCER_EPOCH


def test_markers_from_outside_are_held_to_both_epochs() -> None:
    def refusal(of_marker: Marker) -> Error | None:
        found = state.marker_refusal(of_marker)
        return found[0] if found else None

    state = after(in_txn(0, epoch=3)).replay_marker(marker(epoch=3, coordinator_epoch=5), T0)
    assert refusal(marker(epoch=2, coordinator_epoch=9)) is Error.INVALID_PRODUCER_EPOCH
    assert refusal(marker(epoch=3, coordinator_epoch=4)) is Error.TRANSACTION_COORDINATOR_FENCED
    assert refusal(marker(epoch=3, coordinator_epoch=5)) is None
    assert refusal(marker(epoch=4, coordinator_epoch=6)) is None
    # Before the first marker nobody's coordinator epoch is too old.
    state = after(in_txn(0, epoch=3))
    assert refusal(marker(epoch=3, coordinator_epoch=0)) is None


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(3, Error.INVALID_PRODUCER_EPOCH), (4, None), (5, None)],
)
def test_a_v2_marker_from_outside_has_the_epoch_after_the_known_one(
    epoch: int, expected: Error | None
) -> None:
    state = after(in_txn(0, epoch=3))
    refusal = state.marker_refusal(marker(epoch=epoch), raises_epoch=True)
    assert (refusal[0] if refusal else None) is expected
    assert state.marker_refusal(marker(epoch=3)) is None  # V1, unless the caller says otherwise


def test_no_marker_takes_an_epoch_back() -> None:
    state = ProducerState(PRODUCER, 5, coordinator_epoch=7)
    state = state.replay_marker(marker(epoch=4, coordinator_epoch=6), T0)
    assert (state.producer_epoch, state.coordinator_epoch) == (5, 7)


def test_a_batch_keeps_what_is_known_of_the_coordinator() -> None:
    state = ProducerState(PRODUCER).replay_marker(marker(coordinator_epoch=3), T0)
    assert state.replay_append(in_txn(0), 10).coordinator_epoch == 3


class KafkaEntry:
    """Kafka's rules once more, in Kafka's own terms, to compare with."""

    def __init__(self) -> None:
        self.epoch = -1
        self.batches: list[tuple[int, int, int]] = []  # first and last sequence, first offset

    def append(self, epoch: int, first: int, records: int, offset: int) -> object:
        last = (first + records - 1) % 2**31
        if epoch == self.epoch:
            for known_first, known_last, known_offset in self.batches:
                if (known_first, known_last) == (first, last):
                    return known_offset
        if epoch < self.epoch:
            return Error.INVALID_PRODUCER_EPOCH
        if epoch != self.epoch:
            if first != 0 and self.epoch != -1:
                return Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif self.epoch != -1:
            current = self.batches[-1][1] if self.batches else -1
            if not (first == current + 1 or (first == 0 and current == MAX_SEQUENCE)):
                return Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch
        self.batches = [*self.batches, (first, last, offset)][-5:]
        return None


NEAR = st.sampled_from([0, 1, 2, 3, 4, 5, MAX_SEQUENCE - 2, MAX_SEQUENCE - 1, MAX_SEQUENCE])


@given(st.lists(st.tuples(st.integers(0, 2), NEAR, st.integers(1, 3)), max_size=30), st.booleans())
def test_decides_as_kafka_decides(
    sends: list[tuple[int, int, int]], follow_where_possible: bool
) -> None:
    kafka, state, offset = KafkaEntry(), ProducerState(PRODUCER), 0
    for epoch, sequence, records in sends:
        if follow_where_possible and kafka.batches and epoch == 0:
            epoch, sequence = kafka.epoch, (kafka.batches[-1][1] + 1) % 2**31
        each = of(sequence, records=records, epoch=epoch)
        expected = kafka.append(epoch, sequence, records, offset)
        duplicate = state.find_duplicate(each)
        if duplicate:
            assert expected == duplicate.base_offset
            continue
        assert refused(state, each) is expected
        if expected is None:
            state = state.replay_append(each, offset)
            offset += records


@pytest.mark.parametrize("sequence", [0, 1, 7])
def test_a_v2_transaction_begins_at_0_where_nothing_is_known(sequence: int) -> None:
    """Kafka: ProducerAppendInfo.checkSequence, where the epoch rises with each transaction."""
    unknown = ProducerState(5)
    of = batch(producer=5, epoch=3, sequence=sequence, transactional=True)
    refused = unknown.refusal(of, starts_at_zero=True)
    assert (refused is None) == (sequence == 0)
    if refused:
        assert refused[0] is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert unknown.refusal(of) is None
    plain = batch(producer=5, epoch=3, sequence=sequence)
    assert unknown.refusal(plain, starts_at_zero=True) is None


def test_batches_without_a_sequence_follow_each_other_as_they_come() -> None:
    """Of a producer that another protocol has (Pulsar's transactions): none is a duplicate, none is
    remembered, and the first opens the transaction."""
    state = ProducerState(5)
    of = batch(producer=5, epoch=0, sequence=-1, transactional=True)
    for offset in (10, 11, 12):
        assert state.find_duplicate(of) is None
        assert state.refusal(of) is None
        assert state.refusal(of, starts_at_zero=True) is None
        state = state.replay_append(of, offset)
    assert (state.batches, state.txn_first_offset, state.producer_epoch) == ((), 10, 0)
    later = ProducerState(5, producer_epoch=1)
    refused = later.refusal(of)
    assert refused is not None
    assert refused[0] is Error.INVALID_PRODUCER_EPOCH
