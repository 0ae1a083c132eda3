"""Publications of one flush: guards, tokens, logs, and each seeing what those before it did."""

from __future__ import annotations

from uuid import UUID

import pytest

from core.errors import Error
from core.log.effects import IncomingBatch, StoredBytes
from core.log.partition_log import LogDraft, PartitionState
from core.staging import publication
from core.staging.publication import PublicationDraft
from core.staging.values import (
    MAX_BATCHES,
    Guard,
    GuardMove,
    Outcome,
    Publication,
    PublicationAnswer,
    PublicationEffects,
    PublishedPartition,
    TokenBatch,
    WantedToken,
)
from tests.batches import batch

A, B, MISSING = UUID(int=1), UUID(int=2), UUID(int=3)
GUARD = Guard("query", "sink")
P, Q, DELETED = 70, 71, 72
PUBLISHED, ALREADY = Outcome.PUBLISHED, Outcome.ALREADY_PUBLISHED


def of(partition_id: int, records: int = 1) -> TokenBatch:
    incoming = IncomingBatch(batch(records), StoredBytes())
    return TokenBatch("t", partition_id - P, partition_id, incoming)


TOKENS = {A: [of(P, 2), of(Q, 3), of(P, 4)], B: [of(P, 5)]}


class Flush:
    """A draft on guards, TOKENS and two empty logs."""

    def __init__(
        self,
        published: dict[Guard, int] | None = None,
        tokens: dict[UUID, list[TokenBatch]] = TOKENS,
    ) -> None:
        self.draft = PublicationDraft(published or {}, tokens)
        self.logs = {p: LogDraft(PartitionState(p, next_offset=100), {}) for p in (P, Q)}

    def publish(
        self, batch_id: int, *tokens: tuple[UUID, int], guard: Guard = GUARD
    ) -> PublicationAnswer:
        wanted = tuple(WantedToken(*each) for each in tokens)
        return self.draft.prepare_publish(Publication(guard, batch_id, wanted), self.logs.get)

    def appended(self) -> int:
        """Rows of all logs."""
        found = [log.effects() for log in self.logs.values()]
        return sum(len(effect.rows) for effect in found if effect)


def test_all_tokens_get_offsets_in_the_order_given() -> None:
    flush = Flush()
    answer = flush.publish(0, (B, 1), (A, 3))
    assert answer == PublicationAnswer(
        outcome=PUBLISHED,
        highest=0,
        partitions=(PublishedPartition("t", 0, 100, 11), PublishedPartition("t", 1, 100, 3)),
    )
    effects = flush.logs[P].effects()
    assert effects is not None
    assert [row.base_offset for row in effects.rows] == [100, 105, 107]
    assert [row.incoming for row in effects.rows] == [
        TOKENS[B][0].incoming,
        TOKENS[A][0].incoming,
        TOKENS[A][2].incoming,
    ]
    assert flush.draft.effects() == PublicationEffects((GuardMove(GUARD, None, 0),), (B, A))


def test_nothing_is_published_to_a_terminated_partition() -> None:
    flush = Flush()
    flush.logs[Q] = LogDraft(PartitionState(Q, 100, terminated_offset=100), {})
    assert flush.publish(0, (B, 1), (A, 3)).error is Error.POLICY_VIOLATION
    assert flush.appended() == 0
    assert flush.draft.effects() is None


@pytest.mark.parametrize(
    ("highest", "batch_id", "outcome"),
    [
        (None, 0, PUBLISHED),
        (None, -1, PUBLISHED),
        (-1, -1, ALREADY),
        (-1, 0, PUBLISHED),
        (4, 5, PUBLISHED),
        (4, 9, PUBLISHED),
        (4, 4, ALREADY),
        (4, 3, ALREADY),
        (4, -1, ALREADY),
    ],
)
def test_the_guard(highest: int | None, batch_id: int, outcome: Outcome) -> None:
    flush = Flush({} if highest is None else {GUARD: highest})
    answer = flush.publish(batch_id, (A, 3))
    by_now = batch_id if outcome is PUBLISHED else highest
    assert (answer.outcome, answer.highest) == (outcome, by_now)
    # The guard is written in any case, and tokens that come too late are dropped.
    assert by_now is not None
    moves = (GuardMove(GUARD, highest, by_now),)
    assert flush.draft.effects() == PublicationEffects(moves, (A,))
    assert flush.appended() == (3 if outcome is PUBLISHED else 0)


