"""What ends a transaction, or forgets an id, though its producer has not asked for it."""

from __future__ import annotations

import pytest

from core.errors import Error
from core.transaction.coordinator import (
    MAX_PRODUCER_EPOCH,
    deadline,
    may_expire,
    prepare_expiry,
    prepare_timeout,
    transactional_id_refusal,
    verify_write,
)
from core.transaction.values import (
    Joining,
    Marker,
    TransactionState,
    TransactionVersion,
    Transition,
)
from tests.core.transaction.asked import (
    COMPLETE_ABORT,
    EPOCH,
    FENCED,
    FRESH,
    IDLE,
    ITS,
    LAST,
    MAPPING,
    NOBODY,
    NONE,
    NOW,
    ONGOING,
    OTHER,
    PID,
    STARTED,
    TIMEOUT_MS,
    V1,
    V2,
    assert_refused,
    assert_unchanged,
    begun_by_init,
    end,
    from_outside,
    init,
    producer,
    put_of,
    row,
)

# Timeout.


def test_only_an_open_transaction_has_a_deadline() -> None:
    for state in TransactionState:
        expected = STARTED + TIMEOUT_MS if state is ONGOING else None
        assert deadline(row(state)) == expected
        due = prepare_timeout(row(state), FRESH, STARTED + TIMEOUT_MS + 1)
        assert (due is not None) is (state is ONGOING)
    assert prepare_timeout(None, FRESH, NOW) is None
    assert prepare_timeout(row(ONGOING), FRESH, STARTED + TIMEOUT_MS) is None


def overdue(version: TransactionVersion, epoch: int = EPOCH) -> Transition:
    known = row(ONGOING, epoch, transaction_version=version)
    transition = prepare_timeout(known, FRESH, STARTED + TIMEOUT_MS + 1)
    assert transition is not None
    return transition


@pytest.mark.parametrize("version", [V1, V2])
def test_an_overdue_transaction_is_aborted_and_its_producer_fenced(
    version: TransactionVersion,
) -> None:
    transition = overdue(version)
    put = put_of(transition)
    assert transition.marker == Marker(PID, EPOCH + 1, False, 3)
    assert (put.state, put.producer_epoch, put.started_at) == (COMPLETE_ABORT, EPOCH + 1, -1)
    assert put.updated_at == STARTED + TIMEOUT_MS + 1
    written = verify_write(put, producer(), version, NOW, is_joined=True)
    assert written == Joining(Error.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize("version", [V1, V2])
def test_a_producer_that_was_overdue_recovers_with_the_epoch_it_had(
    version: TransactionVersion,
) -> None:
    put = put_of(overdue(version))
    recovered = init(put, producer(), timeout_ms=TIMEOUT_MS + 1)
    assert recovered.answer.producer == producer(EPOCH + 1)
    assert recovered.marker is None
    begun = put_of(recovered)
    assert begun == begun_by_init(put)
    assert_refused(end(begun, V1, commit=True, by=producer(EPOCH + 1)), ITS)
    # Unless another instance has begun meanwhile.
    fenced = put_of(init(put))
    assert_refused(init(fenced, producer()), FENCED)


def test_a_v1_producer_that_was_overdue_ends_nothing() -> None:
    put = put_of(overdue(V1))
    for commit in (True, False):
        assert_refused(end(put, V1, commit=commit), FENCED)


def test_a_v2_producer_that_was_overdue_learns_its_epoch_by_aborting() -> None:
    put = put_of(overdue(V2))
    assert_unchanged(end(put, V2, commit=False), producer(EPOCH + 1))
    assert_refused(end(put, V2, commit=True), FENCED)  # KAFKA-20785
    # Unless another instance has begun meanwhile.
    fenced = put_of(init(put))
    assert_refused(end(fenced, V2, commit=False), FENCED)


@pytest.mark.parametrize("version", [V1, V2])
def test_a_timeout_never_hands_out_the_epoch_that_is_kept_for_fencing(
    version: TransactionVersion,
) -> None:
    # KAFKA-20090: an abort that arrives after it would have been told epoch 32767.
    transition = overdue(version, LAST)
    put = put_of(transition)
    assert transition.marker == Marker(PID, MAX_PRODUCER_EPOCH, False, 3)
    assert (put.producer_id, put.producer_epoch, put.previous_producer_id) == (FRESH, 0, PID)
    answer = end(put, version, commit=False, by=producer(LAST)).answer
    if version is V2:
        assert answer.producer == producer(0, FRESH)
    else:
        assert answer.error is MAPPING


# WriteTxnMarkers from outside.


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_an_abort_of_a_part_aborts_the_whole(version: TransactionVersion, epoch: int) -> None:
    known = row(ONGOING, transaction_version=version)
    transition = from_outside(known, epoch=epoch)
    assert transition.answer.error is NONE
    assert transition.marker == Marker(PID, EPOCH + 1, False, 3)
    assert (put_of(transition).state, put_of(transition).producer_epoch) == (
        COMPLETE_ABORT,
        EPOCH + 1,
    )


def test_the_coordinator_epoch_of_a_marker_is_taken_over_where_it_is_newer() -> None:
    transition = from_outside(row(ONGOING), coordinator=9)
    assert transition.marker is not None
    assert transition.marker.coordinator_epoch == 9
    assert put_of(transition).coordinator_epoch == 9


def test_a_commit_of_a_part_is_refused() -> None:
    assert_refused(from_outside(row(ONGOING), commit=True), ITS)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_an_older_epoch_is_refused(commit: bool) -> None:
    for state in TransactionState:
        refused = from_outside(row(state), commit=commit, epoch=EPOCH - 1)
        assert_refused(refused, Error.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_for_nothing_changes_nothing(commit: bool) -> None:
    for state in TransactionState:
        if state is not ONGOING:
            assert_unchanged(from_outside(row(state), commit=commit), NOBODY)
    assert_unchanged(from_outside(row(ONGOING), commit=commit, joined=False), NOBODY)
    assert_unchanged(from_outside(row(ONGOING), commit=commit, producer_id=OTHER), NOBODY)
    assert_unchanged(from_outside(None, commit=commit), NOBODY)


# Expiry, ids.


@pytest.mark.parametrize("state", list(TransactionState), ids=lambda each: each.value)
def test_only_an_idle_id_expires(state: TransactionState) -> None:
    known = row(state)
    for now, is_late in ((STARTED + 99, False), (STARTED + 100, True)):
        expected = is_late and state in IDLE
        assert may_expire(known, now, 100) is expected
        transition = prepare_expiry(known, now, 100)
        assert (transition is not None) is expected
        if transition:
            assert (transition.is_deleted, transition.put, transition.marker) == (True, None, None)
    assert prepare_expiry(None, NOW, 0) is None


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [("orders", Error.NONE), ("", Error.INVALID_REQUEST), ("a\0b", Error.INVALID_REQUEST)],
)
def test_ids_that_are_none(transactional_id: str, error: Error) -> None:
    assert transactional_id_refusal(transactional_id) is error
