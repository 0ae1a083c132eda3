"""Deadlines of members: none is missed, and putting one off costs nothing."""

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.group.consumer.timers import NEVER, Timer, Timers
from tests.core.group.consumer.driver import CLIENT, Driver

MEMBERS = st.sampled_from(["a", "b", "c"])
TIMERS = st.sampled_from(list(Timer))
TIMES = st.integers(0, 20)
EVENTS = st.one_of(
    st.tuples(st.just("set"), TIMERS, MEMBERS, TIMES),
    st.tuples(st.just("set if absent"), TIMERS, MEMBERS, TIMES),
    st.tuples(st.just("cancel"), TIMERS, MEMBERS, TIMES),
    st.tuples(st.just("cancel all"), TIMERS, MEMBERS, TIMES),
    st.tuples(st.just("look"), TIMERS, MEMBERS, TIMES),
)


@given(st.lists(EVENTS, max_size=30))
def test_a_deadline_is_never_missed(events: list[tuple[str, Timer, str, int]]) -> None:
    timers = Timers()
    expected: dict[tuple[Timer, str], int] = {}
    for event, timer, member_id, at in events:
        if event == "set":
            timers.set(timer, member_id, at)
            expected[timer, member_id] = at
        elif event == "set if absent":
            timers.set_if_absent(timer, member_id, at)
            expected.setdefault((timer, member_id), at)
        elif event == "cancel":
            timers.cancel(timer, member_id)
            expected.pop((timer, member_id), None)
        elif event == "cancel all":
            timers.cancel_all(member_id)
            expected = {key: each for key, each in expected.items() if key[1] != member_id}
        else:
            late = {key[1] for key, each in expected.items() if each <= at}
            found = timers.due(at)
            assert {each for each, _timer in found} == late
            assert len(found) == len(late)
            for each, its_timer in found:
                assert expected[its_timer, each] <= at
                timers.cancel_all(each)
            expected = {key: each for key, each in expected.items() if key[1] not in late}
        assert timers.next_ms <= min(expected.values(), default=NEVER)


def calls(work: Callable[[], object]) -> int:
    """How many functions are called."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", ["consumer", "classic"])
def test_a_heartbeat_costs_the_same_in_a_group_of_any_size(kind: str) -> None:
    def cost(members: int) -> int:
        driver = Driver({"foo": 12})
        for index in range(members):
            driver.enter(f"m{index}", "foo")
        driver.converge()
        if kind == "classic":
            driver.enter_classic("m0-classic", "foo")
            for member_id in 2 * [f"m{index}" for index in range(members)]:
                driver.go_on(member_id)
            joined = driver.join("m0-classic", "foo")
            assert joined is not None
            driver.assigned("m0-classic", joined.generation_id)
        group, now = driver.consumer, driver.now
        row = driver.row("m0")

        def beat() -> None:
            if kind == "classic":
                error, outcome = group.heartbeat("m0-classic", None, group.group_epoch, now)
                assert (error.name, outcome.effects) == ("NONE", None)
            else:
                driver.heartbeat("m0", row.member_epoch, client=CLIENT)

        beat()
        group.expire(now)
        return calls(beat)

    assert cost(3) == cost(40)
