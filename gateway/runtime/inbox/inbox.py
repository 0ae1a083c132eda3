"""Publishes what waits in the inbox: looks, decides (core), appends through the flush, looks again.

One broker has the watch and looks every few milliseconds while there is work; then whoever commits
need not wake anybody. With nothing to do it leaves the watch, and a commit wakes all brokers. The
others see once in a while whether the one that has it goes on. All this only saves time: two that
publish at once are told apart by the position's version. Knows no wire and no SQL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import structlog

from core.errors import Error
from core.inbox.bite import BiteAnswer
from core.inbox.position import Bite, LookAgain, TooLarge, next_step
from core.inbox.values import (
    BiteBatch,
    InboxMove,
    InboxPosition,
    Look,
    RefusedRecords,
    WaitingRecord,
)
from core.ports.inbox import InboxStore
from core.ports.log import RowLocked, StoreUnavailable
from core.ports.topics import Heartbeat
from core.staging.values import (
    MAX_BATCHES,
    Guard,
    Outcome,
    Publication,
    TokenBatch,
    WantedToken,
)
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.inbox.batches import BatchMaker
from gateway.runtime.staging import Staging
from gateway.runtime.topics.topics import Topics

log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 0.002
"""Between two looks while there is work, and a little longer each time there was none."""
LOOK_AT_MOST_S: Final = 0.005
IDLE_AFTER_S: Final = 1.0
"""Without work for so long, the watch is left."""
STILL_LOOK_S: Final = 0.05
STILL_LOOK_FOR_S: Final = 1.0
"""After that: who has seen the watch at the last moment commits within this time."""
CHECK_OTHERS_S: Final = 0.2
"""How often a broker without the watch sees whether the one that has it goes on."""
AWAY_S: Final = 0.2
EMPTY_EVERY_S: Final = 1.0
BITE_RECORDS: Final = 2_000
BITE_BYTES: Final = 2 * 2**20
PAGE_BYTES: Final = 4 * 2**20
PAGE_RECORDS: Final = 10_000


class Inbox:
    """One per process. Counts for metrics: published, refused (records); oldest_s: the age of the
    oldest transaction in the last look, in seconds; seconds: from commits to publications."""

    def __init__(
        self,
        store: InboxStore,
        flusher: Flusher,
        staging: Staging,
        topics: Topics,
        batches: BatchMaker,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._staging = staging
        self._topics = topics
        self._batches = batches
        self._position: InboxPosition | None = None
        self._wake = asyncio.Event()
        self._last_stamp = 0
        self._emptied_at = 0.0
        self.published = 0
        self.refused = 0
        self.oldest_s = 0.0
        self.on_published: Callable[[float, int], None] = lambda seconds, records: None

    def wake(self) -> None:
        """Something was committed, or may have been."""
        self._wake.set()

    def on_heartbeat(self, _: float, heartbeat: Heartbeat) -> None:
        """In case that news was lost."""
        if heartbeat.last_stamp != self._last_stamp:
            self._last_stamp = heartbeat.last_stamp
            self.wake()

    def forget_everything(self) -> None:
        """The database has another history."""
        self._position = None
        self.wake()

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if await self._store.take_the_watch():
                    await self._work()
                else:
                    await self._see_others_work()
            except StoreUnavailable as error:
                log.debug("inbox_not_read", reason=str(error))
                self._position = None
                await asyncio.sleep(AWAY_S)
                self.wake()
            except RowLocked as error:
                log.debug("inbox_locked", reason=str(error))
                self.wake()

    # --- with the watch ---

    async def _work(self) -> None:
        """Looks until there has been nothing to do for a while, or the watch is lost."""
        now = asyncio.get_running_loop().time
        pause_s, worked_at = LOOK_AGAIN_S, now()
        while self._store.has_the_watch and now() < worked_at + IDLE_AFTER_S:
            if await self._publish_next():
                pause_s, worked_at = LOOK_AGAIN_S, now()
            else:
                self.oldest_s = 0.0
                pause_s = min(pause_s * 1.2, LOOK_AT_MOST_S)
            await self._empty_now_and_then()
            await asyncio.sleep(pause_s)
        if not self._store.has_the_watch:
            raise StoreUnavailable("the watch was lost")
        await self._store.leave_the_watch()
        until = now() + STILL_LOOK_FOR_S
        while now() < until and not self._wake.is_set():
            if await self._publish_next():
                self.wake()
            await asyncio.sleep(STILL_LOOK_S)

    async def _empty_now_and_then(self) -> None:
        now = time.monotonic()
        if self._position is not None and now > self._emptied_at + EMPTY_EVERY_S:
            self._emptied_at = now
            await self._store.empty(self._position)

    async def _see_others_work(self) -> None:
        """Another broker has the watch: it is to get on with what this one sees."""
        before = await self._store.position()
        look = await self._store.look(before, records=1, max_bytes=1)
        if not look.records and not look.is_crowded:
            await asyncio.sleep(CHECK_OTHERS_S)
            return
        await asyncio.sleep(CHECK_OTHERS_S)
        self.wake()
        if (await self._store.position()).version == before.version:
            log.info("inbox_taken_over")
            await self._store.break_the_watch()

    # --- publishing ---

    async def _publish_next(self) -> bool:
        """Looks, and publishes what comes next; whether there was anything."""
        if self._position is None:
            self._position = await self._store.position()
        look = await self._store.look(self._position, records=BITE_RECORDS, max_bytes=BITE_BYTES)
        step = next_step(self._position, look)
        match step:
            case None:
                return False
            case LookAgain(position):
                self._position = position
            case Bite(records, position):
                await self._publish(records, position, look)
            case TooLarge():
                await self._publish_large(step, look)
        return True

    async def _publish(
        self, records: Sequence[WaitingRecord], position: InboxPosition, look: Look
    ) -> None:
        assert self._position is not None, "it was looked from there"
        batches, refused = await self._batches_of(records)
        move = InboxMove(self._position.version, position, tuple(refused))
        answer = await self._flusher.publish_bite(batches, move)
        if isinstance(answer, Unconfirmed):
            await self._read_again(answer)
            return
        self._position = position
        self._note(answer, records, look)

    async def _read_again(self, answer: Unconfirmed) -> None:
        """Not known to be published: the store knows how far it is."""
        log.debug("bite_not_published", reason=answer.reason.name, message=answer.message)
        self._position = None
        await asyncio.sleep(LOOK_AT_MOST_S)

    async def _batches_of(
        self, records: Sequence[WaitingRecord]
    ) -> tuple[list[BiteBatch], list[RefusedRecords]]:
        topics = await self._topics.get_many_by_id({each.topic_id for each in records})
        if any(each.config.compression_type is not None for each in topics.values()):
            return await asyncio.to_thread(self._batches.batches_of, records, topics)
        return self._batches.batches_of(records, topics)

    def _note(self, answer: BiteAnswer, records: Sequence[WaitingRecord], look: Look) -> None:
        self.published += answer.records
        for each in answer.move.refused:
            self.refused += each.records
            log.warning(
                "records_refused",
                topic=each.topic,
                partition=each.partition,
                records=each.records,
                reason=each.reason,
            )
        if records:
            self.oldest_s = max(0.0, look.read_at - min(each.committed_at for each in records))
            self.on_published(self.oldest_s, answer.records)

    async def _publish_large(self, large: TooLarge, look: Look) -> None:
        """A transaction of more than a bite: its batches are stored first, in pieces, and then
        published at once."""
        assert self._position is not None, "it was looked from there"
        tokens: list[WantedToken] = []
        refused = []
        after, records, total = -1, 0, 0
        while True:
            page = await self._store.page(
                large.transaction,
                self._position.era,
                after,
                records=PAGE_RECORDS,
                max_bytes=PAGE_BYTES,
            )
            if not page:
                break
            after, records = page[-1].number, records + len(page)
            batches, left_out = await self._batches_of(page)
            refused += left_out
            total += len(batches)
            if batches:
                token = uuid4()
                staged = [
                    TokenBatch(each.topic, each.partition, each.partition_id, each.incoming)
                    for each in batches
                ]
                result = await self._staging.stage(token, 0, staged)
                tokens.append(WantedToken(token, len(staged)))
                if result.error is not Error.NONE or total > MAX_BATCHES:
                    log.warning("large_transaction_not_staged", reason=result.message)
                    await self._staging.drop([each.token for each in tokens])
                    await asyncio.sleep(AWAY_S)
                    return
        move = InboxMove(self._position.version, large.position, tuple(refused))
        guard = Guard(f"inbox {self._position.era} {large.transaction}", "")
        publication = Publication(guard, large.position.version, tuple(tokens))
        answer = await self._flusher.publish(publication, move)
        if isinstance(answer, Unconfirmed) or answer.outcome is not Outcome.PUBLISHED:
            log.warning("large_transaction_not_published", reason=answer.message)
            await self._staging.drop([each.token for each in tokens])
            self._position = None
            return
        self._position = large.position
        self._note(BiteAnswer(move, records), look.records[:1], look)
