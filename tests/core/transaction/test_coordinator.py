"""Every request in every state, held to Kafka's TransactionCoordinator, and what goes beyond it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from core.errors import Error
from core.transaction.coordinator import (
    MAX_PRODUCER_EPOCH,
    deadline,
    is_epoch_exhausted,
    may_expire,
    prepare_end,
    prepare_expiry,
    prepare_external_marker,
    prepare_init_producer_id,
    prepare_join,
    prepare_timeout,
    transactional_id_refusal,
    verify_joined,
    verify_write,
)
from core.transaction.values import (
    EndTransaction,
    InitProducerId,
    Joining,
    Marker,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    Transition,
)

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD
FENCE = TransactionState.PREPARE_EPOCH_FENCE
V1, V2 = TransactionVersion.V1, TransactionVersion.V2

IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
PREPARING = (PREPARE_COMMIT, PREPARE_ABORT, FENCE)
PID, OLD_PID, FRESH, OTHER = 7000, 6000, 9000, 1234
EPOCH = 5
LAST = MAX_PRODUCER_EPOCH - 1  # the last epoch a client may have
NOW, STARTED, TIMEOUT_MS, MAX_TIMEOUT_MS = 1_000_000, 990_000, 60_000, 900_000
NOBODY = ProducerIdAndEpoch()


def row(
    state: TransactionState = EMPTY, epoch: int = EPOCH, **changes: object
) -> TransactionMetadata:
    known = TransactionMetadata(
        "orders",
        PID,
        epoch,
        state,
        timeout_ms=TIMEOUT_MS,
        started_at=STARTED if state not in IDLE else -1,
        updated_at=STARTED,
        coordinator_epoch=3,
        client_id="before",
        client_host="/127.0.0.1",
        version=41,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def producer(epoch: int = EPOCH, producer_id: int = PID) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, epoch)


def init(
    known: TransactionMetadata | None,
    current: ProducerIdAndEpoch = NOBODY,
    timeout_ms: int = TIMEOUT_MS,
) -> Transition:
    request = InitProducerId("orders", timeout_ms, current, "client", "/10.0.0.1")
    return prepare_init_producer_id(known, request, FRESH, NOW, MAX_TIMEOUT_MS)


def end(
    known: TransactionMetadata | None,
    version: TransactionVersion,
    *,
    commit: bool,
    by: ProducerIdAndEpoch | None = None,
) -> Transition:
    return prepare_end(known, EndTransaction(by or producer(), commit, version), FRESH, NOW)


def put_of(transition: Transition | Joining) -> TransactionMetadata:
    assert transition.put is not None
    return transition.put


def assert_refused(transition: Transition, error: Error) -> None:
    assert transition.answer.error is error
    assert transition.answer.producer == NOBODY
    assert (transition.put, transition.marker, transition.is_deleted) == (None, None, False)


def assert_unchanged(transition: Transition, by: ProducerIdAndEpoch) -> None:
    assert transition.answer.error is Error.NONE
    assert transition.answer.producer == by
    assert (transition.put, transition.marker, transition.is_deleted) == (None, None, False)


# InitProducerId: who begins.


def test_an_unknown_id_gets_a_fresh_producer_at_epoch_zero() -> None:
    transition = init(None)
    put = put_of(transition)
    assert transition.answer.producer == producer(0, FRESH)
    assert (put.state, put.producer_id, put.producer_epoch, put.version) == (EMPTY, FRESH, 0, 0)
    assert (put.last_producer_epoch, put.previous_producer_id, put.started_at) == (-1, -1, -1)
    assert (put.timeout_ms, put.updated_at) == (TIMEOUT_MS, NOW)
    assert (put.client_id, put.client_host) == ("client", "/10.0.0.1")
    assert transition.marker is None


def test_a_client_whose_id_has_expired_begins_anew() -> None:
    # KIP-360: INVALID_PRODUCER_ID_MAPPING makes clients ask with what they had.
    assert init(None, current=producer()).answer.producer == producer(0, FRESH)
    assert init(row(DEAD), current=producer()).answer.producer == producer(0, FRESH)


@pytest.mark.parametrize("timeout_ms", [-1, 0, MAX_TIMEOUT_MS + 1, 2**31 - 1])
@pytest.mark.parametrize("known", [None, row(ONGOING)])
def test_the_timeout_has_bounds(known: TransactionMetadata | None, timeout_ms: int) -> None:
    assert_refused(init(known, timeout_ms=timeout_ms), Error.INVALID_TRANSACTION_TIMEOUT)
    assert init(known, timeout_ms=MAX_TIMEOUT_MS).answer.error is Error.NONE


@pytest.mark.parametrize("current", [producer(-1), producer(3, -1)])
def test_half_a_producer_is_no_request(current: ProducerIdAndEpoch) -> None:
    assert_refused(init(row(), current), Error.INVALID_REQUEST)


@pytest.mark.parametrize("state", IDLE)
def test_a_new_instance_gets_the_next_epoch(state: TransactionState) -> None:
    transition = init(row(state, last_producer_epoch=EPOCH - 1), timeout_ms=1)
    put = put_of(transition)
    assert transition.answer.producer == producer(EPOCH + 1)
    assert (put.state, put.producer_epoch, put.last_producer_epoch) == (EMPTY, EPOCH + 1, -1)
    assert (put.timeout_ms, put.version, put.coordinator_epoch) == (1, 41, 3)
    assert transition.marker is None


def test_a_new_instance_aborts_what_the_first_left_open_and_fences_it() -> None:
    transition = init(row(ONGOING))
    put = put_of(transition)
    assert transition.marker == Marker(PID, EPOCH + 1, is_commit=False, coordinator_epoch=3)
    assert transition.answer.producer == producer(EPOCH + 1)
    assert (put.state, put.started_at, put.last_producer_epoch) == (EMPTY, -1, -1)
    # Whatever the first one sends now is refused.
    first = producer()
    assert_refused(init(put, first), Error.PRODUCER_FENCED)
    for version, commit in product((V1, V2), (True, False)):
        assert_refused(end(put, version, commit=commit, by=first), Error.PRODUCER_FENCED)
        verified = verify_write(put, first, version, NOW, is_joined=True)
        assert verified == Joining(Error.INVALID_PRODUCER_EPOCH)
        joining = prepare_join(put, first, version, NOW, is_joined=True)
        assert joining == Joining(Error.PRODUCER_FENCED)
    assert verify_joined(put, first, is_joined=True) is Error.PRODUCER_FENCED


@pytest.mark.parametrize("state", PREPARING)
def test_an_instance_waits_for_a_prepared_transaction(state: TransactionState) -> None:
    assert_refused(init(row(state)), Error.CONCURRENT_TRANSACTIONS)
    assert_refused(init(row(state), producer()), Error.CONCURRENT_TRANSACTIONS)
    assert_refused(init(row(state), producer(3)), Error.PRODUCER_FENCED)


# InitProducerId: recovery (KIP-360).


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
def test_a_producer_recovers_and_its_retry_gets_the_same_answer(state: TransactionState) -> None:
    transition = init(row(state), producer())
    put = put_of(transition)
    assert transition.answer.producer == producer(EPOCH + 1)
    assert (put.state, put.last_producer_epoch) == (EMPTY, EPOCH)
    assert (transition.marker is not None) is (state is ONGOING)
    assert_unchanged(init(put, producer()), producer(EPOCH + 1))
    # A third instance fences both, and the retry with them.
    fenced = put_of(init(put))
    assert_refused(init(fenced, producer()), Error.PRODUCER_FENCED)
    assert_refused(init(fenced, producer(EPOCH + 1)), Error.PRODUCER_FENCED)


def test_a_late_retry_does_not_abort_what_its_producer_has_begun_since() -> None:
    put = put_of(init(row(), producer()))
    opened = put_of(prepare_join(put, producer(EPOCH + 1), V1, NOW, is_joined=False))
    assert_unchanged(init(opened, producer()), producer(EPOCH + 1))


@pytest.mark.parametrize(
    "current", [producer(4), producer(6), producer(3), producer(EPOCH, OTHER), producer(0, OLD_PID)]
)
@pytest.mark.parametrize("state", [*IDLE, ONGOING])
def test_who_is_neither_current_nor_before_it_is_fenced(
    state: TransactionState, current: ProducerIdAndEpoch
) -> None:
    assert_refused(init(row(state, previous_producer_id=OLD_PID), current), Error.PRODUCER_FENCED)


# Epochs run out.


def test_an_exhausted_epoch_is_one_that_leaves_room_for_a_fence() -> None:
    assert not is_epoch_exhausted(LAST - 1)
    assert is_epoch_exhausted(LAST)
    assert MAX_PRODUCER_EPOCH == 32767


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
@pytest.mark.parametrize("current", [NOBODY, producer(LAST)])
def test_exhausted_epochs_give_a_fresh_producer_id(
    state: TransactionState, current: ProducerIdAndEpoch
) -> None:
    transition = init(row(state, LAST), current)
    put = put_of(transition)
    assert transition.answer.producer == producer(0, FRESH)
    assert (put.previous_producer_id, put.last_producer_epoch) == (PID, current.producer_epoch)
    if state is ONGOING:
        assert transition.marker == Marker(PID, MAX_PRODUCER_EPOCH, False, 3)
    retried = init(put, producer(LAST))
    if current == NOBODY:
        assert_refused(retried, Error.PRODUCER_FENCED)
    else:
        assert_unchanged(retried, producer(0, FRESH))


def test_the_last_epoch_is_given_out() -> None:
    assert init(row(EMPTY, LAST - 1)).answer.producer == producer(LAST)
    assert init(row(ONGOING, LAST - 1)).answer.producer == producer(LAST)


def test_an_epoch_beyond_the_last_one_still_ends() -> None:
    # KAFKA-20090: it must not happen, but what is broken has to be recoverable.
    transition = init(row(ONGOING, MAX_PRODUCER_EPOCH))
    assert transition.marker == Marker(PID, MAX_PRODUCER_EPOCH, False, 3)
    assert transition.answer.producer == producer(0, FRESH)


@pytest.mark.parametrize("commit", [True, False])
def test_v2_goes_on_with_another_producer_id_where_epochs_are_exhausted(commit: bool) -> None:
    transition = end(row(ONGOING, LAST), V2, commit=commit, by=producer(LAST))
    put = put_of(transition)
    assert transition.marker == Marker(PID, MAX_PRODUCER_EPOCH, commit, 3)
    assert transition.answer.producer == producer(0, FRESH)
    assert (put.previous_producer_id, put.last_producer_epoch) == (PID, LAST)
    assert_unchanged(end(put, V2, commit=commit, by=producer(LAST)), producer(0, FRESH))
    assert_refused(end(put, V2, commit=not commit, by=producer(LAST)), Error.INVALID_TXN_STATE)
    assert_refused(
        end(put, V2, commit=commit, by=producer(LAST - 1)), Error.INVALID_PRODUCER_ID_MAPPING
    )
    # Once the next transaction is open, the old id is nobody's.
    opened = put_of(verify_write(put, producer(0, FRESH), V2, NOW, is_joined=False))
    assert_refused(end(opened, V2, commit=commit, by=producer(LAST)), Error.PRODUCER_FENCED)
    assert (
        verify_write(opened, producer(LAST), V2, NOW, is_joined=True).error
        is Error.INVALID_PRODUCER_ID_MAPPING
    )


def test_v1_does_not_use_up_epochs() -> None:
    transition = end(row(ONGOING, LAST), V1, commit=True, by=producer(LAST))
    assert transition.marker == Marker(PID, LAST, True, 3)
    assert transition.answer.producer == producer(LAST)


# EndTxn. The tables of TransactionCoordinator.endTransaction: what a client is told, by state.

NONE, FENCED, MAPPING = Error.NONE, Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_ID_MAPPING
ITS, BUSY = Error.INVALID_TXN_STATE, Error.CONCURRENT_TRANSACTIONS

# State: commit, abort; with the current epoch.
V1_END = {
    EMPTY: (ITS, NONE),  # Kafka: (ITS, ITS), see _repeated_end
    ONGOING: (NONE, NONE),
    PREPARE_COMMIT: (BUSY, ITS),
    PREPARE_ABORT: (ITS, BUSY),
    COMPLETE_COMMIT: (NONE, NONE),  # Kafka: (NONE, ITS), likewise
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
    COMPLETE_ABORT: (ITS, NONE, ITS, NONE),
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
    # The next transaction, whose joins never arrived, is aborted, or said to be committed.
    if commit:
        assert_unchanged(end(put, V1, commit=False), producer())
    else:
        assert_refused(end(put, V1, commit=True), ITS)


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
    assert_refused(end(put, V2, commit=not commit), ITS)
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


# Joining.


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("is_joined", [True, False])
def test_the_first_join_opens_the_transaction(
    state: TransactionState, version: TransactionVersion, is_joined: bool
) -> None:
    # is_joined: a row of joining that an earlier transaction left would not count.
    joining = prepare_join(row(state), producer(), version, NOW, is_joined=is_joined)
    put = put_of(joining)
    assert (joining.error, joining.joins) == (Error.NONE, True)
    assert (put.state, put.started_at, put.updated_at) == (ONGOING, NOW, NOW)
    assert (put.transaction_version, put.producer_epoch, put.version) == (version, EPOCH, 41)
    assert (put.last_producer_epoch, put.timeout_ms) == (-1, TIMEOUT_MS)


def test_a_further_join_changes_nothing_in_the_row() -> None:
    assert prepare_join(row(ONGOING), producer(), V1, NOW, is_joined=False) == Joining(joins=True)
    assert prepare_join(row(ONGOING), producer(), V1, NOW, is_joined=True) == Joining()


@pytest.mark.parametrize(
    ("known", "by", "error"),
    [
        (None, producer(), MAPPING),
        (row(DEAD), producer(), MAPPING),
        (row(ONGOING), producer(EPOCH, OTHER), MAPPING),
        (row(ONGOING, previous_producer_id=OLD_PID), producer(EPOCH, OLD_PID), MAPPING),
        (row(ONGOING), producer(EPOCH - 1), FENCED),
        (row(ONGOING), producer(EPOCH + 1), FENCED),
        (row(PREPARE_COMMIT), producer(), BUSY),
        (row(PREPARE_ABORT), producer(), BUSY),
        (row(FENCE), producer(), BUSY),
    ],
)
@pytest.mark.parametrize("is_joined", [True, False])
def test_who_may_not_take_part(
    known: TransactionMetadata | None, by: ProducerIdAndEpoch, error: Error, is_joined: bool
) -> None:
    assert prepare_join(known, by, V1, NOW, is_joined=is_joined) == Joining(error)
    assert verify_joined(known, by, is_joined=is_joined) is error
    # Writers know no PRODUCER_FENCED (AddPartitionsToTxnManager).
    written = Error.INVALID_PRODUCER_EPOCH if error is FENCED else error
    for version in (V1, V2):
        assert verify_write(known, by, version, NOW, is_joined=is_joined) == Joining(written)


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
@pytest.mark.parametrize("is_joined", [True, False])
def test_v1_writes_only_where_it_has_joined(state: TransactionState, is_joined: bool) -> None:
    written = verify_write(row(state), producer(), V1, NOW, is_joined=is_joined)
    verified = verify_joined(row(state), producer(), is_joined=is_joined)
    assert (written.put, written.joins) == (None, False)
    assert written.error is verified
    if state is ONGOING and is_joined:
        assert verified is Error.NONE
    else:
        assert verified is Error.TRANSACTION_ABORTABLE
        assert written.message == "Partition was not added to the transaction"


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
@pytest.mark.parametrize("is_joined", [True, False])
def test_v2_joins_as_it_writes(state: TransactionState, is_joined: bool) -> None:
    written = verify_write(row(state), producer(), V2, NOW, is_joined=is_joined)
    assert written == prepare_join(row(state), producer(), V2, NOW, is_joined=is_joined)
    assert written.joins is (state is not ONGOING or not is_joined)
    assert (written.put is None) is (state is ONGOING)


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


def test_a_v1_producer_that_was_overdue_is_fenced_for_good() -> None:
    put = put_of(overdue(V1))
    for commit in (True, False):
        assert_refused(end(put, V1, commit=commit), FENCED)
    assert_refused(init(put, producer()), FENCED)


def test_a_v2_producer_that_was_overdue_learns_its_epoch_by_aborting() -> None:
    put = put_of(overdue(V2))
    assert_unchanged(end(put, V2, commit=False), producer(EPOCH + 1))
    assert_refused(end(put, V2, commit=True), ITS)
    assert_unchanged(init(put, producer()), producer(EPOCH + 1))
    # Unless another instance has begun meanwhile.
    fenced = put_of(init(put))
    assert_refused(end(fenced, V2, commit=False), FENCED)
    assert_refused(init(fenced, producer()), FENCED)


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


def from_outside(
    known: TransactionMetadata | None, *, commit: bool = False, joined: bool = True, **of: int
) -> Transition:
    marker = Marker(
        of.get("producer_id", PID), of.get("epoch", EPOCH), commit, of.get("coordinator", 0)
    )
    return prepare_external_marker(known, marker, FRESH, NOW, has_joined=joined)


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


# What holds for every decision.

EPOCHS = (0, EPOCH, LAST, MAX_PRODUCER_EPOCH)
ROWS = [
    row(state, epoch, last_producer_epoch=last, previous_producer_id=OLD_PID, transaction_version=v)
    for state in TransactionState
    for epoch in EPOCHS
    for last in (-1, epoch - 1, LAST)
    for v in (V1, V2)
]


def decisions(known: TransactionMetadata) -> list[Transition]:
    producers = [
        producer(known.producer_epoch),
        producer(known.last_producer_epoch),
        producer(LAST, OLD_PID),
        NOBODY,
    ]
    made = [init(known, by) for by in producers]
    made += [
        end(known, version, commit=commit, by=by)
        for by, version, commit in product(producers, (V1, V2), (True, False))
    ]
    made += [
        from_outside(known, commit=commit, joined=joined, epoch=known.producer_epoch)
        for commit, joined in product((True, False), (True, False))
    ]
    later = (
        prepare_timeout(known, FRESH, STARTED + TIMEOUT_MS + 1),
        prepare_expiry(known, NOW + 10**9, 1),
    )
    return made + [each for each in later if each]


def test_every_decision_is_whole() -> None:
    for known in ROWS:
        for made in decisions(known):
            if made.answer.error is not Error.NONE:
                assert_refused(made, made.answer.error)
                continue
            # Who is open ends by a marker, and only who is open.
            ends = known.state is ONGOING and (made.put is not None or made.is_deleted)
            assert (made.marker is not None) is ends
            if made.marker:
                assert made.marker.producer_id == known.producer_id
                assert known.producer_epoch <= made.marker.producer_epoch <= MAX_PRODUCER_EPOCH
            if not made.put:
                continue
            put = made.put
            assert put.version == known.version
            assert put.transactional_id == known.transactional_id
            assert put.coordinator_epoch >= known.coordinator_epoch
            assert put.state in IDLE
            assert put.started_at == -1
            if put.producer_id == known.producer_id:
                assert known.producer_epoch <= put.producer_epoch <= max(LAST, known.producer_epoch)
            else:
                assert (put.producer_id, put.producer_epoch) == (FRESH, 0)
                assert put.previous_producer_id == known.producer_id or known.state is DEAD


def test_whoever_writes_after_a_bump_is_the_one_who_was_answered() -> None:
    for known in ROWS:
        for made in decisions(known):
            if made.put and made.answer.error is Error.NONE:
                for version in (V1, V2):
                    now = made.answer.producer
                    joining = prepare_join(made.put, now, version, NOW, is_joined=False)
                    assert joining.error is Error.NONE
                    if now != producer(known.producer_epoch):
                        before = producer(known.producer_epoch)
                        joining = prepare_join(made.put, before, version, NOW, is_joined=False)
                        assert joining.error in (FENCED, MAPPING)
