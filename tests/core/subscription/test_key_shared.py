"""KEY_SHARED: who owns a hash, and in which order its entries come while owners change."""

from dataclasses import replace

import pytest

from core.subscription.key_shared import KeySharedDispatcher
from core.subscription.values import (
    ConsumerId,
    HashRange,
    KeySharing,
    Reason,
    Refused,
    SubscriptionType,
)
from tests.core.subscription.driver import NO_LIMITS, Driver

KEY_SHARED = SubscriptionType.KEY_SHARED
STICKY = KeySharing(is_sticky=True)

LOW, HIGH = (0, 99), (100, 199)
"""Hash ranges; keys 1 and 2 are in the one, 101 and 102 in the other."""


def sticky(a: int = 9, b: int = 9, **settings: int) -> Driver:
    """a has LOW, b has HIGH, with so many permits."""
    driver = Driver(KEY_SHARED, replace(NO_LIMITS, **settings), key_sharing=STICKY)
    driver.join("a", a, ranges=(LOW,))
    driver.join("b", b, ranges=(HIGH,))
    return driver


def owned_by(driver: Driver, consumer_id: ConsumerId) -> list[int]:
    """Hashes of the consumer."""
    assert isinstance(driver.dispatcher, KeySharedDispatcher)
    return [
        each
        for (first, last), owner in driver.dispatcher.hash_ranges()
        if owner == consumer_id
        for each in range(first, last + 1)
    ]


def move_away(driver: Driver) -> None:
    """Consumers come until the hash of 7 is not `a`'s any more."""
    while 7 in owned_by(driver, "a"):
        driver.join(f"c{len(driver.dispatcher.consumers())}", 5)


def with_an_entry_whose_hash_moved(messages: int, permits: int) -> Driver:
    """`a` has all of the entry, and another consumer has its hash."""
    driver = Driver(KEY_SHARED)
    driver.join("a", permits)
    driver.append(messages, key=7)
    driver.run()
    move_away(driver)
    return driver


def moved_hash(permits: int = 9) -> tuple[Driver, int]:
    """a had all; one entry of a hash is outstanding there, and the hash is b's now."""
    driver = Driver(KEY_SHARED)
    driver.join("a", 100)
    # Who owns what is told by names alone, so a trial tells which hash will move.
    trial = Driver(KEY_SHARED)
    trial.join("a")
    trial.join("b")
    key = owned_by(trial, "b")[0]
    driver.fill(key)
    assert driver.run() == [("a", 0)]
    driver.join("b", permits)
    assert key in owned_by(driver, "b")
    return driver, key


class TestOwners:
    def test_a_hash_goes_to_its_owner(self) -> None:
        driver = sticky()
        driver.fill(1, 101, 2, 102, 1)
        assert driver.run() == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]

    def test_split_hashes_cover_all(self) -> None:
        driver = Driver(KEY_SHARED)
        for each in "abc":
            driver.join(each, 100)
        owners = {key: name for name in "abc" for key in owned_by(driver, name)}
        assert len(owners) == 65_536
        keys = range(1, 65_536, 4_096)
        driver.fill(*keys)
        assert driver.run() == [(owners[key], i) for i, key in enumerate(keys)]

    def test_without_a_key_anybody_is_right(self) -> None:
        driver = sticky(a=2, b=9)
        driver.fill(None, None, None, None, None)
        assert driver.run() == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("b", 4)]

    def test_chunks_without_a_key_keep_together(self) -> None:
        driver = sticky()
        for chunk in ("x", None, "x"):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0), ("b", 1), ("a", 2)]
        assert driver.leave("a") == ()
        assert driver.run() == [("b", 0), ("b", 2)]

    def test_nobody_s_hash_waits_for_somebody(self) -> None:
        driver = sticky()
        driver.fill(500, 1, 500)
        assert driver.run() == [("a", 1)]
        driver.join("c", 9, ranges=((500, 500),))
        assert driver.run() == [("c", 0), ("c", 2)]

    def test_overlapping_ranges_are_refused_and_change_nothing(self) -> None:
        driver = sticky()
        refused = driver.join("c", ranges=((150, 300),))
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.RANGE_CONFLICT
        assert [each.consumer_id for each in driver.dispatcher.consumers()] == ["a", "b"]
        assert isinstance(driver.dispatcher, KeySharedDispatcher)
        assert driver.dispatcher.hash_ranges() == [(HashRange(*LOW), "a"), (HashRange(*HIGH), "b")]


