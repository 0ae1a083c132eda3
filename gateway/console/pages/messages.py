"""A topic's records: from where one likes, filtered, as they come.

The server shows a first part, as much as it finds in a moment. What takes longer, and what is live,
a script asks for as a stream; without one, links go on from where the page has stopped.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from core.ports.log import StoreUnavailable
from core.security.page_operations import READ_TOPIC, WRITE_TOPIC
from core.topic.topic import Topic
from gateway.console.api import Page, page
from gateway.console.holds import held_in
from gateway.console.records.asked import LIMITS, WAYS, Asked, place, shown_time
from gateway.console.records.log import Stretch
from gateway.console.records.rows import json_line, rows_of
from gateway.console.records.search import Hit, Place, Search
from gateway.console.records.streams import CutOff, Ends
from gateway.console.records.values import Format
from gateway.console.rendering import HEADERS, count
from gateway.console.topics import head_of
from gateway.console.visit import Visit
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.group.progress import HeldPartition
    from gateway.web.api import Refused

_PAGE_WITHIN_S: Final = 0.1
_TOLD_EVERY_S: Final = 0.25
_LOOKS_EVERY_S: Final = 5.0
_MOST_LIVE: Final = 300
"""Rows that what is live has on the page; more at once would only push each other out."""
_AWAY: Final = "The database is away. Go on later."
_STOPS: Final = "The broker stops. Go on at another one, or later."
_GONE: Final = "The topic is not there any more."
_NO_RIGHT: Final = "You may not read this topic any more."


async def readable_topic(visit: Visit) -> Topic:
    """The topic that is asked for, which who asks may read. Raises ClientError,
    StoreUnavailable."""
    name = visit.needed("name")
    visit.require(READ_TOPIC, name)
    topic = await visit.runtime.topics.get(name)
    if topic is None:
        raise ClientError(404, "There is no such topic")
    return topic


@page("/topic/messages")
async def messages(visit: Visit) -> Page:
    """The form, and a first part of what it finds."""
    topic = await readable_topic(visit)
    room = visit.console.records
    turn = partial(room.page_turn, visit.call.request)
    try:
        asked = Asked.of(visit)
        sought = asked.sought()
        stretches = await asked.stretches(topic, room.reader, turn)
    except ClientError as wrong:
        return _filled_in_again(visit, topic, wrong.refused)
    firsts = [Stretch(s.number, s.partition_id, s.start, s.end) for s in stretches]
    search = room.search(topic, sought, stretches)
    hits: list[Hit] = []
    if not asked.is_live:
        until = time.monotonic() + _PAGE_WITHIN_S
        while not search.is_done and (time.monotonic() < until or not search.looked):
            async with turn():
                hits += await search.step()
        is_complete = search.is_done
        by_place = {hit.place: hit for hit in hits}
        hits = [by_place[place] for place in search.keep(by_place)]
    else:
        is_complete = False
    return _form(
        visit,
        topic,
        asked,
        held=await _held(visit, topic, stretches),
        rows=await rows_of(visit, topic, hits),
        words="" if asked.is_live else words(search, is_through=search.is_through),
        stream=None if is_complete else asked.link("/topic/messages/stream"),
        older=_older(asked, search, firsts),
        newer=_newer(asked, search, firsts),
    )


def _form(visit: Visit, topic: Topic, asked: Asked, status: int = 200, **values: Any) -> Page:
    around = {
        "head": head_of(visit, topic),
        "topic": topic,
        "asked": asked,
        "offset": asked.offset,
        "time": shown_time(asked),
        "ways": WAYS,
        "formats": list(Format),
        "limits": LIMITS,
        "refused": None,
        "can_write": visit.offers(WRITE_TOPIC, topic.name),
    }
    return Page("messages.html", {**around, **values}, status)


def _filled_in_again(visit: Visit, topic: Topic, refused: Refused) -> Page:
    """The form with what was asked, and why it cannot be."""
    return _form(
        visit,
        topic,
        Asked.as_far_as_known(visit),
        refused.status,
        refused=refused.reason,
        offset=visit.text("offset"),
        **dict.fromkeys(("held", "rows"), ()),
        **dict.fromkeys(("words", "stream", "older", "newer")),
    )


async def _held(
    visit: Visit, topic: Topic, stretches: Iterable[Stretch]
) -> Sequence[HeldPartition]:
    """Where what is shown ends at an open transaction: what lies behind is not shown."""
    numbers = {each.number for each in stretches if each.is_held}
    if not numbers:
        return ()
    found = await held_in(visit, {topic.name})
    return sorted(
        (each for each in found if each.partition in numbers), key=lambda each: each.partition
    )


def _older(asked: Asked, search: Search, firsts: list[Stretch]) -> str | None:
    """Where older records are: what is left, or what is before where it began."""
    if asked.is_live:
        return None
    if asked.way == "end":
        return _going_on(asked, place(search.stretches), "end")
    before = [Stretch(each.number, each.partition_id, 0, each.start) for each in firsts]
    return _going_on(asked, place(before), "end")


def _newer(asked: Asked, search: Search, firsts: list[Stretch]) -> str | None:
    if asked.is_live:
        return None
    if asked.way != "end":
        left = place(search.stretches)
        if left or not search.stretches:
            return _going_on(asked, left, asked.way)
        ends = search.stretches
    else:
        ends = firsts
    behind = [Stretch(each.number, each.partition_id, each.end or 0, None) for each in ends]
    return _going_on(asked, place(behind), "start")


def _going_on(asked: Asked, at: str, way: str) -> str | None:
    if not at:
        return None
    changes: dict[str, object] = {"at": at, "from": way}
    if way in ("end", "start"):
        changes |= {"offset": None, "time": None}
    return asked.link(**changes)


def words(search: Search, *, is_through: bool, looked: int = 0, found: int = 0) -> str:
    """How far a search is. looked, found: before it went on here."""
    many = len(search.stretches)
    partitions = f"{count(many)} partition{'' if many == 1 else 's'}"
    looked, total, found = search.looked + looked, search.total + looked, search.found + found
    if not total:
        return "There is nothing there."
    said = f"{count(found)} found"
    if is_through:
        text = f"Searched all {count(total)} offsets of {partitions}: {said}."
    else:
        text = f"Searched {count(looked)} of {count(total)} offsets of {partitions}: {said}."
    if search.unsure:
        text += f" With {count(search.unsure)} records the JSONPath took too long: left out."
    if search.is_given_up:
        text += " The search has ended for that: choose a simpler one."
    if not is_through and not place(search.stretches):
        text += " These are too many partitions to go on from here: choose one of them."
    return " ".join([text, *search.wrong])


# --- streams ---


@page("/topic/messages/stream")
async def stream(visit: Visit) -> Response:
    """All of what is asked for as lines of JSON: rows of the table, and how far it is."""
    topic = await readable_topic(visit)
    asked = Asked.of(visit)
    room = visit.console.records
    turn = partial(room.page_turn, visit.call.request)
    looked, found = visit.number("looked", 0), visit.number("found", 0)
    stretches = await asked.stretches(topic, room.reader, turn)
    search = room.search(topic, asked.sought(), stretches)
    lines = (
        partial(_live_lines, visit, topic, asked, search, found)
        if asked.is_live
        else partial(_lines, visit, topic, asked, search, looked, found)
    )
    return room.streams.open(visit.call.caller, lines, HEADERS, "application/x-ndjson")


async def _lines(
    visit: Visit, topic: Topic, asked: Asked, search: Search, looked: int, found: int, ends: Ends
) -> AsyncGenerator[bytes, None]:
    firsts = [Stretch(s.number, s.partition_id, s.start, s.end) for s in search.stretches]
    places: list[Place] = []
    told_at = 0.0

    def told(text: str = "", **more: Any) -> bytes:
        said = text or words(search, is_through=search.is_through, looked=looked, found=found)
        if not text and not more:
            said += f" {count(search.per_s)} offsets/s"
        at = place(search.stretches)
        so_far = {"looked": looked + search.looked, "found": found + search.found} if at else {}
        return _line(words=said, at=at, **so_far, **more)

    while not search.is_done:
        why, rows = "", b""
        async with visit.console.records.stream_turn():
            if ends.done():
                why = _STOPS
            elif not visit.may(READ_TOPIC, topic.name):
                why = _NO_RIGHT
            else:
                try:
                    hits = await search.step()
                    rows = await _rows(visit, topic, asked, hits)
                    places += [hit.place for hit in hits]
                except StoreUnavailable:
                    why = _AWAY
        if why:
            yield told(why)
            return
        if rows:
            yield rows
        if time.monotonic() - told_at >= _TOLD_EVERY_S:
            told_at = time.monotonic()
            yield told()
    search.keep(places)
    yield told(
        is_done=True, older=_older(asked, search, firsts), newer=_newer(asked, search, firsts)
    )


async def _live_lines(
    visit: Visit, topic: Topic, asked: Asked, search: Search, found: int, ends: Ends
) -> AsyncGenerator[bytes, None]:
    left_out = 0
    while not ends.done():
        if not visit.may(READ_TOPIC, topic.name):
            yield _line(words=_NO_RIGHT)
            return
        try:
            now = await visit.runtime.topics.get(topic.name)
            if now is None or now.topic_id != topic.topic_id:
                yield _line(words=_GONE)
                return
            async with visit.console.records.stream_turn():
                if ends.done():
                    break
                hits, news = await search.news()
                left_out += max(0, len(hits) - _MOST_LIVE)
                hits = sorted(hits, key=lambda hit: hit.place)[-_MOST_LIVE:]
                rows = await _rows(visit, topic, asked, hits)
        except StoreUnavailable:
            yield _line(words=_AWAY, at=place(search.stretches))
            return
        if rows:
            yield rows
        wrong = search.wrong
        so_far = f"Live: {count(found + search.found)} found since you look."
        if asked.committed and news.held:
            so_far += f" In {count(news.held)} partition{'s' * (news.held > 1)} an open transaction"
            so_far += " holds up what is behind its first record: it is not shown."
        if left_out:
            so_far += f" {count(left_out)} of them came too fast to be shown."
        if search.is_given_up:
            so_far += " With too many records the JSONPath takes too long: choose a simpler one."
        yield _line(
            words=" ".join([so_far, *wrong]),
            at=place(search.stretches),
            found=found + search.found,
        )
        if search.is_given_up or all(each.wrong for each in search.stretches):
            return
        if not news.parts:
            await search.wait(news, _LOOKS_EVERY_S, ends)
    yield _line(words=_STOPS, at=place(search.stretches))


async def _rows(visit: Visit, topic: Topic, asked: Asked, hits: list[Hit]) -> bytes:
    """A line of these; empty without any. Raises StoreUnavailable."""
    if not hits:
        return b""
    given = {"rows": await rows_of(visit, topic, hits), "asked": asked}
    text = await asyncio.to_thread(visit.console.rendering.piece, "message_rows.html", given)
    return _line(rows=text)


def _line(**what: Any) -> bytes:
    return json.dumps(what).encode() + b"\n"


# --- download ---


@page("/topic/messages/download")
async def download(visit: Visit) -> Response:
    """All of what is asked for, each record a line of JSON."""
    topic = await readable_topic(visit)
    asked = Asked.of(visit)
    if asked.is_live:
        raise ClientError(400, "What is live has no end: choose where to begin")
    room = visit.console.records
    turn = partial(room.page_turn, visit.call.request)
    stretches = await asked.stretches(topic, room.reader, turn)
    search = room.search(topic, asked.sought(is_all=True), stretches)
    name = "".join(each if each.isascii() and each.isalnum() else "-" for each in topic.name[:80])
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}.jsonl"'}
    lines = partial(_downloaded, visit, topic, asked, search)
    return room.streams.open(visit.call.caller, lines, headers, "application/jsonl")


async def _downloaded(
    visit: Visit, topic: Topic, asked: Asked, search: Search, ends: Ends
) -> AsyncGenerator[bytes, None]:
    while not search.is_done:
        async with visit.console.records.stream_turn():
            if ends.done() or not visit.may(READ_TOPIC, topic.name):
                raise CutOff
            try:
                hits = await search.step()
            except StoreUnavailable:
                raise CutOff from None
            lines = await asyncio.to_thread(_json_lines, topic.name, hits, asked.format)
        for line in lines:
            yield line
    if search.is_given_up:
        raise CutOff


def _json_lines(topic: str, hits: list[Hit], format_: Format) -> list[bytes]:
    return [json_line(topic, hit, format_) for hit in hits]
