"""Publishes what waits in the inbox: looks, decides (core), appends through the flush, looks again.

One broker has the watch and looks every few milliseconds while there is work; then whoever commits
need not wake anybody. With nothing to do it leaves the watch, and a commit wakes all brokers. The
others see once in a while whether the one that has it goes on. All this only saves time: two that
publish at once are told apart by the position's version. Knows no wire and no SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from core.ports.log import EffectRefused, RowLocked, StoreUnavailable
from core.ports.topics import Heartbeat
from core.staging.values import (
    Guard,
    Outcome,
    Publication,
    TokenBatch,
    WantedToken,
)
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.flush.outcomes import Reason, Unconfirmed
from gateway.runtime.inbox.batches import BatchMaker, by_topic, name_what_is_not_there
from gateway.runtime.staging import Staging
from gateway.runtime.topics.topics import Topics

log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 0.001
"""Between two looks while there is work, and a little longer each time there was none."""
LOOK_AT_MOST_S: Final = 0.005
LEAVE_AT_MOST_S: Final = 0.1
"""To others that append beside a backlog, after each bite; shorter than SILENT_S."""
FEW_RECORDS: Final = 8
"""Where more are published at once, the next look is later: fewer bites leave sessions more of the
processors."""
IDLE_AFTER_S: Final = 0.3
"""Without work for so long, the watch is left."""
STILL_LOOK_S: Final = 0.05
STILL_LOOK_AT_MOST_S: Final = 1.0
"""Between two looks without the watch, for who has seen it at COMMIT, and a little longer each
time."""
CHECK_OTHERS_S: Final = 0.08
"""How often a broker without the watch sees whether the one that has it goes on."""
SILENT_S: Final = 0.2
"""After so long without a move, the watch of a broker that asks nothing is taken."""
LATE_S: Final = 3.0
"""After so long without a move the watch is taken even from a broker that looks."""
AWAY_S: Final = 0.1
FAILED_S: Final = 1.0
EMPTY_EVERY_S: Final = 1.0
EMPTY_IDLE_EVERY_S: Final = 10.0
"""Where something was written, and nothing to be published."""
BITE_RECORDS: Final = 4_000
BITE_BYTES: Final = 4 * 2**20
PAGE_BYTES: Final = 4 * 2**20
PAGE_RECORDS: Final = 10_000
PAGE_ATTEMPTS: Final = 10
MANY_BATCHES: Final = 100
"""Of a page: then the next ones are larger, since so many partitions share them."""


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
        self._is_ahead = False  # of what is stored, by a look
        self._looked_at = 0.0  # before the first look from what is stored
        self._next_look: tuple[InboxPosition, float, Look] | None = None  # where, begun when
        self._wake = asyncio.Event()
        self._last_stamp = 0
        self._seen_stamp = 0  # the last one that was looked at
        self._last_number = 0
        self._is_written = False  # since it was last looked whether a slot is to be emptied
        self._emptied_at = 0.0
        self.published = 0
        self.refused = 0
        self.oldest_s = 0.0
        self.on_published: Callable[[float, int], None] = lambda seconds, records: None

    def wake(self) -> None:
        """Something was committed, or may have been."""
        self._wake.set()

    def on_heartbeat(self, _: float, heartbeat: Heartbeat) -> None:
        """In case that news was lost. Offsets alone have none, and fill slots, too."""
        self._is_written = self._is_written or heartbeat.last_number != self._last_number
        self._last_number = heartbeat.last_number
        if heartbeat.last_stamp not in (self._last_stamp, self._seen_stamp):
            self.wake()  # what has drawn an earlier one has ended or is waited for
        self._last_stamp = heartbeat.last_stamp

    def forget_everything(self) -> None:
        """The database has another history."""
        self._position = None
        self._seen_stamp = 0
        self.wake()

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            try:
                await self._until_woken()
                self._wake.clear()
                if await self._store.take_the_watch():
                    await self._work()
                else:
                    await self._see_others_work()
                await self._wait_for_commits()
            except StoreUnavailable as error:
                log.debug("inbox_not_read", reason=str(error))
                await self._begin_again(AWAY_S)
            except RowLocked as error:
                log.debug("inbox_locked", reason=str(error))
                self.wake()
            except EffectRefused as error:
                log.error("inbox_refused_by_database", reason=str(error))
                await self._begin_again(FAILED_S)
            except Exception:  # what cannot be published must not end one broker after the other
                log.exception("inbox_failed")
                await self._begin_again(FAILED_S)

    async def _until_woken(self) -> None:
        """Empties what was written meanwhile and never to be published, as offsets alone are."""
        while not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EMPTY_IDLE_EVERY_S):
                    await self._wake.wait()
            if self._is_written and not self._wake.is_set():
                self._is_written = False
                await self._store.empty(await self._store.position())

    async def _begin_again(self, after_s: float) -> None:
        self._position = None
        await asyncio.sleep(after_s)
        self.wake()

    # --- with the watch ---

    async def _work(self) -> None:
        """Looks until there has been nothing to do for a while, or the watch is lost."""
        now = asyncio.get_running_loop().time
        pause_s, worked_at = LOOK_AGAIN_S, now()
        while self._store.has_the_watch and now() < worked_at + IDLE_AFTER_S:
            begun_at, arrived, published = now(), self._flusher.arrived, self.published
            self._wake.clear()  # a look sees all that has woken it
            if await self._publish_next():
                worked_at = now()
                do_others_append = self._flusher.arrived > arrived + 1
                pause_s = self._pause_s(
                    self.published - published, worked_at - begun_at, do_others_append
                )
            else:
                self.oldest_s = 0.0
                pause_s = min(pause_s * 1.2, LOOK_AT_MOST_S)
            await self._empty_now_and_then()
            await asyncio.sleep(pause_s)
        if not self._store.has_the_watch:
            raise StoreUnavailable("the watch was lost")
        await self._store.leave_the_watch()

    def _pause_s(self, records: int, took_s: float, do_others_append: bool) -> float:
        """After a bite: in a backlog long enough to leave room for others, else until the next one
        is worth while."""
        if self._position is not None and self._position.target is not None:
            return min(2 * took_s, LEAVE_AT_MOST_S) if do_others_append else LOOK_AGAIN_S
        return min(max(1.0, records / FEW_RECORDS) * LOOK_AGAIN_S, LOOK_AT_MOST_S)

    async def _empty_now_and_then(self) -> None:
        now = time.monotonic()
        if self._position is not None and now > self._emptied_at + EMPTY_EVERY_S:
            self._emptied_at = now
            await self._store.empty(self._position)

    # --- without it ---

    async def _wait_for_commits(self) -> None:
        """Who has seen the watch at its COMMIT wakes nobody, however long that takes (a standby, a
        lock): looks until all of those have ended."""
        pause_s = STILL_LOOK_S
        while not self._wake.is_set():
            are_under_way = await self._store.are_commits_under_way()
            if await self._publish_next():
                self.wake()
            elif not are_under_way:
                return
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.2, STILL_LOOK_AT_MOST_S)

    async def _see_others_work(self) -> None:
        """Another broker has the watch: as long as it has, it is to get on with what this one sees.

        One that asks the database nothing meanwhile is dead, stopped or stuck. One that does may
        take longer for a large transaction.
        """
        now = asyncio.get_running_loop().time
        moved_at, version = now(), -1
        while True:
            if self._wake.is_set() and not await self._store.is_watched():
                return
            self._wake.clear()  # a heartbeat's, as a rule: no reason to begin anew
            position = await self._store.position()
            look = await self._store.look(position, records=1, max_bytes=1)
            waits = bool(look.records) or look.is_crowded or look.is_cut
            if not waits and not await self._store.is_watched():
                return
            if not waits or position.version != version:
                moved_at, version = now(), position.version
            elif now() >= moved_at + SILENT_S and await self._takes_over(
                is_late=now() >= moved_at + LATE_S
            ):
                log.info("inbox_taken_over")
                if not await self._store.take_the_watch():
                    await self._publish_all()  # it only saves time; no broker may hold that lock
                self.wake()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_OTHERS_S):
                    await self._wake.wait()

    async def _publish_all(self) -> None:
        is_left = True
        while is_left:
            is_left = await self._publish_next()

    async def _takes_over(self, *, is_late: bool) -> bool:
        """Whether the watch was broken, or there is no more waiting for that."""
        if not await self._store.is_watched():
            return True
        try:
            is_broken = await self._store.break_the_watch(0.0 if is_late else SILENT_S)
        except EffectRefused as error:  # the session is another role's
            log.warning("inbox_watch_not_broken", reason=str(error))
            return True
        return is_broken or is_late

    # --- publishing ---

    async def _publish_next(self) -> bool:
        """Looks, and publishes what comes next; whether there was anything."""
        now = time.monotonic()
        if self._position is None or not self._is_ahead:
            self._looked_at = now
        if self._position is None:
            self._position, self._is_ahead = await self._store.position(), False
        position_then = self._position
        look = await self._look(position_then)
        if self._position is not position_then:  # the database has another history
            return True
        self._seen_stamp = max(self._seen_stamp, look.last_stamp)
        step = next_step(position_then, look)
        match step:
            case None:
                return False
            case LookAgain(position):
                self._position, self._is_ahead = position, True
            case Bite(records, position):
                await self._publish(records, position, look)
            case TooLarge():
                await self._publish_large(step, look)
        return True

    async def _look(self, position: InboxPosition) -> Look:
        taken, self._next_look = self._next_look, None
        if taken is not None and taken[0] is position:
            _, self._looked_at, look = taken
            return look
        return await self._store.look(position, records=BITE_RECORDS, max_bytes=BITE_BYTES)

    async def _look_ahead(self, position: InboxPosition) -> None:
        """Looks for what follows a bite of a backlog while that is stored: its place is known."""
        if position.target is None:
            return
        begun_at = time.monotonic()
        with contextlib.suppress(StoreUnavailable, RowLocked):
            look = await self._store.look(position, records=BITE_RECORDS, max_bytes=BITE_BYTES)
            self._next_look = position, begun_at, look

    def _moved(self, position: InboxPosition) -> None:
        """The position is stored."""
        self._position, self._is_ahead = position, False

    async def _publish(
        self, records: Sequence[WaitingRecord], position: InboxPosition, look: Look
    ) -> None:
        assert self._position is not None, "it was looked from there"
        move = InboxMove(self._position.version, position, self._looked_at)
        _, answer = await asyncio.gather(
            self._look_ahead(position), self._store_bite(records, move)
        )
        if isinstance(answer, Unconfirmed):
            await self._read_again(answer)
            return
        self._moved(position)
        self._note(answer, look)

    async def _store_bite(
        self, records: Sequence[WaitingRecord], move: InboxMove
    ) -> BiteAnswer | Unconfirmed:
        batches, refused = await self._batches_of(records)
        return await self._flusher.publish_bite(batches, replace(move, refused=tuple(refused)))

    async def _read_again(self, answer: Unconfirmed) -> None:
        """Not known to be published: the store knows how far it is."""
        log.debug("bite_not_published", reason=answer.reason.name, message=answer.message)
        self._position = None
        is_for_long = answer.reason in (Reason.OUT_OF_SPACE, Reason.FAILED)
        await asyncio.sleep(FAILED_S if is_for_long else LOOK_AT_MOST_S)

    async def _batches_of(
        self, records: Sequence[WaitingRecord]
    ) -> tuple[list[BiteBatch], list[RefusedRecords]]:
        of_topics = by_topic(records)
        topics = await self._topics.get_many_by_id(of_topics)
        if name_what_is_not_there(of_topics, topics):
            self._topics.invalidate()  # partitions were added, and the news is late
            topics = await self._topics.get_many_by_id(of_topics)
        if any(each.config.compression_type is not None for each in topics.values()):
            return await asyncio.to_thread(self._batches.batches_of, of_topics, topics)
        return self._batches.batches_of(of_topics, topics)

    def _note(self, answer: BiteAnswer, look: Look) -> None:
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
        if look.records:
            self.oldest_s = look.waited_s
            self.on_published(self.oldest_s, answer.records)

    async def _publish_large(self, large: TooLarge, look: Look) -> None:
        """A transaction of more than a bite: its batches are stored first, in pieces, and then
        published at once."""
        assert self._position is not None, "it was looked from there"
        version, era = self._position.version, self._position.era
        tokens: list[WantedToken] = []
        try:
            refused, records = await self._stage(large.transaction, era, tokens)
            move = InboxMove(version, large.position, self._looked_at, tuple(refused))
            guard = Guard(f"inbox {era} {large.transaction}", "")
            publication = Publication(guard, large.position.version, tuple(tokens))
            answer = await self._flusher.publish(publication, move)
            if isinstance(answer, Unconfirmed) or answer.outcome is not Outcome.PUBLISHED:
                raise StoreUnavailable(answer.message or "")
        except StoreUnavailable as error:
            log.warning("large_transaction_not_published", reason=str(error))
            await self._staging.drop([each.token for each in tokens])
            raise
        self._moved(large.position)
        published = sum(each.record_count for each in answer.partitions)
        self.refused += records - published
        self._note(BiteAnswer(move, published), look)

    async def _stage(
        self, transaction: int, era: int, tokens: list[WantedToken]
    ) -> tuple[list[RefusedRecords], int]:
        """Adds the tokens; gives what is left out, and the number of all other records."""
        refused: list[RefusedRecords] = []
        after, records, factor = -1, 0, 1
        while page := await self._page(transaction, era, after, factor):
            after, records = page[-1].number, records + len(page)
            batches, left_out = await self._batches_of(page)
            refused += left_out
            records -= sum(each.records for each in left_out)
            if len(batches) > MANY_BATCHES:
                factor = 8
            if not batches:
                continue
            token = uuid4()
            tokens.append(WantedToken(token, len(batches)))
            staged = [
                TokenBatch(each.topic, each.partition, each.partition_id, each.incoming)
                for each in batches
            ]
            result = await self._staging.stage(token, 0, staged, is_limited=False)
            if result.error is not Error.NONE:
                raise StoreUnavailable(result.message or result.error.name)
        return refused, records

    async def _page(
        self, transaction: int, era: int, after: int, factor: int
    ) -> list[WaitingRecord]:
        """Another broker may end the connection while this one is busy; what has been staged by
        then is good all the same."""
        records, max_bytes = PAGE_RECORDS * factor, PAGE_BYTES * factor
        for _ in range(PAGE_ATTEMPTS):
            with contextlib.suppress(StoreUnavailable):
                return await self._store.page(
                    transaction, era, after, records=records, max_bytes=max_bytes
                )
            await asyncio.sleep(AWAY_S)
        return await self._store.page(transaction, era, after, records=records, max_bytes=max_bytes)
