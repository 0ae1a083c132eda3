"""One member's steps towards its target, as tables (Kafka's CurrentAssignmentBuilder)."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Error, Refusal
from core.group.consumer.member import (
    STABLE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
)
from core.group.reconciliation import reconcile
from core.group.records import MemberRow, Partitions

FOO, BAR = "foo-id", "bar-id"


def parts(foo: Iterable[int] = (), bar: Iterable[int] = ()) -> Partitions:
    both = {FOO: tuple(foo), BAR: tuple(bar)}
    return {topic_id: held for topic_id, held in both.items() if held}


def member(
    state: str,
    epoch: int,
    previous: int,
    assigned: Partitions,
    revoking: Partitions,
    target: Partitions,
) -> MemberRow:
    return MemberRow(
        "m",
        "consumer",
        state=state,
        member_epoch=epoch,
        previous_member_epoch=previous,
        assigned=assigned,
        revoking=revoking,
        target=target,
    )


NOTHING = parts()
ABC = parts((1, 2, 3), (4, 5, 6))

# (before, target epoch, taken by others, owned) → after; before and after: state, epoch, previous
# epoch, assigned, revoking. The target is part of before.
STEPS = {
    "stable, nothing new": (
        (STABLE, 10, 9, ABC, NOTHING, ABC),
        (10, NOTHING, None),
        (STABLE, 10, 9, ABC, NOTHING),
    ),
    "stable, a new epoch with the same target": (
        (STABLE, 10, 9, ABC, NOTHING, ABC),
        (11, NOTHING, None),
        (STABLE, 11, 10, ABC, NOTHING),
    ),
    "stable, gets more that is free": (
        (STABLE, 10, 9, ABC, NOTHING, parts((1, 2, 3, 4), (4, 5, 6, 7))),
        (11, NOTHING, None),
        (STABLE, 11, 10, parts((1, 2, 3, 4), (4, 5, 6, 7)), NOTHING),
    ),
    "stable, gets more that is taken": (
        (STABLE, 10, 9, ABC, NOTHING, parts((1, 2, 3, 4), (4, 5, 6, 7))),
        (11, parts((4,), (7,)), None),
        (UNRELEASED_PARTITIONS, 11, 10, ABC, NOTHING),
    ),
    "stable, gets more of which some is taken": (
        (STABLE, 10, 9, ABC, NOTHING, parts((1, 2, 3, 4), (4, 5, 6, 7))),
        (11, parts((4,)), None),
        (UNRELEASED_PARTITIONS, 11, 10, parts((1, 2, 3), (4, 5, 6, 7)), NOTHING),
    ),
    "stable, has to give back": (
        (STABLE, 10, 9, ABC, NOTHING, parts((2, 3, 4), (5, 6, 7))),
        (11, NOTHING, None),
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3), (5, 6)), parts((1,), (4,))),
    ),
    "stable, has to give back what it says it has not": (
        (STABLE, 10, 9, ABC, NOTHING, parts((2, 3, 4), (5, 6, 7))),
        (11, NOTHING, parts((2, 3), (5,))),
        (STABLE, 11, 10, parts((2, 3, 4), (5, 6, 7)), NOTHING),
    ),
    "stable, has to give back a whole topic": (
        (STABLE, 10, 9, ABC, NOTHING, parts((1, 2, 3))),
        (11, NOTHING, ABC),
        (UNREVOKED_PARTITIONS, 10, 9, parts((1, 2, 3)), parts((), (4, 5, 6))),
    ),
    "stable, has to give back all": (
        (STABLE, 10, 9, ABC, NOTHING, NOTHING),
        (11, NOTHING, ABC),
        (UNREVOKED_PARTITIONS, 10, 9, NOTHING, ABC),
    ),
    "stable, several epochs late": (
        (STABLE, 10, 9, ABC, NOTHING, ABC),
        (15, NOTHING, None),
        (STABLE, 15, 10, ABC, NOTHING),
    ),
    "a newcomer gets what is free": (
        (STABLE, 0, -1, NOTHING, NOTHING, ABC),
        (11, parts((1,)), NOTHING),
        (UNRELEASED_PARTITIONS, 11, 0, parts((2, 3), (4, 5, 6)), NOTHING),
    ),
    "unrevoked, says nothing": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((2, 3))),
        (11, NOTHING, None),
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,))),
    ),
    "unrevoked, still owns": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,), (4,)), parts((2, 3))),
        (11, NOTHING, parts((2, 3), (4,))),
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,), (4,))),
    ),
    "unrevoked, still owns, whatever the target is by now": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((7, 8))),
        (12, NOTHING, parts((1, 2, 3))),
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,))),
    ),
    "unrevoked, has let go": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((2, 3, 4))),
        (11, NOTHING, parts((2, 3))),
        (STABLE, 11, 10, parts((2, 3, 4)), NOTHING),
    ),
    "unrevoked, has let go and more": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((2, 3, 4))),
        (11, parts((4,)), NOTHING),
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING),
    ),
    "unrevoked, has let go, and has to give back for the next epoch": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((3, 5))),
        (12, NOTHING, parts((2, 3))),
        (UNREVOKED_PARTITIONS, 11, 10, parts((3,)), parts((2,))),
    ),
    "unrevoked, has let go, and may have it back": (
        (UNREVOKED_PARTITIONS, 10, 9, parts((2, 3)), parts((1,)), parts((1, 2, 3))),
        (12, NOTHING, parts((2, 3))),
        (STABLE, 12, 10, parts((1, 2, 3)), NOTHING),
    ),
    "unreleased, still taken": (
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING, parts((2, 3, 4))),
        (11, parts((4,)), None),
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING),
    ),
    "unreleased, one of two is free": (
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING, parts((2, 3, 4, 5))),
        (11, parts((4,)), None),
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3, 5)), NOTHING),
    ),
    "unreleased, now free": (
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING, parts((2, 3, 4))),
        (11, NOTHING, None),
        (STABLE, 11, 10, parts((2, 3, 4)), NOTHING),
    ),
    "unreleased, the target is another by now": (
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING, parts((2,), (1,))),
        (12, NOTHING, parts((2, 3))),
        (UNREVOKED_PARTITIONS, 11, 10, parts((2,)), parts((3,))),
    ),
    "unreleased, is to have less by now and has what is left": (
        (UNRELEASED_PARTITIONS, 11, 10, parts((2, 3)), NOTHING, parts((2, 3))),
        (12, NOTHING, None),
        (STABLE, 12, 11, parts((2, 3)), NOTHING),
    ),
    "a state from the future, with empty hands": (
        ("Floating", 10, 9, parts((2, 3)), parts((1,)), parts((2, 4))),
        (12, NOTHING, NOTHING),
        (STABLE, 12, 10, parts((2, 4)), NOTHING),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_step(name: str) -> None:
    before, (epoch, taken, owned), after = STEPS[name]
    row = member(*before)
    stepped = reconcile(
        row, epoch, lambda topic_id, partition: partition in taken.get(topic_id, ()), owned
    )
    assert stepped == member(*after, before[-1])
    if stepped == row:
        assert stepped is row


@pytest.mark.parametrize("owned", [None, parts((2,))])
def test_a_state_from_the_future_is_fenced_until_it_lets_go(owned: Partitions | None) -> None:
    row = member("Floating", 10, 9, parts((2, 3)), NOTHING, parts((2, 3)))
    assert reconcile(row, 12, lambda *_: False, owned) == Refusal(
        Error.FENCED_MEMBER_EPOCH,
        "The consumer group member is in a unknown state. The member must abandon all its "
        "partitions and rejoin.",
    )


SETS = st.frozensets(st.integers(0, 5))


@given(
    assigned=SETS,
    revoking=SETS,
    target=SETS,
    taken=SETS,
    owned=st.none() | SETS,
    state=st.sampled_from([STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS]),
    behind=st.integers(0, 3),
)
def test_no_step_takes_what_is_taken_or_lets_go_of_what_is_owned(
    assigned: frozenset[int],
    revoking: frozenset[int],
    target: frozenset[int],
    taken: frozenset[int],
    owned: frozenset[int] | None,
    state: str,
    behind: int,
) -> None:
    """Whatever is known of a member, and whatever it says."""
    if state != UNREVOKED_PARTITIONS:
        revoking = frozenset()
    revoking -= assigned
    taken -= assigned | revoking
    row = member(
        state, 10, 9, parts(sorted(assigned)), parts(sorted(revoking)), parts(sorted(target))
    )
    if state == UNREVOKED_PARTITIONS:
        behind += 1  # else there were nothing to revoke
    told = None if owned is None else parts(sorted(owned))
    after = reconcile(row, 10 + behind, lambda _, partition: partition in taken, told)
    assert isinstance(after, MemberRow)
    now_assigned = set(after.assigned.get(FOO, ()))
    now_held = now_assigned | set(after.revoking.get(FOO, ()))
    assert now_held.isdisjoint(taken)
    assert now_assigned.isdisjoint(after.revoking.get(FOO, ()))
    may_own = assigned | revoking
    still_owns = may_own if owned is None else may_own & owned
    assert still_owns <= now_held, "given away while the member has it"
    assert after.member_epoch >= row.member_epoch
    if after.state == STABLE:
        assert (after.member_epoch, now_assigned) == (
            (10 + behind, set(target)) if after is not row else (10, set(assigned))
        )
    if after.state != UNREVOKED_PARTITIONS:
        assert not after.revoking