class TestWaiting:
    def test_a_hash_waits_for_its_owner_s_permits_and_others_go_on(self) -> None:
        driver = sticky(a=1)
        driver.fill(1, 2, 101, 1, 102)
        assert driver.run() == [("a", 0), ("b", 2), ("b", 4)]
        assert driver.flow("a", 9) == [("a", 1), ("a", 3)]

    def test_what_waited_goes_in_order_of_offset(self) -> None:
        driver = sticky(a=0)
        driver.fill(2, 1, 2, 1)
        assert driver.run() == []
        assert driver.flow("a", 9) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]

    def test_permits_are_enough_for_some(self) -> None:
        driver = sticky(a=0)
        driver.fill(2, 1, 2, 1)
        driver.run()
        assert driver.flow("a", 1) == [("a", 0)]
        assert driver.flow("a", 2) == [("a", 1), ("a", 2)]
        assert driver.flow("a", 2) == [("a", 3)]

    def test_reading_stops_when_too_many_wait(self) -> None:
        driver = sticky(a=0, look_ahead_per_consumer=1, look_ahead=9)
        driver.fill(1, 1, 101)
        assert driver.run() == []
        assert driver.dispatcher.read_position == 2
        assert driver.flow("a", 1) == [("a", 0), ("b", 2)]

    def test_what_nobody_has_waits_no_longer_when_it_is_skipped(self) -> None:
        driver = sticky(look_ahead=1)
        driver.append(2, key=500)
        driver.fill(1)
        assert driver.run() == []
        driver.subscription.acknowledge_up_to(1, 3)
        assert driver.run() == []
        driver.subscription.acknowledge_up_to(2, 3)
        assert driver.run() == [("a", 2)]

    def test_what_is_left_of_a_lane_is_announced_after_a_skip(self) -> None:
        driver = sticky(a=0)
        driver.fill(1, 1, 1)
        driver.run()
        driver.subscription.acknowledge_up_to(2, 3)
        assert driver.flow("a", 9) == [("a", 2)]

    def test_a_blocked_owner_s_hashes_wait(self) -> None:
        driver = sticky(max_unacked_per_consumer=2)
        driver.fill(1, 1, 1, 101)
        assert driver.run() == [("a", 0), ("a", 1), ("b", 3)]
        assert driver.ack(0) == [("a", 2)]


