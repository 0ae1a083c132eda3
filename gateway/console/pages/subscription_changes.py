"""What is changed of a subscription: its cursor is put elsewhere, messages are skipped, it goes.

Each partition's by the broker that dispatches it, as Pulsar's REST does it: also while consumers
are connected, who are disconnected and come again. Each says first what it does, and what is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from core.errors import Error, Refusal
from core.group.offset_reset import Target, Way
from core.ports.console.subscriptions import SubscriptionKey
from core.security.page_operations import (
    CHANGE_SUBSCRIPTION,
    SEE_SUBSCRIPTION,
    USE_THIS_SUBSCRIPTION,
)
from gateway.console.api import Done, Page, action, page
from gateway.console.elsewhere import ask_there
from gateway.console.pages.subscriptions import group_id_of, places_of
from gateway.console.positions import (
    SHOWN_MAX,
    WAYS,
    Preview,
    offsets_of_time,
    partitions_of,
    preview,
    read_moves,
    shown_time,
    target_of,
)
from gateway.console.rendering import count, link
from gateway.console.visit import Visit
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.group.offset_reset import Place
    from core.ports.console.subscriptions import SubscriptionPlace
    from core.types import LiveBroker
    from gateway.runtime.subscriptions.members import LiveSubscription
    from gateway.runtime.subscriptions.partition import OwnedPartition

_NAMED_MAX: Final = 20
_WAYS: Final = tuple(each for each in WAYS if each[0] is not Way.SHIFT)

Change = Callable[[int, "OwnedPartition", "LiveSubscription"], Awaitable[Refusal | None]]
"""What is done to the subscription in one partition, of this number."""


# --- its cursor put elsewhere ---


@page("/subscription/reset")
async def choose_place(visit: Visit) -> Page:
    """Asks where to, and then shows what that means, which can be confirmed."""
    key, places = await _changed(visit)
    wrong = shown = None
    try:
        target = target_of(visit)
        if target is not None:
            shown = await _preview(visit, key, target, places)
    except ClientError as error:
        wrong = error.refused.reason
    return Page(
        "reset.html",
        {
            "kind": "Subscription",
            "name": key.name,
            "back": _back(key),
            "here": "/subscription/reset",
            "hidden": {"topic": key.topic, "name": key.name},
            "ways": _WAYS,
            "topics": None,
            "blocked": None,
            "time": shown_time(visit),
            "wrong": wrong,
            "preview": shown,
            "shown_max": SHOWN_MAX,
        },
        400 if wrong else 200,
    )


async def _preview(
    visit: Visit, key: SubscriptionKey, target: Target, places: Collection[SubscriptionPlace]
) -> Preview:
    """Raises ClientError."""
    numbers = partitions_of(visit.text("partitions"))
    meant = {
        (key.topic, each.partition): each
        for each in places
        if numbers is None or each.partition in numbers
    }
    if not meant:
        raise ClientError(400, "It is in none of these partitions")
    by_time: dict[Place, int] = {}
    if target.way is Way.DATETIME:
        starts = await _starts(visit, key, meant)
        by_time = await offsets_of_time(visit, starts, target.number, by_record=False)
    old = {place: each.mark_delete for place, each in meant.items()}
    ends = {place: (each.log_start_offset, each.end_offset) for place, each in meant.items()}
    return preview(target, old, ends, by_time)


async def _starts(
    visit: Visit, key: SubscriptionKey, meant: Mapping[Place, SubscriptionPlace]
) -> list[tuple[Place, int, int]]:
    """Where to look for a time, with the partitions' ids. Raises ClientError."""
    topic = await visit.runtime.topics.get(key.topic)
    starts: list[tuple[Place, int, int]] = []
    for place, each in meant.items():
        partition_id = None if topic is None else topic.partition_id(each.partition)
        if partition_id is None:
            raise ClientError(400, f"There is no partition {each.partition} of {key.topic}")
        starts.append((place, partition_id, each.log_start_offset))
    return starts