def test_another_guard_does_not_matter() -> None:
    others = {Guard("query", "other"): 9, Guard("other", "sink"): 9}
    assert Flush(others).publish(0, (A, 3)).outcome is PUBLISHED


@pytest.mark.parametrize("tokens", [(), ((A, 3),), ((MISSING, 1),)])
def test_too_late_whatever_becomes_of_the_tokens(tokens: tuple[tuple[UUID, int], ...]) -> None:
    flush = Flush({GUARD: 0})
    assert flush.publish(0, *tokens) == PublicationAnswer(outcome=ALREADY, highest=0)
    assert flush.appended() == 0


def test_an_empty_batch_moves_the_guard_and_a_token_without_batches_is_none() -> None:
    flush = Flush()
    assert flush.publish(0) == PublicationAnswer(outcome=PUBLISHED, highest=0)
    assert flush.publish(1, (MISSING, 0)) == PublicationAnswer(outcome=PUBLISHED, highest=1)
    assert flush.draft.effects() == PublicationEffects((GuardMove(GUARD, None, 1),))


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        (((B, 1), (MISSING, 1)), Error.RESOURCE_NOT_FOUND),
        (((B, 1), (A, 2)), Error.RESOURCE_NOT_FOUND),
        (((B, 1), (A, 4)), Error.RESOURCE_NOT_FOUND),
        (((B, 1), (A, 0)), Error.RESOURCE_NOT_FOUND),
        (((B, 1), (A, -1)), Error.INVALID_REQUEST),
        (((A, 3), (B, 1), (A, 3)), Error.INVALID_REQUEST),
        (((A, MAX_BATCHES), (B, 1)), Error.POLICY_VIOLATION),
    ],
)
def test_all_or_nothing(tokens: tuple[tuple[UUID, int], ...], error: Error) -> None:
    flush = Flush()
    answer = flush.publish(0, *tokens)
    assert (answer.error, answer.outcome, answer.partitions) == (error, None, ())
    assert answer.message
    assert (flush.appended(), flush.draft.effects()) == (0, None)
    # The same flush may yet publish it as it should be.
    assert flush.publish(0, (A, 3), (B, 1)).outcome is PUBLISHED


def test_what_is_committed_already_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the inbox: to refuse it would block all behind it."""
    monkeypatch.setattr(publication, "MAX_BATCHES", 3)
    wanted = (WantedToken(A, 3), WantedToken(B, 1))
    flush = Flush()
    assert flush.publish(0, (A, 3), (B, 1)).error is Error.POLICY_VIOLATION
    answer = flush.draft.prepare_publish(Publication(GUARD, 0, wanted), flush.logs.get, [])
    assert answer.outcome is PUBLISHED


@pytest.mark.parametrize(("query", "batch_id"), [("", 0), ("query", -2)])
def test_what_nobody_could_grant(query: str, batch_id: int) -> None:
    flush = Flush()
    answer = flush.publish(batch_id, (A, 3), guard=Guard(query, "sink"))
    assert (answer.error, flush.draft.effects()) == (Error.INVALID_REQUEST, None)


def test_a_partition_that_is_gone_refuses_all() -> None:
    flush = Flush(tokens={A: [of(P), of(DELETED)]})
    answer = flush.publish(0, (A, 2))
    assert answer.error is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert "t-2 was deleted" in (answer.message or "")
    assert (flush.appended(), flush.draft.effects()) == (0, None)


def test_publications_of_one_flush_see_those_before_them() -> None:
    flush = Flush({GUARD: 4})
    other = Guard("other", "sink")
    assert flush.publish(5, (A, 3)).outcome is PUBLISHED
    assert flush.publish(5, (B, 1)).outcome is ALREADY  # and B is dropped
    assert flush.publish(0, (A, 3), guard=other).error is Error.RESOURCE_NOT_FOUND
    assert flush.publish(0, (B, 1), guard=other).error is Error.RESOURCE_NOT_FOUND
    assert flush.publish(7).outcome is PUBLISHED
    assert flush.draft.effects() == PublicationEffects((GuardMove(GUARD, 4, 7),), (A, B))
    assert flush.appended() == 3
