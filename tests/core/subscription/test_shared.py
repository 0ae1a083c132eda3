"""SHARED: whose turn it is, what comes back, what waits, and the limits."""

from dataclasses import replace

import pytest

from core.subscription.shared import SharedDispatcher
from core.subscription.values import (
    MAX_PERMITS,
    DispatchSettings,
    Entry,
    KeySharing,
    SubscriptionType,
)
from tests.core.subscription.driver import NO_LIMITS, Driver

SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def shared(
    *consumers: tuple[str, int], entries: int = 0, settings: DispatchSettings = NO_LIMITS
) -> Driver:
    """Consumers with so many permits."""
    driver = Driver(SHARED, settings)
    for name, permits in consumers:
        driver.join(name, permits)
    driver.fill(count=entries)
    return driver


class TestTurns:
    def test_each_in_turn_within_its_permits(self) -> None:
        driver = shared(("a", 2), ("b", 1), ("c", 1), entries=6)
        assert driver.run() == [("a", 0), ("b", 1), ("c", 2), ("a", 3)]
        assert driver.dispatcher.wanted == 0
        assert driver.flow("c", 5) == [("c", 4), ("c", 5)]

    def test_the_best_level_first_then_the_next(self) -> None:
        """The example of Pulsar's AbstractDispatcherMultipleConsumers."""
        driver = Driver(SHARED)
        for name, level, permits in (
            ("c4", 1, 2), ("c1", 0, 2), ("c2", 0, 1), ("c3", 0, 1), ("c5", 1, 1)
        ):  # fmt: skip
            driver.join(name, permits, priority_level=level)
        driver.fill(count=9)
        assert [name for name, _ in driver.run()] == ["c1", "c2", "c3", "c1", "c4", "c5", "c4"]
        driver.flow("c4", 1)
        driver.flow("c1", 1)
        assert driver.status("c1").permits == 0

    def test_permits_of_the_best_level_come_first_again(self) -> None:
        driver = shared(("low", 0))
        driver.leave("low")
        driver.join("low", 10, priority_level=5)
        driver.join("high", 1, priority_level=-1)
        driver.fill(count=3)
        assert driver.run() == [("high", 0), ("low", 1), ("low", 2)]
        driver.dispatcher.flow("high", 1)
        driver.fill(count=2)
        assert driver.run() == [("high", 3), ("low", 4)]

    def test_a_lower_level_waits_while_a_better_one_takes_more(self) -> None:
        driver = shared(("low", 10))
        driver.leave("low")
        driver.join("low", 10, priority_level=1)
        driver.join("high", priority_level=0)
        driver.dispatcher.flow("high", 1, has_more=True)
        driver.fill(count=5)
        assert driver.run() == [("high", 0)]
        assert driver.dispatcher.wanted == 0
        driver.dispatcher.flow("high", 2)
        assert driver.run() == [("high", 1), ("high", 2), ("low", 3), ("low", 4)]

    @pytest.mark.parametrize("how", ["it leaves", "it cannot take them now"])
    def test_nobody_waits_for_who_does_not_take_more(self, how: str) -> None:
        driver = shared(("low", 10))
        driver.leave("low")
        driver.join("low", 10, priority_level=1)
        driver.join("high", priority_level=0)
        driver.dispatcher.flow("high", 1, has_more=True)
        driver.fill(count=2)
        assert driver.run() == [("high", 0)]
        if how == "it leaves":
            driver.ack(0)
            driver.leave("high")
        else:
            driver.dispatcher.flow("high", 0)
        assert driver.run() == [("low", 1)]

    def test_a_batch_may_overdraw_and_its_done_messages_use_no_permits(self) -> None:
        driver = shared(("a", 1), ("b", 1))
        driver.append(10)
        driver.append(10)
        driver.cursor.acknowledge(11, 19)
        assert driver.run() == [("a", 0), ("b", 10)]
        assert driver.got[0].remaining is None
        assert driver.got[1].remaining == ((10, 11), (19, 20))
        assert [each.permits for each in driver.dispatcher.consumers()] == [-9, -1]

    def test_permits_have_a_bound_and_count_from_one_on(self) -> None:
        driver = shared(("a", 1))
        for permits in (0, -7):
            driver.dispatcher.flow("a", permits)
        assert driver.status("a").permits == 1
        driver.dispatcher.flow("a", 2**40)
        assert driver.status("a").permits == MAX_PERMITS

    def test_no_more_than_some_is_wanted_at_once(self) -> None:
        driver = shared(("a", 300), ("b", 20))
        assert driver.dispatcher.wanted == 320
        driver.dispatcher.flow("b", 10**6)
        assert driver.dispatcher.wanted == 1_000

    def test_who_leaves_takes_no_turn(self) -> None:
        driver = shared(("a", 5), ("b", 5), ("c", 0), entries=2)
        driver.leave("a")
        assert driver.run() == [("b", 0), ("b", 1)]
        driver.leave("b")
        assert driver.dispatcher.wanted == 0


