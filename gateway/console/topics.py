"""A topic as its pages show it: whether it may be seen, its names, the pages that it has.

Knows no page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import Refusal
from core.security.acls import ResourceType
from core.security.page_operations import READ_RECORDS, SEE_SETTINGS, TOPIC_SHOWN
from gateway.console.rendering import link
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.topic.topic import Topic
    from gateway.console.visit import Visit

_SHOWN: Final = 249  # characters of a name that there is no topic of
_DEFAULT_NAMESPACE: Final = "persistent://public/default/"
_SYSTEM_NAMESPACE: Final = "persistent://pulsar/system/"


class Names(NamedTuple):
    """A topic's names. pulsar: its full one, where that is not just `name` in public/default."""

    name: str
    pulsar: str | None

    @property
    def is_system(self) -> bool:
        """Whether Kafka or Pulsar keep it for themselves, by its name."""
        local_name = (self.pulsar or self.name).rpartition("/")[2]
        is_of_pulsar = self.pulsar is not None and self.pulsar.startswith(_SYSTEM_NAMESPACE)
        return is_of_pulsar or local_name.startswith("__")

    def has(self, text: str) -> bool:
        """Whether a name has this in it. text: in lower case."""
        return text in self.name.lower() or text in (self.pulsar or "").lower()


def names_of(visit: Visit, name: str) -> Names:
    """The names of the topic that the log calls `name`."""
    alias = visit.console.alias_of(ResourceType.TOPIC, name)
    return Names(name, None if alias == _DEFAULT_NAMESPACE + name else alias)


async def find_topic(visit: Visit) -> Topic:
    """The topic that the address names. Raises ClientError, the same one where it is not there and
    where it may not be seen; StoreUnavailable."""
    name = visit.needed("name")
    topic = await visit.runtime.topics.get(name)
    if topic is None or not visit.may(TOPIC_SHOWN, name):
        or_hidden = ", or you may not see it" if visit.runtime.acls.is_on else ""
        raise ClientError(404, f"There is no topic {name[:_SHOWN]}{or_hidden}")
    return topic


@dataclass(frozen=True, slots=True)
class Head:
    """What every page of a topic begins with. tabs: addresses and titles of its pages, those that
    who looks may see."""

    names: Names
    tabs: list[tuple[str, str]]


def head_of(visit: Visit, topic: Topic) -> Head:
    """The head of a topic's pages."""
    name = topic.name
    tabs = [("/topic", "Topic")]
    if visit.may(READ_RECORDS, name):
        tabs.append(("/topic/messages", "Messages"))
    if visit.may(SEE_SETTINGS, name):
        tabs.append(("/topic/settings", "Settings"))
    tabs.append(("/topic/schemas", "Schemas"))
    return Head(names_of(visit, name), [(link(path, name=name), title) for path, title in tabs])


def why(refusal: Refusal) -> str:
    """A refusal as a sentence."""
    return refusal.message or refusal.error.name
