"""Group ids that name a subscription of Pulsar's: `pulsar-subscription:TOPIC:PARTITION:NAME`.

TOPIC is the topic's name in the log. Kafka's transactional producers acknowledge by them, and ACLs
on subscriptions are about them. Does not know whether there is such a subscription.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PREFIX: Final = "pulsar-subscription:"

_GROUP_ID: Final = re.compile(r"pulsar-subscription:([^:]+):([0-9]{1,9}):(.+)", re.DOTALL)


class SubscriptionName(NamedTuple):
    """A subscription in one partition."""

    topic: str
    partition: int
    name: str

    @property
    def group_id(self) -> str:
        """The group id that names it."""
        return f"{PREFIX}{self.topic}:{self.partition}:{self.name}"


def read_group_id(group_id: str) -> SubscriptionName | None:
    """None for what is no such group id."""
    named = _GROUP_ID.fullmatch(group_id)
    return None if named is None else SubscriptionName(named[1], int(named[2]), named[3])
