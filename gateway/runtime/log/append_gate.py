"""Keeps appends in order of arrival, even if some must look up a topic first.

If the lookup fails, all waiting requests get its result. Does not know what is appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from core.log.retry_order import RetryOrder, Unresolved
from core.ports.log import StoreUnavailable
from core.topic.topic import Topic
from core.types import RecordBatch
from gateway.runtime.topics.topics import Topics

Key = str | UUID
"""A topic by its name or its id."""

Result = TypeVar("Result")


class AppendGate:
    """Held during a lookup. A request that arrives while it is held waits for it.

    A plain lock will not do: between its release and the next waiter's turn it says that it is not
    locked, and a request that arrives just then would overtake the waiter.

    retry_order: the log's, for idempotent producers; None if there are none.
    """

    def __init__(self, retry_order: RetryOrder | None = None) -> None:
        self._lock = asyncio.Lock()
        self._inside = 0
        self._failures = 0  # lookups; requests that have seen fewer failures need not look again
        self._retry_order = retry_order

    async def with_topics(
        self,
        topics: Topics,
        keys: Set[Key],
        append: Callable[[Mapping[Key, Topic], bool], Result],
    ) -> Result:
        """Calls `append` with the topics that exist, in the order of these calls.

        As a rule all topics are known, and `append` is called at once. If one must be looked up,
        later calls wait behind it. `append` queues its batches before it returns. Its flag says
        that the lookup failed: batches for topics it was not given are refused for now
        (`turn_away`).
        """
        if not self._inside:  # is_free, without a call
            known = _cached(topics, keys)
            if len(known) == len(keys):
                return self._append(append, known)
        failures = self._failures
        async with self:
            if failures == self._failures:
                try:
                    found = await _look_up(topics, keys)
                except StoreUnavailable:
                    self._failures += 1
                else:
                    return self._append(append, found)
            # Batches for known topics go on; the lookup has failed, here or for an earlier request.
            return self._append(append, _cached(topics, keys), is_away=True)

    def turn_away(self, topic: Key, number: int, batch: RecordBatch) -> None:
        """Notes a refused batch of a topic that could not be looked up; none may overtake it."""
        assert self._retry_order is not None, "a gate for idempotent producers"
        self._retry_order.note(Unresolved(topic, number), batch, _now())

    def _append(
        self,
        append: Callable[[Mapping[Key, Topic], bool], Result],
        found: Mapping[Key, Topic],
        *,
        is_away: bool = False,
    ) -> Result:
        if self._retry_order is not None and self._retry_order.has_unresolved:
            for topic in found.values():
                for name in (topic.name, topic.topic_id):
                    self._retry_order.resolve(name, topic.partition_ids, _now())
        return append(found, is_away)

    @property
    def is_free(self) -> bool:
        """Whether no request holds it or waits for it."""
        return self._inside == 0

    async def __aenter__(self) -> None:
        self._inside += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._inside -= 1
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside -= 1
        self._lock.release()


def _cached(topics: Topics, keys: Set[Key]) -> dict[Key, Topic]:
    known = {}
    for key in keys:
        topic = topics.cached(key) if isinstance(key, str) else topics.cached_by_id(key)
        if topic is not None:
            known[key] = topic
    return known


async def _look_up(topics: Topics, keys: Set[Key]) -> dict[Key, Topic]:
    by_name = await topics.get_many({key for key in keys if isinstance(key, str) and key})
    found: dict[Any, Topic] = {**by_name}
    return found | await topics.get_many_by_id({key for key in keys if isinstance(key, UUID)})


def _now() -> float:
    return asyncio.get_running_loop().time()
