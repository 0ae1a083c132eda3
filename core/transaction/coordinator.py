"""Decides for one transaction key: who writes, what is open, how it ends (TransactionCoordinator).

Each function takes the row as it is known (None: there is none) and returns a value that takes
effect as a whole, in one commit, or not at all. Kafka passes Prepare…, markers and Complete… one
after the other; here one Transition passes them together, so nobody is told CONCURRENT_TRANSACTIONS
unless the store really shows a Prepare… state. Knows no partition, offset, store or wire: an error
a request's version does not know (PRODUCER_FENCED, TRANSACTION_ABORTABLE) is mapped by the wire.
"""

from dataclasses import replace
from typing import NamedTuple

from core.errors import Error
from core.transaction.key import Participant
from core.transaction.state import ABORTING, COMMITTING, FENCING, IDLE_STATES, passed
from core.transaction.values import (
    Answer,
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
from core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

MAX_PRODUCER_EPOCH = 2**15 - 1
MAX_GROUPS = 1_000
MAX_GROUP_ID_CHARACTERS = 1_000_000
"""Of the groups of one transaction together. Kafka keeps the partitions of __consumer_offsets that
they fall into, of which there are 50; here each is kept by its name."""

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
    """INVALID_REQUEST for an id that is none (empty, or one that no store can keep), else NONE."""
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

    What was open is aborted in the same commit, and its producer fenced. Other than Kafka we let a
    producer recover out of its own open transaction, and we look at its epoch before we abort
    anything: a zombie's late InitProducerId must not end its successor's transaction.
    fresh_producer_id: used where there is no row, and where the epochs are exhausted.
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
    )
    return Transition(Answer(producer=_producer_of(put)), put, marker)


def _recovered_before(known: TransactionMetadata, request: InitProducerId, now: int) -> Transition:
    """The producer has been bumped: a retry, or its transaction was ended for it. The same answer.

    Where nothing is open, what was is forgotten, so that an end that comes now finds nothing. Not a
    commit of V1, which bumps nothing: this came late, and the commit's own retry may come later.
    """
    answer = Answer(producer=_producer_of(known))
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
    )
    return Transition(answer, put)


def _created(
    known: TransactionMetadata | None, request: InitProducerId, fresh_producer_id: int, now: int
) -> Transition:
    """An id nobody knows, or one that has expired, whatever the client thinks it had."""
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
        version=known.version if known else 0,
    )
    return Transition(Answer(producer=_producer_of(put)), put)


# EndTxn.


