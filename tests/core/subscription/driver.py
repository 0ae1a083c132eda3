"""A subscription driven as a runtime does it: events in, deliveries out, reads in between.

The log is a list of entries with gaps between them. `driver.got` tells what the last step gave.
"""

from __future__ import annotations

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes, Dispatcher
from core.subscription.subscription import Subscription
from core.subscription.values import (
    ConsumerId,
    ConsumerStatus,
    Delivery,
    DispatchSettings,
    Entry,
    HashRange,
    Joining,
    KeySharing,
    Refused,
    SubscriptionType,
)

NO_LIMITS = DispatchSettings(0, 0, 0, 0, 0)


class Driver:
    """per_read: how many entries a read finds at most."""

    def __init__(
        self,
        type: SubscriptionType,  # noqa: A002 - the subscription's word
        settings: DispatchSettings = NO_LIMITS,
        *,
        partition: int = -1,
        topic_name: str = "t",
        per_read: int = 2,
        key_sharing: KeySharing | None = None,
    ) -> None:
        self.type = type
        self.cursor = Cursor()
        self.subscription = Subscription(
            self.cursor, settings, partition=partition, topic_name=topic_name
        )
        self.key_sharing = key_sharing or KeySharing()
        self.log: list[Entry] = []
        self.log_end = 0
        self.now_ms = 0
        self.per_read = per_read
        self.got: list[Delivery] = []

    @property
    def dispatcher(self) -> Dispatcher:
        assert self.subscription.dispatcher is not None
        return self.subscription.dispatcher

    # --- the log ---

    def append(
        self,
        messages: int = 1,
        *,
        key: int | None = None,
        at: int | None = None,
        chunk: str | None = None,
        gap: int = 0,
    ) -> Entry:
        """A batch at the end; before it so many offsets that are no messages."""
        base = self.log_end + gap
        entry = Entry(base, base + messages - 1, key, at, chunk)
        self.log.append(entry)
        self.log_end = base + messages
        return entry

    def fill(self, *keys: int | None, count: int = 0) -> None:
        """Entries of one message, with these keys, or so many without."""
        for key in keys or [None] * count:
            self.append(key=key)

    # --- consumers ---

    def join(
        self,
        consumer_id: ConsumerId,
        permits: int = 0,
        *,
        name: str | None = None,
        priority_level: int = 0,
        ranges: tuple[tuple[int, int], ...] = (),
        type: SubscriptionType | None = None,  # noqa: A002
        key_sharing: KeySharing | None = None,
        epoch: int = 0,
    ) -> Changes | Refused:
        """The consumer comes, and takes so many messages."""
        answer = self.subscription.add_consumer(
            Joining(
                consumer_id,
                type or self.type,
                str(consumer_id) if name is None else name,
                priority_level,
                epoch,
                tuple(HashRange(*each) for each in ranges),
                key_sharing or self.key_sharing,
            )
        )
        if permits and not isinstance(answer, Refused):
            self.dispatcher.flow(consumer_id, permits)
        return answer

    def leave(self, consumer_id: ConsumerId) -> Changes:
        return self.dispatcher.remove_consumer(consumer_id)

    def flow(self, consumer_id: ConsumerId, permits: int) -> list[tuple[ConsumerId, int]]:
        self.dispatcher.flow(consumer_id, permits)
        return self.run()

    def status(self, consumer_id: ConsumerId) -> ConsumerStatus:
        return next(each for each in self.dispatcher.consumers() if each.consumer_id == consumer_id)

    # --- entries ---

    def run(self) -> list[tuple[ConsumerId, int]]:
        """All that can be delivered: (consumer, base offset)."""
        self.got = []
        if self.subscription.dispatcher is None:
            return []
        while True:
            deliveries = self.dispatcher.dispatch(3)
            if not deliveries:
                position = self.dispatcher.read_position
                if not self.dispatcher.wanted or position >= self.log_end:
                    break
                found = [each for each in self.log if each.last_offset >= position]
                end = self.log_end
                if len(found) > self.per_read:
                    found = found[: self.per_read]
                    end = found[-1].last_offset + 1
                deliveries = self.dispatcher.offer(position, found, end, self.now_ms)
                if not deliveries and self.dispatcher.read_position == position:
                    break
            self.got += deliveries
        return [(each.consumer_id, each.entry.base_offset) for each in self.got]

    def ack(self, *offsets: int) -> list[tuple[ConsumerId, int]]:
        """Whole entries of one message; and what can be delivered then."""
        for offset in offsets:
            self.subscription.acknowledge(offset, offset + 1, self.log_end)
        return self.run()

    def pend(self, owner: str, *offsets: int) -> bool:
        """Entries of one message, in a transaction."""
        return self.subscription.pend(owner, [[(each, each + 1)] for each in offsets], self.log_end)

    def commit(self, owner: str) -> list[tuple[ConsumerId, int]]:
        """And what can be delivered then."""
        self.subscription.commit_pending(owner)
        return self.run()

    def abort(self, owner: str) -> list[tuple[ConsumerId, int]]:
        self.subscription.abort_pending(owner)
        return self.run()

    def redeliver(
        self, consumer_id: ConsumerId, *offsets: int, epoch: int = 0
    ) -> list[tuple[ConsumerId, int]]:
        """Without offsets: all."""
        self.dispatcher.redeliver(consumer_id, offsets or None, epoch)
        return self.run()

    def counts(self) -> dict[int, int]:
        """Redelivery counts of what the last step gave."""
        return {each.entry.base_offset: each.redelivery_count for each in self.got}
