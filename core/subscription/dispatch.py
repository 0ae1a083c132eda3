"""What the dispatchers of all types have in common, and what is asked of each.

A dispatcher decides who gets which entry. It holds no payload and does no reading: it says where to
read next, is offered what was read there, and gives back deliveries. What it has delivered and not
seen acknowledged is in memory only: after a crash all that the cursor does not have is read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from core.subscription.cursor import Cursor
from core.subscription.offset_ranges import OffsetRange
from core.subscription.values import (
    ActiveChange,
    ConsumerId,
    ConsumerStatus,
    Delivery,
    DispatchSettings,
    Entry,
    Joining,
    KeySharing,
    Refused,
    SubscriptionType,
)

Changes = tuple[ActiveChange, ...]


class Dispatcher(ABC):
    """The dispatcher of one subscription in one partition.

    After any event the runtime calls `dispatch` until it gives nothing; then, as long as `wanted`
    is above 0, it reads from `read_position` on and offers what it found. Events of consumers that
    are not there (any more) change nothing: they cross with removals.
    """

    type: SubscriptionType
    key_sharing: KeySharing | None = None

    def __init__(self, cursor: Cursor, settings: DispatchSettings) -> None:
        self.cursor = cursor
        self.settings = settings
        self._position = cursor.mark_delete

    def limit(self, settings: DispatchSettings) -> None:
        """Other limits, from now on. Who is at the old one and below the new one goes on."""
        self.settings = settings

    # --- consumers ---

    @property
    @abstractmethod
    def has_consumers(self) -> bool:
        """Whether there is anybody; if not, the dispatcher may be forgotten, which costs nothing
        but redelivery counts."""

    @abstractmethod
    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """A consumer comes, without permits; who is to be told what."""

    @abstractmethod
    def remove_consumer(self, consumer_id: ConsumerId) -> Changes:
        """A consumer is gone; what it had goes to others."""

    @abstractmethod
    def flow(self, consumer_id: ConsumerId, permits: int, *, has_more: bool = False) -> None:
        """The consumer takes so many more messages.

        has_more: it takes yet more, of which this is told once it has got these; so what it could
        have does not go to a lower level meanwhile.
        """

    @abstractmethod
    def consumers(self) -> list[ConsumerStatus]:
        """All consumers, in the order in which they are served."""

    # --- entries ---

    @property
    def read_position(self) -> int:
        """The offset to read from next; the entry there may begin before it."""
        return max(self._position, self.cursor.mark_delete)

    @property
    @abstractmethod
    def wanted(self) -> int:
        """How many messages could be delivered if they were read; 0: do not read now. Large
        numbers are cut off."""

    @abstractmethod
    def offer(self, start: int, entries: Sequence[Entry], end: int, now_ms: int) -> list[Delivery]:
        """What lies in the log from `start` on and below `end`: these entries, in order, and
        between them nothing that is a message.

        Takes as many of them as it can, which `read_position` shows afterwards. Something that was
        read from elsewhere than `read_position` is late, and ignored.
        """

    @abstractmethod
    def dispatch(self, limit: int) -> list[Delivery]:
        """At most so many of the entries that were read before and wait: to be read once more."""

    @abstractmethod
    def redeliver(
        self, consumer_id: ConsumerId, offsets: Collection[int] | None = None, epoch: int = 0
    ) -> None:
        """The consumer gives back the entries with these offsets, or all it has (None)."""

    def take_back(self, delivery: Delivery) -> None:
        """What was given, and just this, could not be delivered: it waits again. Its permits are
        not given back by that."""
        self.redeliver(delivery.consumer_id, [delivery.entry.base_offset])

    # --- the cursor, and what follows from it ---

    @abstractmethod
    def acknowledge(self, start: int, end: int) -> int:
        """See Cursor.acknowledge; whoever it comes from."""

    @abstractmethod
    def acknowledge_up_to(self, end: int) -> int:
        """See Cursor.acknowledge_up_to. Also for what is skipped, expired, or deleted."""

    def hold_back(self, start: int, end: int) -> None:
        """These offsets have become pending: hidden, and off the list of whoever has them.
        start < end."""
        self.cursor.hide(start, end)

    @abstractmethod
    def give_back_pending(self, start: int, end: int) -> None:
        """These offsets are pending no longer: they are shown, and what of them is not acknowledged
        by now is delivered again, nothing else with it where entries go to several consumers.
        start < end."""

    def seek(self, offset: int) -> None:
        """Begins anew from an offset: all that is outstanding is forgotten. Permits stay."""
        self.cursor.seek(offset)
        self._position = offset
        self._forget_outstanding()

    @abstractmethod
    def _forget_outstanding(self) -> None:
        """Nothing has been delivered to anybody."""

    # --- time ---

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """When `expire` has something to do, or None."""

    @abstractmethod
    def expire(self, now_ms: int) -> None:
        """Entries whose time has come may go."""

    # --- for types that need it ---

    def _pass_gap(self, position: int, end: int) -> None:
        if end > position:
            self.cursor.pass_gap(position, end)

    def remaining_of(self, entry: Entry) -> tuple[tuple[OffsetRange, ...] | None, int]:
        """What of the entry is not acknowledged (None: all of it), and how many messages."""
        size = entry.last_offset + 1 - entry.base_offset
        cursor = self.cursor
        if entry.base_offset >= cursor.untouched_from:
            return None, size
        remaining = cursor.unacknowledged(entry.base_offset, entry.last_offset + 1)
        count = sum(end - start for start, end in remaining)
        return (None if count == size else remaining), count

    def left_of(self, delivery: Delivery) -> tuple[tuple[OffsetRange, ...] | None, int]:
        """What of a delivery its consumer still is to have, if that was given a while ago (None:
        all of the entry), and how many messages."""
        if delivery.remaining is None:
            return self.remaining_of(delivery.entry)
        unacknowledged = self.cursor.unacknowledged
        left = tuple(part for each in delivery.remaining for part in unacknowledged(*each))
        return left, sum(end - start for start, end in left)