class TestComingBack:
    def test_what_a_leaving_consumer_had_goes_to_others_first(self) -> None:
        driver = shared(("a", 3), ("b", 3), entries=8)
        driver.run()
        driver.ack(0)
        driver.leave("a")
        assert driver.flow("b", 10) == [("b", 2), ("b", 4), ("b", 6), ("b", 7)]
        assert driver.counts() == {2: 1, 4: 1, 6: 0, 7: 0}

    def test_the_last_one_s_wait_for_the_next(self) -> None:
        driver = shared(("a", 3), entries=3)
        driver.run()
        driver.leave("a")
        assert not driver.dispatcher.has_consumers
        driver.join("b", 5)
        assert driver.run() == [("b", 0), ("b", 1), ("b", 2)]
        assert set(driver.counts().values()) == {1}

    def test_given_entries_come_back_before_new_ones(self) -> None:
        driver = shared(("a", 4), entries=8)
        driver.run()
        assert driver.redeliver("a", 3, 1) == []
        assert driver.status("a").unacked == 2
        assert driver.flow("a", 3) == [("a", 1), ("a", 3), ("a", 4)]
        assert driver.counts() == {1: 1, 3: 1, 4: 0}

    def test_all_come_back_and_counts_go_on(self) -> None:
        driver = shared(("a", 100), entries=2)
        driver.run()
        for count in (1, 2, 3):
            assert driver.redeliver("a") == [("a", 0), ("a", 1)]
            assert driver.counts() == {0: count, 1: count}

    def test_only_one_s_own_come_back(self) -> None:
        driver = shared(("a", 2), ("b", 2), entries=4)
        driver.run()
        assert driver.redeliver("a", 1, 3, 77) == []
        assert driver.flow("b", 9) == []

    def test_an_offset_within_a_batch_names_it_once(self) -> None:
        driver = shared(("a", 100))
        driver.append(5)
        driver.append(5)
        driver.run()
        driver.subscription.acknowledge(6, 8, 10)
        assert driver.redeliver("a", 6, 9, 8) == [("a", 5)]
        assert driver.got[0].remaining == ((5, 6), (8, 10))
        assert driver.counts() == {5: 1}

    def test_what_is_acknowledged_while_it_waits_goes_to_nobody(self) -> None:
        driver = shared(("a", 3), entries=3)
        driver.run()
        driver.redeliver("a")
        driver.subscription.acknowledge(1, 2, 3)
        assert driver.flow("a", 9) == [("a", 0), ("a", 2)]

    def test_an_acknowledged_entry_s_count_is_forgotten(self) -> None:
        driver = shared(("a", 9), entries=1)
        driver.run()
        driver.redeliver("a")
        driver.ack(0)
        driver.subscription.seek(0)
        driver.run()
        assert driver.counts() == {0: 0}


class TestAcknowledging:
    def test_by_message_of_a_batch(self) -> None:
        driver = shared(("a", 100))
        driver.append(10)
        driver.run()
        driver.subscription.acknowledge(2, 4, 10)
        assert driver.status("a").unacked == 8
        driver.subscription.acknowledge(2, 10, 10)
        driver.subscription.acknowledge(0, 2, 10)
        assert driver.status("a").unacked == 0
        assert driver.redeliver("a") == []

    def test_of_several_entries_at_once_and_in_part(self) -> None:
        driver = shared(("a", 100))
        for _ in range(4):
            driver.append(5)
        driver.run()
        assert driver.subscription.acknowledge(3, 17, 20) == 14
        assert driver.status("a").unacked == 6
        assert driver.redeliver("a") == [("a", 0), ("a", 15)]

    def test_of_what_another_one_has_or_nobody(self) -> None:
        driver = shared(("a", 1), entries=3)
        driver.run()
        assert driver.subscription.acknowledge(2, 3, 3) == 1
        assert driver.status("a").unacked == 1
        assert driver.flow("a", 9) == [("a", 1)]

    def test_twice_is_nothing_new(self) -> None:
        driver = shared(("a", 5), entries=2)
        driver.run()
        driver.ack(1, 1, 1)
        assert driver.status("a").unacked == 1

    def test_up_to_an_offset_lets_go_of_all_below(self) -> None:
        driver = shared(("a", 30), ("b", 30))
        for _ in range(4):
            driver.append(5)
        driver.run()
        assert driver.subscription.acknowledge_up_to(12, 20) == 12
        assert [each.unacked for each in driver.dispatcher.consumers()] == [3, 5]
        assert driver.dispatcher.read_position == 20

    def test_beyond_the_log_s_end_is_cut_off(self) -> None:
        driver = shared(("a", 30), entries=3)
        assert driver.subscription.acknowledge(2, 2**63, 3) == 1
        assert driver.subscription.acknowledge(7, 9, 3) == 0
        assert driver.subscription.acknowledge_up_to(2**63, 3) == 2
        driver.fill(count=1)
        assert driver.run() == [("a", 3)]


