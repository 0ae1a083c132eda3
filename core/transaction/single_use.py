"""Transactions whose key is used once (Pulsar's): each has a producer id of its own, with epoch 0.

Nothing has to be told apart from a next transaction, for there is none: the row alone says whether
the transaction is open, and how it ended. Another epoch in it means that the database has another
history since: the transaction may lack what was lost, and can only be aborted. Timeouts, joins and
markers from outside are those of `coordinator.py`. Pulsar's OPEN, COMMITTED and ABORTED are
Ongoing, CompleteCommit and CompleteAbort; COMMITTING and ABORTING are passed within one commit.
Sources: Pulsar's MLTransactionMetadataStore and TransactionMetadataStoreService.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.errors import Error
from core.transaction.key import TransactionKey
from core.transaction.state import ABORTING, COMMITTING, passed
from core.transaction.values import (
    Marker,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    Transition,
    TransitionAnswer,
)
from core.types import NO_TIMESTAMP

EPOCH = 0
"""Of all that is written in such a transaction, its marker included; unless it can only be
aborted."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction is to be there. timeout_ms: after which it is aborted. owner: see
    TransactionMetadata."""

    key: TransactionKey
    producer_id: int
    timeout_ms: int
    client_id: str
    client_host: str
    owner: str = ""


def prepare_begin(request: Begin, now: int, max_timeout_ms: int) -> Transition:
    """The transaction is open from now on. Its producer id is fresh, so there can be no row.

    INVALID_TRANSACTION_TIMEOUT where the timeout is not above 0, or too long.
    """
    if not 0 < request.timeout_ms <= max_timeout_ms:
        return Transition(TransitionAnswer(Error.INVALID_TRANSACTION_TIMEOUT))
    put = TransactionMetadata(
        request.key,
        request.producer_id,
        EPOCH,
        TransactionState.ONGOING,
        timeout_ms=request.timeout_ms,
        started_at=now,
        updated_at=now,
        client_id=request.client_id,
        client_host=request.client_host,
        owner=request.owner,
    )
    return Transition(TransitionAnswer(producer=ProducerIdAndEpoch(put.producer_id, EPOCH)), put)


def is_anothers(owner: str, asks: str) -> bool:
    """Whether a transaction is not for who asks; one without an owner is for everybody. Both as in
    TransactionMetadata. Source: TransactionMetadataStoreService.verifyTxnOwnership."""
    return owner not in ("", asks)


def prepare_end(known: TransactionMetadata | None, *, is_commit: bool, now: int) -> Transition:
    """A client commits or aborts. The same again is answered alike, however often it comes.

    INVALID_PRODUCER_ID_MAPPING: there is no such transaction (any more). INVALID_TXN_STATE: it has
    ended the other way, by its client or because its time was over; or it can only be aborted.
    """
    if known is None:
        return Transition(TransitionAnswer(Error.INVALID_PRODUCER_ID_MAPPING))
    if known.state is TransactionState.ONGOING:
        if is_commit and known.producer_epoch != EPOCH:
            return Transition(TransitionAnswer(Error.INVALID_TXN_STATE))
        return ended(known, is_commit=is_commit, now=now)
    done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    if known.state is not done:
        return Transition(TransitionAnswer(Error.INVALID_TXN_STATE))
    return Transition(
        TransitionAnswer(producer=ProducerIdAndEpoch(known.producer_id, known.producer_epoch))
    )


def ended(
    known: TransactionMetadata, *, is_commit: bool, now: int, coordinator_epoch: int | None = None
) -> Transition:
    """The open transaction ends, and partitions forget its producer. coordinator_epoch: of the
    marker, where it is not the row's."""
    epoch = known.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
    put = replace(
        known,
        state=passed(known.state, *(COMMITTING if is_commit else ABORTING)),
        started_at=NO_TIMESTAMP,
        updated_at=now,
        coordinator_epoch=epoch,
    )
    marker = Marker(known.producer_id, known.producer_epoch, is_commit, epoch, is_last=True)
    return Transition(
        TransitionAnswer(producer=ProducerIdAndEpoch(known.producer_id, known.producer_epoch)),
        put,
        marker,
    )
