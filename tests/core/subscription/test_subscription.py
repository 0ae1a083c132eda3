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
