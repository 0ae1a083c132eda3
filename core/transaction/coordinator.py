"""Decides for one transaction key: its producer, its open transaction, its end.

Kafka's TransactionCoordinator. Each function takes the known row (None: there is none) and returns
a value that takes effect as a whole, in one commit, or not at all. Kafka passes Prepare…, markers
and Complete… one after the other; here one Transition passes them together, so no client gets
CONCURRENT_TRANSACTIONS unless the store really shows a Prepare… state. Knows no partition, offset,
store or wire: the wire maps errors that a request's version does not know (PRODUCER_FENCED,
TRANSACTION_ABORTABLE).
"""

from dataclasses import replace
from typing import NamedTuple

from core.errors import Error
from core.transaction import single_use
from core.transaction.key import Participant
from core.transaction.state import ABORTING, COMMITTING, FENCING, IDLE_STATES, passed
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
    TransitionAnswer,
)
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

MAX_PRODUCER_EPOCH = 2**15 - 1
MAX_GROUPS = 1_000
MAX_GROUP_ID_CHARACTERS = 1_000_000
"""In the ids of one transaction's groups together. Kafka keeps only their partitions of
__consumer_offsets, of which there are 50; here each group is kept by its name."""

_NOBODY = ProducerIdAndEpoch()
_PREPARING = frozenset(
    {
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Whether no further epoch may be given out. The last one is kept for fencing the holder."""
    return producer_epoch >= MAX_PRODUCER_EPOCH - 1


def transactional_id_refusal(transactional_id: str) -> Error:
    """INVALID_REQUEST for an invalid id (empty, or impossible to store), else NONE."""
    return (
        Error.NONE if transactional_id and "\0" not in transactional_id else Error.INVALID_REQUEST
    )


# InitProducerId.


def prepare_init_producer_id(
    known: TransactionMetadata | None,
    request: InitProducerId,
    fresh_producer_id: int,
    now: int,
    max_timeout_ms: int,
) -> Transition:
    """A producer starts, or recovers with the id and epoch it had (KIP-360).

    The same commit aborts the open transaction and fences its producer. Unlike Kafka, a producer
    may recover from its own open transaction, and its epoch is checked before anything is aborted:
    a zombie's late InitProducerId must not end its successor's transaction.
    fresh_producer_id: used if there is no row, or if the epochs are exhausted.
    """
    if not 0 < request.timeout_ms <= max_timeout_ms:
        return _refused(Error.INVALID_TRANSACTION_TIMEOUT)
    current = request.current
    if (current.producer_id == NO_PRODUCER_ID) != (current.producer_epoch == NO_PRODUCER_EPOCH):
        return _refused(Error.INVALID_REQUEST)
    if known is None or known.state is TransactionState.DEAD:
        return _created(known, request, fresh_producer_id, now)
    if current != _NOBODY and current != _producer_of(known):
        if _was_before_last_bump(known, current):
            return _recovered_before(known, request, now)
        return _refused(Error.PRODUCER_FENCED)
    if known.state in _PREPARING:
        return _refused(Error.CONCURRENT_TRANSACTIONS)
    bumped = _bump(known, fresh_producer_id)
    marker = None
    state: TransactionState = known.state
    if state is TransactionState.ONGOING:
        marker = _marker(known, bumped.marker_epoch, is_commit=False)
        state = passed(state, *FENCING)
    put = replace(
        known,
        state=passed(state, TransactionState.EMPTY),
        producer_id=bumped.producer_id,
        producer_epoch=bumped.producer_epoch,
        previous_producer_id=bumped.previous_producer_id,
        last_producer_epoch=current.producer_epoch,
        timeout_ms=request.timeout_ms,
        started_at=NO_TIMESTAMP,
        updated_at=now,
        client_id=request.client_id,
        client_host=request.client_host,
        owner=request.owner,
    )
    return Transition(TransitionAnswer(producer=_producer_of(put)), put, marker)


def _recovered_before(known: TransactionMetadata, request: InitProducerId, now: int) -> Transition:
    """The producer's epoch was bumped before: this is a retry, or its transaction was ended for it.

    Gives the same answer again. If no transaction is open, the last one is forgotten, so that a
    later end finds nothing. A commit of V1, which bumps no epoch, is not forgotten: this request is
    late, and the commit's own retry may follow.
    """
    answer = TransitionAnswer(producer=_producer_of(known))
    is_begun = known.state is TransactionState.EMPTY and known.timeout_ms == request.timeout_ms
    is_late = (
        known.state is TransactionState.COMPLETE_COMMIT
        and not known.transaction_version.end_raises_epoch
    )
    if is_begun or is_late or known.state not in IDLE_STATES:
        return Transition(answer)
    put = replace(
        known,
        state=passed(known.state, TransactionState.EMPTY),
        timeout_ms=request.timeout_ms,
        updated_at=now,
        client_id=request.client_id,
        client_host=request.client_host,
        owner=request.owner,
    )
    return Transition(answer, put)


def _created(
    known: TransactionMetadata | None, request: InitProducerId, fresh_producer_id: int, now: int
) -> Transition:
    """The id is unknown or has expired, whatever epoch the client believes it has."""
    put = TransactionMetadata(
        request.key,
        fresh_producer_id,
        0,
        TransactionState.EMPTY,
        timeout_ms=request.timeout_ms,
        updated_at=now,
        coordinator_epoch=known.coordinator_epoch if known else 0,
        client_id=request.client_id,
        client_host=request.client_host,
        owner=request.owner,
        version=known.version if known else 0,
    )
    return Transition(TransitionAnswer(producer=_producer_of(put)), put)


# EndTxn.


def prepare_end(
    known: TransactionMetadata | None, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """A client commits or aborts. fresh_producer_id: used if V2 has exhausted the epochs."""
    raises_epoch = request.transaction_version.end_raises_epoch
    if known is None or known.state is TransactionState.DEAD:
        return _refused(Error.INVALID_PRODUCER_ID_MAPPING)
    if raises_epoch and _was_before_last_bump(known, request.producer):
        return _retried_end(known, request)
    if known.producer_id != request.producer.producer_id:
        return _refused(Error.INVALID_PRODUCER_ID_MAPPING)
    if known.producer_epoch != request.producer.producer_epoch:
        return _refused(Error.PRODUCER_FENCED)
    if known.state in _PREPARING:
        if raises_epoch:
            return _refused(Error.PRODUCER_FENCED)
        return _already_ending(known, request)
    if known.state is TransactionState.ONGOING:
        if raises_epoch:
            return _end_with_bump(known, request, fresh_producer_id, now)
        if _is_of_an_earlier_transaction(known, request):
            return _refused(Error.COORDINATOR_NOT_AVAILABLE)
        return _end_without_bump(known, request, now)
    if raises_epoch:
        return _end_of_nothing(known, request, fresh_producer_id, now)
    return _repeated_end(known, request)


def _is_of_an_earlier_transaction(known: TransactionMetadata, request: EndTransaction) -> bool:
    """Whether the transaction that was open when the request came has been ended elsewhere since.

    V1 does not tell a late request from one for the present transaction. If the client came over
    from another coordinator, the version differs though nothing was ended; then it asks again."""
    return request.open_version not in (None, known.version)


def _end_without_bump(known: TransactionMetadata, request: EndTransaction, now: int) -> Transition:
    """V1: the producer goes on with the same epoch."""
    put = replace(
        known,
        state=passed(known.state, *(COMMITTING if request.is_commit else ABORTING)),
        transaction_version=request.transaction_version,
        started_at=NO_TIMESTAMP,
        updated_at=now,
    )
    marker = _marker(known, known.producer_epoch, is_commit=request.is_commit)
    return Transition(TransitionAnswer(producer=_producer_of(put)), put, marker)


def _end_with_bump(
    known: TransactionMetadata, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """V2: marker and producer get the next epoch: no late request fits the next transaction.

    If the epochs are exhausted, the marker has the last one and the producer gets another id.
    """
    bumped = _bump(known, fresh_producer_id)
    put = replace(
        known,
        state=passed(known.state, *(COMMITTING if request.is_commit else ABORTING)),
        producer_id=bumped.producer_id,
        producer_epoch=bumped.producer_epoch,
        previous_producer_id=bumped.previous_producer_id,
        last_producer_epoch=known.producer_epoch,
        transaction_version=request.transaction_version,
        started_at=NO_TIMESTAMP,
        updated_at=now,
    )
    marker = None
    if known.state is TransactionState.ONGOING:
        marker = _marker(known, bumped.marker_epoch, is_commit=request.is_commit)
    return Transition(TransitionAnswer(producer=_producer_of(put)), put, marker)


def _end_of_nothing(
    known: TransactionMetadata, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """V2, with the current epoch, while nothing is open.

    The client cannot know whether its Produce has arrived and opened the transaction. An abort
    bumps the epoch, so that the Produce is refused if it comes later. A commit is refused: clients
    commit only what they know to be written.
    """
    if request.is_commit:
        return _refused(Error.INVALID_TXN_STATE)
    return _end_with_bump(known, request, fresh_producer_id, now)


def _retried_end(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """V2, with the epoch before the last bump: the answer was lost, or a timeout came first.

    Kafka compares only epochs; but the next epoch may belong to an instance that has fenced this
    one. Here `last_producer_epoch` shows that it is the same producer.
    A commit after an abort was not ended by its client, who repeats what it asked: a timeout came
    first, and fenced it (KAFKA-20785; Kafka up to 4.1 says INVALID_TXN_STATE).
    """
    if known.state in _PREPARING:
        return _already_ending(known, request)
    if known.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return _refused(Error.PRODUCER_FENCED)
    if request.is_commit != (known.state is TransactionState.COMPLETE_COMMIT):
        return _refused(Error.PRODUCER_FENCED if request.is_commit else Error.INVALID_TXN_STATE)
    return Transition(TransitionAnswer(producer=_producer_of(known)))


def _repeated_end(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """V1, while nothing is open: a retry, or an abort that has overtaken the joins.

    Kafka answers the latter with INVALID_TXN_STATE, which is fatal for librdkafka, though nothing
    is wrong. A late join opens a transaction that ends with the producer's next one or by timeout,
    and a late Produce for a partition that has not joined is refused: nothing hangs.
    An abort after a commit is still refused. Its client may have lost the commit's answer
    (librdkafka up to 1.9 lets it abort then), and must not be told that its records are gone. An
    abort of the next transaction, if no join of it arrived, looks the same: its producer starts
    anew.
    """
    if known.state is TransactionState.COMPLETE_COMMIT:
        is_repeated = request.is_commit
    else:
        is_repeated = not request.is_commit
    if not is_repeated:
        return _refused(Error.INVALID_TXN_STATE)
    return Transition(TransitionAnswer(producer=_producer_of(known)))


def _already_ending(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """The store shows a Prepare… state (KIP-939): the same end waits, the other is refused.

    V2 sends the epoch before the bump, V1 the current one.
    """
    is_committing = known.state is TransactionState.PREPARE_COMMIT
    if request.is_commit == is_committing:
        return _refused(Error.CONCURRENT_TRANSACTIONS)
    return _refused(Error.INVALID_TXN_STATE)


# Joining.


def prepare_join(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    transaction_version: TransactionVersion,
    now: int,
    *,
    is_joined: bool,
) -> Joining:
    """AddPartitionsToTxn and AddOffsetsToTxn: a partition or a group joins.

    is_joined: whether it has joined already (which counts only while the transaction is open).
    """
    error = _producer_refusal(known, producer)
    if known is None or error is not Error.NONE:
        return Joining(error)
    if known.state is TransactionState.ONGOING:
        return Joining(joins=not is_joined)
    put = replace(
        known,
        state=passed(known.state, TransactionState.ONGOING),
        transaction_version=transaction_version,
        started_at=now,
        updated_at=now,
    )
    return Joining(put=put, joins=True)


def check_room(joining: Joining, group: Participant, groups: frozenset[Participant]) -> Joining:
    """`joining`, or TRANSACTION_ABORTABLE if the open transaction has too many groups already.

    groups: those that have joined the last known transaction.
    """
    is_new = joining.joins and joining.put is None
    if not is_new or group in groups:
        return joining
    characters = len(group.name) + sum(len(each.name) for each in groups)
    if len(groups) < MAX_GROUPS and characters <= MAX_GROUP_ID_CHARACTERS:
        return joining
    return Joining(Error.TRANSACTION_ABORTABLE)


def verify_joined(
    known: TransactionMetadata | None, producer: ProducerIdAndEpoch, *, is_joined: bool
) -> Error:
    """AddPartitionsToTxn, verify only: whether the partition is in the open transaction."""
    error = _producer_refusal(known, producer)
    if known is None or error is not Error.NONE:
        return error
    if is_joined and known.state is TransactionState.ONGOING:
        return Error.NONE
    return Error.TRANSACTION_ABORTABLE


def verify_write(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    transaction_version: TransactionVersion,
    now: int,
    *,
    is_joined: bool,
) -> Joining:
    """A transactional batch for a partition, or a TxnOffsetCommit for a group.

    V1 must have joined: a late write of a finished transaction would open one that hangs. V2 joins
    here, since its epoch says which transaction it belongs to (KIP-890). Writers understand
    INVALID_PRODUCER_EPOCH, not PRODUCER_FENCED (AddPartitionsToTxnManager).
    """
    if transaction_version.joins_with_write:
        joining = prepare_join(known, producer, transaction_version, now, is_joined=is_joined)
    else:
        joining = Joining(verify_joined(known, producer, is_joined=is_joined))
    if joining.error is Error.PRODUCER_FENCED:
        return Joining(Error.INVALID_PRODUCER_EPOCH)
    if joining.error is Error.TRANSACTION_ABORTABLE:
        return replace(joining, message="Partition was not added to the transaction")
    return joining


def _producer_refusal(known: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> Error:
    """Why this producer may write nothing, or NONE."""
    if known is None or known.state is TransactionState.DEAD:
        return Error.INVALID_PRODUCER_ID_MAPPING
    if known.producer_id != producer.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    is_fenced = known.producer_epoch != producer.producer_epoch
    if known.key.kind.is_used_once:
        is_open = known.state is TransactionState.ONGOING and not is_fenced
        return Error.NONE if is_open else Error.INVALID_TXN_STATE
    if is_fenced:
        return Error.PRODUCER_FENCED
    if known.state in _PREPARING:
        return Error.CONCURRENT_TRANSACTIONS
    return Error.NONE


# Not asked for by the producer: timeout, markers from outside, expiry.


def deadline(known: TransactionMetadata) -> int | None:
    """When the open transaction is overdue, or None if none is open."""
    if known.state is not TransactionState.ONGOING:
        return None
    return known.started_at + known.timeout_ms


def prepare_timeout(
    known: TransactionMetadata | None, fresh_producer_id: int, now: int
) -> Transition | None:
    """Aborts an overdue transaction and fences its producer; None if it is not overdue (now)."""
    due = deadline(known) if known else None
    if known is None or due is None or now <= due:
        return None
    return _fenced(known, known.coordinator_epoch, fresh_producer_id, now)


def prepare_external_marker(
    known: TransactionMetadata | None,
    marker: Marker,
    fresh_producer_id: int,
    now: int,
    *,
    has_joined: bool,
) -> Transition:
    """WriteTxnMarkers for a producer that has a transactional id here.

    has_joined: whether any of the named partitions has joined. Ask ProducerState.marker_refusal of
    each first: as in Kafka, the partition's memory refuses older coordinator epochs, since the
    tools learn them from there. A part of a transaction cannot end alone: an abort ends all of it
    and fences the producer, a commit is refused. If no transaction is open, nothing happens.
    """
    if known is None or known.producer_id != marker.producer_id:
        return Transition(TransitionAnswer())
    if marker.producer_epoch < known.producer_epoch:
        return _refused(Error.INVALID_PRODUCER_EPOCH)
    if known.state is not TransactionState.ONGOING or not has_joined:
        return Transition(TransitionAnswer())
    if marker.is_commit:
        return _refused(Error.INVALID_TXN_STATE)
    coordinator_epoch = max(known.coordinator_epoch, marker.coordinator_epoch)
    return _fenced(known, coordinator_epoch, fresh_producer_id, now)


def prepare_expiry(
    known: TransactionMetadata | None, now: int, expiration_ms: int
) -> Transition | None:
    """Forgets an id that has been idle for `transactional.id.expiration.ms`; None if it was not."""
    if known is None or not may_expire(known, now, expiration_ms):
        return None
    return Transition(TransitionAnswer(), is_deleted=True)


def may_expire(known: TransactionMetadata, now: int, expiration_ms: int) -> bool:
    """Whether the id is idle and has been for long enough."""
    return known.state in IDLE_STATES and known.updated_at <= now - expiration_ms


def _fenced(
    known: TransactionMetadata, coordinator_epoch: int, fresh_producer_id: int, now: int
) -> Transition:
    """Aborts the open transaction; its producer may no longer write with its epoch.

    The producer gets the new epoch by InitProducerId with its old one; with V2 by its own abort,
    too (Kafka 4.1, KIP-588). One whose key is used once gets none.
    """
    if known.key.kind.is_used_once:
        return single_use.ended(
            known, is_commit=False, now=now, coordinator_epoch=coordinator_epoch
        )
    bumped = _bump(known, fresh_producer_id)
    put = replace(
        known,
        state=passed(known.state, *FENCING),
        producer_id=bumped.producer_id,
        producer_epoch=bumped.producer_epoch,
        previous_producer_id=bumped.previous_producer_id,
        last_producer_epoch=known.producer_epoch,
        started_at=NO_TIMESTAMP,
        updated_at=now,
        coordinator_epoch=coordinator_epoch,
    )
    marker = replace(
        _marker(known, bumped.marker_epoch, is_commit=False), coordinator_epoch=coordinator_epoch
    )
    return Transition(TransitionAnswer(producer=_producer_of(put)), put, marker)


# Epochs.


class _Bumped(NamedTuple):
    """The producer from now on, and the epoch that fences the present one."""

    marker_epoch: int
    producer_id: int
    producer_epoch: int
    previous_producer_id: int


def _bump(known: TransactionMetadata, fresh_producer_id: int) -> _Bumped:
    """The next epoch; if there is none left, the first one of another producer id."""
    marker_epoch = min(known.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    if is_epoch_exhausted(known.producer_epoch):
        return _Bumped(marker_epoch, fresh_producer_id, 0, known.producer_id)
    return _Bumped(marker_epoch, known.producer_id, marker_epoch, known.previous_producer_id)


def _was_before_last_bump(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether this is the current producer's own id and epoch before its last bump or rollover."""
    if known.last_producer_epoch == NO_PRODUCER_EPOCH:
        return False
    if producer.producer_epoch != known.last_producer_epoch:
        return False
    if producer.producer_id == known.producer_id:
        return known.producer_epoch == producer.producer_epoch + 1
    return (
        producer.producer_id == known.previous_producer_id
        and known.producer_epoch == 0
        and is_epoch_exhausted(producer.producer_epoch)
    )


def _producer_of(known: TransactionMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(known.producer_id, known.producer_epoch)


def _marker(known: TransactionMetadata, producer_epoch: int, *, is_commit: bool) -> Marker:
    return Marker(known.producer_id, producer_epoch, is_commit, known.coordinator_epoch)


def _refused(error: Error) -> Transition:
    return Transition(TransitionAnswer(error))
