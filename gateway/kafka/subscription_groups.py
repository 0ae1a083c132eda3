"""Group ids that name a subscription of Pulsar's, for Kafka's transactional producers.

`sendOffsetsToTransaction` with such an id (`core/subscription/group_ids.py`) acknowledges on that
subscription in the producer's own transaction. The offset means what it means to Kafka: all below
it is done. Where single messages are meant, as on Shared and Key_Shared subscriptions, the metadata
names them: `5,7-9`. Such a group's coordinator is the broker that dispatches the partition. In a
transaction, such an id that names no subscription is refused: as a group like others it would
acknowledge nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import Error
from core.subscription.group_ids import PREFIX, read_group_id
from core.transaction.key import Participant

if TYPE_CHECKING:
    from core.transaction.key import TransactionKey
    from core.transaction.values import ProducerIdAndEpoch
    from gateway.kafka.context import RequestContext

_RANGES: Final = re.compile(r"[0-9]{1,18}(?:-[0-9]{1,18})?(?:,[0-9]{1,18}(?:-[0-9]{1,18})?)*")


class SubscriptionGroup(NamedTuple):
    """A subscription in one partition, as a group id names it."""

    topic: str
    partition: int
    partition_id: int
    subscription_id: int
    subscription: str


async def find_subscription(group_id: str, ctx: RequestContext) -> SubscriptionGroup | Error | None:
    """The subscription that a group id names; None where it is a group's like others,
    INVALID_GROUP_ID where there is no such subscription. Raises StoreUnavailable."""
    if not group_id.startswith(PREFIX):
        return None
    named = read_group_id(group_id)
    if named is None:
        return Error.INVALID_GROUP_ID
    topic, partition, subscription = named
    partition_id = (await ctx.resolve([(topic, partition)])).get((topic, partition))
    if partition_id is None:
        return Error.INVALID_GROUP_ID
    found = await ctx.services.subscriptions.find_id(partition_id, subscription)
    if found is None:
        return Error.INVALID_GROUP_ID
    return SubscriptionGroup(topic, partition, partition_id, found, subscription)


def acknowledged(metadata: str) -> list[tuple[int, int]] | None:
    """The ranges of offsets that an offset's metadata names, without their ends; nothing where it
    is empty, None where it is something else. confluent-kafka ends it with a NUL."""
    metadata = metadata.removesuffix("\0")
    if not metadata:
        return []
    if not _RANGES.fullmatch(metadata):
        return None
    parts = (part.partition("-") for part in metadata.split(","))
    return [(int(first), int(last or first) + 1) for first, _, last in parts]


async def acknowledge(
    group: SubscriptionGroup,
    key: TransactionKey,
    producer: ProducerIdAndEpoch,
    offset: int,
    metadata: str,
    ctx: RequestContext,
) -> Error:
    """Acknowledges in the producer's transaction; durable when it returns.

    ILLEGAL_GENERATION where a message is acknowledged already, in another transaction, without one,
    or in this one (then it is the second copy of it): as with a group that has moved on (KIP-447),
    the producer has to abort. NOT_COORDINATOR where another broker dispatches the partition.
    """
    ranges = acknowledged(metadata)
    if ranges is None or offset < 0:
        return Error.INVALID_REQUEST
    owned = await ctx.services.subscriptions.find(group.partition_id)
    if owned is None:
        return Error.NOT_COORDINATOR
    subscription = await owned.open(group.subscription)
    if subscription is None:
        return Error.NOT_COORDINATOR
    if owned.log_end < max((end for _, end in ranges), default=offset):
        await owned.look()  # what was given out before this broker had it
    participant = Participant.of_subscription(group.subscription_id)
    found = await ctx.transactions.find_joined(key, producer, participant, ctx.transaction_version)
    if isinstance(found, Error):
        return found
    error = await owned.acknowledge_in_transaction(
        subscription, key, producer, [ranges], None if ranges else offset, found
    )
    return _ERRORS.get(error, error)


_ERRORS: Final = {
    Error.CONCURRENT_TRANSACTIONS: Error.ILLEGAL_GENERATION,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
}
