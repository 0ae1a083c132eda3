"""Sorted ranges of offsets: what is put in, merged, taken out and found, over chunks too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.subscription.offset_ranges import NO_OFFSET_ABOVE, OffsetRanges

Pairs = list[tuple[int, int]]


def ranges_of(*pairs: tuple[int, int], watched_below: int = NO_OFFSET_ABOVE) -> OffsetRanges:
    ranges = OffsetRanges(watched_below)
    for start, end in pairs:
        ranges.add(start, end)
    ranges.changed.clear()
    return ranges


@pytest.mark.parametrize(
    ("start", "end", "after", "new", "changed"),
    [
        (1, 3, [(1, 3), (10, 20), (30, 40)], 2, {1}),
        (22, 25, [(10, 20), (22, 25), (30, 40)], 3, {22}),
        (50, 51, [(10, 20), (30, 40), (50, 51)], 1, {50}),
        (12, 18, [(10, 20), (30, 40)], 0, set()),
        (10, 20, [(10, 20), (30, 40)], 0, set()),
        (18, 22, [(10, 22), (30, 40)], 2, {10}),
        (20, 22, [(10, 22), (30, 40)], 2, {10}),
        (28, 30, [(10, 20), (28, 40)], 2, {28, 30}),
        (20, 30, [(10, 40)], 10, {10, 30}),
        (5, 35, [(5, 40)], 15, {5, 10, 30}),
        (5, 50, [(5, 50)], 25, {5, 10, 30}),
        (15, 45, [(10, 45)], 15, {10, 30}),
    ],
)
def test_what_is_added_is_merged_with_what_it_meets(
    start: int, end: int, after: Pairs, new: int, changed: set[int]
) -> None:
    ranges = ranges_of((10, 20), (30, 40))
    assert ranges.add(start, end) == new
    assert list(ranges) == after
    assert ranges.changed == changed
    assert len(ranges) == len(after)
    assert ranges.offset_count == sum(end - start for start, end in after)


@pytest.mark.parametrize(
    ("end", "reached", "left"),
    [
        (9, 9, [(10, 20), (30, 40)]),
        (10, 20, [(30, 40)]),
        (20, 20, [(30, 40)]),
        (25, 25, [(30, 40)]),
        (30, 40, []),
        (50, 50, []),
    ],
)
def test_dropping_goes_as_far_as_the_last_range_it_meets(
    end: int, reached: int, left: Pairs
) -> None:
    ranges = ranges_of((10, 20), (30, 40))
    assert ranges.drop_through(end) == reached
    assert list(ranges) == left


@pytest.mark.parametrize(
    ("start", "end", "together", "left"),
    [
        (0, 9, (0, 9), [(10, 20), (30, 40)]),
        (0, 10, (0, 20), [(30, 40)]),
        (20, 29, (10, 29), [(30, 40)]),
        (20, 30, (10, 40), []),
        (12, 13, (10, 20), [(30, 40)]),
        (41, 42, (41, 42), [(10, 20), (30, 40)]),
    ],
)
def test_what_touches_is_taken_out_with_its_extent(
    start: int, end: int, together: tuple[int, int], left: Pairs
) -> None:
    ranges = ranges_of((10, 20), (30, 40))
    assert ranges.touches(start, end) == (len(left) < 2)
    assert ranges.drop_touching(start, end) == together
    assert list(ranges) == left


@pytest.mark.parametrize(
    ("start", "end", "missing"),
    [
        (0, 5, [(0, 5)]),
        (0, 50, [(0, 10), (20, 30), (40, 50)]),
        (10, 20, []),
        (15, 30, [(20, 30)]),
        (19, 31, [(20, 30)]),
        (20, 21, [(20, 21)]),
    ],
)
def test_what_is_missing_and_what_is_there(start: int, end: int, missing: Pairs) -> None:
    ranges = ranges_of((10, 20), (30, 40))
    assert ranges.missing(start, end) == missing
    assert ranges.count_within(start, end) == end - start - sum(e - s for s, e in missing)


def test_only_what_is_watched_is_told_as_changed() -> None:
    ranges = ranges_of((10, 20), (30, 40), watched_below=30)
    ranges.add(21, 22)
    ranges.add(40, 41)
    ranges.add(50, 51)
    assert ranges.changed == {21}
    ranges.clear()
    assert ranges.changed == {10, 21}
    assert (len(ranges), ranges.offset_count, ranges.end) == (0, 0, 0)


def test_many_ranges_lie_in_chunks_and_are_found() -> None:
    ranges = OffsetRanges()
    for offset in [*range(0, 20_000, 4), *range(2, 20_000, 4)]:
        assert ranges.add(offset, offset + 1) == 1
    assert len(ranges) == ranges.offset_count == 10_000
    assert [start for start, _ in ranges] == list(range(0, 20_000, 2))
    assert ranges.start_at(7_000) == 14_000
    assert ranges.start_at(10_000) is None
    assert ranges.end_of(9_998) == 9_999
    assert ranges.end_of(9_999) is None
    assert [each.start for each in ranges.beginning_within(4_095, 8_001)] == list(
        range(4_096, 8_001, 2)
    )
    assert ranges.count_within(1_001, 19_001) == 9_000
    assert ranges.add(3_001, 17_000) == 7_000
    assert ranges.end_of(3_000) == 17_001
    assert len(ranges) == 3_001 - 1_501 + 1_500
    assert ranges.drop_through(18_000) == 18_001
    assert len(ranges) == 999
    assert ranges.end == 19_999


@pytest.mark.parametrize(
    ("start", "end", "after", "gone", "changed"),
    [
        (0, 10, [(10, 20), (30, 40)], 0, set()),
        (20, 30, [(10, 20), (30, 40)], 0, set()),
        (40, 99, [(10, 20), (30, 40)], 0, set()),
        (0, 15, [(15, 20), (30, 40)], 5, {10, 15}),
        (15, 25, [(10, 15), (30, 40)], 5, {10}),
        (12, 14, [(10, 12), (14, 20), (30, 40)], 2, {10, 14}),
        (10, 20, [(30, 40)], 10, {10}),
        (15, 35, [(10, 15), (35, 40)], 10, {10, 30, 35}),
        (0, 99, [], 20, {10, 30}),
    ],
)
def test_what_is_removed_is_cut_out(
    start: int, end: int, after: Pairs, gone: int, changed: set[int]
) -> None:
    ranges = ranges_of((10, 20), (30, 40))
    assert ranges.remove(start, end) == gone
    assert list(ranges) == after
    assert ranges.changed == changed


PIECES = st.lists(
    st.tuples(st.booleans(), st.integers(0, 12_000), st.sampled_from([1, 1, 2, 50, 5_000])),
    max_size=30,
)


@given(PIECES)
def test_it_is_as_a_set_of_offsets(pieces: list[tuple[bool, int, int]]) -> None:
    ranges, model = OffsetRanges(), set(range(0, 12_000, 2))
    for offset in model:
        ranges.add(offset, offset + 1)  # several chunks
    for is_added, start, count in pieces:
        piece = set(range(start, start + count))
        if is_added:
            assert ranges.add(start, start + count) == len(piece - model)
            model |= piece
        else:
            assert ranges.remove(start, start + count) == len(piece & model)
            model -= piece
    assert [each for run in ranges for each in range(*run)] == sorted(model)
    assert ranges.offset_count == len(model)
    assert len(ranges) == sum(each - 1 not in model for each in model)
