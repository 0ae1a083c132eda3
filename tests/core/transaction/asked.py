"""A transactional id's row in any state, and requests that meet it there."""

from __future__ import annotations

from dataclasses import replace

from core.errors import Error
from core.transaction.coordinator import (
    MAX_PRODUCER_EPOCH,
    prepare_end,
    prepare_external_marker,
    prepare_init_producer_id,
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
from tests.keys import named

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
NONE, FENCED, MAPPING = Error.NONE, Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_ID_MAPPING
ITS, BUSY = Error.INVALID_TXN_STATE, Error.CONCURRENT_TRANSACTIONS


def row(
    state: TransactionState = EMPTY, epoch: int = EPOCH, **changes: object
) -> TransactionMetadata:
    known = TransactionMetadata(
        named("orders"),
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
    who = ("client", "/10.0.0.1", "User:alice")
    request = InitProducerId(named("orders"), timeout_ms, current, *who)
    return prepare_init_producer_id(known, request, FRESH, NOW, MAX_TIMEOUT_MS)


def begun_by_init(known: TransactionMetadata) -> TransactionMetadata:
    """As a producer leaves it that has asked for `TIMEOUT_MS + 1` and has got nothing new."""
    return replace(
        known,
        state=EMPTY,
        timeout_ms=TIMEOUT_MS + 1,
        updated_at=NOW,
        client_id="client",
        client_host="/10.0.0.1",
        owner="User:alice",
    )


def end(
    known: TransactionMetadata | None,
    version: TransactionVersion,
    *,
    commit: bool,
    by: ProducerIdAndEpoch | None = None,
    open_version: int | None = None,
) -> Transition:
    request = EndTransaction(by or producer(), commit, version, open_version)
    return prepare_end(known, request, FRESH, NOW)


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


def from_outside(
    known: TransactionMetadata | None, *, commit: bool = False, joined: bool = True, **of: int
) -> Transition:
    marker = Marker(
        of.get("producer_id", PID), of.get("epoch", EPOCH), commit, of.get("coordinator", 0)
    )
    return prepare_external_marker(known, marker, FRESH, NOW, has_joined=joined)
