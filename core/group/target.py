"""A consumer group's target assignment, by the assignor that members vote for (Kafka's
TargetAssignmentBuilder). Knows rows and subscriptions; not how a member gets there.
"""

from collections.abc import Iterable, Mapping, Sequence

from core.group.assignors import ASSIGNORS, Subscriber
from core.group.records import MemberRow, Partitions
from core.group.subscribed_topics import SubscribedTopics


def preferred_assignor(votes: Mapping[str, int], configured: Sequence[str]) -> str:
    """The configured assignor with the most votes; without votes, the one configured first."""
    return max(configured, key=lambda name: votes.get(name, 0))


def target_assignment(
    rows: Iterable[MemberRow], subscribed: SubscribedTopics, assignor: str
) -> dict[str, Partitions]:
    """The new target of each member, by member id."""
    known: dict[tuple[tuple[str, ...], str | None], frozenset[str]] = {}
    subscribers = []
    for row in rows:
        key = (row.subscribed_topic_names, row.subscribed_topic_regex)
        if key not in known:
            known[key] = subscribed.topic_ids(*key)
        subscribers.append(Subscriber(row.member_id, row.group_instance_id, known[key], row.target))
    return ASSIGNORS[assignor](subscribers, subscribed.partitions())
