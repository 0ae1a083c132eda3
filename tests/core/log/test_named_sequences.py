"""Deduplication by a producer's name: what is new, what is there already, and chunks."""

import pytest

from core.log import named_sequences
from core.log.named_sequences import (
    BrokenClaims,
    NamedSequence,
    NamedSequenceDraft,
    Sequenced,
    SequencedBatch,
)

NEW, DUPLICATE, FENCED = Sequenced.NEW, Sequenced.DUPLICATE, Sequenced.FENCED
U64 = 2**64 - 1


def known(highest: int = -1, chunked: int = -1, chunk: int = -1) -> NamedSequence:
    return NamedSequence("p", highest, chunked, chunk)


def batch(first: int, highest: int = -1, chunk: int = -1, of: int = -1) -> SequencedBatch:
    return SequencedBatch("p", first, highest, chunk, of)


@pytest.mark.parametrize(
    ("before", "sent", "verdict", "after"),
    [
        (None, batch(0), NEW, known(0)),
        (None, batch(70), NEW, known(70)),
        (known(5), batch(5), DUPLICATE, None),
        (known(5), batch(3), DUPLICATE, None),
        (known(5), batch(6), NEW, known(6)),
        (known(5), batch(60), NEW, known(60)),
        (known(5), batch(6, 9), NEW, known(9)),
        (known(5), batch(6, 2), NEW, known(6)),
        (known(5), batch(2, 5), DUPLICATE, None),
        (known(5), batch(4, 9), DUPLICATE, None),  # the first one decides, as in Pulsar
        (known(U64 - 1), batch(U64), NEW, known(U64)),
        (known(U64), batch(U64), DUPLICATE, None),
        # Chunks: all bear one sequence id.
        (known(5), batch(6, chunk=0, of=3), NEW, known(5, 6, 0)),
        (known(5, 6, 0), batch(6, chunk=1, of=3), NEW, known(5, 6, 1)),
        (known(5, 6, 1), batch(6, chunk=2, of=3), NEW, known(6)),
        (known(5, 6, 1), batch(6, chunk=1, of=3), DUPLICATE, None),
        (known(5, 6, 2), batch(6, chunk=1, of=4), DUPLICATE, None),
        (known(5, 6, 1), batch(6, chunk=0, of=3), NEW, known(5, 6, 0)),
        (known(6), batch(6, chunk=0, of=3), DUPLICATE, None),
        (known(6), batch(6, chunk=2, of=3), DUPLICATE, None),
        (known(5, 6, 1), batch(7, chunk=0, of=2), NEW, known(5, 7, 0)),
        (known(5, 6, 1), batch(7), NEW, known(7)),
        (known(5, 6, 1), batch(6), NEW, known(6)),
        (known(5), batch(6, chunk=0, of=1), NEW, known(6)),
    ],
)
def test_the_verdict_on_a_batch_and_what_is_known_then(
    before: NamedSequence | None,
    sent: SequencedBatch,
    verdict: Sequenced,
    after: NamedSequence | None,
) -> None:
    draft = NamedSequenceDraft({"p": before})
    assert draft.prepare(sent) is verdict
    assert draft.effects() == (() if after is None else (after,))


def test_decisions_of_a_flush_stand_on_each_other() -> None:
    draft = NamedSequenceDraft({"p": known(5), "q": None})
    assert draft.prepare(batch(6, 8)) is NEW
    assert draft.prepare(batch(6, 8)) is DUPLICATE
    assert draft.prepare(SequencedBatch("q", 7)) is NEW
    assert draft.prepare(batch(9)) is NEW
    assert draft.effects() == (known(9), NamedSequence("q", 7))


def claimed(highest: int, claim: int) -> NamedSequence:
    return NamedSequence("p", highest, claim=claim)


def test_a_later_claim_fences_what_was_sent_before_it() -> None:
    draft = NamedSequenceDraft({"p": claimed(5, 2)})
    for late in (SequencedBatch("p", 6, claim=1), SequencedBatch("p", 5, claim=1)):
        assert draft.verdict(late) is FENCED
        assert draft.prepare(late) is FENCED
    assert draft.effects() == ()
    assert draft.verdict(SequencedBatch("p", 6, claim=2)) is NEW
    assert draft.prepare(SequencedBatch("p", 6, claim=2)) is NEW
    assert draft.prepare(SequencedBatch("p", 6, claim=2)) is DUPLICATE
    assert draft.effects() == (claimed(6, 2),)
    # Chunks keep the claim, too.
    assert draft.prepare(SequencedBatch("p", 7, -1, 0, 2, claim=2)) is NEW
    assert draft.effects() == (NamedSequence("p", 6, 7, 0, claim=2),)


def test_a_name_that_is_forgotten_has_to_be_claimed() -> None:
    assert NamedSequenceDraft({"p": None}).prepare(SequencedBatch("p", 6, claim=2)) is FENCED


def test_what_is_not_loaded_is_a_bug() -> None:
    with pytest.raises(KeyError):
        NamedSequenceDraft({}).prepare(batch(1))


def test_behind_a_batch_that_was_turned_away_none_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_sequences, "_PRUNE_FROM", 3)
    broken = BrokenClaims()
    assert SequencedBatch("p", 7, claim=1) not in broken
    broken.note(SequencedBatch("p", 6, claim=1), 0.0)
    assert SequencedBatch("p", 7, claim=1) in broken
    assert SequencedBatch("p", 6, claim=2) not in broken
    for claim in range(10, 30):
        broken.note(SequencedBatch("p", 6, claim=claim), 1_000.0 + claim)
    assert SequencedBatch("p", 7, claim=1) not in broken
    assert all(SequencedBatch("p", 7, claim=claim) in broken for claim in range(10, 30))
