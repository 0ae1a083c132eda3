"""EndTxn of both versions in every state, held to the tables in Kafka's TransactionCoordinator."""

from __future__ import annotations

from itertools import product

import pytest

from core.errors import Error
from core.transaction.coordinator import (
    prepare_join,
    verify_write,
)
from core.transaction.values import (
    Joining,
    Marker,
    TransactionState,
    TransactionVersion,
)
from tests.core.transaction.asked import (
    BUSY,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EPOCH,
    FENCE,
    FENCED,
    IDLE,
    ITS,
    MAPPING,
    NONE,
    NOW,
    ONGOING,
    OTHER,
    PID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    V1,
    V2,
    assert_refused,
    assert_unchanged,
    end,
    init,
    producer,
    put_of,
    row,
)

# EndTxn. The tables of TransactionCoordinator.endTransaction: what a client is told, by state.

# State: commit, abort; with the current epoch.
V1_END = {
    EMPTY: (ITS, NONE),  # Kafka: (ITS, ITS), see _repeated_end
    ONGOING: (NONE, NONE),
    PREPARE_COMMIT: (BUSY, ITS),
    PREPARE_ABORT: (ITS, BUSY),
    COMPLETE_COMMIT: (NONE, ITS),
    COMPLETE_ABORT: (ITS, NONE),
    DEAD: (MAPPING, MAPPING),
    FENCE: (ITS, BUSY),
}
# State: commit, abort; commit and abort with the epoch before the bump.
V2_END = {
    EMPTY: (ITS, NONE, FENCED, FENCED),
    ONGOING: (NONE, NONE, FENCED, FENCED),
    PREPARE_COMMIT: (FENCED, FENCED, BUSY, ITS),
    PREPARE_ABORT: (FENCED, FENCED, ITS, BUSY),
    COMPLETE_COMMIT: (ITS, NONE, NONE, ITS),
    COMPLETE_ABORT: (ITS, NONE, FENCED, NONE),
    DEAD: (MAPPING, MAPPING, MAPPING, MAPPING),
    FENCE: (FENCED, FENCED, ITS, BUSY),
}


@pytest.mark.parametrize("state", list(TransactionState), ids=lambda each: each.value)
def test_v1_end_in_every_state(state: TransactionState) -> None:
    for commit, expected in zip((True, False), V1_END[state], strict=True):
        known = row(state, last_producer_epoch=EPOCH - 1)
        assert end(known, V1, commit=commit).answer.error is expected
        for epoch in (EPOCH - 1, EPOCH + 1):  # no retry across epochs in V1
            wrong = MAPPING if state is DEAD else FENCED
            assert_refused(end(known, V1, commit=commit, by=producer(epoch)), wrong)
        assert_refused(end(known, V1, commit=commit, by=producer(EPOCH, OTHER)), MAPPING)


@pytest.mark.parametrize("state", list(TransactionState), ids=lambda each: each.value)
def test_v2_end_in_every_state(state: TransactionState) -> None:
    known = row(state, last_producer_epoch=EPOCH - 1)
    calls = [(EPOCH, True), (EPOCH, False), (EPOCH - 1, True), (EPOCH - 1, False)]
    for (epoch, commit), expected in zip(calls, V2_END[state], strict=True):
        assert end(known, V2, commit=commit, by=producer(epoch)).answer.error is expected
    for epoch, commit in product((EPOCH - 2, EPOCH + 1), (True, False)):
        wrong = MAPPING if state is DEAD else FENCED
        assert_refused(end(known, V2, commit=commit, by=producer(epoch)), wrong)
        assert_refused(end(known, V2, commit=commit, by=producer(EPOCH, OTHER)), MAPPING)


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("commit", [True, False])
def test_an_unknown_id_cannot_end(version: TransactionVersion, commit: bool) -> None:
    assert_refused(end(None, version, commit=commit), MAPPING)


@pytest.mark.parametrize("commit", [True, False])
def test_v1_ends_with_the_same_epoch(commit: bool) -> None:
    transition = end(row(ONGOING, last_producer_epoch=2), V1, commit=commit)
    put = put_of(transition)
    assert transition.marker == Marker(PID, EPOCH, commit, 3)
    assert transition.answer.producer == producer()
    assert put.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert (put.producer_epoch, put.last_producer_epoch) == (EPOCH, 2)
    assert (put.started_at, put.updated_at, put.version) == (-1, NOW, 41)
    assert_unchanged(end(put, V1, commit=commit), producer())
    assert_refused(end(put, V1, commit=not commit), ITS)


