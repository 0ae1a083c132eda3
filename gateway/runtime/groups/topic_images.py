"""The topics as consumer groups' assignors see them, and the names that expressions match.

RE2, as in Kafka (KIP-848): it never backtracks. Still, a thread does the matching, and the results
are kept, so that members' heartbeats only look them up. Knows no group.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import re2

from core.group.expressions import Viewer, read_expression
from core.group.subscribed_topics import InvalidRegularExpression
from core.group.values import TopicImage
from core.topic.topic import Topic
from gateway.runtime.topics.shared_read import SharedRead
from gateway.runtime.topics.topics import Topics

MAX_PROGRAM_BYTES: Final = 256 * 1024
"""Limit of an expression's compiled size. The worst one takes about 2 ms per topic."""

EXPRESSIONS_KEPT: Final = 1_000
_VIEWERS_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Expression:
    """An expression and the topics it matches. fault: why it is invalid (then regexp is None)."""

    regexp: Any
    matched: frozenset[str] = frozenset()
    fault: str = ""


class Sight(Protocol):
    """Of which topics somebody may know."""

    def may_see(self, viewer: Viewer, topic: str) -> bool:
        """Whether he may know of this one."""

    def seen_alike(self, viewer: Viewer) -> Viewer:
        """One who sees the same, and the same one for as many as is easily known."""


class TopicImages:
    """The topics, as seen by all consumer groups. One per process. sight: None: all see all."""

    def __init__(self, topics: Topics, sight: Sight | None = None) -> None:
        self._topics = topics
        self._sight = sight
        # What the regular expressions that have a viewer match, by those who see alike.
        self._alike: dict[Viewer, Viewer] = {}
        self._seen: dict[tuple[str, Viewer], frozenset[str]] = {}
        self._picture: Mapping[str, TopicImage] = {}
        self._listing: tuple[Topic, ...] | None = None
        self._generation = 0
        self._seen_generation = -1
        self._refreshes = SharedRead(self._refresh)
        self._expressions: OrderedDict[str, _Expression] = OrderedDict()
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="subscriptions")
        self._on_change: Callable[[], None] = lambda: None
        topics.on_invalidate(self.invalidate)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a listener; it is called when the topics have changed."""
        self._on_change = listener

    def invalidate(self) -> None:
        """The topics may have changed: the next request waits until they are read again."""
        self._generation += 1

    @property
    def picture(self) -> Mapping[str, TopicImage]:
        """The topics by name, as last seen."""
        return self._picture

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is known to have changed since the last look."""
        return self._seen_generation == self._generation

    async def ready(self, expressions: Iterable[str] = ()) -> Mapping[str, TopicImage]:
        """The topics by name. After it, `resolve` can answer for these expressions.

        While the database is away, returns the topics last seen. Raises StoreUnavailable if there
        are none.
        """
        if not self.is_fresh:
            await self._refreshes.find([None])
        for expression in (read_expression(each)[0] for each in expressions):
            if expression not in self._expressions:
                async with self._changing:
                    await self._add(expression)
        return self._picture

    def on_rights_changed(self) -> None:
        """What somebody may see has, or may have, changed."""
        if self._seen:
            self._forget_seen()
            self._on_change()

    def resolve(self, kept: str) -> frozenset[str]:
        """The topics with a name that the expression matches whole, and that its viewer may see.
        Raises InvalidRegularExpression."""
        expression, viewer = read_expression(kept)
        if viewer is None or self._sight is None:
            return self._matched(expression)
        if len(self._alike) >= _VIEWERS_KEPT or len(self._seen) >= EXPRESSIONS_KEPT:
            self._forget_seen()
        alike = self._alike.get(viewer)
        if alike is None:
            alike = self._alike[viewer] = self._sight.seen_alike(viewer)
        seen = self._seen.get((expression, alike))
        if seen is None:
            found = self._matched(expression)
            seen = frozenset(name for name in found if self._sight.may_see(alike, name))
            self._seen[expression, alike] = seen
        return seen

    def _forget_seen(self) -> None:
        self._alike.clear()
        self._seen.clear()

    def _matched(self, expression: str) -> frozenset[str]:
        known = self._expressions.get(expression)
        if known is None:
            known = _evaluated(expression, self._picture)
            self._keep(expression, known)
        if known.regexp is None:
            raise InvalidRegularExpression(known.fault)
        self._expressions.move_to_end(expression)
        return known.matched

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _refresh(self, _: Collection[None]) -> Mapping[None, None]:
        generation = self._generation
        listing = await self._topics.all()
        if listing is not self._listing:
            picture = {topic.name: _image(topic) for topic in listing}
            if picture != self._picture:
                async with self._changing:
                    await self._replace(picture)
            self._listing = listing
        self._seen_generation = generation
        return {None: None}

    async def _replace(self, picture: Mapping[str, TopicImage]) -> None:
        added = picture.keys() - self._picture.keys()
        gone = self._picture.keys() - picture.keys()
        done: set[str] = set()
        while todo := self._expressions.keys() - done:  # others may arrive meanwhile
            for expression in todo:
                known = self._expressions.get(expression)
                if known is None:
                    continue
                matched = await self._in_thread(_matches, known.regexp, added)
                self._expressions[expression] = _Expression(
                    known.regexp, (known.matched - gone) | matched, known.fault
                )
            done |= todo
        self._picture = picture
        self._forget_seen()
        self._on_change()

    async def _add(self, expression: str) -> None:
        if expression not in self._expressions:  # else another member has brought it meanwhile
            known = await self._in_thread(_evaluated, expression, self._picture.keys())
            self._keep(expression, known)

    def _keep(self, expression: str, known: _Expression) -> None:
        self._expressions[expression] = known
        if len(self._expressions) > EXPRESSIONS_KEPT:
            self._expressions.popitem(last=False)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _image(topic: Topic) -> TopicImage:
    return TopicImage(str(topic.topic_id), topic.name, len(topic.partition_ids))


def compiled(expression: str) -> Any:
    """Compiles an expression in RE2's syntax. Raises InvalidRegularExpression."""
    options = re2.Options()
    options.max_mem = MAX_PROGRAM_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as fault:
        reason = fault.args[0]
        text = reason.decode() if isinstance(reason, bytes) else reason
        raise InvalidRegularExpression(text) from None


def _evaluated(expression: str, names: Iterable[str]) -> _Expression:
    try:
        regexp = compiled(expression)
    except InvalidRegularExpression as fault:
        return _Expression(None, fault=str(fault))
    return _Expression(regexp, _matches(regexp, names))


def _matches(regexp: Any, names: Iterable[str]) -> frozenset[str]:
    """Matches whole names, as Java's `Matcher.matches`. Releases the interpreter meanwhile."""
    if regexp is None:
        return frozenset()
    return frozenset(name for name in names if regexp.fullmatch(name.encode()))
