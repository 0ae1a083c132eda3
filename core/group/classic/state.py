"""The states of a classic group, and which may follow which (Kafka's ClassicGroupState)."""

from collections.abc import Mapping
from typing import Final

EMPTY: Final = "Empty"
PREPARING_REBALANCE: Final = "PreparingRebalance"
COMPLETING_REBALANCE: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

VALID_PREVIOUS_STATES: Final[Mapping[str, frozenset[str]]] = {
    EMPTY: frozenset([PREPARING_REBALANCE]),
    PREPARING_REBALANCE: frozenset([STABLE, COMPLETING_REBALANCE, EMPTY]),
    COMPLETING_REBALANCE: frozenset([PREPARING_REBALANCE]),
    STABLE: frozenset([COMPLETING_REBALANCE]),
    DEAD: frozenset([STABLE, PREPARING_REBALANCE, COMPLETING_REBALANCE, EMPTY, DEAD]),
}