def prepare_end(
    known: TransactionMetadata | None, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """A client commits or aborts. fresh_producer_id: used where V2 has exhausted the epochs."""
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
    """V1, which does not tell a late request from one for the transaction that is open: whether the
    one that was open when it was asked was ended elsewhere while it waited here. Where the client
    came over from another coordinator, it was not; then it asks again."""
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
    return Transition(Answer(producer=_producer_of(put)), put, marker)


def _end_with_bump(
    known: TransactionMetadata, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """V2: marker and producer get the next epoch, so that nothing late fits the next transaction.

    With exhausted epochs the marker has the last one and the producer goes on with another id.
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
    return Transition(Answer(producer=_producer_of(put)), put, marker)


def _end_of_nothing(
    known: TransactionMetadata, request: EndTransaction, fresh_producer_id: int, now: int
) -> Transition:
    """V2, with the current epoch, while nothing is open.

    The client cannot know whether a Produce of its has arrived and opened the transaction. An abort
    bumps the epoch, so that the Produce is refused if it comes later. A commit is not possible: a
    client commits only what it knows to be written.
    """
    if request.is_commit:
        return _refused(Error.INVALID_TXN_STATE)
    return _end_with_bump(known, request, fresh_producer_id, now)


def _retried_end(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """V2, with the epoch before the last bump: the answer was lost, or a timeout came first.

    Other than Kafka, which compares epochs alone, we know by `last_producer_epoch` that it is the
    same producer: the next epoch may as well be that of an instance which has fenced this one.
    """
    if known.state in _PREPARING:
        return _already_ending(known, request)
    if known.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return _refused(Error.PRODUCER_FENCED)
    if request.is_commit != (known.state is TransactionState.COMPLETE_COMMIT):
        return _refused(Error.INVALID_TXN_STATE)
    return Transition(Answer(producer=_producer_of(known)))


def _repeated_end(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """V1, while nothing is open: a retry, or an abort that has overtaken the joins.

    The latter is INVALID_TXN_STATE in Kafka, and fatal for librdkafka, though nothing is wrong. If
    a late join follows, it opens a transaction that ends with the producer's next one or by
    timeout, and a late Produce of a partition that has not joined is refused: nothing hangs.
    An abort after a commit stays refused: it may come from a client that has lost the commit's
    answer (librdkafka up to 1.9 lets it abort then), and must not be told that its records are
    gone. It cannot be told from an abort of the next transaction, whose joins never arrived: such
    a producer starts anew.
    """
    if known.state is TransactionState.COMPLETE_COMMIT:
        is_repeated = request.is_commit
    else:
        is_repeated = not request.is_commit
    if not is_repeated:
        return _refused(Error.INVALID_TXN_STATE)
    return Transition(Answer(producer=_producer_of(known)))


def _already_ending(known: TransactionMetadata, request: EndTransaction) -> Transition:
    """The store shows a Prepare… state (KIP-939): the same end waits, the other one is refused.

    V2 comes here with the epoch before the bump, V1 with the current one.
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
    """AddPartitionsToTxn and AddOffsetsToTxn: a partition, or a group, is to take part.

    is_joined: whether it does already (which counts only while the transaction is open).
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
    """The same, or TRANSACTION_ABORTABLE where the open transaction has too many groups for this.

    groups: those that have joined what is known of as the last transaction.
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
    """AddPartitionsToTxn, verify only: whether the partition takes part in what is open."""
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
    here, as its epoch says which transaction it belongs to (KIP-890). Writers understand
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
    """Why this producer may not take part in anything, or NONE."""
    if known is None or known.state is TransactionState.DEAD:
        return Error.INVALID_PRODUCER_ID_MAPPING
    if known.producer_id != producer.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.producer_epoch:
        return Error.PRODUCER_FENCED
    if known.state in _PREPARING:
        return Error.CONCURRENT_TRANSACTIONS
    return Error.NONE


# What nobody asks for: timeout, markers from outside, expiry.


def deadline(known: TransactionMetadata) -> int | None:
    """When the open transaction is overdue, or None where none is open."""
    if known.state is not TransactionState.ONGOING:
        return None
    return known.started_at + known.timeout_ms


def prepare_timeout(
    known: TransactionMetadata | None, fresh_producer_id: int, now: int
) -> Transition | None:
    """Aborts and fences what is overdue; None where nothing is (any more)."""
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

    has_joined: whether any of the partitions named takes part. Ask ProducerState.marker_refusal of
    each first: older coordinator epochs are refused by what the partition remembers, as in Kafka,
    since the tools learn them from there. A part of a transaction cannot end alone: an abort ends
    it as a whole and fences the producer, a commit is refused. Where nothing is open, nothing is
    done.
    """
    if known is None or known.producer_id != marker.producer_id:
        return Transition(Answer())
    if marker.producer_epoch < known.producer_epoch:
        return _refused(Error.INVALID_PRODUCER_EPOCH)
    if known.state is not TransactionState.ONGOING or not has_joined:
        return Transition(Answer())
    if marker.is_commit:
        return _refused(Error.INVALID_TXN_STATE)
    coordinator_epoch = max(known.coordinator_epoch, marker.coordinator_epoch)
    return _fenced(known, coordinator_epoch, fresh_producer_id, now)


def prepare_expiry(
    known: TransactionMetadata | None, now: int, expiration_ms: int
) -> Transition | None:
    """Forgets an id that has been idle for `transactional.id.expiration.ms`; None where not."""
    if known is None or not may_expire(known, now, expiration_ms):
        return None
    return Transition(Answer(), is_deleted=True)


def may_expire(known: TransactionMetadata, now: int, expiration_ms: int) -> bool:
    """Whether the id is idle and has been for long enough."""
    return known.state in IDLE_STATES and known.updated_at <= now - expiration_ms


def _fenced(
    known: TransactionMetadata, coordinator_epoch: int, fresh_producer_id: int, now: int
) -> Transition:
    """The open transaction is aborted and its producer may not write with its epoch any more.

    It learns the new epoch by InitProducerId with its old one, V2 by its own abort, too (Kafka 4.1,
    KIP-588).
    """
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
    return Transition(Answer(producer=_producer_of(put)), put, marker)


# Epochs.


class _Bumped(NamedTuple):
    """Who writes from now on, and the epoch that fences whoever wrote until now."""

    marker_epoch: int
    producer_id: int
    producer_epoch: int
    previous_producer_id: int


def _bump(known: TransactionMetadata, fresh_producer_id: int) -> _Bumped:
    """The next epoch; where there is none left, the first one of another producer id."""
    marker_epoch = min(known.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    if is_epoch_exhausted(known.producer_epoch):
        return _Bumped(marker_epoch, fresh_producer_id, 0, known.producer_id)
    return _Bumped(marker_epoch, known.producer_id, marker_epoch, known.previous_producer_id)


def _was_before_last_bump(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether this is what the current producer itself had before its last bump or rollover."""
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
    return Transition(Answer(error))
