"""Stashed entries: which are found by their offsets."""

import pytest

from core.subscription.stashed import StashedEntries
from core.subscription.values import Entry

FIRST, SECOND, THIRD = Entry(0, 4), Entry(10, 10), Entry(11, 19)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 1, [FIRST]),
        (4, 5, [FIRST]),
        (5, 10, []),
        (4, 11, [FIRST, SECOND]),
        (19, 99, [THIRD]),
        (0, 99, [FIRST, SECOND, THIRD]),
        (20, 99, []),
    ],
)
def test_what_has_some_of_the_offsets_is_found_in_order(
    start: int, end: int, found: list[Entry]
) -> None:
    stash = StashedEntries()
    for each in (THIRD, FIRST, SECOND):
        stash.add(each)
    assert stash.within(start, end) == found
    stash.remove(SECOND)
    assert stash.within(start, end) == [each for each in found if each is not SECOND]
    stash.clear()
    assert stash.within(start, end) == []
    assert not stash.entries
