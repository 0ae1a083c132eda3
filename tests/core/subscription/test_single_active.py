"""EXCLUSIVE and FAILOVER: one gets everything, in order; who it is, and what the next one has."""

import pytest

from core.subscription.values import (
    MAX_PERMITS,
    ActiveChange,
    Reason,
    Refused,
    SubscriptionType,
)
from tests.core.subscription.driver import Driver

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER


def exclusive(permits: int = 0, entries: int = 0) -> Driver:
    driver = Driver(EXCLUSIVE)
    driver.join("a", permits)
    driver.fill(count=entries)
    return driver


class TestPermits:
    def test_nothing_is_delivered_before_there_are_permits(self) -> None:
        driver = exclusive(0, 3)
        assert driver.dispatcher.wanted == 0
        assert driver.run() == []
        assert driver.flow("a", 2) == [("a", 0), ("a", 1)]
        assert driver.dispatcher.read_position == 2
        assert driver.flow("a", 2) == [("a", 2)]

    def test_a_batch_may_overdraw(self) -> None:
        driver = exclusive(1)
        driver.append(10)
        driver.append(1)
        assert driver.run() == [("a", 0)]
        assert driver.status("a").permits == -9
        assert driver.flow("a", 9) == []
        assert driver.flow("a", 1) == [("a", 10)]

    def test_what_is_acknowledged_of_a_batch_uses_none(self) -> None:
        driver = exclusive(5)
        driver.append(4)
        driver.cursor.acknowledge(1, 3)
        assert driver.run() == [("a", 0)]
        assert driver.got[0].remaining == ((0, 1), (3, 4))
        assert driver.status("a").permits == 3

    @pytest.mark.parametrize("permits", [-1, 0])
    def test_none_or_fewer_are_ignored(self, permits: int) -> None:
        driver = exclusive(1)
        driver.flow("a", permits)
        assert driver.status("a").permits == 1

    def test_more_than_anybody_can_mean_are_not_counted(self) -> None:
        driver = exclusive(5)
        driver.flow("a", 2**32)
        assert driver.status("a").permits == MAX_PERMITS


class TestReading:
    def test_gaps_are_passed(self) -> None:
        driver = exclusive(10)
        driver.append(1, gap=2)
        driver.append(1, gap=3)
        driver.log_end += 4  # control records at the end
        assert driver.run() == [("a", 2), ("a", 6)]
        assert driver.dispatcher.read_position == 11
        assert driver.ack(6, 2) == []
        assert driver.cursor.mark_delete == 11

    def test_what_was_read_elsewhere_is_late(self) -> None:
        driver = exclusive(10, 3)
        driver.run()
        assert driver.dispatcher.offer(0, driver.log, 3, 0) == []
        assert driver.dispatcher.read_position == 3

    def test_an_entry_that_begins_before_the_position_is_delivered_in_part(self) -> None:
        driver = exclusive(10)
        driver.append(10)
        driver.subscription.seek(4)
        assert driver.run() == [("a", 0)]
        assert driver.got[0].remaining == ((4, 10),)

    def test_what_is_done_is_passed_over(self) -> None:
        driver = exclusive(10, 4)
        driver.ack(1, 2)
        driver.subscription.seek(0)
        driver.cursor.acknowledge(1, 3)
        assert driver.run() == [("a", 0), ("a", 3)]

    def test_reading_goes_on_behind_what_was_skipped(self) -> None:
        driver = exclusive(0, 10)
        assert driver.subscription.skip(4, driver.log_end) == 4
        assert driver.flow("a", 1) == [("a", 4)]
        driver.subscription.acknowledge_up_to(8, driver.log_end)
        assert driver.flow("a", 1) == [("a", 8)]

    def test_times_are_not_waited_for(self) -> None:
        driver = exclusive(10)
        driver.append(at=1_000)
        assert driver.run() == [("a", 0)]
        assert driver.dispatcher.deadline_ms is None
        driver.dispatcher.expire(0)


