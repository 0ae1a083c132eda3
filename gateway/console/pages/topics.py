"""The list of topics, and making one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from core.config.definitions import TOPIC_CONFIGS
from core.errors import Error
from core.ports.console.topics import Rank, TopicFigures
from core.security.page_operations import MAKE_TOPIC, MAKE_TOPICS, TOPIC_SHOWN
from core.topic.rules import NOT_SPECIFIED, NewTopic
from core.topic.topic import Topic
from gateway.console.api import Done, Page, action, page
from gateway.console.paging import part_of
from gateway.console.rendering import link
from gateway.console.topics import Names, names_of, why
from gateway.console.visit import Visit
from gateway.runtime.topics.topics import CreatedTopic
from gateway.web.call import ClientError

_NAME, _PARTITIONS = "name", "partitions"
_TITLES: Final = {
    _NAME: "Topic",
    _PARTITIONS: "Partitions",
    Rank.OFFSETS.value: "Records, at most",
    Rank.SIZE.value: "Size",
    Rank.NEWEST.value: "Newest record",
}


class Order(NamedTuple):
    """Of the list: by a key of _TITLES."""

    key: str
    is_descending: bool

    @classmethod
    def read(cls, text: str) -> Order:
        """As the address has it: `size`, or `-size` for the largest first."""
        key = text.removeprefix("-")
        return cls(key, text.startswith("-")) if key in _TITLES else cls(_NAME, False)

    def __str__(self) -> str:
        return f"-{self.key}" if self.is_descending else self.key

    def after_click(self, key: str) -> Order:
        """The order once a column's title is clicked: the other way round, or by that column, of
        numbers and times the greatest first."""
        return Order(key, not self.is_descending if key == self.key else key != _NAME)


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title: where a click leads, and how the list is ordered by it now, if at all."""

    title: str
    to: str
    order: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """figures: None where the topic was deleted just now."""

    names: Names
    topic: Topic
    figures: TopicFigures | None


@page("/topics")
async def topics(visit: Visit) -> Page:
    """Every topic that who looks may see, or those whose name has a text in it."""
    search = visit.text("search").strip()
    order = Order.read(visit.text("sort"))
    found = [
        each
        for each in await visit.runtime.topics.all()
        if visit.may(TOPIC_SHOWN, each.name)
        and (not search or names_of(visit, each.name).has(search.lower()))
    ]
    part = part_of(await _ordered(visit, found, order), visit.number("page", 1, least=1))
    figures = await visit.runtime.console.topics.figures([each.name for each in part.rows])
    rows = [Row(names_of(visit, each.name), each, figures.get(each.name)) for each in part.rows]
    columns = [
        Column(
            title,
            link("/topics", search=search or None, sort=order.after_click(key)),
            ("descending" if order.is_descending else "ascending") if key == order.key else None,
        )
        for key, title in _TITLES.items()
    ]
    return Page(
        "topics.html",
        {
            "search": search,
            "sort": order,
            "columns": columns,
            "rows": rows,
            "found": part,
            "to": lambda number: link("/topics", search=search or None, sort=order, page=number),
            "may_make": visit.offers(MAKE_TOPICS),
        },
    )


async def _ordered(visit: Visit, found: Sequence[Topic], order: Order) -> Sequence[Topic]:
    """The list in this order. What is not in memory is ordered where it is, for all who look."""
    if order.key == _NAME:
        ordered = list(found)
    elif order.key == _PARTITIONS:
        ordered = sorted(found, key=lambda each: len(each.partition_ids))
    else:
        ranked = await visit.console.topics.ranked[Rank(order.key)].get()
        places = {name: place for place, name in enumerate(ranked)}
        ordered = sorted(found, key=lambda each: places.get(each.name, len(places)))
    return ordered[::-1] if order.is_descending else ordered


# --- making one ---


@page("/topics/create")
async def ask_for_topic(visit: Visit) -> Page:
    """Asks what the topic is to be like."""
    visit.require_change(MAKE_TOPICS)
    return _form(visit, {"name": visit.text("name"), "partitions": "", "settings": ""})


@action("/topics/create")
async def make_topic(visit: Visit) -> Page | Done:
    """Makes a topic, as CreateTopics does."""
    form = await visit.form()
    filled = {each: form.text(each) for each in ("name", "partitions", "settings")}
    name = filled["name"] = filled["name"].strip()
    visit.require(MAKE_TOPIC, name)
    try:
        count = form.number("partitions") if filled["partitions"].strip() else NOT_SPECIFIED
        settings = read_settings(filled["settings"])
    except ClientError as wrong:
        return _form(visit, filled, wrong.refused.reason)
    made = (await visit.runtime.topics.create([NewTopic(name, count, configs=settings)]))[name]
    if isinstance(made, CreatedTopic):
        number = made.partition_count
        text = f"Topic {name} is there, with {number:,} partition{'s' if number > 1 else ''}"
        return Done(link("/topic", name=name) if visit.may(TOPIC_SHOWN, name) else "/topics", text)
    is_there = made.error is Error.TOPIC_ALREADY_EXISTS
    return _form(visit, filled, why(made), 409 if is_there else 400)


def _form(
    visit: Visit, filled: dict[str, str], refused: str | None = None, status: int = 400
) -> Page:
    defaults = visit.runtime.topics.defaults()
    values = {
        "filled": filled,
        "refused": refused,
        "partitions": defaults.partition_count,
        "settings": {name: TOPIC_CONFIGS[name].documentation for name in sorted(TOPIC_CONFIGS)},
    }
    return Page("topic_create.html", values, 200 if refused is None else status)


def read_settings(text: str) -> tuple[tuple[str, str], ...]:
    """Lines `name=value`. Raises ClientError."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator:
            raise ClientError(400, f"A setting is name=value, and '{line[:100]}' has no '='")
        found.append((name.strip(), value.strip()))
    return tuple(found)
