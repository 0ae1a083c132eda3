"""The door: which type a subscription is of, and what goes to its cursor while nobody is there."""

import pytest

from core.subscription.cursor import Cursor
from core.subscription.subscription import Subscription
from core.subscription.values import (
    DispatchSettings,
    KeySharing,
    Reason,
    Refused,
    SubscriptionType,
)
from tests.core.subscription.driver import Driver

TYPES = list(SubscriptionType)


@pytest.mark.parametrize("other", TYPES)
@pytest.mark.parametrize("type", TYPES)
def test_all_consumers_are_of_one_type(type: SubscriptionType, other: SubscriptionType) -> None:  # noqa: A002
    driver = Driver(type)
    driver.join("a")
    answer = driver.join("b", type=other)
    if type is not other:
        assert isinstance(answer, Refused)
        assert answer.reason is Reason.OTHER_TYPE
    else:
        assert isinstance(answer, Refused) == (type is SubscriptionType.EXCLUSIVE)


@pytest.mark.parametrize("other", TYPES)
@pytest.mark.parametrize("type", TYPES)
def test_with_nobody_there_any_type_may_come(
    type: SubscriptionType,  # noqa: A002
    other: SubscriptionType,
) -> None:
    driver = Driver(type)
    driver.join("a", 2)
    driver.fill(count=3)
    driver.run()
    driver.ack(0)
    driver.leave("a")
    assert not isinstance(driver.join("b", 9, type=other), Refused)
    assert driver.dispatcher.type is other
    assert driver.run() == [("b", 1), ("b", 2)]
    assert driver.counts() == {1: int(type is other), 2: 0}


@pytest.mark.parametrize("sharing", [KeySharing(is_ordered=False), KeySharing(is_sticky=True)])
def test_keys_are_shared_in_one_way(sharing: KeySharing) -> None:
    driver = Driver(SubscriptionType.KEY_SHARED)
    driver.join("a")
    refused = driver.join("b", key_sharing=sharing, ranges=((0, 5),))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.OTHER_TYPE
    driver.leave("a")
    assert not isinstance(driver.join("b", key_sharing=sharing, ranges=((0, 5),)), Refused)


def test_a_refused_first_consumer_leaves_nothing() -> None:
    driver = Driver(SubscriptionType.KEY_SHARED, key_sharing=KeySharing(is_sticky=True))
    assert isinstance(driver.join("a"), Refused)
    assert driver.subscription.dispatcher is None


def test_without_consumers_the_cursor_is_what_moves() -> None:
    subscription = Subscription(Cursor(10), DispatchSettings())
    assert subscription.acknowledge(12, 14, 20) == 2
    assert subscription.skip(3, 20) == 3
    assert subscription.cursor.mark_delete == 15
    assert subscription.acknowledge_up_to(99, 20) == 5
    assert subscription.cursor.mark_delete == 20
    subscription.seek(3)
    assert subscription.cursor.mark_delete == 3
    assert subscription.skip(99, 20) == 17


@pytest.mark.parametrize(
    ("type", "one"),
    [(each, each.name in ("EXCLUSIVE", "FAILOVER")) for each in TYPES],
)
def test_which_types_have_one_active_consumer(type: SubscriptionType, one: bool) -> None:  # noqa: A002
    assert type.has_one_active is one


