"""Message ids and ack sets, as Java, Go and Python clients were seen to write them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pulsar import ids
from gateway.pulsar.commands_pb2 import MessageIdData

LEDGER = 17
LATEST = MessageIdData(ledger_id=2**63 - 1, entry_id=2**63 - 1)


def test_an_id_is_ledger_offset_and_place() -> None:
    assert ids.message_id(LEDGER, 500, 2, 3) == MessageIdData(
        ledger_id=LEDGER, entry_id=500, partition=2, batch_index=3
    )
    assert ids.entry_offset(ids.message_id(LEDGER, 500), LEDGER) == 500


def test_earliest_and_latest() -> None:
    assert ids.earliest().ledger_id == ids.earliest().entry_id == 2**64 - 1
    assert ids.entry_offset(ids.earliest(), LEDGER) == ids.BEFORE_ALL
    assert ids.seek_offset(ids.earliest(), LEDGER) == 0
    assert ids.entry_offset(LATEST, LEDGER) == ids.seek_offset(LATEST, LEDGER) == ids.AFTER_ALL


@given(st.integers(0, 2**63 - 2), st.integers(-1, 1000))
def test_other_incarnations_lie_before_or_behind_everything(entry: int, index: int) -> None:
    older = ids.message_id(LEDGER - 1, entry, batch_index=index)
    newer = ids.message_id(LEDGER + 1, entry, batch_index=index)
    assert ids.entry_offset(older, LEDGER) == ids.BEFORE_ALL
    assert ids.seek_offset(older, LEDGER) == 0
    assert ids.entry_offset(newer, LEDGER) == ids.seek_offset(newer, LEDGER) == ids.AFTER_ALL


@pytest.mark.parametrize("entry", [2**64 - 1, 2**63])
def test_the_entry_before_the_first_is_before_all(entry: int) -> None:
    found = MessageIdData(ledger_id=LEDGER, entry_id=entry)
    assert ids.entry_offset(found, LEDGER) == ids.BEFORE_ALL
    assert ids.seek_offset(found, LEDGER) == 0


def test_places_within_a_batch() -> None:
    java = MessageIdData(ledger_id=LEDGER, entry_id=40, ack_set=[992])
    go = MessageIdData(ledger_id=LEDGER, entry_id=40, batch_index=5)
    assert ids.seek_offset(java, LEDGER) == ids.seek_offset(go, LEDGER) == 45
    second_word = MessageIdData(ledger_id=LEDGER, entry_id=40, ack_set=[0, -4])
    assert ids.seek_offset(second_word, LEDGER) == 40 + 66
    assert ids.seek_offset(ids.message_id(LEDGER, 40), LEDGER) == 40


def test_a_message_in_chunks_begins_with_its_first() -> None:
    last = ids.message_id(LEDGER, 44)
    last.first_chunk_message_id.CopyFrom(ids.message_id(LEDGER, 40))
    assert ids.seek_offset(last, LEDGER) == 40


@pytest.mark.parametrize(
    ("words", "acknowledged"),
    [
        ([1022], [range(1)]),
        ([1015], [range(3, 4)]),
        ([1008], [range(4)]),
        ([1023], []),
        ([], [range(10)]),
        ([0], [range(10)]),
        ([-1], []),
        ([0b1010101010], [range(at, at + 1) for at in range(0, 10, 2)]),
    ],
)
def test_ack_sets_of_ten(words: list[int], acknowledged: list[range]) -> None:
    assert ids.acknowledged_ranges(words, 10) == acknowledged


def test_words_cut_off_are_acknowledged() -> None:
    assert ids.acknowledged_ranges([-1], 200) == [range(64, 200)]
    assert ids.unacknowledged_words([range(64, 200)], 200) == [-1]


def test_words_beyond_the_entry_cost_nothing() -> None:
    assert ids.acknowledged_ranges([5] * 100_000, 3) == [range(1, 2)]


def test_a_million_messages_are_done_in_no_time() -> None:
    words = [0x5555555555555555] * 15_625
    ranges = ids.acknowledged_ranges(words, 1_000_000)
    assert len(ranges) == 500_000
    assert ids.unacknowledged_words(ranges, 1_000_000) == words


@given(st.integers(0, 300), st.data())
def test_words_and_ranges_are_each_others_inverse(count: int, data: st.DataObject) -> None:
    left = data.draw(st.sets(st.integers(0, count - 1))) if count else set()
    acknowledged = [range(at, at + 1) for at in range(count) if at not in left]
    words = ids.unacknowledged_words(acknowledged, count)
    assert not words or words[-1] != 0
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert sum((word & (2**64 - 1)) << 64 * at for at, word in enumerate(words)) == sum(
        1 << at for at in left
    )
    ranges = ids.acknowledged_ranges(words, count)
    assert {at for each in ranges for at in each} == set(range(count)) - left
    assert all(a.stop < b.start for a, b in itertools.pairwise(ranges))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.integers(1, 300))
def test_any_words_are_taken(words: list[int], count: int) -> None:
    for each in ids.acknowledged_ranges(words, count):
        assert 0 <= each.start < each.stop <= count
    found = MessageIdData(ledger_id=LEDGER, entry_id=2**63 - 2, ack_set=words)
    assert 0 <= ids.seek_offset(found, LEDGER) <= ids.AFTER_ALL
