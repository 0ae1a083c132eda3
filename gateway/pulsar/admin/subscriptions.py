"""Subscriptions: made, deleted, moved to another place.

Behavior: of a partitioned topic, what is done is done to each partition, by its broker. A message
is where its id says, and one that is gone stands for the next. Whoever moves a subscription
disconnects its consumers, who come again. Sources: PersistentTopicsBase, ResetCursorData.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from core.errors import Refusal
from core.security.pulsar_operations import (
    READ_TOPIC,
)
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import (
    gather_all,
    on_each,
    on_one,
    places_of,
    refused,
    subscribing,
    subscription_of,
    topic_of,
)
from gateway.pulsar.admin.rights import refuse_subscriptions
from gateway.pulsar.commands_pb2 import MessageIdData
from gateway.pulsar.ids import AFTER_ALL, seek_offset
from gateway.pulsar.names import subscription_flaw
from gateway.pulsar.topics import NamedPartition
from gateway.runtime.subscriptions.values import StartPosition
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from gateway.runtime.subscriptions.members import LiveSubscription
    from gateway.runtime.subscriptions.partition import OwnedPartition

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"
_U64: Final = 2**64

Change = Callable[["OwnedPartition", "LiveSubscription"], Awaitable[Refusal | None]]
"""What is done to the subscription of one partition."""


async def _change(call: AdminCall, change: Change) -> Any:
    """Changes the subscription in each partition that is meant. It is missing where none has it."""
    subscription = subscription_of(call)

    async def act(owned: OwnedPartition, place: NamedPartition) -> Refused | None:
        opened = await owned.open(subscription)
        if opened is None:
            return Refused(404, f"Subscription {subscription} not found on {place.name}")
        refusal = await change(owned, opened)
        return None if refusal is None else refused(refusal)

    name, topic = await topic_of(call)
    if len(places_of(name, topic)) == 1:
        return await on_one(call, act)
    answers = await gather_all(call, name, topic, act)
    failed = [each for each in answers if isinstance(each, Refused)]
    missing = [each for each in failed if each.status == 404]
    if len(missing) == len(answers):
        return missing[0]
    return next((each for each in failed if each.status != 404), None)


# --- making and deleting ---


@endpoint("PUT", _SUBSCRIPTION, READ_TOPIC)
async def create(call: AdminCall) -> Any:
    """Make a subscription, behind all messages, or from a message on."""
    given = await call.json()
    subscription = subscription_of(call)
    properties = (given.get("properties") if isinstance(given, dict) else None) or {}
    is_text = isinstance(properties, dict) and all(
        isinstance(each, str) for pair in properties.items() for each in pair
    )
    if not is_text:
        return Refused(400, "Properties are a map of text to text")
    if (flaw := subscription_flaw(subscription, properties.items())) is not None:
        return Refused(412, flaw)

    async def act(owned: OwnedPartition, place: NamedPartition) -> Refused | None:
        if subscription in owned.names:
            return Refused(409, f"Subscription {subscription} already exists on {place.name}")
        start = StartPosition.LATEST if given is None else _start(given, place)
        wanted = subscribing(place, subscription, start, properties)
        refusal = await owned.ensure(wanted)
        return None if refusal is None else refused(refusal)

    return await on_each(call, act)


@endpoint("DELETE", _SUBSCRIPTION, READ_TOPIC)
async def delete(call: AdminCall) -> Any:
    """Delete a subscription. `force`: also where it has consumers."""
    force = call.flag("force")
    return await _change(call, lambda owned, opened: owned.delete(opened, force=force))


@endpoint("GET", f"{_SUBSCRIPTION}/properties", READ_TOPIC)
async def properties(call: AdminCall) -> Any:
    """The properties that a subscription was made with, of the first partition that has it."""
    subscription = subscription_of(call)

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, str] | Refused:
        opened = await owned.open(subscription)
        if opened is None:
            return Refused(404, f"Subscription {subscription} not found on {place.name}")
        return dict(opened.properties)

    name, topic = await topic_of(call)
    if len(places_of(name, topic)) == 1:
        return await on_one(call, act)
    answers = await gather_all(call, name, topic, act)
    return next((each for each in answers if not isinstance(each, Refused)), answers[0])


# --- moving ---


@endpoint("POST", f"{_SUBSCRIPTION}/skip_all", READ_TOPIC)
async def skip_all(call: AdminCall) -> Any:
    """Acknowledge all messages."""
    return await _change(call, lambda owned, opened: owned.skip(opened))


@endpoint("POST", f"{_SUBSCRIPTION}/skip/{{count}}", READ_TOPIC)
async def skip(call: AdminCall) -> Any:
    """Acknowledge the next so many messages, of one partition."""
    count = call.number("count")
    if count < 0:
        raise ClientError(400, "A number of messages is not below 0")
    name, topic = await topic_of(call)
    if len(places_of(name, topic)) > 1:
        return Refused(405, "Skip messages on a partitioned topic is not allowed")
    return await _change(call, lambda owned, opened: owned.skip(opened, count))


@endpoint("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", READ_TOPIC)
async def expire(call: AdminCall) -> Any:
    """Acknowledge messages that are older than so many seconds."""
    before = _before(call)
    return await _change(call, lambda owned, opened: _expire(owned, opened, before))


@endpoint("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", READ_TOPIC)
async def expire_for_all(call: AdminCall) -> Any:
    """The same for all subscriptions: acknowledge messages that are older than so many seconds."""
    before = _before(call)

    async def act(owned: OwnedPartition, place: NamedPartition) -> Refused | None:
        names = list(owned.names)
        if no := refuse_subscriptions(call, names):
            return no
        for name in names:
            opened = await owned.open(name)
            if opened is not None and (refusal := await _expire(owned, opened, before)):
                return refused(refusal)
        return None

    return await on_each(call, act)


@endpoint("POST", f"{_SUBSCRIPTION}/expireMessages", READ_TOPIC)
async def expire_up_to(call: AdminCall) -> Any:
    """Acknowledge all messages up to one."""
    given = await call.json({})

    async def change(owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        end = _offset(given, owned.partition_id)
        is_excluded = isinstance(given, dict) and given.get("excluded") is True
        return await owned.expire(opened, end if is_excluded else end + 1)

    return await _change(call, change)


@endpoint("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", READ_TOPIC)
async def reset_to_time(call: AdminCall) -> Any:
    """Begin anew at the first message published then (ms since the epoch) or later."""
    timestamp = call.number("timestamp")

    async def change(owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        offset = await owned.offset_of_time(timestamp)
        if offset is None:
            raise ClientError(404, "The topic has been deleted")
        return await owned.seek(opened, offset)

    return await _change(call, change)


@endpoint("POST", f"{_SUBSCRIPTION}/resetcursor", READ_TOPIC)
async def reset_to_message(call: AdminCall) -> Any:
    """Begin anew at a message, or behind it (`excluded`)."""
    given = await call.json({})

    async def change(owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        offset = _offset(given, owned.partition_id)
        is_excluded = isinstance(given, dict) and given.get("excluded") is True
        return await owned.seek(opened, offset + 1 if is_excluded else offset)

    return await _change(call, change)


def _before(call: AdminCall) -> int:
    """The time before which messages are expired."""
    seconds = call.number("seconds")
    if seconds < 0:
        raise ClientError(400, "A number of seconds is not below 0")
    return call.services.pulsar.clock() - 1000 * seconds


async def _expire(owned: OwnedPartition, opened: LiveSubscription, before: int) -> Refusal | None:
    offset = await owned.offset_of_time(before)
    return None if offset is None else await owned.expire(opened, offset)


# --- message ids ---


def _start(given: Any, place: NamedPartition) -> int | StartPosition:
    """Where a new subscription begins: behind all, before all, or at a message."""
    match given:
        case "latest":
            return StartPosition.LATEST
        case "earliest":
            return StartPosition.EARLIEST
    offset = _offset(given, place.partition_id)
    if offset == AFTER_ALL:
        return StartPosition.LATEST
    is_excluded = isinstance(given, dict) and given.get("excluded") is True
    return offset + 1 if is_excluded else offset


def _offset(given: Any, partition_id: int) -> int:
    """The offset of a message by its id in JSON. Raises ClientError."""
    try:
        found = MessageIdData(
            ledger_id=int(given["ledgerId"]) % _U64,
            entry_id=int(given["entryId"]) % _U64,
            batch_index=int(given.get("batchIndex", -1)),
        )
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
        reason = 'A message id is {"ledgerId": …, "entryId": …, "partitionIndex": …}'
        raise ClientError(400, reason) from None
    return seek_offset(found, partition_id)