@pytest.mark.parametrize("type", TYPES)
class TestTransactions:
    """What is the same on all types."""

    def driver(self, type: SubscriptionType, permits: int = 99) -> Driver:  # noqa: A002
        """Each has a key of its own, so that none holds up another."""
        driver = Driver(type)
        driver.join("a", permits)
        driver.fill(1, 2, 3, 4, 5, 6)
        driver.run()
        return driver

    def test_what_is_pending_is_nobody_s(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        assert driver.pend("t", 1, 2)
        assert driver.status("a").unacked == 4
        assert driver.redeliver("a") == [("a", each) for each in (0, 3, 4, 5)]
        driver.leave("a")
        driver.join("b", 99)
        assert driver.run() == [("b", each) for each in (0, 3, 4, 5)]
        assert (driver.subscription.pending_count, driver.cursor.backlog(6)) == (2, 6)
        assert driver.subscription.pending_of("t") == (((1, 3),), None)
        assert driver.cursor.take_effects() is None

    def test_a_commit_acknowledges(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.pend("t", 0, 1, 3)
        assert driver.subscription.commit_pending("t") == 3
        assert driver.subscription.commit_pending("t") == 0
        assert driver.cursor.mark_delete == 2
        assert list(driver.subscription.pending_owners) == []
        assert driver.redeliver("a") == [("a", each) for each in (2, 4, 5)]
        assert not driver.pend("u", 3)

    def test_an_abort_gives_back(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.pend("t", 1, 3)
        driver.ack(0, 2, 4, 5)
        assert driver.abort("t") == [("a", 1), ("a", 3)]
        assert driver.counts() == {1: 1, 3: 1}
        assert driver.abort("t") == []
        assert driver.pend("u", 3)
        assert not driver.pend("v", 3)
        assert driver.abort("u") == ([("a", 1), ("a", 3)] if type.has_one_active else [("a", 3)])
        assert driver.counts()[3] == 2

    def test_all_below_an_offset(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        assert driver.subscription.pend_up_to("t", 3, 6)
        assert driver.subscription.pend_up_to("t", 4, 6)
        assert not driver.subscription.pend_up_to("u", 5, 6)
        assert not driver.pend("u", 3, 4)
        assert driver.status("a").unacked == 2
        assert driver.subscription.pending_of("t") == ((), 4)
        driver.ack(4, 5)
        assert driver.abort("t") == [("a", each) for each in range(4)]
        assert driver.subscription.pend_up_to("u", 3, 6)
        assert driver.subscription.commit_pending("u") == 3
        assert driver.cursor.mark_delete == 3

    def test_what_was_acknowledged_meanwhile_does_not_come_back(
        self,
        type: SubscriptionType,  # noqa: A002
    ) -> None:
        driver = self.driver(type)
        driver.pend("t", 1, 3, 5)
        driver.ack(1)
        assert driver.subscription.pending_count == 2
        driver.subscription.acknowledge_up_to(5, 6)
        assert driver.subscription.pending_count == 1
        assert driver.abort("t") == [("a", 5)]

    def test_nothing_beyond_the_log_s_end_and_no_empty_ones(
        self,
        type: SubscriptionType,  # noqa: A002
    ) -> None:
        driver = self.driver(type)
        subscription = driver.subscription
        assert subscription.pend("t", [[(3, 3), (7, 5)], [(6, 2**63)], []], 6)
        assert subscription.pend_up_to("t", 0, 6)
        assert list(subscription.pending_owners) == []
        assert subscription.pend("t", [[(5, 2**63)]], 6)
        assert subscription.pend_up_to("t", 2**63, 6)
        assert subscription.pending_of("t") == (((5, 6),), 6)
        driver.fill(count=1)
        assert driver.commit("t") == [("a", 6)]

    def test_they_are_loaded_and_end_later(self, type: SubscriptionType) -> None:  # noqa: A002
        for is_commit in (True, False):
            driver = Driver(type)
            driver.fill(1, 2, 3, 4)
            driver.subscription.load_pending("t", [(1, 3)], None)
            driver.subscription.load_pending("u", [], 1)
            driver.join("a", 9)
            assert driver.run() == [("a", 3)]
            assert set(driver.subscription.pending_owners) == {"t", "u"}
            driver.ack(3)
            if is_commit:
                assert driver.commit("u") == driver.commit("t") == []
                assert driver.cursor.mark_delete == 4
            else:
                assert driver.abort("t") == [("a", 1), ("a", 2)]
                assert driver.counts() == {1: 1, 2: 1}
                driver.ack(1, 2)
                assert driver.abort("u") == [("a", 0)]
                # On types with one active consumer reading has gone back over it twice.
                assert driver.counts() == {0: 2 if type.has_one_active else 1}

    def test_without_consumers_and_for_those_of_another_type(
        self,
        type: SubscriptionType,  # noqa: A002
    ) -> None:
        driver = self.driver(type)
        driver.pend("t", 1, 2)
        driver.leave("a")
        assert driver.pend("u", 4)
        other = SubscriptionType.SHARED if type.has_one_active else SubscriptionType.FAILOVER
        driver.join("b", 99, type=other)
        assert driver.run() == [("b", 0), ("b", 3), ("b", 5)]
        driver.ack(0, 3, 5)
        assert driver.abort("t") == [("b", 1), ("b", 2)]
        assert driver.commit("u") == []
        assert driver.subscription.pending_count == 0

    def test_before_anybody_has_come(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = Driver(type)
        driver.fill(1, 2, 3)
        assert driver.pend("t", 0)
        assert driver.pend("u", 1)
        assert driver.subscription.pend_up_to("t", 1, 3)
        driver.abort("t")
        driver.join("a", 9)
        assert driver.run() == [("a", 0), ("a", 2)]
        assert driver.subscription.commit_pending("u") == 1

    def test_a_seek_keeps_them(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = self.driver(type)
        driver.pend("t", 1)
        driver.ack(0, 2)
        driver.subscription.seek(0)
        assert driver.run() == [("a", each) for each in (0, 2, 3, 4, 5)]
        driver.subscription.seek(4)
        assert driver.run() == [("a", 4), ("a", 5)]
        assert driver.abort("t") == []
        assert driver.subscription.pending_count == 0

    def test_halves_of_a_batch_in_two_transactions(self, type: SubscriptionType) -> None:  # noqa: A002
        driver = Driver(type)
        driver.join("a", 99)
        driver.append(4, key=1)
        driver.run()
        pend = driver.subscription.pend
        assert pend("t", [[(0, 2)]], 4)
        assert not pend("u", [[(1, 4)]], 4)
        assert pend("u", [[(2, 4)]], 4)
        assert driver.status("a").unacked == 0
        assert driver.redeliver("a") == []
        assert driver.commit("t") == []
        assert driver.abort("u") == [("a", 0)]
        assert driver.got[0].remaining == ((2, 4),)
        assert driver.counts() == {0: 2 if type.has_one_active else 1}


@pytest.mark.parametrize("type", TYPES)
def test_what_is_kept_is_not_given_out_again(type: SubscriptionType) -> None:  # noqa: A002
    """Memory follows the store: nothing of the batch comes again that its consumer has in hand.
    Where one consumer gets all in order, an abort brings that again, too."""
    driver = Driver(type)
    driver.join("a", 20)
    driver.append(6, key=1)
    assert driver.run() == [("a", 0)]
    subscription = driver.subscription
    assert subscription.pend("p", [[(0, 2)]], driver.log_end)
    assert subscription.pend("p", [[(2, 4)]], driver.log_end)
    subscription.acknowledge(0, 2, driver.log_end)
    subscription.keep_pending("p", [(2, 4)], None)
    assert driver.run() == []
    assert subscription.pending_of("p") == (((2, 4),), None)
    assert (driver.cursor.mark_delete, subscription.pending_count) == (2, 2)
    subscription.keep_pending("p", [(2, 4), (4, 5)], None)  # one that memory did not have
    assert subscription.pending_count == 3
    assert driver.run() == []
    subscription.keep_pending("p", [], None)  # aborted
    assert driver.run() == [("a", 0)]
    assert driver.got[0].remaining == (((2, 6),) if type.has_one_active else ((2, 5),))
    assert not subscription.pending_owners


def test_all_below_an_offset_is_kept_as_well() -> None:
    driver = Driver(SubscriptionType.EXCLUSIVE)
    driver.join("a", 20)
    driver.fill(count=6)
    assert len(driver.run()) == 6
    assert driver.subscription.pend_up_to("p", 2, driver.log_end)
    driver.subscription.acknowledge_up_to(2, driver.log_end)
    driver.subscription.keep_pending("p", [], 4)
    assert driver.run() == []
    assert driver.subscription.pending_of("p") == ((), 4)
    driver.subscription.keep_pending("p", [], None)
    assert driver.run() == [("a", offset) for offset in range(2, 6)]
