"""The table of states, held to Kafka's TransactionState."""

import pytest

from core.transaction.state import (
    ABORTING,
    COMMITTING,
    FENCING,
    IDLE_STATES,
    VALID_PREVIOUS_STATES,
    may_follow,
    passed,
)
from core.transaction.values import TransactionState

# As in TransactionState.java of Kafka 4.1: a row is a state, then where it may be entered from.
KAFKAS = """
Empty             Empty CompleteCommit CompleteAbort
Ongoing           Ongoing Empty CompleteCommit CompleteAbort
PrepareCommit     Ongoing
PrepareAbort      Ongoing PrepareEpochFence Empty CompleteCommit CompleteAbort
CompleteCommit    PrepareCommit
CompleteAbort     PrepareAbort
Dead              Empty CompleteCommit CompleteAbort
PrepareEpochFence Ongoing
"""


def kafkas() -> dict[TransactionState, set[TransactionState]]:
    rows = [line.split() for line in KAFKAS.strip().splitlines()]
    return {TransactionState(row[0]): {TransactionState(each) for each in row[1:]} for row in rows}


def test_every_state_is_in_the_table() -> None:
    assert set(VALID_PREVIOUS_STATES) == set(TransactionState) == set(kafkas())


@pytest.mark.parametrize("previous", list(TransactionState), ids=lambda each: each.value)
@pytest.mark.parametrize("state", list(TransactionState), ids=lambda each: each.value)
def test_a_state_follows_another_as_in_kafka(
    state: TransactionState, previous: TransactionState
) -> None:
    is_allowed = previous in kafkas()[state]
    assert may_follow(state, previous) is is_allowed
    if is_allowed:
        assert passed(previous, state) is state
    else:
        with pytest.raises(AssertionError, match="may not follow"):
            passed(previous, state)


@pytest.mark.parametrize("way", [COMMITTING, ABORTING, FENCING])
def test_what_one_commit_passes_ends_where_the_next_may_begin(
    way: tuple[TransactionState, ...],
) -> None:
    last = passed(TransactionState.ONGOING, *way)
    assert last in IDLE_STATES
    assert may_follow(TransactionState.ONGOING, last)


def test_an_id_may_die_where_it_is_idle() -> None:
    assert VALID_PREVIOUS_STATES[TransactionState.DEAD] == IDLE_STATES