class TestSeek:
    def test_all_that_is_outstanding_is_forgotten(self) -> None:
        driver = shared(("a", 4), ("b", 4), entries=8)
        driver.run()
        driver.redeliver("a", 0)
        driver.subscription.seek(3)
        assert [each.unacked for each in driver.dispatcher.consumers()] == [0, 0]
        assert driver.redeliver("a") == []
        driver.dispatcher.flow("a", 2)
        driver.dispatcher.flow("b", 2)
        assert sorted(offset for _, offset in driver.run()) == [3, 4, 5, 6]
        assert set(driver.counts().values()) == {0}

    def test_it_lifts_limits(self) -> None:
        driver = shared(("a", 9), entries=9, settings=replace(NO_LIMITS, max_unacked=2))
        assert len(driver.run()) == 2
        driver.subscription.seek(5)
        assert driver.run() == [("a", 5), ("a", 6)]


class TestLimits:
    def test_a_consumer_at_its_limit_gets_nothing_until_half_is_left(self) -> None:
        settings = replace(NO_LIMITS, max_unacked_per_consumer=4)
        driver = shared(("a", 100), entries=12, settings=settings)
        assert len(driver.run()) == 4
        assert driver.status("a").is_blocked
        assert driver.dispatcher.wanted == 0
        assert driver.ack(0) == []
        assert driver.ack(1) == [("a", 4), ("a", 5)]

    def test_others_go_on(self) -> None:
        settings = replace(NO_LIMITS, max_unacked_per_consumer=2)
        driver = shared(("a", 100), ("b", 100), entries=12, settings=settings)
        assert len(driver.run()) == 4
        assert driver.ack(0, 2) == [("a", 4), ("a", 5)]

    def test_giving_back_frees_too(self) -> None:
        settings = replace(NO_LIMITS, max_unacked_per_consumer=2)
        driver = shared(("a", 100), entries=2, settings=settings)
        driver.run()
        assert driver.redeliver("a") == [("a", 0), ("a", 1)]

    def test_permits_that_come_meanwhile_count_later(self) -> None:
        settings = replace(NO_LIMITS, max_unacked_per_consumer=2)
        driver = shared(("a", 2), entries=4, settings=settings)
        driver.run()
        assert driver.flow("a", 2) == []
        assert driver.ack(0) == [("a", 2)]

    def test_the_subscription_s_limit_stops_all(self) -> None:
        settings = replace(NO_LIMITS, max_unacked=4)
        driver = shared(("a", 100), ("b", 100), entries=12, settings=settings)
        assert len(driver.run()) == 4
        assert driver.dispatcher.wanted == 0
        assert driver.ack(0) == []
        assert len(driver.ack(1)) == 2

    def test_a_batch_may_pass_a_limit(self) -> None:
        settings = replace(NO_LIMITS, max_unacked=4, max_unacked_per_consumer=4)
        driver = shared(("a", 100), settings=settings)
        driver.append(3)
        driver.append(30)
        driver.append(1)
        assert driver.run() == [("a", 0), ("a", 3)]

    @pytest.mark.parametrize("limit", ["max_unacked", "max_unacked_per_consumer"])
    def test_another_limit_holds_at_once(self, limit: str) -> None:
        driver = shared(("a", 100), entries=12, settings=replace(NO_LIMITS, **{limit: 2}))
        assert driver.run() == [("a", 0), ("a", 1)]
        driver.subscription.limit(replace(NO_LIMITS, **{limit: 3}))
        assert driver.run() == [("a", 2)]
        driver.subscription.limit(replace(NO_LIMITS, **{limit: 2}))
        assert driver.run() == []
        assert driver.ack(0) == []
        assert driver.ack(1) == [("a", 3)]
        driver.subscription.limit(NO_LIMITS)
        assert len(driver.run()) == 8
        driver.subscription.limit(replace(NO_LIMITS, **{limit: 1}))
        driver.append(1)
        assert driver.run() == []
        assert driver.ack(*range(2, 12)) == [("a", 12)]

    @pytest.mark.parametrize("limit", ["max_unacked", "max_unacked_per_consumer"])
    def test_the_same_limit_changes_nothing(self, limit: str) -> None:
        settings = replace(NO_LIMITS, **{limit: 4})
        driver = shared(("a", 100), entries=12, settings=settings)
        driver.run()
        assert driver.ack(0) == []
        driver.subscription.limit(replace(settings))
        assert driver.run() == [], "half of it is not left yet"

    def test_the_next_dispatcher_has_it(self) -> None:
        driver = shared(("a", 100), entries=12)
        driver.run()
        driver.subscription.limit(replace(NO_LIMITS, max_unacked=1))
        driver.leave("a")
        driver.type = SubscriptionType.KEY_SHARED
        driver.join("b", 100)
        assert len(driver.run()) == 1

    def test_who_is_gone_is_not_woken(self) -> None:
        settings = replace(NO_LIMITS, max_unacked_per_consumer=1)
        driver = shared(("a", 9), entries=2, settings=settings)
        driver.run()
        driver.leave("a")
        driver.join("b", 1)
        assert driver.run() == [("b", 0)]