class TestRedelivery:
    def test_all_comes_again_in_order_and_counts(self) -> None:
        driver = exclusive(100, 5)
        driver.run()
        driver.ack(0, 2)
        assert driver.redeliver("a", epoch=3) == [("a", 1), ("a", 3), ("a", 4)]
        assert driver.counts() == {1: 1, 3: 1, 4: 1}
        assert driver.status("a").epoch == 3
        assert driver.redeliver("a", epoch=2) == [("a", 1), ("a", 3), ("a", 4)]
        assert driver.counts() == {1: 2, 3: 2, 4: 2}
        assert driver.status("a").epoch == 3

    def test_given_entries_are_all(self) -> None:
        driver = exclusive(100, 3)
        driver.run()
        assert driver.redeliver("a", 2) == [("a", 0), ("a", 1), ("a", 2)]

    def test_only_what_was_delivered_counts(self) -> None:
        driver = exclusive(2, 5)
        driver.run()
        driver.redeliver("a")
        assert driver.flow("a", 5) == [("a", each) for each in range(5)]
        assert driver.counts() == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0}

    def test_permits_are_not_given_back(self) -> None:
        driver = exclusive(3, 3)
        driver.run()
        assert driver.redeliver("a") == []
        assert driver.flow("a", 1) == [("a", 0)]

    def test_a_seek_forgets_counts(self) -> None:
        driver = exclusive(100, 2)
        driver.run()
        driver.redeliver("a")
        driver.subscription.seek(1)
        assert driver.run() == [("a", 1)]
        assert driver.counts() == {1: 0}


class TestExclusive:
    def test_a_second_consumer_is_refused(self) -> None:
        driver = exclusive()
        refused = driver.join("b")
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.CONSUMER_BUSY

    def test_the_only_one_is_active(self) -> None:
        assert Driver(EXCLUSIVE).join("a") == (ActiveChange("a", is_active=True),)

    def test_the_next_one_gets_what_the_last_left(self) -> None:
        driver = exclusive(10, 3)
        driver.run()
        driver.ack(1)
        assert driver.leave("a") == ()
        assert not driver.dispatcher.has_consumers
        driver.join("b", 10)
        assert driver.run() == [("b", 0), ("b", 2)]
        assert driver.counts() == {0: 1, 2: 1}

    def test_with_hash_ranges_it_gets_only_keys_in_them(self) -> None:
        driver = Driver(EXCLUSIVE)
        driver.join("a", 10, ranges=((0, 10), (30, 40)))
        driver.fill(5, 20, None, 35, 41)
        assert driver.run() == [("a", 0), ("a", 3)]
        assert driver.cursor.mark_delete == 0

    def test_bad_hash_ranges_are_refused(self) -> None:
        refused = Driver(EXCLUSIVE).join("a", ranges=((0, 10), (5, 40)))
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.RANGE_CONFLICT


def active_in(partition: int, *consumers: tuple[str, int], topic_name: str = "t") -> str:
    driver = Driver(FAILOVER, partition=partition, topic_name=topic_name)
    for name, level in consumers:
        driver.join(name, priority_level=level)
    return next(str(each.consumer_id) for each in driver.dispatcher.consumers() if each.is_active)


