"""Rows of the consumers that are connected here, for people: `v_consumer`.

Every few seconds what has changed is written, and now and then all. While nobody is connected
nothing is asked of the database. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import structlog

from core.ports.log import StoreUnavailable
from core.ports.subscriptions import LiveConsumer, SubscriptionStore
from gateway.runtime.subscriptions.members import Member

if TYPE_CHECKING:
    from gateway.runtime.cluster.membership import Cluster
    from gateway.runtime.subscriptions.partition import OwnedPartition

log = structlog.get_logger(__name__)

EVERY_S: Final = 2.0
_ALL_EVERY_S: Final = 30.0  # in case the database has lost them, as it does when it crashes


class LiveConsumers:
    """What was written last, and the loop that writes."""

    def __init__(
        self,
        store: SubscriptionStore,
        cluster: Cluster,
        owned: Callable[[], Iterable[OwnedPartition]],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._owned = owned
        self._written: dict[int, LiveConsumer] = {}
        self._all_written_at = float("-inf")

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.write()
            except StoreUnavailable as away:
                log.debug("consumers_not_shown", reason=str(away))
                self._all_written_at = float("-inf")

    async def write(self) -> None:
        """Once. Raises StoreUnavailable."""
        found = {each.number: each for each in self._look()}
        if not found and not self._written:
            return
        now = time.monotonic()
        is_whole = now - self._all_written_at >= _ALL_EVERY_S
        if is_whole:
            changed, gone = list(found.values()), None
        else:
            changed = [each for each in found.values() if self._written.get(each.number) != each]
            gone = [number for number in self._written if number not in found]
        if is_whole or changed or gone:
            cluster = self._cluster
            await self._store.show(cluster.broker_id, cluster.incarnation, changed, gone)
        self._written = found
        if is_whole:
            self._all_written_at = now

    def _look(self) -> Iterator[LiveConsumer]:
        for owned in self._owned():
            for subscription in owned.subscriptions:
                dispatcher = subscription.core.dispatcher
                if dispatcher is None or not subscription.members:
                    continue
                for status in dispatcher.consumers():
                    member = status.consumer_id
                    assert isinstance(member, Member)
                    receiver = member.receiver
                    yield LiveConsumer(
                        member.number,
                        owned.partition_id,
                        subscription.name,
                        status.name,
                        dispatcher.type,
                        receiver.address,
                        receiver.client,
                        receiver.connected_at,
                        status.priority_level,
                        member.permits,
                        status.unacked,
                        status.is_active,
                        status.is_blocked,
                    )
