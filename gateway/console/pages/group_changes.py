"""What is changed of a group: its offsets are put elsewhere or deleted, or it goes as a whole.

At its coordinator, which may be another broker. Each says first what it does, and what is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from core.errors import Error
from core.group.offset_reset import NewOffset, Place, Target, Way
from core.group.records import CommittedOffset
from core.security.page_operations import (
    COMMIT_OFFSETS,
    COMMIT_OFFSETS_OF,
    DELETE_GROUP,
    DELETE_OFFSETS,
    DELETE_OFFSETS_OF,
    DESCRIBE_GROUP,
    TOPIC_SHOWN,
)
from core.topic.topic import find_partition
from gateway.console.api import Done, Page, action, page
from gateway.console.elsewhere import CHANGES_HANDS, ask_there
from gateway.console.pages.groups import facts_of, places_of
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
from gateway.console.rendering import count, link, now_ms
from gateway.console.visit import Visit
from gateway.runtime.groups.groups import OffsetsWanted
from gateway.web.api import Refused
from gateway.web.call import ClientError
from gateway.web.guard import target_of as address_of

if TYPE_CHECKING:
    from core.ports.console.groups import GroupFacts
    from core.topic.topic import Topic

_NAMED_MAX: Final = 5
_UNNOTICED: Final = (
    "The group is {state}: {members} would not notice, and commit their own offsets again."
)
_NOT_EMPTY: Final = "The group is {state}, and is deleted without members only. It has {members}."
_HAS_MEMBERS: Final = Refused(409, "The group has members now. Stop them first.")
_REFUSALS: Final = {
    Error.NOT_COORDINATOR: CHANGES_HANDS,
    Error.COORDINATOR_NOT_AVAILABLE: CHANGES_HANDS,
    Error.UNKNOWN_MEMBER_ID: _HAS_MEMBERS,
    Error.NON_EMPTY_GROUP: _HAS_MEMBERS,
    Error.GROUP_ID_NOT_FOUND: Refused(404, "There is no such group any more"),
    Error.GROUP_SUBSCRIBED_TO_TOPIC: Refused(
        409, "Members of the group read this topic. Its offsets can be deleted without them only."
    ),
}


def _refused(error: Error) -> Refused:
    return _REFUSALS.get(error) or Refused(400, f"The group's coordinator says {error.name}")


# --- offsets put elsewhere ---


@page("/group/reset")
async def choose_offsets(visit: Visit) -> Page:
    """Asks where to, and then shows what that means, which can be confirmed."""
    facts = await facts_of(visit)
    visit.require(COMMIT_OFFSETS, facts.group_id)
    places = await places_of(visit, facts.group_id)
    old = {
        (each.topic, each.partition): each.committed_offset
        for each in places
        if each.committed_offset is not None
    }
    blocked, shown, wrong = await _why_not(visit, facts, _UNNOTICED), None, None
    target, topic = None, visit.text("topic")
    if blocked is None:
        try:
            target = target_of(visit)
            if target is not None:
                shown = await _preview(visit, target, topic, old)
        except ClientError as error:
            wrong = error.refused.reason
    return Page(
        "reset.html",
        {
            "kind": "Group",
            "name": facts.group_id,
            "back": link("/group", id=facts.group_id),
            "here": "/group/reset",
            "hidden": {"id": facts.group_id},
            "ways": WAYS,
            "topics": sorted({each.topic for each in places}),
            "blocked": blocked,
            "time": shown_time(visit),
            "wrong": wrong,
            "preview": shown,
            "shown_max": SHOWN_MAX,
        },
        400 if wrong else 200,
    )


async def _why_not(visit: Visit, facts: GroupFacts, sentence: str) -> str | None:
    """Who is in the group, which has to be without members. sentence: why it has to."""
    members = await visit.runtime.console.groups.members(facts.group_id)
    if not members:
        return None
    names = [f"{each.client_id} at {each.host.lstrip('/')}" for each in members[:_NAMED_MAX]]
    more = f" and {len(members) - _NAMED_MAX} more" if len(members) > _NAMED_MAX else ""
    why = sentence.format(state=facts.state, members=f"{', '.join(names)}{more}")
    return f"{why} Stop them first; this page can be used then."


async def _preview(visit: Visit, target: Target, topic: str, old: Mapping[Place, int]) -> Preview:
    """Raises ClientError."""
    numbers = partitions_of(visit.text("partitions"))
    if numbers is not None and not topic:
        raise ClientError(400, "Numbers of partitions are of one topic: say which")
    meant = await _meant(visit, topic, numbers, old)
    runtime = visit.runtime
    states = await runtime.partitions.refresh_together(list(meant.values()))
    here = {place: states[each] for place, each in meant.items() if each in states}
    if not here:
        raise ClientError(400, "The group has committed nothing: name a topic")
    by_time: dict[Place, int] = {}
    if target.way is Way.DATETIME:
        starts = [(place, each.partition_id, each.log_start_offset) for place, each in here.items()]
        by_time = await offsets_of_time(visit, starts, target.number, by_record=True)
    ends = {place: (each.log_start_offset, each.next_offset) for place, each in here.items()}
    return preview(target, old, ends, by_time)


async def _meant(
    visit: Visit, topic: str, numbers: Collection[int] | None, old: Mapping[Place, int]
) -> Mapping[Place, int]:
    """The ids of the partitions that are meant. Raises ClientError."""
    if topic:
        visit.require(COMMIT_OFFSETS_OF, topic)
    topics = await visit.runtime.topics.get_many([topic] if topic else {name for name, _ in old})
    if not topic:
        places: Sequence[Place] = list(old)
    else:
        there = _topic(topics, topic)
        wanted = range(len(there.partition_ids)) if numbers is None else numbers
        places = [(topic, number) for number in wanted]
    found: dict[Place, int] = {}
    for name, number in places:
        partition_id = find_partition(topics, name, number)
        if partition_id is not None:
            found[name, number] = partition_id
        elif topic:
            raise ClientError(400, f"There is no partition {number} of {topic}")
    return found


def _topic(topics: Mapping[str, Topic], name: str) -> Topic:
    if name not in topics:
        raise ClientError(400, f"There is no topic {name}")
    return topics[name]


@action("/group/reset")
async def reset_offsets(visit: Visit) -> Done | Refused:
    """Puts offsets where the preview has said, from where it has said."""
    group_id = visit.needed("id")
    visit.require(COMMIT_OFFSETS, group_id)
    moves = read_moves((await visit.form()).text("moves"))
    for topic in {each.topic for each in moves}:
        visit.require(COMMIT_OFFSETS_OF, topic)
    if (answer := await _at_coordinator(visit, group_id)) is not None:
        return answer
    topics = await visit.runtime.topics.get_many({each.topic for each in moves})
    ids: dict[int, NewOffset] = {}
    for each in moves:
        partition_id = find_partition(topics, each.topic, each.partition)
        if partition_id is None:
            return Refused(404, f"{each.topic} {each.partition} does not exist any more")
        ids[partition_id] = each
    groups = visit.runtime.groups
    (found,) = await groups.fetch_offsets([OffsetsWanted(group_id, partition_ids=list(ids))])
    if isinstance(found, Error):
        return _refused(found)
    for partition_id, each in ids.items():
        stored = found.get(partition_id)
        now = stored.offset if isinstance(stored, CommittedOffset) else None
        if now != each.old_offset:
            return Refused(
                409,
                f"The group has gone on meanwhile: it is at offset {count(now)} of {each.topic} "
                f"{each.partition}, not {count(each.old_offset)}. Look again at what to do.",
            )
    committed = [
        CommittedOffset(partition_id, each.new_offset, -1, "", now_ms())
        for partition_id, each in ids.items()
    ]
    error = await groups.commit_offsets(group_id, "", None, -1, committed)
    if error is not Error.NONE:
        return _refused(error)
    return Done(
        link("/group", id=group_id), f"The offsets of {_many(len(moves), 'partition')} were reset."
    )


# --- offsets deleted ---


@page("/group/delete-offsets")
async def choose_topic(visit: Visit) -> Page:
    """Asks of which topic, and then says what is lost."""
    facts = await facts_of(visit)
    visit.require(DELETE_OFFSETS, facts.group_id)
    places = await places_of(visit, facts.group_id)
    offsets = [each for each in places if each.committed_offset is not None]
    topic = visit.text("topic")
    lost = None
    if topic:
        of_topic = [each for each in offsets if each.topic == topic]
        lost = (
            f"The group forgets how far it has read {topic}, in "
            f"{_many(len(of_topic), 'partition')}. Who reads it with this group.id next begins "
            "where its auto.offset.reset says."
        )
    return Page(
        "confirm.html",
        {
            "title": "Delete a topic's offsets",
            "kind": "Group",
            "name": facts.group_id,
            "back": link("/group", id=facts.group_id),
            "to": link("/group/delete-offsets", id=facts.group_id, topic=topic),
            "choices": sorted({each.topic for each in offsets}),
            "here": "/group/delete-offsets",
            "hidden": {"id": facts.group_id},
            "chosen": topic,
            "lost": lost,
            "blocked": None,
            "force": None,
            "number": None,
            "button": "Delete these offsets",
        },
    )


@action("/group/delete-offsets")
async def delete_offsets(visit: Visit) -> Done | Refused:
    """Deletes a topic's."""
    group_id, name = visit.needed("id"), visit.needed("topic")
    visit.require(DELETE_OFFSETS, group_id)
    visit.require(DELETE_OFFSETS_OF, name)
    if (answer := await _at_coordinator(visit, group_id)) is not None:
        return answer
    topic = await visit.runtime.topics.get(name)
    if topic is None:
        return Refused(404, f"There is no topic {name}")
    wanted = [(name, each) for each in topic.partition_ids]
    deleted = await visit.runtime.groups.delete_offsets(group_id, wanted)
    errors = {deleted} if isinstance(deleted, Error) else set(deleted.values())
    if wrong := errors - {Error.NONE}:
        return _refused(wrong.pop())
    return Done(link("/group", id=group_id), f"The group's offsets of {name} were deleted.")


