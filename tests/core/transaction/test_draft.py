"""Several decisions on one transactional id in one flush: each sees those before it."""

from __future__ import annotations

from core.errors import Error
from core.transaction.coordinator import prepare_end, prepare_expiry, prepare_init_producer_id
from core.transaction.draft import TransactionDraft
from core.transaction.key import Participant
from core.transaction.values import (
    EndTransaction,
    InitProducerId,
    Joining,
    Marker,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
    Transition,
    TransitionAnswer,
    first_version,
)
from tests.keys import groups, named

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
PID, FRESH, NOW = 7, 9, 1_000


def row(state: TransactionState = TransactionState.EMPTY, epoch: int = 0) -> TransactionMetadata:
    started = 900 if state is TransactionState.ONGOING else -1
    return TransactionMetadata(named("id"), PID, epoch, state, started_at=started, version=5)


def draft_of(
    metadata: TransactionMetadata | None,
    *partitions: int,
    groups: frozenset[Participant] = frozenset(),
) -> TransactionDraft:
    stored = None
    if metadata:
        stored = StoredTransaction(metadata, frozenset(partitions), groups)
    return TransactionDraft(named("id"), stored, is_fresh=True)


def write(
    draft: TransactionDraft, p: int, version: TransactionVersion, epoch: int = 0, *, first: bool
) -> Joining:
    return draft.prepare_append(p, ProducerIdAndEpoch(PID, epoch), version, NOW, is_first=first)


def end(
    draft: TransactionDraft, *, commit: bool, version: TransactionVersion = V2, epoch: int = 0
) -> tuple[Transition, frozenset[int]]:
    request = EndTransaction(ProducerIdAndEpoch(PID, epoch), commit, version)
    return draft.prepare_transition(
        lambda stored: prepare_end(stored and stored.metadata, request, FRESH, NOW)
    )


def init(draft: TransactionDraft) -> Transition:
    request = InitProducerId(named("id"), 60_000, ProducerIdAndEpoch(), "client", "host")
    transition, _ = draft.prepare_transition(
        lambda stored: prepare_init_producer_id(
            stored and stored.metadata, request, FRESH, NOW, 900_000
        )
    )
    return transition


def effects_of(draft: TransactionDraft) -> TransactionEffects:
    effects = draft.effects()
    assert effects is not None
    return effects


def test_a_write_in_an_open_transaction_holds_the_row_still() -> None:
    draft = draft_of(row(TransactionState.ONGOING), 1)
    assert write(draft, 1, V1, first=False) == Joining()
    assert effects_of(draft) == TransactionEffects(named("id"), 5)
    committed = draft.committed()
    assert committed is not None
    assert (committed.metadata.version, committed.partitions) == (5, {1})


def test_the_first_write_of_v1_repeats_its_join() -> None:
    # What was answered may not have reached the disk before a crash.
    draft = draft_of(row(TransactionState.ONGOING), 1, 2)
    write(draft, 1, V1, first=True)
    write(draft, 1, V1, first=False)
    assert effects_of(draft) == TransactionEffects(named("id"), 5, joined=(1,))


def test_the_first_write_of_v2_opens_the_transaction_and_others_join_it() -> None:
    draft = draft_of(row())
    assert write(draft, 1, V2, first=True).joins
    assert write(draft, 2, V2, first=True) == Joining(joins=True)
    assert write(draft, 2, V2, first=False) == Joining()
    effects = effects_of(draft)
    assert effects.put is not None
    assert effects.put.state is TransactionState.ONGOING
    assert (effects.expected_version, effects.joined, effects.marker) == (5, (1, 2), None)
    committed = draft.committed()
    assert committed is not None
    assert (committed.metadata.version, committed.partitions) == (6, {1, 2})


def test_a_refused_write_joins_nothing() -> None:
    draft = draft_of(row(TransactionState.ONGOING))
    assert write(draft, 1, V1, first=True).error is Error.TRANSACTION_ABORTABLE
    assert write(draft, 1, V2, epoch=3, first=True).error is Error.INVALID_PRODUCER_EPOCH
    assert effects_of(draft).joined == ()  # only held still: the refusal must be true
    assert draft_of(None).effects() is None
    unknown = draft_of(None)
    assert write(unknown, 1, V2, first=True).error is Error.INVALID_PRODUCER_ID_MAPPING
    assert (unknown.effects(), unknown.committed()) == (None, None)


def test_an_end_takes_all_partitions_those_of_this_flush_included() -> None:
    draft = draft_of(row(TransactionState.ONGOING), 1, groups=groups("g"))
    write(draft, 2, V2, first=True)
    transition, partitions = end(draft, commit=True)
    assert partitions == {1, 2}
    effects = effects_of(draft)
    assert effects.marker == transition.marker == Marker(PID, 1, True, 0)
    assert (effects.joined, effects.participants) == ((), groups("g"))
    committed = draft.committed()
    assert committed is not None
    assert (committed.partitions, committed.participants) == (frozenset(), frozenset())


def test_the_next_transaction_may_begin_in_the_same_flush_and_end_in_it() -> None:
    draft = draft_of(row(TransactionState.ONGOING), 1, groups=groups("g"))
    end(draft, commit=True)
    write(draft, 3, V2, epoch=1, first=True)
    effects = effects_of(draft)
    # The marker is that of the first, which alone has offsets and stored joins.
    assert (effects.marker, effects.joined) == (Marker(PID, 1, True, 0), (3,))
    transition, partitions = end(draft, commit=False, epoch=1)
    assert (transition.marker, partitions) == (Marker(PID, 2, False, 0), {3})
    effects = effects_of(draft)
    assert (effects.marker, effects.joined, effects.participants) == (
        Marker(PID, 1, True, 0),
        (),
        groups("g"),
    )
    committed = draft.committed()
    assert committed is not None
    assert (committed.metadata.producer_epoch, committed.metadata.version) == (2, 6)


def test_a_refused_end_changes_nothing() -> None:
    draft = draft_of(row(TransactionState.ONGOING), 1)
    transition, partitions = end(draft, commit=True, epoch=4)
    assert (transition.answer.error, partitions) == (Error.PRODUCER_FENCED, frozenset())
    assert draft.effects() is None


def test_a_row_made_anew_has_a_version_that_none_before_it_had() -> None:
    draft = draft_of(None)
    init(draft)
    effects = effects_of(draft)
    assert effects.expected_version == 0
    committed = draft.committed()
    assert committed is not None
    assert committed.metadata.version == first_version(FRESH)
    assert first_version(FRESH) > first_version(FRESH - 1) + 2**20


def test_an_id_that_expires_and_comes_back_in_one_flush() -> None:
    draft = draft_of(row())
    transition, _ = draft.prepare_transition(
        lambda stored: (
            prepare_expiry(stored and stored.metadata, NOW + 10, 1)
            or Transition(TransitionAnswer())
        )
    )
    assert transition.is_deleted
    assert effects_of(draft) == TransactionEffects(named("id"), 5, is_deleted=True)
    assert draft.committed() is None
    init(draft)
    effects = effects_of(draft)
    assert effects.put is not None
    assert (effects.is_deleted, effects.expected_version) == (False, 5)
    assert effects.put.producer_id == FRESH
    committed = draft.committed()
    assert committed is not None
    assert committed.metadata.version == 6
