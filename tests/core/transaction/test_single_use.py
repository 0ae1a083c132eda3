"""Transactions whose key is used once: every request in every state, and what follows from none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.errors import Error
from core.transaction import single_use
from core.transaction.coordinator import (
    prepare_external_marker,
    prepare_join,
    prepare_timeout,
    verify_write,
)
from core.transaction.key import TransactionKey, TransactionKind
from core.transaction.single_use import Begin, is_anothers, prepare_begin, prepare_end
from core.transaction.values import (
    Marker,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)

KEY = TransactionKey.of_pulsar(3, 77)
PRODUCER = ProducerIdAndEpoch(77, 0)
NOW, TTL_MS, MAX_MS = 1_000_000, 60_000, 900_000
OPEN = TransactionState.ONGOING
DONE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
V1, V2 = TransactionVersion.V1, TransactionVersion.V2


@pytest.mark.parametrize(
    ("owner", "asks", "refused"),
    [
        ("User:alice", "User:alice", False),
        ("User:alice", "User:bob", True),
        ("User:alice", "", True),
        ("", "User:bob", False),
        ("", "", False),
    ],
)
def test_a_transaction_is_its_owners(owner: str, asks: str, refused: bool) -> None:
    request = Begin(KEY, 77, TTL_MS, "client", "host", owner)
    put = prepare_begin(request, NOW, MAX_MS).put
    assert put is not None
    assert is_anothers(put.owner, asks) == refused


def begun(timeout_ms: int = TTL_MS) -> TransactionMetadata:
    transition = prepare_begin(Begin(KEY, 77, timeout_ms, "client", "host"), NOW, MAX_MS)
    assert transition.put is not None
    assert (transition.answer.error, transition.answer.producer) == (Error.NONE, PRODUCER)
    return transition.put


def ended(*, is_commit: bool) -> TransactionMetadata:
    put = prepare_end(begun(), is_commit=is_commit, now=NOW + 1).put
    assert put is not None
    return put


def test_only_such_a_key_is_used_once() -> None:
    assert [each for each in TransactionKind if each.is_used_once] == [TransactionKind.TXN_ID]
    assert KEY.name == "(3,77)"
    assert TransactionKey.of_kafka("(3,77)") != KEY


def test_it_is_open_from_the_beginning() -> None:
    known = begun()
    assert (known.state, known.started_at, known.timeout_ms) == (OPEN, NOW, TTL_MS)
    assert (known.producer_id, known.producer_epoch, known.version) == (77, single_use.EPOCH, 0)


@pytest.mark.parametrize(
    ("timeout_ms", "is_allowed"),
    [(-1, False), (0, False), (1, True), (MAX_MS, True), (MAX_MS + 1, False)],
)
def test_its_time_has_bounds(timeout_ms: int, *, is_allowed: bool) -> None:
    transition = prepare_begin(Begin(KEY, 77, timeout_ms, "", ""), NOW, MAX_MS)
    assert (transition.put is not None) is is_allowed
    expected = Error.NONE if is_allowed else Error.INVALID_TRANSACTION_TIMEOUT
    assert transition.answer.error is expected


@pytest.mark.parametrize("is_commit", [True, False])
def test_its_end(*, is_commit: bool) -> None:
    transition = prepare_end(begun(), is_commit=is_commit, now=NOW + 1)
    assert transition.put == replace(
        begun(), state=DONE[is_commit], started_at=-1, updated_at=NOW + 1
    )
    assert transition.marker == Marker(77, 0, is_commit, 0, is_last=True)
    assert transition.answer.error is Error.NONE


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("then", [True, False])
def test_an_end_is_repeated_or_refused(*, first: bool, then: bool) -> None:
    transition = prepare_end(ended(is_commit=first), is_commit=then, now=NOW + 2)
    assert (transition.put, transition.marker) == (None, None)
    expected = Error.NONE if first is then else Error.INVALID_TXN_STATE
    assert transition.answer.error is expected


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_is_not_there_does_not_end(*, is_commit: bool) -> None:
    transition = prepare_end(None, is_commit=is_commit, now=NOW)
    assert transition.answer.error is Error.INVALID_PRODUCER_ID_MAPPING
    assert (transition.put, transition.marker) == (None, None)


def test_time_ends_it_without_another_epoch() -> None:
    known = begun()
    assert prepare_timeout(known, 99, NOW + TTL_MS) is None
    transition = prepare_timeout(known, 99, NOW + TTL_MS + 1)
    assert transition is not None
    assert transition.put is not None
    assert (transition.put.state, transition.put.producer_id) == (DONE[False], 77)
    assert transition.marker == Marker(77, 0, False, 0, is_last=True)
    for is_commit in (True, False):
        assert prepare_timeout(ended(is_commit=is_commit), 99, NOW + 10 * TTL_MS) is None


def test_a_marker_from_outside_aborts_all_of_it() -> None:
    marker = Marker(77, 0, False, 5)
    transition = prepare_external_marker(begun(), marker, 99, NOW, has_joined=True)
    assert transition.put is not None
    assert transition.put.state is DONE[False]
    assert transition.marker == Marker(77, 0, False, 5, is_last=True)
    refused = prepare_external_marker(
        begun(), replace(marker, is_commit=True), 99, NOW, has_joined=True
    )
    assert refused.answer.error is Error.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("is_joined", [True, False])
def test_joins_and_writes_while_it_is_open(version: TransactionVersion, *, is_joined: bool) -> None:
    joining = prepare_join(begun(), PRODUCER, version, NOW, is_joined=is_joined)
    assert (joining.error, joining.put, joining.joins) == (Error.NONE, None, not is_joined)
    writing = verify_write(begun(), PRODUCER, version, NOW, is_joined=is_joined)
    is_refused = version is V1 and not is_joined
    assert writing.error is (Error.TRANSACTION_ABORTABLE if is_refused else Error.NONE)
    assert writing.put is None


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_joined", [True, False])
def test_nothing_joins_what_has_ended(
    version: TransactionVersion, *, is_commit: bool, is_joined: bool
) -> None:
    known = ended(is_commit=is_commit)
    joining = prepare_join(known, PRODUCER, version, NOW, is_joined=is_joined)
    assert (joining.error, joining.put) == (Error.INVALID_TXN_STATE, None)
    writing = verify_write(known, PRODUCER, version, NOW, is_joined=is_joined)
    assert (writing.error, writing.put) == (Error.INVALID_TXN_STATE, None)


@pytest.mark.parametrize("version", [V1, V2])
def test_with_another_epoch_it_can_only_be_aborted(version: TransactionVersion) -> None:
    """As after a change of the database's history: it may lack what was lost."""
    known = replace(begun(), producer_epoch=1)
    committing = prepare_end(known, is_commit=True, now=NOW)
    assert (committing.answer.error, committing.put) == (Error.INVALID_TXN_STATE, None)
    joining = prepare_join(known, PRODUCER, version, NOW, is_joined=True)
    writing = verify_write(known, PRODUCER, version, NOW, is_joined=True)
    assert joining.error is writing.error is Error.INVALID_TXN_STATE
    aborting = prepare_end(known, is_commit=False, now=NOW)
    assert aborting.put is not None
    assert aborting.put.state is DONE[False]
    assert aborting.marker == Marker(77, 1, False, 0, is_last=True)