# --- the whole group ---


@page("/group/delete")
async def confirm_deletion(visit: Visit) -> Page:
    """Says what is lost."""
    facts = await facts_of(visit)
    visit.require(DELETE_GROUP, facts.group_id)
    places = await visit.runtime.console.groups.places(facts.group_id, [])
    topics = sorted({each.topic for each in places if visit.may(TOPIC_SHOWN, each.topic)})
    named = f" of {', '.join(topics[:_NAMED_MAX])}" if topics else ""
    more = f" and {len(topics) - _NAMED_MAX} more topics" if len(topics) > _NAMED_MAX else ""
    return Page(
        "confirm.html",
        {
            "title": "Delete the group",
            "kind": "Group",
            "name": facts.group_id,
            "back": link("/group", id=facts.group_id),
            "to": link("/group/delete", id=facts.group_id),
            "choices": None,
            "lost": (
                f"How far it has read {_many(len(places), 'partition')}{named}{more} is lost. A "
                "consumer with this group.id begins where its auto.offset.reset says. Records stay."
            ),
            "blocked": await _why_not(visit, facts, _NOT_EMPTY),
            "force": None,
            "number": None,
            "button": "Delete the group",
        },
    )


@action("/group/delete")
async def delete_group(visit: Visit) -> Done | Refused:
    """Deletes it, with its offsets."""
    group_id = visit.needed("id")
    visit.require(DESCRIBE_GROUP, group_id)
    visit.require(DELETE_GROUP, group_id)
    if (answer := await _at_coordinator(visit, group_id)) is not None:
        return answer
    (error,) = await visit.runtime.groups.delete_groups([group_id])
    if error is not Error.NONE:
        return _refused(error)
    return Done("/groups", f"Group {group_id} was deleted.")


async def _at_coordinator(visit: Visit, group_id: str) -> Done | Refused | None:
    """What another broker has answered, which coordinates the group; None where this one does."""
    broker = await visit.runtime.groups.find_coordinator(group_id)
    if broker.broker_id == visit.runtime.cluster.broker_id:
        return None
    return await ask_there(visit, broker, address_of(visit.call.request), await visit.call.body())


def _many(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'s' * (number != 1)}"
