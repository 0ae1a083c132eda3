"""Every state and every event: what is answered, and which state follows. One table."""

from collections.abc import Callable

import pytest

from core.errors import Error
from core.group.classic.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    VALID_PREVIOUS_STATES,
)
from core.group.values import LeavingMember
from tests.core.group.classic.driver import BEGIN, DELAY_MS, Driver, protocols

FIRST = "first rebalance"  # PreparingRebalance after Empty
PREPARING, COMPLETING = PREPARING_REBALANCE, COMPLETING_REBALANCE

WAITS = "waits"
"""No answer yet."""

# In each state but Empty and Dead: a leader i (static), a follower j (static), a dynamic member d,
# and an id p that nobody has joined with yet. In PreparingRebalance the leader has joined.


def driver_in(state: str) -> tuple[Driver, dict[str, str]]:
    group = Driver()
    ids = {"leader": "i-0", "follower": "j-0", "dynamic": "d-0"}
    if state == FIRST:
        group.preparing(3, instances=("i", "j"))
        ids = dict(zip(ids, group.group.members, strict=True))
    elif state == COMPLETING:
        ids = dict(zip(ids, group.completing(3, instances=("i", "j")), strict=True))
    elif state in (PREPARING, STABLE):
        ids = dict(zip(ids, group.stable(3, instances=("i", "j")), strict=True))
        if state == PREPARING:
            group.join(ids["leader"], "i")
    else:
        group.leave(*group.stable(3, instances=("i", "j")))
    ids["pending"] = group.given_id()
    if state == DEAD:
        group.leave(ids["pending"])
        group.take(group.group.delete(group.now))
    assert group.group.state == (PREPARING if state == FIRST else state)
    return group, ids


Event = Callable[[Driver, dict[str, str]], Error | str]


def answer(group: Driver, waiter: int) -> Error | str:
    return group.error(waiter) if waiter in group.answers else WAITS


def joins(who: str, instance: str | None = None, changed: bool = False) -> Event:
    offers = protocols("range", "x") if changed else protocols("range")
    return lambda group, ids: answer(group, group.join(ids.get(who, who), instance, offers=offers))


def syncs(who: str, instance: str | None = None, ahead: int = 0) -> Event:
    return lambda group, ids: answer(
        group, group.sync(ids.get(who, who), group.group.generation_id + ahead, instance=instance)
    )


def beats(who: str, instance: str | None = None, ahead: int = 0) -> Event:
    return lambda group, ids: group.heartbeat(
        ids.get(who, who), group.group.generation_id + ahead, instance
    )


def commits(who: str, generation: int | None = None, transactional: bool = False) -> Event:
    return lambda group, ids: group.group.commit_refusal(
        ids.get(who, who),
        None,
        group.group.generation_id if generation is None else generation,
        group.now,
        is_transactional=transactional,
    )


def leaves(who: str, instance: str | None = None) -> Event:
    def leave(group: Driver, ids: dict[str, str]) -> Error:
        result, outcome = group.group.leave([LeavingMember(ids.get(who, who), instance)], group.now)
        group.take(outcome)
        return result.error if result.error is not Error.NONE else result.members[0][1]

    return leave


def expires(group: Driver, ids: dict[str, str]) -> Error:
    group.expire()
    return Error.NONE


STATES = (EMPTY, FIRST, PREPARING, COMPLETING, STABLE, DEAD)

NONE, UNKNOWN = Error.NONE, Error.UNKNOWN_MEMBER_ID
ILLEGAL, AGAIN = Error.ILLEGAL_GENERATION, Error.REBALANCE_IN_PROGRESS
NEED_ID, FENCED = Error.MEMBER_ID_REQUIRED, Error.FENCED_INSTANCE_ID
GONE, NOT_FOUND = Error.COORDINATOR_NOT_AVAILABLE, Error.GROUP_ID_NOT_FOUND
FULL = Error.NON_EMPTY_GROUP
SAME = "same state"
TO_PREPARING, TO_STABLE = PREPARING, STABLE

