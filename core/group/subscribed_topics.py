"""Which topics the members of a consumer group subscribe to, and which of them exist.

Holds the topics it was last shown, and the names that regular expressions (KIP-848's
SubscribedTopicRegex, see `expressions.py`) match among them. The caller supplies the matching.
Knows no epochs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b

from core.group.expressions import is_of_somebody
from core.group.records import MemberRow, Partitions
from core.group.values import TopicImage, Topics

NO_TOPICS_HASH = 0
OTHER_TOPICS_HASH = -1
"""Differs from every hash, so that a target assignment is due whatever the topics are."""

Resolve = Callable[[str], frozenset[str]]
"""The names of existing topics that an expression matches; may raise InvalidRegularExpression."""


class InvalidRegularExpression(Exception):
    """An invalid expression. Its text says why, and nothing else ("missing ]")."""


def match_nothing(_expression: str) -> frozenset[str]:
    """Stands in until a group is shown the topics."""
    return frozenset()


class SubscribedTopics:
    """The subscriptions of a group's members, counted, over one picture of the topics."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._expressions: Counter[str] = Counter()
        self._resolved: dict[str, frozenset[str]] = {}
        self._topics: Topics = {}
        self._resolve: Resolve = match_nothing
        self._name_of: dict[str, str] | None = None
        self.stale = True
        """Whether the topics may have changed since the last `refresh`."""

    def show(self, topics: Topics, resolve: Resolve) -> None:
        """A new picture of the topics; looked at by the next `refresh`."""
        self._topics = topics
        self._resolve = resolve
        self._name_of = None
        self.stale = True

    @property
    def expressions(self) -> Collection[str]:
        """The regular expressions that members subscribe with."""
        return self._expressions.keys()

    def add(self, row: MemberRow) -> None:
        """Counts a member in."""
        self._names.update(row.subscribed_topic_names)
        if row.subscribed_topic_regex is not None:
            self._expressions[row.subscribed_topic_regex] += 1

    def remove(self, row: MemberRow) -> None:
        """Counts a member out."""
        for name in row.subscribed_topic_names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
        expression = row.subscribed_topic_regex
        if expression is not None:
            self._expressions[expression] -= 1
            if not self._expressions[expression]:
                del self._expressions[expression]
                self._resolved.pop(expression, None)

    def check(self, expression: str) -> None:
        """Raises InvalidRegularExpression; free if a member has the expression already."""
        if expression not in self._resolved:
            self._resolve(expression)

    def refresh(self) -> None:
        """Applies a new picture of the topics, and resolves new expressions."""
        if self.stale:
            self._resolved.clear()
            self.stale = False
        for expression in self._expressions.keys() - self._resolved.keys():
            try:
                self._resolved[expression] = self._resolve(expression)
            except InvalidRegularExpression:
                # It was valid when the member joined; a new release may have other rules.
                self._resolved[expression] = frozenset()

    def metadata_hash(self) -> int:
        """Of the topics that exist and are subscribed to: 64 bits, signed (ModernGroup's)."""
        images = sorted((image.name, image.topic_id, image.partitions) for image in self._images())
        if not images:
            return NO_TOPICS_HASH
        # Also of who sees which, where that differs: a right that goes takes partitions along.
        # Many members see the same: each set of names is written out once.
        of_some = {each: names for each, names in self._resolved.items() if is_of_somebody(each)}
        written = {names: repr(sorted(names)) for names in of_some.values()}
        digests = {names: blake2b(text.encode()).digest() for names, text in written.items()}
        seen = sorted((expression, digests[names]) for expression, names in of_some.items())
        text = repr((images, seen)) if seen else repr(images)
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each existing, subscribed topic, by id."""
        return {image.topic_id: image.partitions for image in self._images()}

    def _images(self) -> list[TopicImage]:
        names = set(self._names).union(*self._resolved.values())
        return [self._topics[name] for name in names if name in self._topics]

    def topic_ids(self, names: tuple[str, ...], expression: str | None) -> frozenset[str]:
        """The existing topics that a member with this subscription wants."""
        wanted = set(names)
        if expression is not None:
            wanted |= self._resolved.get(expression, frozenset())
        return frozenset(self._topics[name].topic_id for name in wanted if name in self._topics)

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Whether any member subscribes to the topic; True while an expression is unresolved."""
        if topic_name in self._names:
            return True
        return any(
            expression not in self._resolved or topic_name in self._resolved[expression]
            for expression in self._expressions
        )

    def by_name(self, partitions: Partitions) -> dict[str, tuple[int, ...]]:
        """Replaces topic ids by names; deleted topics are omitted."""
        if self._name_of is None:
            self._name_of = {image.topic_id: image.name for image in self._topics.values()}
        return {
            self._name_of[topic_id]: held
            for topic_id, held in partitions.items()
            if topic_id in self._name_of
        }

    def by_id(self, partitions: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Replaces topic names by ids, partitions ascending; missing topics are omitted."""
        found = {}
        for name, held in partitions.items():
            image = self._topics.get(name)
            if image is not None and held:
                found[image.topic_id] = tuple(
                    sorted({each for each in held if 0 <= each < image.partitions})
                )
        return {topic_id: held for topic_id, held in found.items() if held}