@pytest.mark.parametrize("commit", [True, False])
def test_v2_ends_with_the_next_epoch_and_recognises_the_retry(commit: bool) -> None:
    transition = end(row(ONGOING), V2, commit=commit)
    put = put_of(transition)
    assert transition.marker == Marker(PID, EPOCH + 1, commit, 3)
    assert transition.answer.producer == producer(EPOCH + 1)
    assert put.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert (put.producer_epoch, put.last_producer_epoch) == (EPOCH + 1, EPOCH)
    assert put.transaction_version is V2
    assert_unchanged(end(put, V2, commit=commit), producer(EPOCH + 1))
    assert_refused(end(put, V2, commit=not commit), ITS if commit else FENCED)
    # A write of the ended transaction that comes late is refused.
    assert verify_write(put, producer(), V2, NOW, is_joined=False) == Joining(
        Error.INVALID_PRODUCER_EPOCH
    )


@pytest.mark.parametrize("state", IDLE)
def test_v2_aborts_nothing_with_a_bump_so_that_a_late_write_is_refused(
    state: TransactionState,
) -> None:
    transition = end(row(state), V2, commit=False)
    put = put_of(transition)
    assert transition.marker is None
    assert transition.answer.producer == producer(EPOCH + 1)
    assert (put.state, put.last_producer_epoch, put.started_at) == (COMPLETE_ABORT, EPOCH, -1)
    assert put.updated_at == NOW
    assert verify_write(put, producer(), V2, NOW, is_joined=False).error is not Error.NONE
    assert_unchanged(end(put, V2, commit=False), producer(EPOCH + 1))


def test_v1_abort_that_overtakes_the_joins_is_a_success_without_a_change() -> None:
    assert_unchanged(end(row(EMPTY), V1, commit=False), producer())
    assert_unchanged(end(row(COMPLETE_ABORT), V1, commit=False), producer())
    # A write that comes later still finds no partition that has joined.
    late = verify_write(row(EMPTY), producer(), V1, NOW, is_joined=False)
    assert (late.error, late.put, late.joins) == (Error.TRANSACTION_ABORTABLE, None, False)


def test_a_retry_is_that_of_the_same_producer_not_of_one_that_was_fenced() -> None:
    # A (V2) has epoch 5 open. B begins, which aborts it, and commits with V1, in epoch 6.
    begun = put_of(init(row(ONGOING)))
    opened = put_of(prepare_join(begun, producer(EPOCH + 1), V1, NOW, is_joined=False))
    committed = put_of(end(opened, V1, commit=True, by=producer(EPOCH + 1)))
    assert (committed.state, committed.producer_epoch) == (COMPLETE_COMMIT, EPOCH + 1)
    # In Kafka, which compares epochs alone, A's commit is taken for a retry of B's: a lost write.
    assert_refused(end(committed, V2, commit=True), FENCED)


def test_no_epoch_is_not_the_one_before_the_first() -> None:
    known = row(COMPLETE_COMMIT, 0)
    assert_refused(end(known, V2, commit=True, by=producer(-1)), FENCED)


def test_up_and_downgrade_by_the_same_id() -> None:
    known = row(EMPTY)
    # V1 transaction, then V2, then V1 again, each by an instance of its own.
    for version in (V1, V2, V1):
        known = put_of(init(known))
        by = producer(known.producer_epoch)
        if version is V1:
            known = put_of(prepare_join(known, by, V1, NOW, is_joined=False))
            assert verify_write(known, by, V1, NOW, is_joined=True) == Joining()
        else:
            known = put_of(verify_write(known, by, V2, NOW, is_joined=False))
        assert (known.state, known.transaction_version) == (ONGOING, version)
        transition = end(known, version, commit=True, by=by)
        known = put_of(transition)
        assert known.producer_epoch == by.producer_epoch + (version is V2)


@pytest.mark.parametrize(("state", "commit"), [*product(V1_END, (True, False))])
def test_v1_ends_the_transaction_that_was_open_when_it_came(
    state: TransactionState, commit: bool
) -> None:
    """Another broker may have ended that one since, and begun the next."""
    known = row(state)
    as_without = end(known, V1, commit=commit)
    assert end(known, V1, commit=commit, open_version=known.version) == as_without
    late = end(known, V1, commit=commit, open_version=known.version - 2)
    if state is ONGOING:
        assert_refused(late, Error.COORDINATOR_NOT_AVAILABLE)
    else:  # nothing that it could end; perhaps it is what was ended
        assert late == as_without


def test_v2_has_epochs_for_that() -> None:
    known = row(ONGOING)
    assert end(known, V2, commit=True, open_version=3) == end(known, V2, commit=True)