@action("/subscription/reset")
async def reset_cursor(visit: Visit) -> Done | Refused:
    """Begins anew where the preview has said."""
    key = _key_of(visit)
    moves = read_moves((await visit.form()).text("moves"))
    here = partitions_of(visit.text("partitions"))  # said where another broker asks
    goals = {
        each.partition: each
        for each in moves
        if each.topic == key.topic and (here is None or each.partition in here)
    }

    async def seek(number: int, owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        goal, now = goals[number], opened.core.cursor.mark_delete
        if now != goal.old_offset:
            return Refusal(
                Error.OFFSET_OUT_OF_RANGE,
                f"The subscription has gone on meanwhile: it is at offset {count(now)}, not "
                f"{count(goal.old_offset)}. Look again at what to do.",
            )
        return await owned.seek(opened, goal.new_offset)

    done = "The cursor was put elsewhere in {}; its consumers come again."
    return await _in_each(visit, key, goals, seek, done)


# --- messages skipped ---


@page("/subscription/skip")
async def confirm_skipping(visit: Visit) -> Page:
    """Says what is lost."""
    key, places = await _changed(visit)
    numbers = partitions_of(visit.text("partitions"))
    meant = [each for each in places if numbers is None or each.partition in numbers]
    backlog = sum(each.backlog for each in meant)
    asks_number = len(meant) == 1
    return Page(
        "confirm.html",
        {
            "title": "Skip messages",
            "kind": "Subscription",
            "name": key.name,
            "back": _back(key),
            "to": link(
                "/subscription/skip",
                topic=key.topic,
                name=key.name,
                partitions=",".join(str(each.partition) for each in meant),
            ),
            "choices": None,
            "lost": (
                f"{_messages(backlog)} in {_partitions(len(meant))} are acknowledged as if they "
                "had been read: no consumer of this subscription gets them. They stay in the log."
            ),
            "blocked": None,
            "force": None,
            "number": "How many of them, or all" if asks_number else None,
            "button": "Skip the messages",
        },
    )


@action("/subscription/skip")
async def skip(visit: Visit) -> Done | Refused:
    """Acknowledges the next so many messages of a partition, or all."""
    key, form = _key_of(visit), await visit.form()
    many = form.number("count") if form.text("count").strip() else None
    numbers = partitions_of(visit.text("partitions")) or ()
    if many is not None and (many < 0 or len(numbers) != 1):
        raise ClientError(400, "A number of messages, not below 0, is skipped in one partition")

    async def act(_: int, owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        return await owned.skip(opened, many)

    return await _in_each(visit, key, numbers, act, "Messages were skipped in {}.")


# --- the whole subscription ---


@page("/subscription/delete")
async def confirm_deletion(visit: Visit) -> Page:
    """Says what is lost."""
    key, places = await _changed(visit)
    backlog = sum(each.backlog for each in places)
    found = await visit.runtime.console.subscriptions.consumers([key.topic], [key.name])
    consumers = len({(each.consumer, each.address) for each in found})  # each in many partitions
    return Page(
        "confirm.html",
        {
            "title": "Delete the subscription",
            "kind": "Subscription",
            "name": key.name,
            "back": _back(key),
            "to": link(
                "/subscription/delete",
                topic=key.topic,
                name=key.name,
                partitions=",".join(str(each.partition) for each in places),
            ),
            "choices": None,
            "lost": (
                f"How far it has come in {_partitions(len(places))} of {key.topic} is lost, and "
                f"{_messages(backlog)} that it has not acknowledged are not kept for it. One that "
                "is made again by this name begins where its consumer says."
            ),
            "blocked": None,
            "force": f"Disconnect its {count(consumers)} consumer{'s' * (consumers != 1)}"
            if consumers
            else None,
            "number": None,
            "button": "Delete the subscription",
        },
    )


@action("/subscription/delete")
async def delete(visit: Visit) -> Done | Refused:
    """Deletes it in each partition."""
    key = _key_of(visit)
    force = (await visit.form()).text("force") == "true"
    numbers = partitions_of(visit.text("partitions")) or ()

    async def act(_: int, owned: OwnedPartition, opened: LiveSubscription) -> Refusal | None:
        return await owned.delete(opened, force=force)

    done = "The subscription was deleted in {}."
    return await _in_each(visit, key, numbers, act, done, "/subscriptions")


# --- at its brokers ---


async def _in_each(
    visit: Visit,
    key: SubscriptionKey,
    numbers: Collection[int],
    change: Change,
    done: str,
    to: str | None = None,
) -> Done | Refused:
    """Changes it in these partitions, here and at the brokers that dispatch the others. done: what
    is said then, with how many they are. to: where it goes then. One that refuses ends it; what was
    changed before stays so, and is named."""
    topic = await visit.runtime.topics.get(key.topic)
    if topic is None or not numbers:
        return Refused(404, f"There is no subscription {key.name} of {key.topic}")
    ids: dict[int, int] = {}
    for number in sorted(numbers):
        partition_id = topic.partition_id(number)
        if partition_id is None:
            return Refused(404, f"There is no partition {number} of {key.topic}")
        visit.require(USE_THIS_SUBSCRIPTION, group_id_of(key, number))
        ids[number] = partition_id
    subscriptions = visit.runtime.subscriptions
    changed: list[int] = []
    elsewhere: dict[int, list[int]] = defaultdict(list)
    brokers: dict[int, LiveBroker] = {}
    for number, partition_id in ids.items():
        owned = await subscriptions.find(partition_id)
        if owned is None:
            broker = await subscriptions.owner_of(partition_id)
            brokers[broker.broker_id] = broker
            elsewhere[broker.broker_id].append(number)
            continue
        opened = await owned.open(key.name)
        if opened is None:
            missing = f"There is no subscription {key.name} in partition {number}"
            return _stopped(Refused(404, missing), changed)
        refusal = await change(number, owned, opened)
        if refusal is not None:
            said = refusal.message or refusal.error.name
            return _stopped(Refused(409, f"Partition {number}: {said}"), changed)
        changed.append(number)
    for broker_id, theirs in elsewhere.items():
        answer = await _ask(visit, key, brokers[broker_id], theirs)
        if isinstance(answer, Refused):
            return _stopped(answer, changed)
        changed += theirs
    return Done(to or _back(key), done.format(_partitions(len(numbers))))


def _stopped(refused: Refused, changed: Sequence[int]) -> Refused:
    """The same, with the partitions that were changed before."""
    if not changed:
        return refused
    named = ", ".join(map(str, changed[:_NAMED_MAX]))
    more = f" and {count(len(changed) - _NAMED_MAX)} more" if len(changed) > _NAMED_MAX else ""
    before = f"Changed before that, and left so: {_partitions(len(changed))} ({named}{more})."
    return Refused(refused.status, f"{refused.reason.removesuffix('.')}. {before}")


async def _ask(
    visit: Visit, key: SubscriptionKey, broker: LiveBroker, numbers: Collection[int]
) -> Done | Refused:
    path = visit.call.request.url.path
    their = ",".join(map(str, numbers))
    target = link(path, topic=key.topic, name=key.name, partitions=their)
    return await ask_there(visit, broker, target, await visit.call.body())


async def _changed(visit: Visit) -> tuple[SubscriptionKey, list[SubscriptionPlace]]:
    """The subscription of the query, which is to be changed. Raises ClientError."""
    key, places = await places_of(visit)
    visit.require(CHANGE_SUBSCRIPTION, key.topic)
    for each in places:
        visit.require(USE_THIS_SUBSCRIPTION, group_id_of(key, each.partition))
    return key, places


def _key_of(visit: Visit) -> SubscriptionKey:
    """The same for an action, which the partitions' brokers find or do not. Raises ClientError."""
    key = SubscriptionKey(visit.needed("topic"), visit.needed("name"))
    visit.require(SEE_SUBSCRIPTION, key.topic)
    visit.require(CHANGE_SUBSCRIPTION, key.topic)
    return key


def _back(key: SubscriptionKey) -> str:
    return link("/subscription", topic=key.topic, name=key.name)


def _messages(number: int) -> str:
    return f"{count(number)} message{'s' * (number != 1)}"


def _partitions(number: int) -> str:
    return f"{count(number)} partition{'s' * (number != 1)}"
