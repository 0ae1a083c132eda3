"""Producing one record, written by hand."""

from __future__ import annotations

import json
import secrets
from typing import Final

from core.errors import Refusal
from core.inbox.partitioner import partition_of
from core.log.records import RESERVED_PREFIX, Header, Record, is_text
from core.security.page_operations import READ_TOPIC, WRITE_TOPIC
from core.topic.topic import Topic
from gateway.console.api import Done, Page, action, page
from gateway.console.rendering import link
from gateway.console.visit import Form, Visit
from gateway.web.call import ClientError

FORMS: Final = {"text": "text", "json": "JSON", "hex": "hex", "null": "null (a tombstone)"}
_FIELDS: Final = ("partition", "key", "key_form", "value", "value_form", "headers")
_MOST_HEADERS: Final = 100


class _Wrong(Exception):
    """What was filled in is no record; the sentence says why."""


@page("/topic/produce")
async def produce_form(visit: Visit) -> Page:
    """The form."""
    return _form(await _topic(visit), dict.fromkeys(_FIELDS, ""))


@action("/topic/produce")
async def produce(visit: Visit) -> Page | Done:
    """Appends it, as if a producer had sent it; or the form again, with what is wrong."""
    topic, form = await _topic(visit), await visit.form()
    filled = {name: form.text(name) for name in _FIELDS}
    try:
        record = _record(form)
        number = _partition(form, topic, record.key)
    except _Wrong as wrong:
        return _form(topic, filled, str(wrong), 400)
    stored = await visit.runtime.single_appends.append(topic, number, record)
    if isinstance(stored, Refusal):
        reason = stored.message or stored.error.name
        return _form(topic, filled, f"It was not stored: {reason}", 409)
    place = {"name": topic.name, "partition": number, "offset": stored}
    to = (
        link("/topic/record", **place)
        if visit.may(READ_TOPIC, topic.name)
        else link("/topic/produce", name=topic.name)
    )
    return Done(to, f"It is stored at offset {stored} of partition {number}")


async def _topic(visit: Visit) -> Topic:
    name = visit.needed("name")
    visit.require(WRITE_TOPIC, name)
    topic = await visit.runtime.topics.get(name)
    if topic is None:
        raise ClientError(404, "There is no such topic")
    return topic


def _form(topic: Topic, filled: dict[str, str], wrong: str = "", status: int = 200) -> Page:
    values = {"topic": topic, "filled": filled, "forms": FORMS, "wrong": wrong}
    return Page("produce.html", values, status)


def _record(form: Form) -> Record:
    key = _bytes(form, "key") if form.text("key") or form.text("key_form") == "hex" else None
    return Record(
        key,
        _bytes(form, "value"),
        tuple(_headers(form.text("headers"))),
        key_is_text=key is not None and is_text(key),
    )


def _bytes(form: Form, name: str) -> bytes | None:
    text = form.text(name)
    match form.text(f"{name}_form", "text"):
        case "null":
            return None
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise _Wrong(f"The {name} is no hexadecimal") from None
        case "json":
            try:
                json.loads(text)
            except (ValueError, RecursionError) as error:
                raise _Wrong(f"The {name} is no JSON: {error}") from None
    # Browsers send lines as CR LF, whatever was typed.
    return text.replace("\r\n", "\n").encode(errors="surrogateescape")


def _headers(text: str) -> list[Header]:
    found: list[Header] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise _Wrong(f"A header is a line such as name: value, which '{line[:80]}' is not")
        if name.strip().startswith(RESERVED_PREFIX):
            raise _Wrong(f"Names of headers that begin with {RESERVED_PREFIX} are the broker's")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > _MOST_HEADERS:
        raise _Wrong(f"More than {_MOST_HEADERS} headers")
    return found


def _partition(form: Form, topic: Topic, key: bytes | None) -> int:
    """The one that is chosen, else as Kafka's default partitioner does."""
    count = len(topic.partition_ids)
    if not form.text("partition"):
        return secrets.randbelow(count) if key is None else partition_of(key, count)
    number = form.number("partition")
    if topic.partition_id(number) is None:
        raise _Wrong(f"The topic has no partition {number}")
    return number
