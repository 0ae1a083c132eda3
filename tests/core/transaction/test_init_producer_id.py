"""Who begins, who recovers, who is fenced; what happens when epochs run out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from core.errors import Error
from core.transaction.coordinator import (
    MAX_PRODUCER_EPOCH,
    is_epoch_exhausted,
    prepare_join,
    verify_joined,
    verify_write,
)
from core.transaction.values import (
    Joining,
    Marker,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from tests.core.transaction.asked import (
    DEAD,
    EMPTY,
    EPOCH,
    FRESH,
    IDLE,
    LAST,
    MAX_TIMEOUT_MS,
    NOBODY,
    NOW,
    OLD_PID,
    ONGOING,
    OTHER,
    PID,
    PREPARING,
    TIMEOUT_MS,
    V1,
    V2,
    assert_refused,
    assert_unchanged,
    begun_by_init,
    end,
    init,
    producer,
    put_of,
    row,
)

# InitProducerId: who begins.


def test_an_unknown_id_gets_a_fresh_producer_at_epoch_zero() -> None:
    transition = init(None)
    put = put_of(transition)
    assert transition.answer.producer == producer(0, FRESH)
    assert (put.state, put.producer_id, put.producer_epoch, put.version) == (EMPTY, FRESH, 0, 0)
    assert (put.last_producer_epoch, put.previous_producer_id, put.started_at) == (-1, -1, -1)
    assert (put.timeout_ms, put.updated_at) == (TIMEOUT_MS, NOW)
    assert (put.client_id, put.client_host) == ("client", "/10.0.0.1")
    assert put.owner == "User:alice"
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
    assert (put.client_id, put.client_host, put.updated_at) == ("client", "/10.0.0.1", NOW)
    assert put.owner == "User:alice"
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


@pytest.mark.parametrize("state", IDLE)
def test_a_retry_forgets_what_was_ended(state: TransactionState) -> None:
    """Its producer begins anew: an end that comes now finds nothing."""
    known = replace(row(state, EPOCH + 1, transaction_version=V2), last_producer_epoch=EPOCH)
    transition = init(known, producer(), TIMEOUT_MS + 1)
    assert transition.answer.producer == producer(EPOCH + 1)
    put = put_of(transition)
    assert put == begun_by_init(known)
    assert_unchanged(init(put, producer(), TIMEOUT_MS + 1), producer(EPOCH + 1))


def test_a_late_retry_does_not_forget_a_commit_of_v1() -> None:
    """The commit's own retry, or an abort after its answer was lost, may come after it."""
    known = replace(row(TransactionState.COMPLETE_COMMIT, EPOCH + 1), last_producer_epoch=EPOCH)
    assert_unchanged(init(known, producer(), TIMEOUT_MS + 1), producer(EPOCH + 1))


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
    other = Error.INVALID_TXN_STATE if commit else Error.PRODUCER_FENCED
    assert_refused(end(put, V2, commit=not commit, by=producer(LAST)), other)
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
