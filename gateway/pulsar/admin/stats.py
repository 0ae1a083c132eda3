"""What a broker has of a topic: its size, who writes to it, its subscriptions and their consumers.

Behavior: counts are of messages where Pulsar counts entries. Rates, and what was delivered so far,
are not kept; such fields are left out, and clients read 0. Several partitions are added up; one
that cannot be asked fails the request. Sources: TopicStatsImpl, ManagedLedgerInternalStats.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from core.security.pulsar_operations import (
    SEE_TOPIC,
)
from core.subscription.values import ConsumerStatus, SubscriptionType
from core.types import NO_TOPIC_EPOCH
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import (
    gather_all,
    on_one,
    topic_of,
)
from gateway.pulsar.consumers import Consumer
from gateway.pulsar.names import TopicName
from gateway.pulsar.producers import Producer
from gateway.pulsar.session import Session
from gateway.pulsar.topics import NamedPartition, is_partitioned
from gateway.runtime.subscriptions.members import Member
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.log.partition_log import PartitionState
    from core.topic.topic import Topic
    from core.topic.writers import AccessMode, Writer
    from gateway.runtime.subscriptions.members import LiveSubscription
    from gateway.runtime.subscriptions.partition import OwnedPartition

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_ADDED_UP: Final = ("storageSize", "msgInCounter", "backlogSize")
_ADDED_UP_OF_SUBSCRIPTIONS: Final = (
    "msgBacklog",
    "unackedMessages",
    "nonContiguousDeletedMessagesRanges",
)
TYPES: Final = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


@endpoint("GET", f"{_TOPIC}/stats", SEE_TOPIC)
async def stats(call: AdminCall) -> Any:
    """One partition: its size, producers, subscriptions with their consumers."""

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any]:
        return await _stats(call, owned, place)

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/partitioned-stats", SEE_TOPIC)
async def partitioned_stats(call: AdminCall) -> dict[str, Any]:
    """The stats of all partitions, added up; and of each, with `perPartition`."""
    name, topic = await topic_of(call)
    if name.partition >= 0 or not is_partitioned(topic):
        raise ClientError(404, f"Partitioned Topic not found: {name}")
    answers = await stats_of(call, name, topic)
    whole: dict[str, Any] = {"metadata": {"partitions": len(answers), "deleted": False}}
    whole |= _added_up(answers)
    whole["partitions"] = {}
    if call.flag("perPartition", default=True):
        whole["partitions"] = {f"{name}-partition-{n}": each for n, each in enumerate(answers)}
    return whole


@endpoint("GET", f"{_TOPIC}/internalStats", SEE_TOPIC)
async def internal_stats(call: AdminCall) -> Any:
    """One partition: its offsets, and the cursors of its subscriptions."""

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any] | Refused:
        return await _internal_stats(call, owned, place)

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/partitioned-internalStats", SEE_TOPIC)
async def partitioned_internal_stats(call: AdminCall) -> dict[str, Any]:
    """The internal stats of each partition."""
    name, topic = await topic_of(call)
    if name.partition >= 0 or not is_partitioned(topic):
        raise ClientError(404, f"Partitioned Topic not found: {name}")

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any] | Refused:
        return await _internal_stats(call, owned, place)

    answers = await gather_all(call, name, topic, act, ("GET", "internalStats"))
    return {
        "metadata": {"partitions": len(answers), "deleted": False},
        "partitions": {
            f"{name}-partition-{n}": each for n, each in enumerate(_all_or_fail(answers))
        },
    }


async def stats_of(call: AdminCall, name: TopicName, topic: Topic) -> list[dict[str, Any]]:
    """Of each partition, here or at its broker. Raises ClientError where one cannot be asked."""

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any]:
        return await _stats(call, owned, place)

    return _all_or_fail(await gather_all(call, name, topic, act, ("GET", "stats")))


async def usage_of(call: AdminCall, name: TopicName, topic: Topic) -> int:
    """How many producers and consumers a topic has, at any broker."""
    found = await stats_of(call, name, topic)
    consumers = sum(
        len(each["consumers"]) for one in found for each in one["subscriptions"].values()
    )
    return consumers + sum(len(one["publishers"]) for one in found)


def _all_or_fail(answers: list[Any]) -> list[dict[str, Any]]:
    for each in answers:
        if isinstance(each, Refused):
            raise ClientError(each.status, each.reason)
    return answers


def _added_up(answers: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {key: sum(each.get(key, 0) for each in answers) for key in _ADDED_UP}
    whole["publishers"] = []
    whole["subscriptions"] = subscriptions = {}
    for each in answers:
        for publisher in each["publishers"]:
            # One of a client's writes to all partitions, under one name.
            if publisher["producerName"] not in {p["producerName"] for p in whole["publishers"]}:
                whole["publishers"].append(publisher)
        for name, found in each["subscriptions"].items():
            if name not in subscriptions:
                subscriptions[name] = {**found, "consumers": list(found["consumers"])}
                continue
            for key in _ADDED_UP_OF_SUBSCRIPTIONS:
                subscriptions[name][key] += found[key]
            subscriptions[name]["consumers"] += found["consumers"]
    return whole


async def _stats(call: AdminCall, owned: OwnedPartition, place: NamedPartition) -> dict[str, Any]:
    services = call.services.pulsar
    partition_id = place.partition_id
    state = (await services.partitions.refresh([partition_id])).get(partition_id)
    if state is None:
        raise ClientError(404, f"Topic {place.name} not found")
    sizes = await services.topics.partition_sizes()
    writers = services.producers.of(partition_id)
    subscriptions = {}
    for name in owned.names:
        opened = await owned.open(name)
        if opened is not None:
            subscriptions[name] = _subscription(opened, state)
    return {
        "storageSize": next((e.size_bytes for e in sizes if e.partition_id == partition_id), 0),
        "msgInCounter": state.next_offset,
        "publishers": [_publisher(each) for each in writers.present],
        "waitingPublishers": len(writers.waiting),
        **({} if state.topic_epoch == NO_TOPIC_EPOCH else {"topicEpoch": state.topic_epoch}),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": (
            "Enabled" if place.topic.config.deduplication_enabled else "Disabled"
        ),
    }


def _publisher(writer: Writer) -> dict[str, Any]:
    found: dict[str, Any] = {
        "producerName": writer.name,
        "accessMode": _access_mode(writer.mode),
        "producerId": writer.number,
        "metadata": {},
    }
    if isinstance(session := writer.connection, Session):
        found |= {"address": session.peer, "clientVersion": session.client_version}
        producer = session.producers.get(writer.number)
        if isinstance(producer, Producer):
            found["connectedSince"] = date_of(producer.connected_at)
    return found


def _access_mode(mode: AccessMode) -> str:
    return mode.name.title().replace("_", "")


def _subscription(opened: LiveSubscription, state: PartitionState) -> dict[str, Any]:
    dispatcher, cursor = opened.core.dispatcher, opened.core.cursor
    statuses = dispatcher.consumers() if dispatcher is not None else []
    kind = dispatcher.type if dispatcher is not None else opened.stored_type
    active = next((each.name for each in statuses if each.is_active), None)
    found: dict[str, Any] = {
        "msgBacklog": cursor.count_unacknowledged(state.log_start_offset, state.next_offset),
        "unackedMessages": sum(each.unacked for each in statuses),
        "blockedSubscriptionOnUnackedMsgs": any(each.is_blocked for each in statuses),
        "nonContiguousDeletedMessagesRanges": cursor.range_count,
        "consumers": [_consumer(each) for each in statuses],
        "isDurable": opened.is_durable,
        "isReplicated": False,
        "subscriptionProperties": opened.properties,
    }
    if kind is not None:
        found["type"] = TYPES[kind]
        if kind.has_one_active and active is not None:
            found["activeConsumerName"] = active
    return found


def _consumer(status: ConsumerStatus) -> dict[str, Any]:
    member = status.consumer_id
    assert isinstance(member, Member)
    found: dict[str, Any] = {
        "consumerName": status.name,
        "availablePermits": member.permits,
        "unackedMessages": status.unacked,
        "blockedConsumerOnUnackedMsgs": status.is_blocked,
        "metadata": {},
    }
    if isinstance(consumer := member.receiver, Consumer):
        found |= {
            "address": consumer.session.peer,
            "clientVersion": consumer.session.client_version,
            "connectedSince": date_of(consumer.connected_at),
        }
    return found


async def _internal_stats(
    call: AdminCall, owned: OwnedPartition, place: NamedPartition
) -> dict[str, Any] | Refused:
    services = call.services.pulsar
    partition_id = place.partition_id
    state = (await services.partitions.refresh([partition_id])).get(partition_id)
    if state is None:
        return Refused(404, f"Topic {place.name} not found")
    sizes = await services.topics.partition_sizes()
    size = next((each.size_bytes for each in sizes if each.partition_id == partition_id), 0)
    count = state.next_offset - state.log_start_offset
    cursors = {}
    for name in owned.names:
        opened = await owned.open(name)
        if opened is not None and opened.is_durable:
            cursors[name] = _cursor(opened, partition_id)
    return {
        "entriesAddedCounter": state.next_offset,
        "numberOfEntries": count,
        "totalSize": size,
        "currentLedgerEntries": count,
        "currentLedgerSize": size,
        "lastConfirmedEntry": f"{partition_id}:{state.next_offset - 1}",
        "state": "LedgerOpened",
        "ledgers": [{"ledgerId": partition_id, "entries": count, "size": size}],
        "cursors": cursors,
    }


def _cursor(opened: LiveSubscription, partition_id: int) -> dict[str, Any]:
    cursor, dispatcher = opened.core.cursor, opened.core.dispatcher
    read = cursor.mark_delete if dispatcher is None else dispatcher.read_position
    return {
        "markDeletePosition": f"{partition_id}:{cursor.mark_delete - 1}",
        "readPosition": f"{partition_id}:{read}",
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "properties": {},
    }


def date_of(milliseconds: int) -> str:
    """A time since the epoch as Pulsar's DateFormatter spells it."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
