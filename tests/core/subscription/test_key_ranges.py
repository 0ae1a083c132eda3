"""Who owns which hashes of keys: a ring, or ranges that consumers bring."""

import pytest

from core.subscription.key_ranges import SplitKeys, StickyKeys
from core.subscription.values import HashRange, Joining, Reason, Refused, SubscriptionType

SLOTS = range(65_536)


def joining(name: str, *ranges: tuple[int, int]) -> Joining:
    return Joining(
        name,
        SubscriptionType.KEY_SHARED,
        name,
        hash_ranges=tuple(HashRange(*each) for each in ranges),
    )


def split_among(*names: str) -> SplitKeys[str]:
    keys: SplitKeys[str] = SplitKeys()
    for name in names:
        keys.add(name, joining(name))
    return keys


class TestSplit:
    def test_nobody_owns_anything_where_nobody_is(self) -> None:
        assert split_among().owner_of(5) is None
        assert split_among().ranges() == []

    def test_one_owns_all(self) -> None:
        keys = split_among("a")
        assert {keys.owner_of(each) for each in SLOTS} == {"a"}
        assert keys.ranges() == [(HashRange(0, 65_535), "a")]

    def test_ranges_cover_all_and_say_who_the_owner_is(self) -> None:
        keys = split_among("a", "b", "c")
        expected = 0
        for (first, last), owner in keys.ranges():
            assert first == expected
            assert keys.owner_of(first) == keys.owner_of(last) == owner
            expected = last + 1
        assert expected == len(SLOTS)

    def test_shares_are_fair(self) -> None:
        keys = split_among("a", "b", "c", "d")
        owned = [keys.owner_of(each) for each in SLOTS]
        assert all(0.15 < owned.count(name) / len(SLOTS) < 0.35 for name in "abcd")

    def test_who_comes_takes_and_who_goes_gives_and_others_keep(self) -> None:
        keys = split_among("a", "b")
        before = [keys.owner_of(each) for each in SLOTS]
        keys.add("c", joining("c"))
        among_three = [keys.owner_of(each) for each in SLOTS]
        assert all(new in (old, "c") for old, new in zip(before, among_three, strict=True))
        keys.remove("c")
        assert [keys.owner_of(each) for each in SLOTS] == before

    def test_who_comes_tells_whom_it_takes_from(self) -> None:
        keys = split_among(*"abcdefgh")
        before = [keys.owner_of(each) for each in SLOTS]
        losers = keys.add("x", joining("x"))
        assert not isinstance(losers, Refused)
        after = [keys.owner_of(each) for each in SLOTS]
        lost = {old for old, new in zip(before, after, strict=True) if old != new}
        assert len(losers) == len(set(losers))
        assert lost <= set(losers) <= set("abcdefgh")

    def test_consumers_of_one_name_share_and_keep_their_places(self) -> None:
        keys: SplitKeys[str] = SplitKeys()
        for each in ("one", "two"):
            keys.add(each, joining("same"))
        before = [keys.owner_of(each) for each in SLOTS]
        assert set(before) == {"one", "two"}
        keys.remove("one")
        keys.add("again", joining("same"))
        after = [keys.owner_of(each) for each in SLOTS]
        moved = sum(
            new != ("again" if old == "one" else old)
            for old, new in zip(before, after, strict=True)
        )
        assert moved < 500  # points that both have go to whoever came first

    def test_a_point_of_two_goes_to_the_second_when_the_first_is_gone(self) -> None:
        keys: SplitKeys[str] = SplitKeys(points=65_536)  # certainly more than one on a point
        keys.add("a", joining("a"))
        keys.add("b", joining("b"))
        keys.remove("a")
        assert {keys.owner_of(each) for each in SLOTS} == {"b"}
        keys.remove("b")
        assert keys.owner_of(1) is None


class TestSticky:
    def test_a_hash_is_its_range_s(self) -> None:
        keys: StickyKeys[str] = StickyKeys()
        assert keys.add("a", joining("a", (0, 9), (20, 29))) == []
        assert keys.add("b", joining("b", (10, 10))) == []
        owned = {each: keys.owner_of(each) for each in (0, 9, 10, 11, 19, 20, 29, 30, 65_535)}
        assert owned == {
            0: "a", 9: "a", 10: "b", 11: None, 19: None, 20: "a", 29: "a", 30: None, 65_535: None
        }  # fmt: skip
        assert keys.ranges() == [
            (HashRange(0, 9), "a"),
            (HashRange(10, 10), "b"),
            (HashRange(20, 29), "a"),
        ]
        keys.remove("a")
        assert (keys.owner_of(5), keys.owner_of(10)) == (None, "b")
        assert keys.add("c", joining("c", (0, 9))) == []

    @pytest.mark.parametrize(
        "ranges",
        [
            (),
            ((5, 4),),
            ((-1, 4),),
            ((0, 65_536),),
            ((0, 10),),
            ((15, 15),),
            ((20, 30),),
            ((5, 40),),
            ((30, 40), (40, 50)),
            ((30, 40), (30, 40)),
        ],
    )
    def test_ranges_that_are_bad_or_taken_are_refused(
        self, ranges: tuple[tuple[int, int], ...]
    ) -> None:
        keys: StickyKeys[str] = StickyKeys()
        keys.add("a", joining("a", (10, 20)))
        refused = keys.add("b", joining("b", *ranges))
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.RANGE_CONFLICT
        assert keys.ranges() == [(HashRange(10, 20), "a")]
