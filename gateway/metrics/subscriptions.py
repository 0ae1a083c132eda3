"""What is counted of subscriptions, under the names of Pulsar's metrics of a broker.

Of partitions that this broker dispatches and has in memory. Knows no rule of a subscription.
"""

import time
from typing import Final, NamedTuple

from gateway.metrics.registry import Metrics
from gateway.runtime.subscriptions.subscriptions import Subscriptions

_COUNTED_FOR_S: Final = 1.0


class _Counted(NamedTuple):
    topics: int = 0
    subscriptions: int = 0
    consumers: int = 0
    backlog: int = 0
    unacknowledged: int = 0


class _Counts:
    """All of it, counted once a scrape."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._counted = _Counted()
        self._counted_at = float("-inf")

    def now(self) -> _Counted:
        """What there is, or was a moment ago."""
        if time.monotonic() - self._counted_at > _COUNTED_FOR_S:
            self._counted = self._count()
            self._counted_at = time.monotonic()
        return self._counted

    def _count(self) -> _Counted:
        topics = subscriptions = consumers = backlog = unacknowledged = 0
        for owned in self._subscriptions.owned:
            topics += 1
            for each in owned.subscriptions:
                subscriptions += 1
                consumers += len(each.members)
                backlog += each.core.cursor.backlog(owned.log_end)
                if each.core.dispatcher is not None and each.members:
                    unacknowledged += sum(one.unacked for one in each.core.dispatcher.consumers())
        return _Counted(topics, subscriptions, consumers, backlog, unacknowledged)


def watch_subscriptions(metrics: Metrics, subscriptions: Subscriptions) -> None:
    """Makes the metrics."""
    watch, counts = metrics.watch, _Counts(subscriptions)
    watch(
        "pulsar_broker_topics_count",
        "Partitions that this broker dispatches.",
        lambda: counts.now().topics,
    )
    watch(
        "pulsar_broker_subscriptions_count",
        "Subscriptions of them that are in memory.",
        lambda: counts.now().subscriptions,
    )
    watch(
        "pulsar_broker_consumers_count",
        "Consumers that are connected.",
        lambda: counts.now().consumers,
    )
    watch(
        "pulsar_broker_msg_backlog",
        "Messages that subscriptions in memory have not acknowledged, as far as the log was read.",
        lambda: counts.now().backlog,
    )
    watch(
        "penstock_subscription_unacknowledged",
        "Messages that consumers were given and have not acknowledged.",
        lambda: counts.now().unacknowledged,
    )