class TestFailover:
    @pytest.mark.parametrize(
        ("partition", "consumers", "active"),
        [
            (0, (("b", 0), ("a", 0), ("c", 0)), "a"),
            (1, (("b", 0), ("a", 0), ("c", 0)), "b"),
            (2, (("b", 0), ("a", 0), ("c", 0)), "c"),
            (3, (("b", 0), ("a", 0), ("c", 0)), "a"),
            (1, (("b", 1), ("a", 0), ("c", 1)), "a"),
            (1, (("b", 1), ("a", 2), ("c", 1)), "c"),
            (4, (("b", 1), ("a", 2), ("c", 1)), "b"),
        ],
    )
    def test_partitions_are_spread_over_the_best_level(
        self, partition: int, consumers: tuple[tuple[str, int], ...], active: str
    ) -> None:
        assert active_in(partition, *consumers) == active

    def test_of_a_topic_without_partitions_a_ring_decides(self) -> None:
        names = [(name, 0) for name in "abcd"]
        chosen = {active_in(-1, *names, topic_name=f"topic-{each}") for each in range(40)}
        assert chosen == set("abcd")
        assert active_in(-1, *names, topic_name="x") == active_in(
            -1, *reversed(names), topic_name="x"
        )
        assert active_in(-1, ("a", 1), ("b", 0), topic_name="x") == "b"

    def test_all_are_told_of_a_change_and_the_new_one_of_none(self) -> None:
        driver = Driver(FAILOVER, partition=0)
        assert driver.join("b") == (ActiveChange("b", is_active=True),)
        assert driver.join("c") == (ActiveChange("c", is_active=False),)
        assert driver.join("a") == (
            ActiveChange("a", is_active=True),
            ActiveChange("b", is_active=False),
            ActiveChange("c", is_active=False),
        )
        assert driver.leave("c") == ()
        assert driver.leave("a") == (ActiveChange("b", is_active=True),)
        assert driver.leave("b") == ()

    def test_who_takes_over_gets_what_is_unacknowledged_in_order(self) -> None:
        driver = Driver(FAILOVER, partition=0)
        driver.join("a", 3)
        driver.join("b", 100)
        driver.fill(count=6)
        assert driver.run() == [("a", 0), ("a", 1), ("a", 2)]
        driver.ack(1)
        driver.leave("a")
        assert driver.run() == [("b", each) for each in (0, 2, 3, 4, 5)]
        assert driver.counts() == {0: 1, 2: 1, 3: 0, 4: 0, 5: 0}

    def test_a_standby_one_gets_nothing_and_its_wishes_change_nothing(self) -> None:
        driver = Driver(FAILOVER, partition=0)
        driver.join("a", 100)
        driver.join("b", 100)
        driver.fill(count=2)
        driver.run()
        assert driver.redeliver("b", epoch=4) == []
        assert driver.status("b").epoch == 4
        assert [each.unacked for each in driver.dispatcher.consumers()] == [2, 0]

    def test_consumers_of_one_name_take_their_turn_by_coming(self) -> None:
        driver = Driver(FAILOVER, partition=0)
        driver.join(1, name="same")
        assert driver.join(2, name="same") == (ActiveChange(2, is_active=False),)


@pytest.mark.parametrize("type", [EXCLUSIVE, FAILOVER])
def test_events_of_who_is_gone_change_nothing(type: SubscriptionType) -> None:  # noqa: A002
    driver = Driver(type)
    driver.join("a", 5)
    driver.fill(count=2)
    driver.run()
    assert driver.leave("x") == ()
    assert driver.flow("x", 5) == []
    assert driver.redeliver("x") == []
    assert driver.status("a").permits == 3


def test_counts_stop_at_a_thousand() -> None:
    driver = exclusive(0, 1)
    for _ in range(1_100):
        driver.flow("a", 1)
        driver.dispatcher.redeliver("a")
    driver.flow("a", 1)
    assert driver.counts() == {0: 1_000}


class TestPending:
    def test_an_abort_goes_back_to_the_mark_delete_offset(self) -> None:
        driver = exclusive(99, 5)
        driver.run()
        driver.ack(0, 3)
        driver.pend("t", 2)
        assert driver.abort("t") == [("a", 1), ("a", 2), ("a", 4)]
        assert driver.counts() == {1: 1, 2: 1, 4: 1}

    def test_several_ranges_go_back_once(self) -> None:
        driver = exclusive(99, 5)
        driver.run()
        driver.pend("t", 0, 2, 4)
        assert driver.abort("t") == [("a", each) for each in range(5)]
        assert set(driver.counts().values()) == {1}

    def test_what_was_not_read_yet_is_nothing_to_go_back_for(self) -> None:
        driver = exclusive(2, 5)
        driver.run()
        driver.pend("t", 3)
        assert driver.abort("t") == []
        assert driver.flow("a", 9) == [("a", 2), ("a", 3), ("a", 4)]

    def test_whoever_is_active_then_gets_it(self) -> None:
        driver = Driver(FAILOVER, partition=0)
        driver.join("a", 9)
        driver.join("b", 9)
        driver.fill(count=2)
        driver.run()
        driver.pend("t", 0)
        driver.leave("a")
        assert driver.run() == [("b", 1)]
        assert driver.abort("t") == [("b", 0), ("b", 1)]
