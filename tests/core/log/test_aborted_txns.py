"""Which aborted transactions a reader is told of, from memory or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.log import aborted_txns
from core.log.aborted_txns import AbortedIndex, AbortedTransaction

A = AbortedTransaction(1, 10, 19)
B = AbortedTransaction(2, 5, 24)
C = AbortedTransaction(1, 30, 31)
INDEX = AbortedIndex(0, (A, B, C))


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "expected"),
    [
        (0, 40, [A, B, C]),
        (0, 5, []),  # ends before the first record of B
        (0, 6, [B]),
        (19, 20, [A, B]),  # begins at the marker of A
        (20, 30, [B]),  # in the middle of B: its rest has to be hidden
        (25, 30, []),
        (25, 31, [C]),
        (31, 32, [C]),
        (32, 90, []),
        (7, 7, [B]),  # began before, not ended: harmless in an empty answer
    ],
)
def test_those_that_overlap_the_answer(
    from_offset: int, to_offset: int, expected: list[AbortedTransaction]
) -> None:
    assert INDEX.overlapping(from_offset, to_offset) == expected


def test_what_lies_before_the_memory_is_asked_of_the_store() -> None:
    index = AbortedIndex(20, (B, C))
    assert index.overlapping(19, 40) is None
    assert index.overlapping(20, 40) == [B, C]


def test_newer_ones_are_added() -> None:
    index = AbortedIndex(7)
    assert index.with_newer([]) is index
    index = index.with_newer([A]).with_newer([B, C])
    assert index == AbortedIndex(7, (A, B, C))


def test_the_oldest_are_forgotten_and_asked_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_txns, "ABORTED_IN_MEMORY", 2)
    index = AbortedIndex().with_newer([A, B]).with_newer([C])
    assert index == AbortedIndex(20, (B, C))
    assert index.overlapping(19, 99) is None
    assert index.overlapping(20, 99) == [B, C]


LENGTHS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=12)


@given(LENGTHS, st.integers(0, 60), st.integers(0, 60), st.integers(0, 12))
def test_memory_answers_as_the_store_would(
    lengths: list[tuple[int, int]], from_offset: int, size: int, kept: int
) -> None:
    offset, every = 0, []
    for gap, back in lengths:
        offset += gap
        every.append(AbortedTransaction(gap, max(0, offset - back - 1), offset))
    # Of all, memory saw the last ones being aborted.
    seen = every[len(every) - min(kept, len(every)) :]
    known_from = seen[0].last_offset if seen else offset + 1
    index = AbortedIndex(known_from, tuple(seen))
    found = index.overlapping(from_offset, from_offset + size)
    if found is not None:
        assert found == [
            each
            for each in every
            if each.last_offset >= from_offset and each.first_offset < from_offset + size
        ]
    else:
        assert from_offset < known_from
