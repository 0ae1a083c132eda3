"""The names of a namespace's topics: listed once, or watched for who subscribes to a pattern.

`TopicLists` is of the whole process: when topics change, at any broker, it compares what each
watcher has been told with what is there, and tells the difference. Knows no command's rules.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from core.group.subscribed_topics import InvalidRegularExpression
from core.ports.log import StoreUnavailable
from core.security.pulsar_operations import COMMANDS
from gateway.pulsar.commands_pb2 import CommandWatchTopicUpdate
from gateway.pulsar.names import TopicName, pulsar_topic_name
from gateway.pulsar.topics import is_partitioned
from gateway.runtime.groups.topic_images import compiled

if TYPE_CHECKING:
    from core.topic.topic import Topic
    from gateway.pulsar.session import Session
    from gateway.runtime.topics.topics import Topics

LONGEST_PATTERN: Final = 50
"""Pulsar's `subscriptionPatternMaxLength`."""
MOST_WATCHERS: Final = 1_000
"""Of one connection; each keeps the names that it has told."""
_SCHEME: Final = "://"
_AFTER_FAILURE_S: Final = 0.5
(_LISTED,) = COMMANDS["WATCH_TOPIC_LIST"]

Namespace = tuple[str, str]
"""A tenant's name, and its namespace's."""
MaySee = Callable[[str], bool]


class Listed(NamedTuple):
    """Sorted names, partitions one by one. is_filtered: whether the pattern was applied."""

    names: list[str]
    is_filtered: bool

    @property
    def digest(self) -> str:
        """Pulsar's hash of them."""
        return topics_hash(self.names)


def topics_hash(names: Iterable[str]) -> str:
    """CRC-32C of the sorted names, spelt as Guava's HashCode spells it: lowest byte first."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def list_names(
    topics: Iterable[Topic], namespace: Namespace, pattern: str, may_see: MaySee | None = None
) -> Listed:
    """Names of a namespace's topics that match the pattern, if there is one. may_see: whether a
    topic may be told, by the log's name; None: all are meant.

    It is matched against names without domain and partition. One that is longer than Pulsar allows,
    or not in RE2's syntax, filters nothing: the client picks. Kafka's internal topics, and those
    whose name ends like a partition's, have no name here.
    """
    return _filtered(_seen(may_see, _by_namespace(topics)[namespace]), pattern)


class TopicListWatcher:
    """A client's watcher. `told`: the names that it knows; None until it has been answered."""

    __slots__ = ("namespace", "pattern", "session", "told", "watcher_id")

    def __init__(
        self, session: Session, watcher_id: int, namespace: Namespace, pattern: str
    ) -> None:
        self.session = session
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.pattern = pattern
        self.told: frozenset[str] | None = None

    def tell(self, listed: Listed) -> None:
        """Sends what has changed since it was told last."""
        if self.told is None or self.session.is_lost:
            return
        names = frozenset(listed.names)
        if names != self.told:
            update = CommandWatchTopicUpdate(
                watcher_id=self.watcher_id,
                new_topics=sorted(names - self.told),
                deleted_topics=sorted(self.told - names),
                topics_hash=listed.digest,
            )
            self.told = names
            self.session.send(update)


class TopicLists:
    """All watchers of this broker's clients."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._watchers: set[TopicListWatcher] = set()
        self._has_changed = False
        self._task: asyncio.Task[None] | None = None
        topics.on_invalidate(self.look)

    def add(self, watcher: TopicListWatcher) -> None:
        """From now on it is told of changes, once it has been answered."""
        self._watchers.add(watcher)

    def remove(self, watcher: TopicListWatcher) -> None:
        """Its client has no use for it any more."""
        self._watchers.discard(watcher)

    def look(self) -> None:
        """Topics have, or may have, changed."""
        self._has_changed = True
        if self._watchers and self._task is None:
            self._task = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._has_changed and self._watchers:
                self._has_changed = False
                try:
                    named = _by_namespace(await self._topics.all())
                except StoreUnavailable:
                    self._has_changed = True
                    await asyncio.sleep(_AFTER_FAILURE_S)
                    continue
                for watcher in list(self._watchers):
                    seen = _seen(seen_by(watcher.session), named[watcher.namespace])
                    watcher.tell(_filtered(seen, watcher.pattern))
        finally:
            self._task = None


_Named = Sequence[tuple[TopicName, "Topic"]]


def _by_namespace(topics: Iterable[Topic]) -> defaultdict[Namespace, list[tuple[TopicName, Topic]]]:
    found: defaultdict[Namespace, list[tuple[TopicName, Topic]]] = defaultdict(list)
    for topic in topics:
        if not topic.is_internal and (name := pulsar_topic_name(topic.name)) is not None:
            found[name.tenant, name.namespace].append((name, topic))
    return found


def seen_by(session: Session) -> MaySee | None:
    """What a session's client may know of."""
    return None if session.rights is None else partial(session.still_may, _LISTED)


def _seen(may_see: MaySee | None, named: _Named) -> _Named:
    return named if may_see is None else [each for each in named if may_see(each[1].name)]


def _filtered(named: _Named, pattern: str) -> Listed:
    matching = _matching(pattern, [name for name, _ in named]) if pattern else None
    if matching is not None:
        named = [(name, topic) for name, topic in named if name in matching]
    names = sorted(each for name, topic in named for each in _names(name, topic))
    return Listed(names, matching is not None)


def _names(name: TopicName, topic: Topic) -> list[str]:
    if not is_partitioned(topic):
        return [str(name)]
    return [f"{name}-partition-{number}" for number in range(len(topic.partition_ids))]


def _matching(pattern: str, names: Iterable[TopicName]) -> frozenset[TopicName] | None:
    """Those that match as a whole; None where the client has to look for itself."""
    if len(pattern) > LONGEST_PATTERN:
        return None
    try:
        regexp = compiled(pattern.partition(_SCHEME)[2] or pattern)
    except InvalidRegularExpression:
        return None
    return frozenset(
        name
        for name in names
        if regexp.fullmatch(f"{name.full_namespace}/{name.local_name}".encode())
    )
