"""One subscription in one partition: its cursor, and the dispatcher of the type its consumers have.

The door that a runtime uses. Knows no names, no storage, no protocol.
"""

from __future__ import annotations

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes, Dispatcher
from core.subscription.key_shared import KeySharedDispatcher
from core.subscription.shared import SharedDispatcher
from core.subscription.single_active import ExclusiveDispatcher, FailoverDispatcher
from core.subscription.values import (
    DispatchSettings,
    Joining,
    Reason,
    Refused,
    SubscriptionType,
)


class Subscription:
    """dispatcher: of the type of those who are, or last were, there; None before anybody came.

    partition, topic_name: see FailoverDispatcher.
    """

    def __init__(
        self,
        cursor: Cursor,
        settings: DispatchSettings,
        *,
        partition: int = -1,
        topic_name: str = "",
    ) -> None:
        self.cursor = cursor
        self.dispatcher: Dispatcher | None = None
        self._settings = settings
        self._partition = partition
        self._topic_name = topic_name

    def settle_in(self, partition: int, topic_name: str) -> None:
        """Where it is, as its consumers call it; for the next dispatcher."""
        self._partition, self._topic_name = partition, topic_name

    def limit(self, settings: DispatchSettings) -> None:
        """Other limits, from now on; who is beyond them gets nothing until it has acknowledged."""
        self._settings = settings
        if self.dispatcher is not None:
            self.dispatcher.limit(settings)

    def add_consumer(self, joining: Joining) -> Changes | Refused:
        """A consumer comes. While there are others it has to be of their type; when there are none
        its type is the subscription's, and all is read again from the mark-delete offset."""
        dispatcher = self.dispatcher
        if dispatcher is None or not self._fits(dispatcher, joining):
            if dispatcher is not None and dispatcher.has_consumers:
                return Refused(Reason.OTHER_TYPE, "Subscription is of different type")
            dispatcher = self._make(joining)
        answer = dispatcher.add_consumer(joining)
        if not isinstance(answer, Refused):
            self.dispatcher = dispatcher
        return answer

    def _fits(self, dispatcher: Dispatcher, joining: Joining) -> bool:
        return dispatcher.type is joining.type and (
            dispatcher.key_sharing is None or dispatcher.key_sharing == joining.key_sharing
        )

    def _make(self, joining: Joining) -> Dispatcher:
        match joining.type:
            case SubscriptionType.EXCLUSIVE:
                return ExclusiveDispatcher(self.cursor, self._settings)
            case SubscriptionType.FAILOVER:
                return FailoverDispatcher(
                    self.cursor, self._settings, self._partition, self._topic_name
                )
            case SubscriptionType.SHARED:
                return SharedDispatcher(self.cursor, self._settings)
            case SubscriptionType.KEY_SHARED:
                return KeySharedDispatcher(self.cursor, self._settings, joining.key_sharing)

    def acknowledge(self, start: int, end: int, log_end: int) -> int:
        """Acknowledges the offsets from `start` on and below `end`, whoever has them; how many are
        new. Nothing at or after the log's end: what comes there later would be lost."""
        end = min(end, log_end)
        if start >= end:
            return 0
        return (self.dispatcher or self.cursor).acknowledge(start, end)

    def acknowledge_up_to(self, end: int, log_end: int) -> int:
        """Acknowledges all below `end`: a cumulative acknowledgement, messages that have expired,
        a log that begins later. How many are new."""
        return (self.dispatcher or self.cursor).acknowledge_up_to(min(end, log_end))

    def skip(self, count: int, log_end: int) -> int:
        """Acknowledges the next so many messages; how many there were."""
        return self.acknowledge_up_to(self.cursor.behind_next(count, log_end), log_end)

    def seek(self, offset: int) -> None:
        """Begins anew from an offset, which may be any: what is outstanding is forgotten."""
        (self.dispatcher or self.cursor).seek(offset)