class TestChunks:
    def test_those_of_one_message_go_to_one_consumer(self) -> None:
        driver = shared(("a", 9), ("b", 9))
        for chunk in ("x", None, "x", "y", "x"):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]

    def test_they_wait_for_it_while_others_go_on(self) -> None:
        driver = shared(("a", 1), ("b", 9))
        for chunk in ("x", "x", None, "x"):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0), ("b", 2)]
        assert driver.flow("a", 9) == [("a", 1), ("a", 3)]

    def test_all_go_to_another_one_when_theirs_is_gone(self) -> None:
        driver = shared(("a", 2), ("b", 0))
        for chunk in ("x", "x", "x"):
            driver.append(chunk=chunk)
        driver.run()
        driver.dispatcher.flow("b", 1)
        assert driver.run() == []
        driver.leave("a")
        assert driver.run() == [("b", 0)]
        assert driver.flow("b", 9) == [("b", 1), ("b", 2)]

    def test_all_given_back_they_are_anybody_s(self) -> None:
        driver = shared(("a", 1), ("b", 0))
        driver.append(chunk="x")
        driver.append(chunk="x")
        driver.run()
        driver.redeliver("a")
        assert driver.flow("b", 9) == [("b", 0), ("b", 1)]

    def test_who_had_them_before_has_no_right_to_the_rest(self) -> None:
        driver = shared(("a", 1), ("b", 0))
        for chunk in ("x", "x"):
            driver.append(chunk=chunk)
        driver.run()
        driver.redeliver("a")
        assert driver.flow("b", 1) == [("b", 0)]
        assert driver.flow("a", 5) == []
        assert driver.flow("b", 1) == [("b", 1)]

    def test_reading_stops_when_too_many_wait(self) -> None:
        settings = replace(NO_LIMITS, look_ahead_per_consumer=1, look_ahead=100)
        driver = shared(("a", 1), ("b", 9), settings=settings)
        for chunk in ("x", "x", "x", None, "x"):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0)]
        assert driver.dispatcher.read_position == 3
        assert driver.dispatcher.wanted == 0
        assert driver.flow("a", 1) == [("a", 1), ("b", 3)]

    def test_without_a_look_ahead_the_limits_count(self) -> None:
        settings = replace(NO_LIMITS, max_unacked=3)
        driver = shared(("a", 1), ("b", 9), settings=settings)
        for chunk in ("x", "x", "x", "x", None):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0)]

    def test_those_that_are_skipped_wait_no_longer(self) -> None:
        settings = replace(NO_LIMITS, look_ahead=2)
        driver = shared(("a", 1), ("b", 9), settings=settings)
        for chunk in ("x", "x", "x", "x", None):
            driver.append(chunk=chunk)
        assert driver.run() == [("a", 0)]
        driver.subscription.acknowledge_up_to(2, 5)
        assert driver.run() == [("b", 2), ("b", 3), ("b", 4)]
        driver.subscription.acknowledge_up_to(5, 5)
        assert driver.cursor.mark_delete == 5


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED])
class TestDelayed:
    def driver(self, type: SubscriptionType, max_delayed: int = 0) -> Driver:  # noqa: A002
        driver = Driver(type, replace(NO_LIMITS, max_delayed=max_delayed))
        driver.join("a", 9)
        return driver

    def test_an_entry_is_held_until_its_time(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.append(at=100)
        driver.append()
        driver.append(at=50)
        driver.append(at=0)
        assert driver.run() == [("a", 1), ("a", 3)]
        assert driver.dispatcher.deadline_ms == 50
        driver.dispatcher.expire(49)
        assert driver.run() == []
        driver.dispatcher.expire(100)
        assert driver.run() == [("a", 0), ("a", 2)]
        assert driver.counts() == {0: 0, 2: 0}
        assert driver.dispatcher.deadline_ms is None

    def test_reading_stops_when_too_many_are_held(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type, max_delayed=2)
        for at in (10, 20, 30, 0):
            driver.append(at=at)
        assert driver.run() == []
        assert driver.dispatcher.read_position == 2
        driver.dispatcher.expire(10)
        assert driver.run() == [("a", 0)]

    def test_what_is_skipped_is_held_no_longer(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.append(at=10)
        driver.append(2, at=20)
        driver.run()
        driver.subscription.acknowledge_up_to(2, 3)
        assert driver.dispatcher.deadline_ms == 20
        driver.subscription.seek(3)
        assert driver.dispatcher.deadline_ms is None

    def test_given_back_it_comes_at_once(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.append(at=10)
        driver.run()
        driver.dispatcher.expire(10)
        driver.run()
        assert driver.redeliver("a") == [("a", 0)]


def test_nothing_is_taken_while_something_waits() -> None:
    driver = shared(("a", 9), entries=2)
    driver.run()
    driver.dispatcher.redeliver("a")
    assert driver.dispatcher.wanted == 0
    assert driver.dispatcher.offer(2, [Entry(2, 2)], 3, 0) == []
    assert driver.dispatcher.read_position == 2
    assert len(driver.dispatcher.dispatch(1)) == 1


def test_what_was_read_elsewhere_is_late() -> None:
    driver = shared(("a", 9), entries=2)
    assert driver.dispatcher.offer(1, driver.log[1:], 2, 0) == []
    assert driver.run() == [("a", 0), ("a", 1)]


def test_gaps_are_passed() -> None:
    driver = shared(("a", 9))
    driver.append(gap=2)
    driver.append(gap=1)
    driver.log_end += 3
    assert driver.run() == [("a", 2), ("a", 4)]
    driver.ack(2, 4)
    assert driver.cursor.mark_delete == 8


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED])
def test_events_of_who_is_gone_change_nothing(type: SubscriptionType) -> None:  # noqa: A002
    driver = Driver(type)
    driver.join("a", 5)
    driver.fill(count=2)
    driver.run()
    assert driver.leave("x") == ()
    assert driver.flow("x", 5) == []
    assert driver.redeliver("x", 1) == []
    assert driver.status("a").unacked == 2


def test_a_redelivery_tells_the_consumer_s_epoch() -> None:
    driver = shared(("a", 5))
    driver.redeliver("a", epoch=3)
    assert driver.status("a").epoch == 3


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED])
class TestPending:
    def driver(self, type: SubscriptionType, **settings: int) -> Driver:  # noqa: A002
        driver = Driver(type, replace(NO_LIMITS, **settings))
        driver.join("a", 99)
        return driver

    def test_only_what_an_abort_frees_comes_back(
        self,
        type: SubscriptionType,  # noqa: A002
    ) -> None:
        driver = self.driver(type)
        driver.append(5)
        driver.run()
        driver.subscription.pend("t", [[(1, 3)]], 5)
        driver.subscription.pend("u", [[(4, 5)]], 5)
        driver.subscription.acknowledge(0, 1, 5)
        assert driver.status("a").unacked == 1
        assert driver.abort("t") == [("a", 0)]
        assert driver.got[0].remaining == ((1, 3),)
        assert driver.counts() == {0: 1}
        assert driver.status("a").unacked == 3
        driver.subscription.acknowledge(1, 4, 5)
        assert driver.status("a").unacked == 0
        assert driver.abort("u") == [("a", 0)]
        assert driver.got[0].remaining == ((4, 5),)
        assert driver.counts() == {0: 2}

    def test_entries_beside_it_stay_where_they_are(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        for _ in range(3):
            driver.append(2)
        driver.run()
        driver.subscription.pend("t", [[(1, 5)]], 6)
        assert driver.status("a").unacked == 2
        driver.subscription.acknowledge(1, 2, 6)
        assert sorted(driver.abort("t")) == [("a", 2), ("a", 4)]
        assert {each.entry.base_offset: each.remaining for each in driver.got} == {
            2: None,
            4: ((4, 5),),
        }
        assert driver.status("a").unacked == 5

    def test_what_waits_is_passed_over_when_it_is_read(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.fill(1, 2, 3)
        driver.pend("t", 0, 1)
        assert driver.run() == [("a", 2)]
        assert driver.dispatcher.read_position == 3
        assert driver.dispatcher.wanted > 0
        assert driver.abort("t") == [("a", 0), ("a", 1)]
        assert driver.counts() == {0: 1, 1: 1}

    def test_given_back_and_then_pending_it_counts_once(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.fill(1)
        driver.run()
        driver.dispatcher.redeliver("a")
        driver.pend("t", 0)
        assert driver.run() == []
        assert driver.abort("t") == [("a", 0)]
        assert driver.counts() == {0: 1}

    def test_it_makes_room_below_a_limit(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type, max_unacked=2, max_unacked_per_consumer=2)
        driver.fill(1, 1, 1, 1)
        assert driver.run() == [("a", 0), ("a", 1)]
        driver.pend("t", 0)
        assert driver.run() == [("a", 2)]
        assert driver.abort("t") == []
        assert driver.ack(1) == [("a", 0)]

    def test_it_waits_for_permits(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = Driver(type)
        driver.join("a", 2)
        driver.fill(1, 1, 1)
        driver.run()
        driver.pend("t", 0)
        assert driver.abort("t") == []
        assert driver.dispatcher.wanted == 0
        assert driver.flow("a", 2) == [("a", 0), ("a", 2)]

    def test_a_delayed_one_that_is_pending_waits_on(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.append(at=10)
        driver.run()
        driver.pend("t", 0)
        driver.dispatcher.expire(10)
        assert driver.run() == []
        assert driver.dispatcher.wanted > 0
        assert driver.abort("t") == [("a", 0)]

    @pytest.mark.parametrize("how", ["commit", "ack", "up to", "seek"])
    def test_nothing_is_remembered_of_what_is_done(
        self,
        type: SubscriptionType,  # noqa: A002
        how: str,
    ) -> None:
        driver = self.driver(type)
        driver.fill(1, 1)
        driver.run()
        driver.pend("t", 1)
        match how:
            case "commit":
                driver.commit("t")
            case "ack":
                driver.ack(1)
            case "up to":
                driver.subscription.acknowledge_up_to(2, 2)
            case "seek":
                driver.subscription.seek(2)
        assert isinstance(driver.dispatcher, SharedDispatcher)
        assert not driver.dispatcher._stash.entries
        assert not driver.dispatcher._redelivered
        assert driver.abort("t") == []

    def test_after_a_seek_it_comes_back_once(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.fill(1, 1)
        driver.run()
        driver.pend("t", 1)
        driver.subscription.seek(0)
        assert driver.run() == [("a", 0)]
        assert driver.abort("t") == [("a", 1)]
        driver.dispatcher.redeliver("a")
        assert driver.run() == [("a", 0), ("a", 1)]


def freed(type: SubscriptionType, **settings: int) -> Driver:  # noqa: A002
    """An entry of six: a, who takes nothing now, has 3, 4 and 5; 0 is acknowledged; 1 and 2 wait,
    since t has aborted. b takes."""
    driver = Driver(type, replace(NO_LIMITS, **settings), key_sharing=KeySharing(is_sticky=True))
    driver.join("a", 6, ranges=((0, 99),))
    driver.join("b", ranges=((100, 199),))
    driver.append(6, key=1)
    assert driver.run() == [("a", 0)]
    driver.subscription.acknowledge(0, 1, 6)
    driver.subscription.pend("t", [[(1, 3)]], 6)
    driver.dispatcher.flow("b", 9)
    assert driver.abort("t") == []
    assert [each.unacked for each in driver.dispatcher.consumers()] == [3, 0]
    return driver


def all_given(driver: Driver) -> list[tuple[object, int, list[int]]]:
    """Consumer, redelivery count and offsets of what the last step gave."""
    return [
        (
            each.consumer_id,
            each.redelivery_count,
            [i for row in each.remaining or (each.entry.offsets,) for i in range(*row)],
        )
        for each in driver.got
    ]


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED])
class TestFreed:
    """What happens while messages of an entry wait for the consumer that has the others."""

    def run_all(self, driver: Driver) -> list[tuple[object, int, list[int]]]:
        """What comes once a takes."""
        driver.flow("a", 9)
        return all_given(driver)

    def test_they_wait_for_its_permits(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        assert self.run_all(driver) == [("a", 1, [1, 2])]
        assert (driver.status("a").permits, driver.status("a").unacked) == (7, 5)
        assert driver.redeliver("a", 0)
        assert {count for _, count, _ in all_given(driver)} == {2}
        assert [offsets for _, _, offsets in all_given(driver)] == [[1, 2, 3, 4, 5]]

    def test_others_go_on_meanwhile(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.fill(101)
        assert driver.run() == [("b", 6)]

    def test_they_count_as_entries_that_wait_for_a_certain_consumer(
        self,
        type: SubscriptionType,  # noqa: A002
    ) -> None:
        driver = freed(type, look_ahead=1)
        driver.fill(101)
        assert driver.run() == []
        assert sorted(driver.flow("a", 2)) == [("a", 0), ("b", 6)]

    def test_they_come_before_new_ones(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.fill(1)
        driver.dispatcher.flow("b", -9)
        driver.dispatcher.flow("a", 3)
        assert driver.dispatcher.wanted == 0
        assert driver.dispatcher.offer(6, driver.log[1:], 7, 0) == []
        driver.run()
        given = all_given(driver)
        assert given[0] == ("a", 1, [1, 2])
        assert given[1][2] == [6]

    @pytest.mark.parametrize("how", ["it leaves", "it gives back", "all", "one of those that wait"])
    def test_without_the_consumer_all_goes_out(
        self,
        type: SubscriptionType,  # noqa: A002
        how: str,
    ) -> None:
        driver = freed(type)
        match how:
            case "it leaves":
                driver.leave("a")
                driver.join("c", 9, ranges=((0, 99),))
            case "it gives back":
                driver.dispatcher.redeliver("a", [4])
            case "all":
                driver.dispatcher.redeliver("a")
            case _:
                driver.dispatcher.redeliver("a", [1])
        driver.run()
        if not driver.got:
            driver.flow("a", 9)
        ((who, count, offsets),) = all_given(driver)
        assert (count, offsets) == (1, [1, 2, 3, 4, 5])
        assert type is KEY_SHARED or who == "b"
        assert sum(each.unacked for each in driver.dispatcher.consumers()) == 5

    def test_the_rest_acknowledged_they_are_anybody_s(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.acknowledge(3, 5, 6)
        assert driver.run() == []
        driver.subscription.acknowledge(5, 6, 6)
        driver.run()
        assert driver.status("a").unacked == 0
        if type is KEY_SHARED:
            driver.flow("a", 9)
        assert all_given(driver) == [("b" if type is SHARED else "a", 1, [1, 2])]

    def test_the_rest_pending_they_are_anybody_s(self, type: SubscriptionType) -> None:  # noqa: A002
        """The rest goes to whoever has them then; on KEY_SHARED a keeps the hash."""
        driver = freed(type)
        driver.subscription.pend("u", [[(3, 6)]], 6)
        driver.run()
        who = "b"
        if type is KEY_SHARED:
            who = "a"
            driver.flow("a", 9)
        assert all_given(driver) == [(who, 1, [1, 2])]
        driver.abort("u")
        assert all_given(driver) == [(who, 2, [3, 4, 5])]

    @pytest.mark.parametrize(
        ("acknowledged", "left"), [((0, 6), []), ((1, 3), []), ((1, 2), [2]), ((2, 4), [1])]
    )
    @pytest.mark.parametrize("how", ["acknowledged", "committed", "all below"])
    def test_what_is_acknowledged_before_it_went_does_not_come(
        self,
        type: SubscriptionType,  # noqa: A002
        acknowledged: tuple[int, int],
        left: list[int],
        how: str,
    ) -> None:
        driver = freed(type)
        subscription, (start, end) = driver.subscription, acknowledged
        match how:
            case "acknowledged":
                subscription.acknowledge(start, end, 6)
            case "committed":
                assert subscription.pend("u", [[(max(start, 1), end)]], 6)
                subscription.commit_pending("u")
            case _:
                subscription.acknowledge_up_to(end, 6)
                left = [each for each in left if each >= end]
        assert [each for _, _, row in self.run_all(driver) for each in row] == left
        rest = len([each for each in (3, 4, 5) if not start <= each < end])
        assert driver.status("a").unacked == rest + len(left)
        driver.subscription.acknowledge(0, 6, 6)
        assert driver.cursor.mark_delete == 6
        assert self.is_empty(driver)

    def is_empty(self, driver: Driver) -> bool:
        driver.dispatcher.flow("b", 9)
        driver.flow("a", 9)
        dispatcher = driver.dispatcher
        assert isinstance(dispatcher, SharedDispatcher)
        return not any(
            (
                dispatcher._held,
                dispatcher._lanes,
                dispatcher._waiting,
                dispatcher._redelivered,
                dispatcher._stash.entries,
                dispatcher._in_lanes,
                driver.got,
            )
        )

    def test_pending_again_they_come_when_that_is_aborted(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.pend("u", [[(1, 3)]], 6)
        assert self.run_all(driver) == []
        assert driver.status("a").unacked == 3
        driver.abort("u")
        assert all_given(driver) == [("a", 1, [1, 2])]

    def test_pending_again_and_aborted_before_they_went(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.pend("u", [[(2, 3)]], 6)
        assert driver.abort("u") == []
        assert self.run_all(driver) == [("a", 1, [1, 2])]

    def test_all_of_it_pending_again(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.pend("u", [[(1, 6)]], 6)
        assert driver.status("a").unacked == 0
        assert self.run_all(driver) == []
        driver.abort("u")
        ((_, count, offsets),) = all_given(driver)
        assert (count, offsets) == (1, [1, 2, 3, 4, 5])

    def test_another_abort_adds_to_them(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.pend("u", [[(5, 6)]], 6)
        assert driver.abort("u") == []
        assert driver.status("a").unacked == 2
        assert self.run_all(driver) == [("a", 1, [1, 2, 5])]

    def test_a_commit_beside_them_changes_nothing(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.pend("u", [[(5, 6)]], 6)
        assert driver.commit("u") == []
        assert self.run_all(driver) == [("a", 1, [1, 2])]
        assert driver.status("a").unacked == 4

    def test_a_seek_forgets_them(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        driver.subscription.seek(6)
        assert self.run_all(driver) == []
        assert self.is_empty(driver)

    def test_they_wait_while_it_is_at_its_limit(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type, max_unacked_per_consumer=6)
        assert self.run_all(driver) == [("a", 1, [1, 2])]
        driver.subscription.pend("u", [[(1, 2)]], 6)
        driver.subscription.limit(replace(NO_LIMITS, max_unacked_per_consumer=4))
        assert driver.abort("u") == []
        driver.subscription.acknowledge(3, 5, 6)
        driver.run()
        assert all_given(driver) == [("a", 2, [1])]

    def test_they_count_towards_all_limits(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type, max_unacked=7, max_unacked_per_consumer=7)
        driver.subscription.limit(replace(NO_LIMITS, max_unacked=5, max_unacked_per_consumer=5))
        driver.append(key=101)
        driver.dispatcher.flow("b", -9)
        assert self.run_all(driver) == [("a", 1, [1, 2])]
        assert driver.status("a").is_blocked
        assert driver.flow("b", 9) == []
        driver.subscription.acknowledge(0, 4, 6)
        assert driver.run() == [("b", 6)]

    def test_a_read_that_fails_gives_them_back_alone(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = freed(type)
        self.run_all(driver)
        (delivery,) = driver.got
        assert driver.dispatcher.left_of(delivery) == (((1, 3),), 2)
        driver.dispatcher.take_back(delivery)
        assert driver.dispatcher.left_of(delivery) == ((), 0)
        assert driver.status("a").unacked == 3
        driver.run()
        assert all_given(driver) == [("a", 2, [1, 2])]


@pytest.mark.parametrize("type", [SHARED, KEY_SHARED])
class TestWhatIsLeft:
    """Of a delivery that waits for its bytes to be read."""

    def driver(self, type: SubscriptionType) -> Driver:  # noqa: A002
        driver = Driver(type)
        driver.join("a", 99)
        driver.append(3)
        driver.append(3)
        driver.run()
        return driver

    def test_all_of_it(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        assert driver.dispatcher.left_of(driver.got[1]) == (None, 3)

    def test_not_what_was_acknowledged_or_is_pending(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        given = driver.got[1]
        driver.subscription.acknowledge(4, 5, 6)
        assert driver.dispatcher.left_of(given) == (((3, 4), (5, 6)), 2)
        driver.subscription.pend("t", [[(5, 6)]], 6)
        assert driver.dispatcher.left_of(given) == (((3, 4),), 1)
        driver.subscription.abort_pending("t")
        assert driver.dispatcher.left_of(given) == (((3, 4),), 1), "the other one waits"
        driver.subscription.acknowledge(3, 4, 6)
        assert driver.dispatcher.left_of(given) == ((), 0)

    def test_not_what_was_given_back(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        given = driver.got[1]
        driver.dispatcher.redeliver("a", [3])
        assert driver.dispatcher.left_of(given) == ((), 0)
        driver.dispatcher.take_back(given)
        assert driver.run() == [("a", 3)]
        assert driver.counts() == {3: 1}

    def test_nothing_of_what_another_one_has(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        given = driver.got[1]
        driver.join("b", 99)
        driver.leave("a")
        assert driver.run() == [("b", 0), ("b", 3)]
        assert driver.dispatcher.left_of(given) == ((), 0)
        driver.dispatcher.take_back(given)
        assert driver.run() == []

    def test_what_could_not_be_read_comes_again(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.dispatcher.take_back(driver.got[1])
        assert driver.status("a").unacked == 3
        assert driver.run() == [("a", 3)]
        assert driver.got[0].remaining is None


class TestPendingChunks:
    def test_all_come_back_to_one_consumer_in_order(self) -> None:
        driver = shared(("a", 3), ("b", 9))
        for _ in range(3):
            driver.append(chunk="x")
        assert driver.run() == [("a", 0), ("a", 1), ("a", 2)]
        driver.pend("t", 0, 1, 2)
        assert driver.abort("t") == [("b", 0), ("b", 1), ("b", 2)]

    def test_one_comes_back_before_later_ones_that_wait(self) -> None:
        driver = shared(("a", 2), ("b", 0))
        for _ in range(3):
            driver.append(chunk="x")
        driver.append()
        assert driver.run() == [("a", 0), ("a", 1)]
        assert driver.flow("b", 1) == [("b", 3)]  # reads on: the third one waits for a
        driver.pend("t", 0)
        assert driver.abort("t") == []
        assert driver.flow("a", 2) == [("a", 0), ("a", 2)]

    def test_a_part_of_one_comes_back_before_later_ones_that_wait(self) -> None:
        driver = shared(("a", 3), ("b", 9))
        driver.append(3, chunk="x")
        driver.append(chunk="x")
        driver.append()
        assert driver.run() == [("a", 0), ("b", 4)]
        driver.subscription.pend("t", [[(0, 1)]], 5)
        assert driver.abort("t") == []
        assert driver.flow("a", 9) == [("a", 0), ("a", 3)]
        assert driver.got[0].remaining == ((0, 1),)


def test_a_freed_one_goes_to_who_has_the_others_whatever_its_level() -> None:
    driver = shared(("low", 0))
    driver.leave("low")
    driver.join("low", 9, priority_level=1)
    driver.append(2)
    assert driver.run() == [("low", 0)]
    driver.join("high", 9)
    driver.subscription.pend("t", [[(0, 1)]], 2)
    assert driver.abort("t") == [("low", 0)]
    driver.subscription.pend("t", [[(0, 2)]], 2)
    assert driver.abort("t") == [("high", 0)]


def test_who_took_more_and_has_got_it_is_waited_for() -> None:
    driver = shared(("low", 0))
    driver.leave("low")
    driver.join("low", 9, priority_level=1)
    driver.join("high")
    driver.append(2)
    driver.append()
    driver.dispatcher.flow("high", 2)
    assert driver.run() == [("high", 0), ("low", 2)]
    driver.subscription.pend("t", [[(0, 1)]], 3)
    driver.abort("t")
    driver.append()
    driver.dispatcher.flow("high", 1, has_more=True)
    assert driver.run() == [("high", 0)]
    assert driver.flow("high", 1) == [("high", 3)]
