"""Subscriptions and their backlog, from the database's views, for the command line.

On a connection of its own. Must not know a rule of subscriptions, nor how they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.rows import class_row

from core.ports.log import StoreUnavailable
from storage.connection.url import check_url

_CONNECT_WITHIN_S: Final = 10

# A name that is None matches all.
READ_SUBSCRIPTIONS: Final = """
SELECT topic, partition, subscription, type, s.mark_delete, ranges, owner, backlog, high_watermark
FROM penstock.v_subscription s
JOIN penstock.v_subscription_backlog USING (topic, partition, subscription)
WHERE (%(topic)s::text IS NULL OR topic = %(topic)s)
  AND (%(subscription)s::text IS NULL OR subscription = %(subscription)s)
ORDER BY topic, subscription, partition
"""


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A subscription of one partition.

    mark_delete: all offsets below are acknowledged. ranges: acknowledged ranges above it. owner:
    HOST:PORT of the broker that dispatches it, or None. backlog: messages not acknowledged.
    """

    topic: str
    partition: int
    subscription: str
    type: str
    mark_delete: int
    ranges: int
    owner: str | None
    backlog: int
    high_watermark: int


def read_subscriptions(
    url: str, topic: str | None = None, subscription: str | None = None
) -> list[SubscriptionView]:
    """By topic, name, partition. Raises StoreUnavailable, without a password in its text."""
    check_url(url)
    wanted = {"topic": topic, "subscription": subscription}
    try:
        with (
            psycopg.connect(url, connect_timeout=_CONNECT_WITHIN_S) as connection,
            connection.cursor(row_factory=class_row(SubscriptionView)) as cursor,
        ):
            return cursor.execute(READ_SUBSCRIPTIONS, wanted).fetchall()
    except psycopg.Error as error:
        raise StoreUnavailable(str(error).strip().partition("\n")[0]) from error
