"""A topic's schemas, version by version, as Pulsar's clients have brought them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from core.schema.forms import MalformedError, split
from core.schema.values import Schema, SchemaType, VersionedSchema
from gateway.console.api import Page, page
from gateway.console.paging import part_of
from gateway.console.rendering import link
from gateway.console.topics import find_topic, head_of
from gateway.console.visit import Visit
from gateway.web.api import Refused


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schema says. part: of a KEY_VALUE, in a word. lines: none where its type says all."""

    part: str | None
    type: str
    lines: list[str]


@page("/topic/schemas")
async def schemas(visit: Visit) -> Page | Refused:
    """The versions of the topic's schema, and one of them in full: the latest, unless asked."""
    topic = await find_topic(visit)
    name, service = topic.name, visit.runtime.schemas
    heads = (await service.heads(topic))[::-1]
    part = part_of(heads, visit.number("page", 1, least=1))
    shown: VersionedSchema | None = None
    if heads:
        version = visit.number("version", heads[0].version)
        shown = await service.get(topic, version)
        if shown is None:
            return Refused(404, f"Topic {name} has no version {version} of its schema")
    return Page(
        "topic_schemas.html",
        {
            "head": head_of(visit, topic),
            "versions": part,
            "shown": shown,
            "definitions": [] if shown is None else definitions_of(shown.schema),
            "strategy": service.policy_of(topic).effective_strategy.name,
            "to": lambda number: link("/topic/schemas", name=name, page=number),
            "to_version": lambda version: link(
                "/topic/schemas", name=name, page=part.number, version=version
            ),
        },
    )


def definitions_of(schema: Schema) -> list[Definition]:
    """As people read it: JSON with a line for each member; key and value by themselves."""
    if schema.type is SchemaType.KEY_VALUE:
        try:
            both = split(schema)
        except MalformedError:
            pass
        else:
            parts = (("Key", both.key), ("Value", both.value))
            return [Definition(what, each.type.name, _lines(each.data)) for what, each in parts]
    return [Definition(None, schema.type.name, _lines(schema.data))]


def _lines(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    with contextlib.suppress(ValueError, RecursionError):  # what is no JSON stays as it is
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return text.splitlines()