# Per event, in the order of STATES: the answer, or the answer and the state that follows.
Result = Error | str | tuple[Error | str, str]
TABLE: dict[str, tuple[Event, tuple[Result, ...]]] = {
    "a new member asks for an id": (
        joins(""),
        (NEED_ID, NEED_ID, NEED_ID, NEED_ID, NEED_ID, GONE),
    ),
    "a new static member joins": (
        joins("", "k"),
        (
            (WAITS, TO_PREPARING),
            WAITS,
            WAITS,
            (WAITS, TO_PREPARING),
            (WAITS, TO_PREPARING),
            GONE,
        ),
    ),
    "a static member comes back": (
        joins("", "j"),
        ((WAITS, TO_PREPARING), WAITS, WAITS, (WAITS, TO_PREPARING), NONE, GONE),
    ),
    "a pending member joins": (
        joins("pending"),
        (
            (WAITS, TO_PREPARING),
            WAITS,
            WAITS,
            (WAITS, TO_PREPARING),
            (WAITS, TO_PREPARING),
            GONE,
        ),
    ),
    "the leader joins again": (
        joins("leader", "i"),
        (UNKNOWN, WAITS, WAITS, NONE, (WAITS, TO_PREPARING), GONE),
    ),
    "a follower joins again": (
        joins("dynamic"),
        (UNKNOWN, WAITS, WAITS, NONE, NONE, GONE),
    ),
    "a follower joins with other metadata": (
        joins("dynamic", changed=True),
        (UNKNOWN, WAITS, WAITS, (WAITS, TO_PREPARING), (WAITS, TO_PREPARING), GONE),
    ),
    "a stranger joins": (
        joins("stranger"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "an impostor joins": (
        joins("stranger", "j"),
        (UNKNOWN, FENCED, FENCED, FENCED, FENCED, GONE),
    ),
    "the leader syncs": (
        syncs("leader", "i"),
        (UNKNOWN, AGAIN, AGAIN, (NONE, TO_STABLE), NONE, GONE),
    ),
    "a follower syncs": (
        syncs("follower"),
        (UNKNOWN, AGAIN, AGAIN, WAITS, NONE, GONE),
    ),
    "a stranger syncs": (
        syncs("stranger"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "a pending member syncs": (
        syncs("pending"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "an impostor syncs": (
        syncs("stranger", "i"),
        (UNKNOWN, FENCED, FENCED, FENCED, FENCED, GONE),
    ),
    "the leader syncs another generation": (
        syncs("leader", ahead=1),
        (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "a member's heartbeat": (
        beats("follower", "j"),
        (UNKNOWN, AGAIN, AGAIN, NONE, NONE, GONE),
    ),
    "a stranger's heartbeat": (
        beats("stranger"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "a pending member's heartbeat": (
        beats("pending"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "an impostor's heartbeat": (
        beats("stranger", "j"),
        (UNKNOWN, FENCED, FENCED, FENCED, FENCED, GONE),
    ),
    "a heartbeat of an older generation": (
        beats("follower", ahead=-1),
        (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "a heartbeat of a later generation": (
        beats("follower", ahead=1),
        (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "a member leaves": (
        leaves("dynamic"),
        (UNKNOWN, NONE, NONE, (NONE, TO_PREPARING), (NONE, TO_PREPARING), GONE),
    ),
    "a static member is removed": (
        leaves("", "j"),
        (UNKNOWN, NONE, NONE, (NONE, TO_PREPARING), (NONE, TO_PREPARING), GONE),
    ),
    "a pending member leaves": (
        leaves("pending"),
        (NONE, NONE, NONE, NONE, NONE, GONE),
    ),
    "a stranger leaves": (
        leaves("stranger"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "an impostor leaves": (
        leaves("stranger", "j"),
        (UNKNOWN, FENCED, FENCED, FENCED, FENCED, GONE),
    ),
    "a member commits": (
        commits("follower"),
        (UNKNOWN, NONE, NONE, AGAIN, NONE, GONE),
    ),
    "a member commits in a transaction": (
        commits("follower", transactional=True),
        (UNKNOWN, NONE, NONE, NONE, NONE, GONE),
    ),
    "a member commits for another generation": (
        commits("follower", generation=7),
        (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "a stranger commits": (
        commits("stranger"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "a pending member commits": (
        commits("pending"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "a simple consumer commits": (
        commits("", generation=-1),
        (NONE, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "a transaction commits without a member": (
        commits("", generation=-1, transactional=True),
        (NONE, NONE, NONE, NONE, NONE, GONE),
    ),
    "somebody reads offsets": (
        lambda group, ids: group.group.fetch_refusal(None, -1),
        (NONE, NONE, NONE, NONE, NONE, NOT_FOUND),
    ),
    "somebody deletes offsets": (
        lambda group, ids: group.group.delete_offsets_refusal(),
        (NONE, NONE, NONE, NONE, NONE, NOT_FOUND),
    ),
    "somebody deletes the group": (
        lambda group, ids: group.group.delete_refusal(),
        (NONE, FULL, FULL, FULL, FULL, NOT_FOUND),
    ),
    "nothing is due": (expires, (NONE, NONE, NONE, NONE, NONE, NONE)),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", TABLE)
def test_event_in_state(event: str, state: str) -> None:
    send, results = TABLE[event]
    assert len(results) == len(STATES)
    result = results[STATES.index(state)]
    expected, follows = result if isinstance(result, tuple) else (result, SAME)
    group, ids = driver_in(state)
    before = group.group.state
    assert send(group, ids) == expected
    assert group.group.state == (before if follows == SAME else follows)
    # Whoever waits has a deadline, at which the group is looked after.
    if group.waiting:
        assert group.group.deadline_ms is not None
        group.advance(group.group.deadline_ms - group.now.monotonic_ms)


def test_a_dead_group_is_refused_for_members_too() -> None:
    group, _ = driver_in(DEAD)
    assert group.error(group.join("", "i")) is GONE
    assert group.error(group.join("stranger")) is GONE
    group.take(group.group.unload(Error.NOT_COORDINATOR, BEGIN))
    assert group.group.state == DEAD
    group.advance(10 * DELAY_MS)


def test_transitions_are_kafkas() -> None:
    assert {state: sorted(before) for state, before in VALID_PREVIOUS_STATES.items()} == {
        "Empty": ["PreparingRebalance"],
        "PreparingRebalance": ["CompletingRebalance", "Empty", "Stable"],
        "CompletingRebalance": ["PreparingRebalance"],
        "Stable": ["CompletingRebalance"],
        "Dead": ["CompletingRebalance", "Dead", "Empty", "PreparingRebalance", "Stable"],
    }
