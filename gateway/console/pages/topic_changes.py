"""A topic given more partitions, emptied, deleted: each shown first, with what is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.errors import Error, Refusal
from core.ports.console.topics import TopicFigures
from core.security.page_operations import (
    ADD_PARTITIONS,
    DELETE_RECORDS,
    DELETE_TOPIC,
    GROUP_SHOWN,
)
from core.topic.topic import Topic
from gateway.console.api import Done, Page, action, page
from gateway.console.rendering import count, link
from gateway.console.topics import find_topic, head_of, why
from gateway.console.visit import Form, Visit
from gateway.runtime.topics.topics import PartitionIncrease
from gateway.web.api import Refused
from gateway.web.call import ClientError

_AT_ONCE: Final = 8
_NOT_DELETABLE: Final = Refused(403, "No topic can be deleted here: delete.topic.enable is false")


# --- more partitions ---


@page("/topic/partitions")
async def ask_for_partitions(visit: Visit) -> Page:
    """Asks how many there are to be, and says what that does to keys."""
    topic = await find_topic(visit)
    visit.require_change(ADD_PARTITIONS, topic.name)
    return _partitions_form(visit, topic)


@action("/topic/partitions")
async def add_partitions(visit: Visit) -> Page | Done:
    """Adds them, as CreatePartitions does."""
    topic = await find_topic(visit)
    visit.require(ADD_PARTITIONS, topic.name)
    form = await visit.form()
    try:
        wanted = form.number("count")
    except ClientError as wrong:
        return _partitions_form(visit, topic, form.text("count"), wrong.refused.reason)
    increase = PartitionIncrease(topic.name, wanted)
    if refusal := (await visit.runtime.topics.create_partitions([increase]))[topic.name]:
        return _partitions_form(visit, topic, form.text("count"), why(refusal))
    return Done(link("/topic", name=topic.name), f"There are {count(wanted)} partitions now")


def _partitions_form(
    visit: Visit, topic: Topic, filled: str = "", refused: str | None = None
) -> Page:
    there = len(topic.partition_ids)
    values = {
        "head": head_of(visit, topic),
        "topic": topic,
        "there": there,
        "filled": filled or there + 1,
        "refused": refused,
        # Pulsar's clients are connected to the topic itself, and then have to be to its partitions.
        "becomes_partitioned": there == 1 and not topic.config.pulsar_partitioned,
    }
    return Page("topic_partitions.html", values, 200 if refused is None else 400)


# --- what is lost ---


@dataclass(frozen=True, slots=True)
class Lost:
    """What a topic holds. groups, subscriptions: by name, those that who looks may see."""

    figures: TopicFigures
    groups: Sequence[str]
    subscriptions: Sequence[str]


async def _lost(visit: Visit, topic: Topic) -> Lost:
    """Raises ClientError where it was deleted just now."""
    reads, name = visit.runtime.console.topics, topic.name
    figures, groups, subscriptions = await asyncio.gather(
        reads.figures([name]), reads.groups(name), reads.subscriptions(name)
    )
    if name not in figures:
        raise ClientError(404, f"Topic {name} was deleted just now")
    return Lost(
        figures[name],
        [each.group_id for each in groups if visit.may(GROUP_SHOWN, each.group_id)],
        [each.name for each in subscriptions],
    )


async def _confirmation(
    visit: Visit, topic: Topic, template: str, refused: str | None = None, status: int = 400
) -> Page:
    values = {
        "head": head_of(visit, topic),
        "topic": topic,
        "lost": await _lost(visit, topic),
        "refused": refused,
    }
    return Page(template, values, 200 if refused is None else status)


def _why_not_confirmed(topic: Topic, form: Form) -> tuple[str, int] | None:
    """Why the form does not confirm that this very topic is meant: a sentence, and the status."""
    if form.text("id") != str(topic.topic_id):
        return "The topic was deleted and made again: look at what is lost now", 409
    if form.text("confirmed") != topic.name:
        return "That is not the topic's name", 400
    return None


# --- emptied ---


@page("/topic/empty")
async def ask_to_empty(visit: Visit) -> Page | Refused:
    """Says what is lost when all records are deleted, and asks for the topic's name."""
    topic = await find_topic(visit)
    visit.require_change(DELETE_RECORDS, topic.name)
    if refusal := topic.why_records_stay():
        return Refused(409, why(refusal))
    return await _confirmation(visit, topic, "topic_empty.html")


@action("/topic/empty")
async def empty(visit: Visit) -> Page | Refused | Done:
    """Deletes every record that is there now, as DeleteRecords does."""
    topic = await find_topic(visit)
    visit.require(DELETE_RECORDS, topic.name)
    if refusal := topic.why_records_stay():
        return Refused(409, why(refusal))
    if unconfirmed := _why_not_confirmed(topic, await visit.form()):
        return await _confirmation(visit, topic, "topic_empty.html", *unconfirmed)
    emptied, failed = await _delete_records(visit, topic)
    if failed is not None:
        return Refused(
            409, f"Only {count(emptied)} partitions were emptied, and then: {why(failed)}"
        )
    text = f"{count(emptied)} {'partition was' if emptied == 1 else 'partitions were'} emptied"
    return Done(link("/topic", name=topic.name), text)


async def _delete_records(visit: Visit, topic: Topic) -> tuple[int, Refusal | None]:
    """How many partitions were emptied, and why the others were not."""
    partitions = visit.runtime.partitions
    states = await partitions.refresh(topic.partition_ids)
    full = [each for each, state in states.items() if state.log_start_offset < state.high_watermark]
    for start in range(0, len(full), _AT_ONCE):
        answers = await asyncio.gather(
            *(partitions.delete_records(each, -1) for each in full[start : start + _AT_ONCE])
        )
        failed = [error for error, _ in answers if error is not Error.NONE]
        if failed:
            return start + len(answers) - len(failed), Refusal(failed[0])
    return len(full), None


# --- deleted ---


@page("/topic/delete")
async def ask_to_delete(visit: Visit) -> Page | Refused:
    """Says what is lost with the topic, and asks for its name."""
    topic = await find_topic(visit)
    visit.require_change(DELETE_TOPIC, topic.name)
    if not visit.runtime.configs.broker_bool("delete.topic.enable"):
        return _NOT_DELETABLE
    return await _confirmation(visit, topic, "topic_delete.html")


@action("/topic/delete")
async def delete(visit: Visit) -> Page | Refused | Done:
    """Deletes it, as DeleteTopics does."""
    topic = await find_topic(visit)
    visit.require(DELETE_TOPIC, topic.name)
    if not visit.runtime.configs.broker_bool("delete.topic.enable"):
        return _NOT_DELETABLE
    if unconfirmed := _why_not_confirmed(topic, await visit.form()):
        return await _confirmation(visit, topic, "topic_delete.html", *unconfirmed)
    (deleted,) = await visit.runtime.topics.delete([], [topic.topic_id])
    if deleted.refusal is not None:
        return Refused(409, why(deleted.refusal))
    return Done("/topics", f"Topic {topic.name} is deleted")
