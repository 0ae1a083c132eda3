"""One subscription in one partition: its cursor, and the dispatcher of the type its consumers have.

The door that a runtime uses. Knows no names, no storage, no protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from core.subscription.cursor import Cursor
from core.subscription.dispatch import Changes, Dispatcher
from core.subscription.key_shared import KeySharedDispatcher
from core.subscription.offset_ranges import OffsetRange, OffsetRanges
from core.subscription.pending_acks import Owner, PendingAckHandle
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
        self._pending = PendingAckHandle(cursor)
        self._settings = settings
        self._partition = partition
        self._topic_name = topic_name

    def set_topic(self, partition: int, topic_name: str) -> None:
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

    # --- acknowledgements in transactions ---

    def pend(
        self,
        owner: Owner,
        ids: Iterable[Iterable[tuple[int, int]]],
        log_end: int,
        *,
        is_exact: bool = False,
    ) -> bool:
        """The transaction acknowledges the offsets (start, end) that each id names: nobody gets
        them until it ends. False: a conflict, and nothing of it was taken; see
        `PendingAckHandle.take`. Cut off as in `acknowledge`."""
        wanted = [
            [OffsetRange(start, min(end, log_end)) for start, end in each if start < log_end]
            for each in ids
        ]
        named = [[each for each in ranges if each.start < each.end] for ranges in wanted]
        taken = self._pending.take(owner, [each for each in named if each], is_exact=is_exact)
        if taken is None:
            return False
        for each in taken:
            self._hold_back(*each)
        return True

    def pend_up_to(self, owner: Owner, end: int, log_end: int) -> bool:
        """The same for all below `end`."""
        end = min(end, log_end)
        if end <= 0:
            return True
        is_taken = self._pending.take_up_to(owner, end)
        if is_taken:
            self._hold_back(0, end)
        return is_taken

    def leave_unanswered(
        self, owner: Owner, ranges: Iterable[tuple[int, int]], cumulative_end: int | None
    ) -> None:
        """Nobody has told the client what became of this: it may ask once more."""
        asked = [OffsetRange(start, end) for start, end in ranges if start < end]
        self._pending.leave_unanswered(owner, asked, cumulative_end or 0)

    def load_pending(
        self, owner: Owner, ranges: Iterable[tuple[int, int]], cumulative_end: int | None
    ) -> None:
        """What the transaction held when the subscription was stored."""
        self._pending.load(owner, [OffsetRange(*each) for each in ranges], cumulative_end or 0)
        held, up_to = self._pending.of(owner)
        for each in [*held, *([OffsetRange(0, up_to)] if up_to else [])]:
            self._hold_back(*each)

    def commit_pending(self, owner: Owner) -> int:
        """The transaction's acknowledgements count; how many are new. 0 where it has none."""
        held = self._pending.release(owner)
        target = self.dispatcher or self.cursor
        new = target.acknowledge_up_to(held.up_to)
        new += sum(target.acknowledge(*each) for each in held.ranges)
        for each in held.free:
            self._show(*each)
        return new

    def abort_pending(self, owner: Owner) -> None:
        """The transaction's acknowledgements are forgotten: what nobody else has acknowledged
        meanwhile is delivered again."""
        for each in self._pending.release(owner).free:
            self._show(*each)

    def keep_pending(
        self, owner: Owner, ranges: Iterable[tuple[int, int]], cumulative_end: int | None
    ) -> None:
        """The transaction holds just this from now on, as the store has it: what else it held is as
        with `abort_pending`, and what it holds already stays untouched."""
        held = OffsetRanges()
        kept_ranges = [OffsetRange(*each) for each in ranges]
        goes_on = bool(kept_ranges or cumulative_end)
        for each in self._pending.release(owner, goes_on=goes_on).free:
            held.add(*each)
        self._pending.load(owner, kept_ranges, cumulative_end or 0)
        kept, up_to = self._pending.of(owner)
        keeping = OffsetRanges()
        for each in [*kept, *([OffsetRange(0, up_to)] if up_to else [])]:
            keeping.add(*each)
        for each in held:
            for gone in keeping.missing(*each):
                self._show(*gone)
        for each in keeping:
            for new in held.missing(*each):
                self._hold_back(*new)

    def _hold_back(self, start: int, end: int) -> None:
        if self.dispatcher is not None:
            self.dispatcher.hold_back(start, end)
        else:
            self.cursor.hide(start, end)

    def _show(self, start: int, end: int) -> None:
        if self.dispatcher is not None:
            self.dispatcher.give_back_pending(start, end)
        else:
            self.cursor.show(start, end)

    def is_pending(self, owner: Owner) -> bool:
        """Whether the transaction has acknowledged something here, and is open."""
        return owner in self._pending

    @property
    def pends_anything(self) -> bool:
        """Whether any transaction has."""
        return bool(self._pending)

    @property
    def pending_owners(self) -> Collection[Owner]:
        """Transactions that have acknowledged something here, and are open."""
        return self._pending.owners

    @property
    def pending_count(self) -> int:
        """Offsets that are pending, and not acknowledged otherwise."""
        return self.cursor.count_hidden()

    def pending_of(self, owner: Owner) -> tuple[tuple[OffsetRange, ...], int | None]:
        """What the transaction has acknowledged: ranges in order, and all below what, if so."""
        return self._pending.of(owner)
