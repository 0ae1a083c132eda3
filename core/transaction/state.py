"""Which state of a transaction may follow which (Kafka's TransactionState): one table.

All transitions are here; `coordinator.py` decides when to make one. Knows no epoch and no request.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from core.transaction.values import TransactionState

VALID_PREVIOUS_STATES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = (
    MappingProxyType(
        {
            TransactionState.EMPTY: frozenset(
                {
                    TransactionState.EMPTY,
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                }
            ),
            TransactionState.ONGOING: frozenset(
                {
                    TransactionState.ONGOING,
                    TransactionState.EMPTY,
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                }
            ),
            TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
            # From Empty and Complete… too: V2 may abort before it has written (KIP-890).
            TransactionState.PREPARE_ABORT: frozenset(
                {
                    TransactionState.ONGOING,
                    TransactionState.PREPARE_EPOCH_FENCE,
                    TransactionState.EMPTY,
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                }
            ),
            TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
            TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
            TransactionState.DEAD: frozenset(
                {
                    TransactionState.EMPTY,
                    TransactionState.COMPLETE_ABORT,
                    TransactionState.COMPLETE_COMMIT,
                }
            ),
            TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
        }
    )
)

COMMITTING: Final = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
ABORTING: Final = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
FENCING: Final = (TransactionState.PREPARE_EPOCH_FENCE, *ABORTING)
"""The states that one commit passes: a client's commit, its abort, and an abort that fences it."""

IDLE_STATES: Final = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)
"""No transaction is open, the next may begin, and the id may expire."""


def may_follow(state: TransactionState, previous: TransactionState) -> bool:
    """Whether `state` may be entered from `previous`."""
    return previous in VALID_PREVIOUS_STATES[state]


def passed(previous: TransactionState, *states: TransactionState) -> TransactionState:
    """The last of `states`, passed one after the other. A forbidden step is a bug."""
    for state in states:
        if not may_follow(state, previous):
            raise AssertionError(f"{state.value} may not follow {previous.value}")
        previous = state
    return previous
