"""Pulsar's subscriptions: which there are, and one of them, in all partitions of its topic."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from core.group.why import HIDDEN
from core.ports.console.subscriptions import SubscriptionKey, SubscriptionPlace
from core.security.page_operations import (
    CHANGE_SUBSCRIPTION,
    SEE_SUBSCRIPTION,
    USE_THIS_SUBSCRIPTION,
)
from core.subscription.group_ids import SubscriptionName
from gateway.console.api import Page, page
from gateway.console.group_view import hidden
from gateway.console.history import SPAN_S
from gateway.console.paging import part_of
from gateway.console.rendering import link
from gateway.console.subscription_view import backlog_plot, why
from gateway.console.visit import Visit
from gateway.runtime.subscriptions.live_consumers import EVERY_S
from gateway.web.call import ClientError

_PENDING_MAX: Final = 200


@page("/subscriptions")
async def subscriptions(visit: Visit) -> Page:
    """Those of topics that one may see, by topic and name."""
    search = visit.text("search")
    reads = visit.runtime.console.subscriptions
    keys = [each for each in await reads.keys(search) if visit.may(SEE_SUBSCRIPTION, each.topic)]
    found = part_of(keys, visit.number("page", 1, 1))
    topics, names = {each.topic for each in found.rows}, {each.name for each in found.rows}
    places: dict[SubscriptionKey, list[SubscriptionPlace]] = defaultdict(list)
    for place in await reads.places(topics, names):
        places[SubscriptionKey(place.topic, place.subscription)].append(place)
    consumers: dict[SubscriptionKey, set[str]] = defaultdict(set)
    for each in await reads.consumers(topics, names):
        consumers[SubscriptionKey(each.topic, each.subscription)].add(each.consumer)
    return Page(
        "subscriptions.html",
        {
            "refresh_s": 5,
            "found": found,
            "places": places,
            "consumers": consumers,
            "search": search,
            "to": lambda number: link("/subscriptions", search=search, page=number),
        },
    )


@page("/subscription")
async def subscription(visit: Visit) -> Page:
    """All that is known of one, and in words why it does not go on."""
    key, places = await places_of(visit)
    reads = visit.runtime.console.subscriptions
    consumers = await reads.consumers([key.topic], [key.name])
    pending = [
        each
        if visit.may_see_transaction(each.transactional_id)
        else replace(each, transactional_id=HIDDEN)
        for each in await reads.pending_acks(key, _PENDING_MAX)
    ]
    held = [
        each if visit.may_see_transaction(each.transactional_id) else hidden(each)
        for each in await visit.runtime.console.groups.held([key.topic])
    ]
    history = visit.console.histories.subscription(key)
    address = {"topic": key.topic, "name": key.name}
    return Page(
        "subscription.html",
        {
            "refresh_s": 3,
            "key": key,
            "address": address,
            "findings": why(places, consumers, held, pending),
            "first": places[0],
            "backlog": sum(each.backlog for each in places),
            "plot": backlog_plot(history, time.time(), SPAN_S),
            "seen_every_s": EVERY_S,
            "partitions": part_of(places, visit.number("page", 1, 1)),
            "consumers": part_of(consumers, visit.number("consumers", 1, 1)),
            "pending": pending,
            "pending_max": _PENDING_MAX,
            "held_at": {each.partition: each for each in held},
            "to_partitions": lambda number: link("/subscription", **address, page=number),
            "to_consumers": lambda number: link("/subscription", **address, consumers=number),
            "may_change": visit.console.is_writable and may_change(visit, key, places),
        },
    )


async def places_of(visit: Visit) -> tuple[SubscriptionKey, list[SubscriptionPlace]]:
    """The subscription of the query. Raises ClientError, StoreUnavailable."""
    key = SubscriptionKey(visit.needed("topic"), visit.needed("name"))
    visit.require(SEE_SUBSCRIPTION, key.topic)
    places = await visit.runtime.console.subscriptions.places([key.topic], [key.name])
    if not places:
        raise ClientError(404, f"There is no subscription {key.name} of {key.topic}")
    return key, places


def may_change(visit: Visit, key: SubscriptionKey, places: Sequence[SubscriptionPlace]) -> bool:
    """Whether who asks may move it, in all of these partitions."""
    return visit.may(CHANGE_SUBSCRIPTION, key.topic) and all(
        visit.may(USE_THIS_SUBSCRIPTION, group_id_of(key, each.partition)) for each in places
    )


def group_id_of(key: SubscriptionKey, partition: int) -> str:
    """By which ACLs know it."""
    return SubscriptionName(key.topic, partition, key.name).group_id
