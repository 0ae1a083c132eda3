"""What front-ends and the runtime of subscriptions tell each other. Values and doors only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from core.subscription.values import DispatchSettings, HashRange, KeySharing, SubscriptionType

if TYPE_CHECKING:
    from core.ports.log import StoredBatch
    from core.subscription.values import Delivery, Entry
    from core.types import Payload


class StartPosition(Enum):
    """Where a subscription may begin, besides at an offset."""

    EARLIEST = auto()
    LATEST = auto()


@dataclass(frozen=True, slots=True)
class Subscribing:
    """A consumer that wants to come to the subscription `name`.

    is_durable: whether the subscription is stored. start: where a new one begins; an offset may be
    any. rollback_ms: where it is above 0, a new one begins at the first batch that is not older.
    partition_index, topic_name: see FailoverDispatcher. may_make: whether a durable one is made
    where there is none. limits: gives those of dispatch as they are now; None leaves them.
    """

    name: str
    type: SubscriptionType
    is_durable: bool = True
    start: int | StartPosition = StartPosition.LATEST
    rollback_ms: int = 0
    consumer_name: str = ""
    priority_level: int = 0
    epoch: int = 0
    hash_ranges: tuple[HashRange, ...] = ()
    key_sharing: KeySharing = field(default_factory=KeySharing)
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_index: int = -1
    topic_name: str = ""
    may_make: bool = True
    limits: Callable[[], DispatchSettings] | None = None


class Receiver(Protocol):
    """A consumer, as its front-end has it."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes what is written: else its front-end calls `Member.resume` later."""

    @property
    def address(self) -> str:
        """Where its client is."""

    @property
    def client(self) -> str:
        """What its client calls itself."""

    @property
    def connected_at(self) -> int:
        """When it came, in ms since the epoch."""

    def deliver(self, delivery: Delivery, payload: Payload) -> None:
        """Writes an entry to it."""

    def on_active(self, *, is_active: bool) -> None:
        """Whether it is the one that gets everything."""

    def on_end(self) -> None:
        """The topic is terminated, and its subscription has acknowledged all of it."""

    def on_closed(self) -> None:
        """It has been taken out: its client has to come again, here or elsewhere."""

    def probe(self) -> None:
        """Somebody else wants its place: make sure that it is still there."""


class Split(Protocol):
    """Takes a batch apart, in the wanted format, for those who share out by keys.

    Of a batch with several messages of different keys one consumer would get all; the order of each
    key would be lost. Which batches are taken apart is decided once and for ever: ids point there.
    """

    def __call__(self, stored: StoredBatch, translated: StoredBatch) -> Sequence[StoredBatch]:
        """Its messages, each a batch at its own offset; nothing where it stays whole. stored: as
        its writer left it."""


class Describe(Protocol):
    """What dispatch has to know of a batch in the wanted format: key, time, chunks."""

    def __call__(self, batch: StoredBatch, *, has_to_have_key: bool) -> Entry:
        """has_to_have_key: whether somebody shares out by it, so that it is worth a search."""