class TestHandingOver:
    def test_a_hash_moves_once_nothing_of_it_is_outstanding(self) -> None:
        driver, key = moved_hash()
        driver.fill(key, None)
        assert driver.run()[-1][1] == 2
        assert driver.ack(0) == [("b", 1)]

    def test_with_order_given_up_it_moves_at_once(self) -> None:
        driver = Driver(KEY_SHARED, key_sharing=KeySharing(is_ordered=False))
        driver.join("a", 1)
        driver.fill(1)
        driver.run()
        driver.leave("a")
        driver.join("b", 1)
        driver.run()
        while 1 in owned_by(driver, "b"):
            driver.join(f"c{len(driver.dispatcher.consumers())}", 5)
        driver.fill(1)
        assert driver.run()[0][0] != "b"

    def test_what_was_given_back_goes_to_the_new_owner_before_later_ones(self) -> None:
        driver, key = moved_hash()
        driver.fill(key)
        driver.run()
        assert driver.redeliver("a") == [("b", 0), ("b", 1)]
        assert driver.counts() == {0: 1, 1: 0}

    def test_a_leaving_owner_s_entries_come_in_order(self) -> None:
        driver, key = moved_hash()
        driver.fill(key, key)
        driver.run()
        driver.leave("a")
        assert driver.run() == [("b", 0), ("b", 1), ("b", 2)]
        assert driver.counts() == {0: 1, 1: 0, 2: 0}

    def test_a_hash_that_comes_back_goes_on_where_it_was(self) -> None:
        driver, key = moved_hash(permits=0)
        driver.fill(key)
        driver.run()
        driver.leave("b")
        assert driver.run() == [("a", 1)]

    def test_what_waited_for_permits_goes_on_when_its_hash_comes_back(self) -> None:
        driver, key = moved_hash(permits=0)
        driver.leave("b")
        driver.fill(*[key] * 99)
        driver.run()
        assert driver.status("a").permits == 0
        driver.join("c", 9, priority_level=1)  # so that reading goes on
        driver.fill(key, None)
        assert driver.run() == [("c", 101)]
        driver.join("b", 9)
        driver.dispatcher.flow("a", 5)
        assert driver.run() == []  # the hash is b's, and a has some of it
        driver.leave("b")
        assert driver.run() == [("a", 100)]

    def test_one_given_back_of_several_waits_for_the_others(self) -> None:
        driver = Driver(KEY_SHARED)
        driver.join("a", 9)
        driver.fill(*[7] * 3)
        driver.run()
        move_away(driver)
        assert driver.redeliver("a", 1) == []
        assert driver.ack(0) == []
        (new_owner,) = {name for name, _ in driver.ack(2)}
        assert new_owner != "a"
        assert driver.counts() == {1: 1}

    def test_the_owner_s_own_come_again_at_once(self) -> None:
        driver = sticky()
        driver.fill(1, 1, 1)
        driver.run()
        assert driver.redeliver("a", 1) == [("a", 1)]

    def test_with_all_gone_what_they_had_waits(self) -> None:
        driver = sticky()
        driver.fill(1, 101)
        driver.run()
        driver.leave("a")
        driver.leave("b")
        driver.join("c", 9, ranges=((0, 65_535),))
        assert driver.run() == [("c", 0), ("c", 1)]

    def test_a_seek_forgets_who_had_what(self) -> None:
        driver, key = moved_hash()
        driver.fill(key)
        driver.subscription.seek(1)
        assert driver.run() == [("b", 1)]


class TestDelayed:
    def test_a_due_entry_comes_before_later_ones_that_wait(self) -> None:
        driver = sticky(a=0)
        driver.append(key=1, at=10)
        driver.append(key=1)
        driver.run()
        driver.dispatcher.expire(10)
        assert driver.flow("a", 9) == [("a", 0), ("a", 1)]

    def test_it_waits_for_its_owner(self) -> None:
        driver = sticky(a=0)
        driver.append(key=1, at=10)
        driver.run()
        driver.dispatcher.expire(10)
        assert driver.run() == []
        assert driver.flow("a", 1) == [("a", 0)]


