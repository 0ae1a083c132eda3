"""Groups: which there are, and one of them: its members, how far it has come, what holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from core.group.why import HIDDEN, findings
from core.ports.console.groups import GroupFacts, GroupPlace
from core.security.page_operations import (
    COMMIT_OFFSETS,
    DELETE_GROUP,
    DELETE_OFFSETS,
    DESCRIBE_GROUP,
    GROUP_SHOWN,
    LIST_GROUPS,
    TOPIC_SHOWN,
)
from gateway.console.api import Page, page
from gateway.console.group_view import (
    PartitionRow,
    assigned_places,
    lag_plot,
    listed,
    rows_of,
    view_of,
    visible,
    waiting_of,
)
from gateway.console.history import SPAN_S
from gateway.console.holds import held_in
from gateway.console.paging import Found, part_of
from gateway.console.rendering import link
from gateway.console.visit import Visit
from gateway.web.call import ClientError

_EXACT_MAX: Final = 1_000
"""Partitions of a group whose records are counted; of more, only those that are shown."""


@page("/groups")
async def groups(visit: Visit) -> Page:
    """Those that one may see, by id or by how far they are behind: in topics that one may see, and
    only of groups that one may describe."""
    search, sort = visit.text("search"), visit.text("sort")
    reads = visit.runtime.console.groups
    topics = await _topics_seen(visit)
    by_lag = sort == "lag"
    found = await reads.ids_by_lag(search, topics) if by_lag else await reads.ids(search)
    ids = [each for each in found if visit.may(LIST_GROUPS, each)]
    described = {each for each in ids if visit.may(GROUP_SHOWN, each)}
    if by_lag:  # the others behind, in an order that says nothing of them
        others = sorted(each for each in ids if each not in described)
        ids = [*(each for each in ids if each in described), *others]
    part = part_of(ids, visit.number("page", 1, 1))
    return Page(
        "groups.html",
        {
            "refresh_s": 5,
            "found": part,
            "rows": await reads.rows(part.rows, topics),
            "described": described,
            "search": search,
            "sort": sort,
            "to": lambda number: link("/groups", search=search, sort=sort, page=number),
        },
    )


async def _topics_seen(visit: Visit) -> list[str] | None:
    """Those that one may see; None: all. Raises StoreUnavailable."""
    if not visit.runtime.acls.is_on:
        return None
    names = [each.name for each in await visit.runtime.topics.all()]
    seen = [each for each in names if visit.may(TOPIC_SHOWN, each)]
    return None if len(seen) == len(names) else seen


@page("/group")
async def group(visit: Visit) -> Page:
    """All that is known of one, and in words why it does not go on."""
    facts = await facts_of(visit)
    reads = visit.runtime.console.groups
    all_members = await reads.members(facts.group_id)
    found = await places_of(visit, facts.group_id, assigned_places(all_members))
    places = [_with_transaction(visit, each) for each in found]
    seen = {
        topic
        for each in all_members
        for topic in (*each.assigned, *each.target, *each.revoking, *each.subscribed)
        if visit.may(TOPIC_SHOWN, topic)
    }
    members = [visible(each, seen) for each in all_members]
    shown = part_of(places, visit.number("page", 1, 1))
    topics = {each.topic for each in (places if len(places) <= _EXACT_MAX else shown.rows)}
    lags = await reads.lags(facts.group_id, topics)
    held = await held_in(visit, {each.topic for each in places})
    rows = rows_of(places, members, lags, held)
    view = view_of(facts, members, rows, datetime.now(UTC))
    history = {
        name: line
        for name, line in visit.console.histories.group(facts.group_id).items()
        if visit.may(TOPIC_SHOWN, name.rpartition("-")[0])
    }
    return Page(
        "group.html",
        {
            "refresh_s": 3,
            "facts": facts,
            "behind": sum(each.behind or 0 for each in rows),
            "records": _all_records(rows),
            "findings": findings(view, held, waiting_of(facts)),
            "members": part_of(members, visit.number("members", 1, 1)),
            "waiting_for": set(facts.waiting_for),
            "partitions": Found(
                rows[shown.first - 1 : shown.last], shown.number, shown.total, shown.per_page
            ),
            "plot": lag_plot(history, time.time(), SPAN_S),
            "listed": listed,
            "to_partitions": lambda number: _to(visit, page=number),
            "to_members": lambda number: _to(visit, members=number),
            "may_reset": visit.offers(COMMIT_OFFSETS, facts.group_id),
            "may_delete_offsets": visit.offers(DELETE_OFFSETS, facts.group_id),
            "may_delete": visit.offers(DELETE_GROUP, facts.group_id),
        },
    )


def _all_records(rows: Iterable[PartitionRow]) -> int | None:
    """None where some are not counted."""
    counted = [each.records for each in rows if each.behind]
    return None if None in counted else sum(filter(None, counted))


def _to(visit: Visit, **changed: int) -> str:
    numbers = {"page": visit.number("page", 1, 1), "members": visit.number("members", 1, 1)}
    return link("/group", id=visit.text("id"), **{**numbers, **changed})


async def facts_of(visit: Visit) -> GroupFacts:
    """The group of the query. Raises ClientError, StoreUnavailable."""
    group_id = visit.needed("id")
    visit.require(DESCRIBE_GROUP, group_id)
    facts = await visit.runtime.console.groups.facts(group_id)
    if facts is None:
        raise ClientError(404, f"There is no group {group_id}")
    return facts


async def places_of(
    visit: Visit, group_id: str, assigned: Iterable[tuple[str, int]] = ()
) -> list[GroupPlace]:
    """Its partitions, as far as one may see their topics. Raises StoreUnavailable."""
    found = await visit.runtime.console.groups.places(group_id, list(assigned))
    return [each for each in found if visit.may(TOPIC_SHOWN, each.topic)]


def _with_transaction(visit: Visit, place: GroupPlace) -> GroupPlace:
    if place.pending_offset is None or visit.may_see_transaction(place.pending_id):
        return place
    return replace(place, pending_id=HIDDEN)
