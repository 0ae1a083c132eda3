"""When a segment is sealed: by size, by age, and when nothing is left in it."""

from core.log.retention import CONTROL
from storage.flush.segments import EMPTY_SEGMENT_BYTES, OpenSegment, should_seal


def segment(
    name: str = "hour", size: int = 10**6, age_s: float = 1, used: bool = True
) -> OpenSegment:
    return OpenSegment(1, name, size, age_s, used)


def test_an_empty_segment_is_never_sealed() -> None:
    empty = segment(size=EMPTY_SEGMENT_BYTES, age_s=10**9, used=False)
    assert not should_seal(empty, 1)


def test_segments_are_sealed_by_size_by_age_and_when_nothing_is_left_in_them() -> None:
    assert not should_seal(segment(), 10**7)
    assert should_seal(segment(size=10**7), 10**7)
    assert should_seal(segment(used=False), 10**7)
    assert should_seal(segment("hour", age_s=301), 10**7)
    assert not should_seal(segment("day", age_s=301), 10**7)
    assert should_seal(segment("kept", age_s=605_000), 10**7)


def test_segments_of_markers_last_a_day() -> None:
    assert not should_seal(segment(CONTROL, age_s=86_399), 10**7)
    assert should_seal(segment(CONTROL, age_s=86_400), 10**7)
