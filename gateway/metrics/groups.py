"""What is counted of consumer groups, under the names of Kafka's GroupCoordinatorMetrics.

Of groups in memory, that is: all that have members, and those without that were lately used. Knows
no rule of a group.
"""

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from core.group.values import GroupType
from gateway.metrics.registry import Metrics
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.groups.groups import Groups

_SERVER: Final = "kafka_server_group_coordinator_metrics"
_CLASSIC: Final = "kafka_coordinator_group_groupmetadatamanager"

_CLASSIC_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_CONSUMER_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
_COUNTED_FOR_S: Final = 1.0


class _Counts:
    """Groups by type and state, counted once a scrape."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._counted: Mapping[tuple[GroupType, str], int] = Counter()
        self._counted_at = float("-inf")

    def of(self, kind: GroupType, state: str | None = None) -> int:
        """How many there are of a type, in any state or in one."""
        if time.monotonic() - self._counted_at > _COUNTED_FOR_S:
            self._counted = self._groups.count_by_state()
            self._counted_at = time.monotonic()
        if state is not None:
            return self._counted.get((kind, state), 0)
        return sum(count for (each, _), count in self._counted.items() if each is kind)


def watch_groups(metrics: Metrics, groups: Groups, leases: ShardLeases) -> None:
    """Makes the metrics."""
    watch, count = metrics.watch, _Counts(groups).of
    for kind in GroupType:
        name, labels = f"{_SERVER}_group_count", {"protocol": kind.value}
        watch(name, "Groups by protocol.", partial(count, kind), labels)
    for state in _CONSUMER_STATES:
        name, labels = f"{_SERVER}_consumer_group_count", {"state": state.lower()}
        read = partial(count, GroupType.CONSUMER, state)
        watch(name, "Groups of the consumer protocol by state.", read, labels)
    watch(f"{_CLASSIC}_numgroups", "Classic groups.", partial(count, GroupType.CLASSIC))
    for state in _CLASSIC_STATES:
        name = f"{_CLASSIC}_numgroups{state.lower()}"
        watch(name, f"Classic groups: {state}.", partial(count, GroupType.CLASSIC, state))
    watch(
        f"{_SERVER}_group_completed_rebalance_count",
        "Rebalances of classic groups that were completed.",
        lambda: groups.rebalances(GroupType.CLASSIC),
    )
    watch(
        f"{_SERVER}_consumer_group_rebalance_count",
        "Epochs of consumer groups that were begun.",
        lambda: groups.rebalances(GroupType.CONSUMER),
    )
    watch(f"{_SERVER}_offset_commit_count", "Offsets committed.", lambda: groups.offsets_committed)
    watch(f"{_SERVER}_offset_expiration_count", "Offsets expired.", lambda: groups.offsets_expired)
    watch(
        "penstock_coordinator_leases",
        "Shards of groups that this broker coordinates, of 64.",
        lambda: len(leases.shards),
    )
