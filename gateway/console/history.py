"""Numbers over time, as plots show them: those that somebody looks at, of the last ten minutes.

What nobody looks at is not asked for; so a plot begins when the first one looks. Longer histories
are what Prometheus is for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from core.ports.log import StoreUnavailable

if TYPE_CHECKING:
    from core.ports.console import ConsoleReads
    from core.ports.console.subscriptions import SubscriptionKey
    from gateway.console.plots import Series

log = structlog.get_logger(__name__)

SPAN_S: Final = 600.0
_EVERY_S: Final = 5.0
_KEPT_S: Final = 300.0
"""After somebody has looked last."""
_MOST_WATCHED: Final = 500
_MOST_OF_THE_TIME: Final = 1 / 20
"""So much of it each kind is asked for at most: where that takes long, a plot has fewer points."""

Values = Mapping[str, int]
Sample = tuple[float, Values]
Name = TypeVar("Name", bound=Hashable)
Read = Callable[[Collection[Name]], Awaitable[Mapping[Name, Values]]]


class History(Generic[Name]):
    """Numbers of one kind, such as lags of groups, by whose they are. read: as they are now."""

    def __init__(self, read: Read[Name]) -> None:
        self._read = read
        self._samples: dict[Name, deque[Sample]] = {}
        self._looked_at: dict[Name, float] = {}
        self._rests_until = float("-inf")

    def of(self, name: Name) -> Mapping[str, Series]:
        """What is known by now, by part (such as partitions); from now on it is watched."""
        if name in self._samples or len(self._samples) < _MOST_WATCHED:
            self._samples.setdefault(name, deque(maxlen=int(SPAN_S / _EVERY_S) + 1))
            self._looked_at[name] = time.monotonic()
        series: dict[str, list[tuple[float, float]]] = {}
        for at, values in self._samples.get(name, ()):
            for part, value in values.items():
                series.setdefault(part, []).append((at, value))
        return series

    @property
    def is_watched(self) -> bool:
        """Whether there is anything to ask for."""
        return bool(self._samples)

    async def look(self) -> None:
        """Takes a sample of all that is watched, unless the last one took long. Raises
        StoreUnavailable."""
        now = time.monotonic()
        for name in [each for each, at in self._looked_at.items() if now - at > _KEPT_S]:
            del self._looked_at[name], self._samples[name]
        if not self._samples or now < self._rests_until:
            return
        try:
            found = await self._read(list(self._samples))
        finally:
            self._rests_until = now + (time.monotonic() - now) / _MOST_OF_THE_TIME
        at = time.time()
        for name, samples in self._samples.items():
            while samples and samples[0][0] < at - SPAN_S:
                samples.popleft()
            if name in found:
                samples.append((at, found[name]))


class Histories:
    """All of them, and the task that asks while somebody looks. One per process."""

    def __init__(self, reads: ConsoleReads) -> None:
        async def totals(_: Collection[str]) -> Mapping[str, Values]:
            now = await reads.overview.totals()
            return {"": {"appended": now.appended, "committed": now.committed}}

        async def appended(topics: Collection[str]) -> Mapping[str, Values]:
            found = await reads.overview.appended(topics)
            return {name: {"appended": number} for name, number in found.items()}

        self._totals = History(totals)
        self._topics = History(appended)
        self._groups = History(reads.overview.unread)
        self._subscriptions = History(reads.subscriptions.backlogs)
        self._task: asyncio.Task[None] | None = None

    def totals(self) -> Mapping[str, Series]:
        """`appended` and `committed` offsets of all topics."""
        return self._watched(self._totals, "")

    def topic(self, name: str) -> Mapping[str, Series]:
        """`appended` offsets of a topic."""
        return self._watched(self._topics, name)

    def group(self, group_id: str) -> Mapping[str, Series]:
        """Offsets that a group is behind, by topic and partition (`orders-3`)."""
        return self._watched(self._groups, group_id)

    def subscription(self, key: SubscriptionKey) -> Mapping[str, Series]:
        """Messages in the backlog of a subscription, by partition (`3`)."""
        return self._watched(self._subscriptions, key)

    def _watched(self, history: History[Name], name: Name) -> Mapping[str, Series]:
        found = history.of(name)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return found

    async def _run(self) -> None:
        """Until nobody has looked for a while."""
        all_: tuple[History[Any], ...] = (
            *(self._totals, self._topics, self._groups, self._subscriptions),
        )
        while any(each.is_watched for each in all_):
            began = time.monotonic()
            for each in all_:
                try:
                    await each.look()
                except StoreUnavailable:
                    pass  # a gap in the plot
                except Exception:
                    log.exception("history_not_read")
            await asyncio.sleep(max(0.5, began + _EVERY_S - time.monotonic()))
