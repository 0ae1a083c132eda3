"""What holds for every decision of the coordinator, in every state."""

from __future__ import annotations

from itertools import product

from core.errors import Error
from core.transaction.coordinator import (
    MAX_PRODUCER_EPOCH,
    prepare_expiry,
    prepare_join,
    prepare_timeout,
)
from core.transaction.values import (
    TransactionMetadata,
    TransactionState,
    Transition,
)
from tests.core.transaction.asked import (
    DEAD,
    EPOCH,
    FENCED,
    FRESH,
    IDLE,
    LAST,
    MAPPING,
    NOBODY,
    NOW,
    OLD_PID,
    ONGOING,
    STARTED,
    TIMEOUT_MS,
    V1,
    V2,
    assert_refused,
    end,
    from_outside,
    init,
    producer,
    row,
)

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
            assert put.key == known.key
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