class TestPending:
    def test_it_comes_back_before_later_ones_of_its_hash(self) -> None:
        driver = sticky(a=2)
        driver.fill(1, 1, 1, 1)
        assert driver.run() == [("a", 0), ("a", 1)]
        driver.pend("t", 0, 1)
        assert driver.abort("t") == []
        assert driver.flow("a", 9) == [("a", each) for each in range(4)]

    def test_while_it_is_pending_its_hash_does_not_move(self) -> None:
        driver, key = moved_hash()
        driver.fill(key)
        driver.run()
        driver.pend("t", 0)
        assert driver.run() == []
        driver.fill(key, None)
        assert [offset for _, offset in driver.run()] == [3]
        assert driver.abort("t") == [("b", 0), ("b", 1), ("b", 2)]
        assert driver.counts() == {0: 1, 1: 0, 2: 0}

    @pytest.mark.parametrize("how", ["commit", "ack", "up to", "seek"])
    def test_it_moves_once_that_is_settled(self, how: str) -> None:
        driver, key = moved_hash()
        driver.fill(key, key)
        driver.pend("t", 0)
        assert driver.run() == []
        match how:
            case "commit":
                driver.commit("t")
            case "ack":
                driver.ack(0)
            case "up to":
                driver.subscription.acknowledge_up_to(1, 3)
                driver.run()
            case "seek":
                driver.subscription.seek(1)
                driver.run()
        assert [(each.consumer_id, each.entry.base_offset) for each in driver.got] == [
            ("b", 1),
            ("b", 2),
        ]
        assert driver.abort("t") == []

    def test_it_moves_once_all_of_the_entry_is_acknowledged(self) -> None:
        driver = with_an_entry_whose_hash_moved(2, permits=9)
        driver.subscription.pend("t", [[(0, 1)]], 2)
        driver.fill(7)
        assert driver.run() == []
        driver.subscription.acknowledge(0, 2, 3)
        ((who, base),) = driver.run()
        assert (who != "a", base) == (True, 2)

    def test_of_several_the_last_one_counts(self) -> None:
        driver, key = moved_hash()
        driver.leave("b")
        driver.fill(key)
        assert driver.run() == [("a", 1)]
        driver.join("b", 9)
        driver.fill(key)
        driver.pend("t", 0)
        driver.pend("u", 1)
        assert driver.run() == driver.commit("t") == []
        assert driver.commit("u") == [("b", 2)]

    def test_of_two_halves_of_an_entry_the_last_one_counts(self) -> None:
        driver = with_an_entry_whose_hash_moved(2, permits=9)
        driver.subscription.pend("t", [[(0, 1)]], 2)
        driver.subscription.pend("u", [[(1, 2)]], 2)
        driver.fill(7)
        assert driver.run() == driver.commit("t") == []
        ((who, base),) = driver.commit("u")
        assert (who != "a", base) == (True, 2)

    def test_who_has_it_goes_on_meanwhile(self) -> None:
        driver = sticky()
        driver.fill(1)
        driver.run()
        driver.pend("t", 0)
        driver.fill(1, 1)
        assert driver.run() == [("a", 1), ("a", 2)]
        assert driver.ack(1, 2) == []
        assert driver.abort("t") == [("a", 0)]

    def test_a_hash_that_comes_back_goes_on(self) -> None:
        driver, key = moved_hash()
        driver.fill(key)
        driver.pend("t", 0)
        assert driver.run() == []
        driver.leave("b")
        assert driver.run() == [("a", 1)]

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_its_hash_waits_for_the_end_though_its_consumer_is_gone(self, is_commit: bool) -> None:
        driver, key = moved_hash()
        driver.fill(key)
        driver.pend("t", 0)
        driver.leave("a")
        driver.fill(key, None)
        assert driver.run() == [("b", 3)]
        expected = [("b", each) for each in (0, 1, 2)]
        assert (driver.commit("t") if is_commit else driver.abort("t")) == expected[is_commit:]

    def test_what_its_consumer_gave_back_waits_with_it(self) -> None:
        driver = with_an_entry_whose_hash_moved(3, permits=9)
        driver.subscription.pend("t", [[(0, 1)]], 3)
        assert driver.redeliver("a") == []
        ((who, base),) = driver.abort("t")
        assert (who != "a", base) == (True, 0)
        assert driver.got[0].remaining is None

    def test_what_nobody_had_holds_up_its_hash(self) -> None:
        """As after a restart: who had it then is not known."""
        driver = Driver(KEY_SHARED, key_sharing=STICKY)
        driver.append(2, key=1)
        driver.fill(1, 2, 101)
        driver.subscription.load_pending("t", [(0, 1)], None)
        driver.join("a", 9, ranges=(LOW,))
        driver.join("b", 9, ranges=(HIGH,))
        assert driver.run() == [("a", 3), ("b", 4)]
        assert driver.leave("a") == ()
        driver.join("c", 9, ranges=(LOW,))
        assert driver.run() == [("c", 3)]
        assert driver.abort("t") == [("c", 0), ("c", 2)]

    def test_after_a_seek_nobody_had_it(self) -> None:
        driver = sticky()
        driver.fill(1, 1, 101)
        driver.run()
        driver.pend("t", 0)
        driver.subscription.seek(0)
        assert driver.run() == [("b", 2)]
        assert driver.abort("t") == [("a", 0), ("a", 1)]

    def test_what_a_seek_has_skipped_is_nobody_s(self) -> None:
        driver = sticky()
        driver.fill(1, 1)
        driver.run()
        driver.pend("t", 0)
        driver.subscription.seek(1)
        assert driver.run() == [("a", 1)]
        driver.pend("u", 1)
        assert driver.abort("t") == []
        assert driver.abort("u") == [("a", 1)]

    def test_what_had_been_given_back_holds_up_its_hash_from_its_turn_on(self) -> None:
        driver = sticky(a=2)
        driver.fill(1, 1, 1)
        driver.run()
        driver.redeliver("a", 1)
        driver.pend("t", 1)
        assert driver.flow("a", 9) == []
        assert driver.ack(0) == []
        assert driver.commit("t") == [("a", 2)]

    def test_what_nobody_had_holds_up_who_keeps_others(self) -> None:
        driver = sticky(a=2)
        driver.fill(1, 1, 1)
        driver.run()
        driver.pend("t", 0)
        driver.redeliver("a", 1)
        driver.pend("u", 1)
        assert driver.flow("a", 9) == []
        assert driver.commit("u") == [("a", 2)]
        assert driver.abort("t") == [("a", 0)]

    def test_with_order_given_up_nothing_waits(self) -> None:
        sharing = KeySharing(is_sticky=True, is_ordered=False)
        driver = Driver(KEY_SHARED, key_sharing=sharing)
        driver.join("a", 9, ranges=(LOW,))
        driver.fill(1)
        driver.run()
        driver.pend("t", 0)
        driver.leave("a")
        driver.join("b", 9, ranges=(LOW,))
        driver.fill(1)
        assert driver.run() == [("b", 1)]
        assert driver.abort("t") == [("b", 0)]

    def test_with_order_given_up_a_part_waits_for_who_has_the_others(self) -> None:
        driver = Driver(KEY_SHARED, key_sharing=KeySharing(is_ordered=False))
        driver.join("a", 2)
        driver.append(2, key=7)
        driver.run()
        move_away(driver)
        driver.subscription.pend("t", [[(0, 1)]], 2)
        assert driver.abort("t") == []
        driver.fill(7)
        ((who, base),) = driver.run()
        assert (who != "a", base) == (True, 2), "others go on"
        assert driver.flow("a", 5) == [("a", 0)]
        assert driver.got[0].remaining == ((0, 1),)

    def test_chunks_without_a_key_do_not_wait(self) -> None:
        driver = sticky()
        driver.append(chunk="x")
        assert driver.run() == [("a", 0)]
        driver.pend("t", 0)
        driver.append(chunk="x")
        assert driver.run() == [("b", 1)]
        assert driver.abort("t") == [("b", 0)]

    def test_a_part_comes_back_before_later_ones_of_its_hash(self) -> None:
        driver = sticky(a=3)
        driver.append(3, key=1)
        driver.fill(1, 101)
        assert driver.run() == [("a", 0), ("b", 4)]
        driver.subscription.pend("t", [[(1, 2)]], 5)
        assert driver.abort("t") == []
        assert driver.flow("a", 9) == [("a", 0), ("a", 3)]
        assert driver.got[0].remaining == ((1, 2),)

    def test_a_part_of_a_hash_that_has_moved_waits_for_the_rest(self) -> None:
        driver = with_an_entry_whose_hash_moved(3, permits=99)
        driver.subscription.pend("t", [[(0, 1)]], 3)
        assert driver.abort("t") == []
        driver.subscription.acknowledge(1, 3, 3)
        ((who, base),) = driver.run()
        assert (who != "a", base) == (True, 0)
        assert driver.got[0].remaining == ((0, 1),)

    def test_two_consumers_never_have_the_hash(self) -> None:
        driver, key = moved_hash(permits=0)
        driver.fill(key, key)
        driver.leave("b")
        assert driver.run() == [("a", 1), ("a", 2)]
        driver.pend("t", 0)
        driver.join("b", 9)
        assert driver.abort("t") == []
        assert driver.ack(1) == []
        assert driver.ack(2) == [("b", 0)]

    def test_nobody_s_hash_waits_for_somebody(self) -> None:
        driver = sticky()
        driver.join("c", 9, ranges=((500, 500),))
        driver.fill(500)
        assert driver.run() == [("c", 0)]
        driver.pend("t", 0)
        driver.leave("c")
        driver.fill(500)
        assert driver.abort("t") == []
        driver.join("d", 9, ranges=((500, 500),))
        assert driver.run() == [("d", 0), ("d", 1)]
