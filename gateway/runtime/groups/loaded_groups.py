"""The groups of this broker's shards in memory: loads, writes, watches and drops them.

A group's decision counts in memory at once, and for its clients once it is stored. If it cannot be
stored, the whole group is dropped: waiting clients are told to ask again, and the next request
loads the group from the database. Knows no rule of a group and no request.
"""

import asyncio
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.coordinator import downgrade_if_due
from core.group.records import GroupEffects, OffsetEffects, StoredGroup
from core.group.values import (
    GroupAnswer,
    GroupSettings,
    GroupType,
    Instant,
    Outcome,
    Reply,
    Waiter,
)
from core.ports.groups import GroupStore
from core.ports.leases import Lease
from core.ports.log import StoreUnavailable
from core.shard import shard_of
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.groups.topic_images import TopicImages
from gateway.runtime.groups.writes import GroupWriter, Owner

log = structlog.get_logger(__name__)

Group = ClassicGroup | ConsumerGroup

IDLE_KEPT: Final = 1_000
"""Groups without members kept in memory, the last used ones; the others are read again."""

STALL_MS: Final = 500
GRACE_MS: Final = 200
"""If a timer fires this late, the process stood still: it then reads first, for this long, what
members have sent meanwhile."""

MIN_TIMER_MS: Final = 5
_ID_LOGGED: Final = 100  # characters; a group id may have 32,767


@dataclass(slots=True, eq=False)
class LoadedGroup:
    """A group in this broker's memory.

    group: None if there is no group of this id. is_stored: whether the database has its row, or is
    about to. generation_id: the last one stored. ticket: done once the last effects are stored, or
    have failed. waiting: requests that wait for an event. blocked: requests that wait for the
    ticket. uncommitted: transactional offsets on their way into the database.
    failure: why it was dropped.
    """

    group_id: str
    lease: Lease
    group: Group | None = None
    is_stored: bool = False
    generation_id: int = 0
    ticket: asyncio.Future[None] | None = None
    waiting: dict[Waiter, asyncio.Future[GroupAnswer]] = field(default_factory=dict)
    blocked: set[asyncio.Future[None]] = field(default_factory=set)
    uncommitted: set[asyncio.Future[None]] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    timer_at_ms: int = 0
    had_grace: bool = False
    failure: Error | None = None

    @property
    def is_flushed(self) -> bool:
        """Whether all of its decisions are stored."""
        return self.ticket is None or self.ticket.done()

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped from memory and read again without loss."""
        is_busy = self.waiting or self.blocked or self.uncommitted or self.timer
        if is_busy or not self.is_flushed:
            return False
        return self.group is None or self.group.is_idle


def instant() -> Instant:
    """Now."""
    return Instant(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


class LoadedGroups:
    """All groups in this process's memory.

    settings_of: a group's settings; cheap enough to be called at every request.
    """

    def __init__(
        self,
        store: GroupStore,
        leases: ShardLeases,
        topic_images: TopicImages,
        settings_of: Callable[[str], GroupSettings],
    ) -> None:
        self._store = store
        self._leases = leases
        self._topic_images = topic_images
        self._settings_of = settings_of
        self._writer = GroupWriter(store, self._on_failed)
        self._groups: dict[str, LoadedGroup] = {}
        self._of_shard: dict[int, dict[str, LoadedGroup]] = {}
        self._ready: set[Lease] = set()  # all groups with members under these are loaded
        self._loading: dict[Lease | str, asyncio.Task[None]] = {}
        self._seeking: Counter[str] = Counter()  # requests that wait for a group's look-up
        self._idle: OrderedDict[str, LoadedGroup] = OrderedDict()
        self._unwatched: set[str] = set()  # dropped, but their members' sessions must go on
        self._waiters = itertools.count(1)
        self.rebalances: Counter[GroupType] = Counter()
        leases.on_lost(self._on_lost)
        topic_images.on_change(self._show_topics)

    def start(self) -> None:
        """Starts the work in the background."""
        self._writer.start()

    async def close(self) -> None:
        """Writes what is queued, then stops; waiting clients are told to go elsewhere."""
        await self._writer.close()
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for loaded in list(self._groups.values()):
            self.drop(loaded, Error.NOT_COORDINATOR)

    def snapshot(self) -> list[LoadedGroup]:
        """All loaded groups. Any thread may call it."""
        return list(self._groups.values())

    # --- finding and loading ---

    async def find(self, group_id: str) -> LoadedGroup | Error:
        """The group, loaded, or NOT_COORDINATOR. Act on it before the next `await`.

        Takes the shard's lease if nobody has it. Raises StoreUnavailable.
        """
        loaded = self.get(group_id)
        is_nothing = loaded is not None and loaded.group is None and loaded.is_idle
        if loaded is not None and is_nothing and group_id not in self._seeking:
            # There may be one by now: the end of a transaction makes groups. (Requests that wait
            # for this very look-up must see its answer first.)
            self._forget(loaded)
            loaded = None
        if loaded is None:
            lease = await self._leases.take(shard_of(group_id))
            if lease is None:
                return Error.NOT_COORDINATOR
            await self.load_shard(lease)
            self._seeking[group_id] += 1
            try:
                while (loaded := self._groups.get(group_id)) is None:
                    await self._once(group_id, self._load_group(lease, group_id))
                    if not self._leases.is_valid(lease):
                        return Error.NOT_COORDINATOR
            finally:
                self._seeking[group_id] -= 1
                if not self._seeking[group_id]:
                    del self._seeking[group_id]
            if not self._leases.is_valid(loaded.lease):
                return Error.NOT_COORDINATOR
        if loaded.group is not None:
            loaded.group.settings = self._settings_of(group_id)
        return loaded

    def get(self, group_id: str) -> LoadedGroup | None:
        """The group, if it is in memory and belongs to this broker now."""
        loaded = self._groups.get(group_id)
        return loaded if loaded and self._leases.is_valid(loaded.lease) else None

    async def load_shard(self, lease: Lease) -> None:
        """Loads the shard's groups that have members, unless they are loaded. Concurrent callers
        share one read. Raises StoreUnavailable."""
        if lease not in self._ready:
            await self._once(lease, self._load_members(lease))

    async def keep_watch(self) -> None:
        """Loads groups with members that nothing watches: new shards', and dropped ones.

        Raises StoreUnavailable.
        """
        await self._leases.claim()
        for shard in self._leases.shards:
            if lease := self._leases.held(shard):
                await self._watch(self.load_shard(lease))
        for group_id in list(self._unwatched):
            if self._leases.held(shard_of(group_id)) is not None:
                await self._watch(self.find(group_id))
            self._unwatched.discard(group_id)

    async def _watch(self, loading: Coroutine[Any, Any, object]) -> None:
        """Loads; an error in one must not keep the others from being watched."""
        try:
            await loading
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("groups_not_watched")

    async def _once(self, key: Lease | str, work: Coroutine[Any, Any, None]) -> None:
        """One load at a time per key; it goes on even if its callers give up."""
        task = self._loading.get(key)
        if task is None or task.done():  # what a finished one loaded may be dropped since
            task = asyncio.create_task(work)
            self._loading[key] = task
            task.add_done_callback(partial(self._loaded, key))
        else:
            work.close()
        await asyncio.shield(task)

    def _loaded(self, key: Lease | str, task: asyncio.Task[None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            task.exception()  # retrieved, in case all callers have given up

    async def _load_members(self, lease: Lease) -> None:
        found = await self._store.load_shard(lease.shard)
        await self._topic_images.ready(_expressions(found))
        if self._leases.is_valid(lease):
            for stored in found:
                self._add_member_of_shard(lease, stored)
            self._ready.add(lease)
            if found:
                log.info("groups_loaded", shard=lease.shard, groups=len(found))

    def _add_member_of_shard(self, lease: Lease, stored: StoredGroup) -> None:
        group_id = stored.group.group_id
        try:
            self._add(lease, group_id, stored)
        except Exception:  # an unreadable row must not cost the other groups
            log.exception("group_not_loaded", group=group_id[:_ID_LOGGED])

    async def _load_group(self, lease: Lease, group_id: str) -> None:
        stored = await self._store.load_group(group_id)
        if stored is not None:
            await self._topic_images.ready(_expressions([stored]))
        if self._leases.is_valid(lease) and group_id not in self._groups:
            self._add(lease, group_id, stored)

    def _add(self, lease: Lease, group_id: str, stored: StoredGroup | None) -> None:
        loaded = LoadedGroup(group_id, lease, is_stored=stored is not None)
        if stored is not None:
            loaded.generation_id = stored.group.generation_id
            settings = self._settings_of(group_id)
            if stored.group.protocol == GroupType.CONSUMER.value:
                self.become(loaded, ConsumerGroup.load(stored, settings, instant()))
            else:
                self.become(loaded, ClassicGroup.load(stored, settings, instant()))
        self._groups[group_id] = loaded
        self._of_shard.setdefault(lease.shard, {})[group_id] = loaded
        self._arm(loaded)
        self._rest(loaded)

    def create_classic(self, loaded: LoadedGroup) -> ClassicGroup:
        """Makes a group of which nothing is stored yet."""
        group = ClassicGroup.create(loaded.group_id, self._settings_of(loaded.group_id), instant())
        self.become(loaded, group)
        return group

    def become(self, loaded: LoadedGroup, group: Group) -> None:
        """Replaces the group from now on."""
        loaded.group = group
        if isinstance(group, ConsumerGroup):
            group.on_metadata_changed(self._topic_images.picture, self._topic_images.resolve)

    def _show_topics(self) -> None:
        for loaded in self._groups.values():
            if isinstance(loaded.group, ConsumerGroup):
                loaded.group.on_metadata_changed(
                    self._topic_images.picture, self._topic_images.resolve
                )

    # --- an event's outcome ---

    def expect(self, loaded: LoadedGroup) -> tuple[Waiter, asyncio.Future[GroupAnswer]]:
        """A waiter for a request that may have to wait, and the future of its answer: a refusal
        (Error) if the group is dropped before."""
        waiter = next(self._waiters)
        loaded.waiting[waiter] = asyncio.get_running_loop().create_future()
        return waiter, loaded.waiting[waiter]

    def apply(self, loaded: LoadedGroup, outcome: Outcome) -> None:
        """Stores an event's effects; then answers the requests that waited for it.

        There must be no `await` between the event and this call.
        """
        if isinstance(loaded.group, ConsumerGroup):
            outcome, loaded.group = downgrade_if_due(loaded.group, outcome, instant())
        for event, fields in outcome.notes:
            log.info(event, group=loaded.group_id[:_ID_LOGGED], **fields)
        if outcome.effects is not None:
            self._count_rebalance(loaded, outcome.effects)
            self.write(loaded, outcome.effects)
        if outcome.replies:
            if loaded.ticket is None or loaded.ticket.done():
                self._reply(loaded, outcome.replies)
            else:
                loaded.ticket.add_done_callback(lambda _: self._reply(loaded, outcome.replies))
        self._arm(loaded)
        self._rest(loaded)

    def write(self, loaded: LoadedGroup, effects: GroupEffects | OffsetEffects) -> None:
        """Queues effects; `flushed` waits for them if an answer depends on them."""
        ticket = self._writer.submit(loaded, effects)
        is_gone = isinstance(effects, GroupEffects) and (effects.deleted or effects.forgotten)
        loaded.is_stored = not is_gone
        if is_gone:
            loaded.group = None
        if not (isinstance(effects, GroupEffects) and effects.lazy):
            loaded.ticket = ticket
            if loaded.group is None or loaded.group.is_idle:
                ticket.add_done_callback(lambda _: self._rest(loaded))

    def _count_rebalance(self, loaded: LoadedGroup, effects: GroupEffects) -> None:
        row = effects.group
        if row is not None and row.generation_id != loaded.generation_id and not effects.lazy:
            loaded.generation_id = row.generation_id
            if loaded.group is not None and not loaded.group.is_empty:
                self.rebalances[loaded.group.type] += 1

    async def flushed(self, loaded: LoadedGroup) -> Error:
        """NONE once all of the group's decisions so far are stored, so that they may be told; else
        the error to tell instead. Answer right after it: no further check, no `await`."""
        ticket = loaded.ticket
        if ticket is not None and not ticket.done() and loaded.failure is None:
            blocked = asyncio.get_running_loop().create_future()
            loaded.blocked.add(blocked)
            ticket.add_done_callback(lambda _: _resolve(blocked, None))
            try:
                await blocked
            finally:
                loaded.blocked.discard(blocked)
                self._rest(loaded)
        return self.verdict(loaded)

    def verdict(self, loaded: LoadedGroup) -> Error:
        """NONE if requests about this group may be answered now."""
        if loaded.failure is not None:
            return loaded.failure
        return Error.NONE if self._leases.is_valid(loaded.lease) else Error.NOT_COORDINATOR

    async def drain(self) -> None:
        """Returns when all decisions so far are stored, or have failed."""
        await self._writer.drain()

    def _reply(self, loaded: LoadedGroup, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if (waiting := loaded.waiting.pop(reply.waiter, None)) is not None:
                _resolve(waiting, reply.answer)
        self._rest(loaded)

    # --- time ---

    def _arm(self, loaded: LoadedGroup) -> None:
        """One timer per group, set again only if its deadline gets earlier: heartbeats, which make
        it later, cost nothing."""
        deadline_ms = loaded.group.deadline_ms if loaded.group is not None else None
        if loaded.failure is not None or deadline_ms is None:
            if loaded.timer is not None:
                loaded.timer.cancel()
                loaded.timer = None
        elif loaded.timer is None or deadline_ms < loaded.timer_at_ms:
            self._arm_at(loaded, deadline_ms, time.monotonic_ns() // 1_000_000)

    def _arm_at(self, loaded: LoadedGroup, at_ms: int, now_ms: int) -> None:
        if loaded.timer is not None:
            loaded.timer.cancel()
        loaded.timer_at_ms = max(at_ms, now_ms + MIN_TIMER_MS)
        loaded.timer = asyncio.get_running_loop().call_later(
            (loaded.timer_at_ms - now_ms) / 1000, self._on_timer, loaded
        )

    def _on_timer(self, loaded: LoadedGroup) -> None:
        loaded.timer = None
        group, now = loaded.group, instant()
        if group is None or not self._leases.is_valid(loaded.lease):
            return  # it is about to be dropped
        if now.monotonic_ms - loaded.timer_at_ms > STALL_MS and not loaded.had_grace:
            loaded.had_grace = True
            self._arm_at(loaded, now.monotonic_ms + GRACE_MS, now.monotonic_ms)
            return
        loaded.had_grace = False
        if group.deadline_ms is not None and group.deadline_ms <= now.monotonic_ms:
            with self.dropped_on_failure(loaded):
                self.apply(loaded, group.expire(now))
        else:
            self._arm(loaded)
            self._rest(loaded)

    # --- dropping ---

    @contextmanager
    def dropped_on_failure(self, loaded: LoadedGroup) -> Iterator[None]:
        """If an event fails half-way (a bug), gives up the lease rather than use what is left."""
        try:
            yield
        except Exception:
            log.exception("group_event_failed", group=loaded.group_id[:_ID_LOGGED])
            self._leases.give_up(loaded.lease)
            raise

    def drop(self, loaded: LoadedGroup, error: Error) -> None:
        """Takes the group out of memory, and tells waiting requests."""
        if loaded.failure is not None:
            return
        loaded.failure = error
        self._forget(loaded)
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None
        for waiting in loaded.waiting.values():
            _resolve(waiting, error)
        loaded.waiting.clear()
        for blocked in loaded.blocked:
            _resolve(blocked, None)

    def forget_idle(self, loaded: LoadedGroup) -> None:
        """Drops the group if it is idle: the database knows it as well."""
        if loaded.failure is None and loaded.is_idle:
            self._forget(loaded)

    def _forget(self, loaded: LoadedGroup) -> None:
        of_shard = self._of_shard.get(loaded.lease.shard, {})
        if of_shard.get(loaded.group_id) is loaded:
            del of_shard[loaded.group_id]
        if self._groups.get(loaded.group_id) is loaded:
            del self._groups[loaded.group_id]
        if self._idle.get(loaded.group_id) is loaded:
            del self._idle[loaded.group_id]

    def _rest(self, loaded: LoadedGroup) -> None:
        """Marks an idle group as one to drop when there are too many of them."""
        if loaded.failure is not None or not loaded.is_idle:
            return
        if not loaded.is_stored:
            loaded.group = None  # it was made for a request that was refused
        self._idle[loaded.group_id] = loaded
        self._idle.move_to_end(loaded.group_id)
        while len(self._idle) > IDLE_KEPT:
            _, oldest = self._idle.popitem(last=False)
            self.forget_idle(oldest)

    def _on_lost(self, lease: Lease) -> None:
        self._ready.discard(lease)
        of_shard = self._of_shard.pop(lease.shard, {})
        for loaded in list(of_shard.values()):
            self.drop(loaded, Error.NOT_COORDINATOR)

    def _on_failed(self, owner: Owner, error: Error, is_unknown: bool) -> None:
        assert isinstance(owner, LoadedGroup)
        self.drop(owner, error)
        # Members that have left in memory only are still in the database.
        self._unwatched.add(owner.group_id)
        if is_unknown:
            self._leases.give_up(owner.lease)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    """Answers, unless the caller has gone."""
    if not future.done():
        future.set_result(result)


def _expressions(found: Sequence[StoredGroup]) -> list[str]:
    members = [member for stored in found for member in stored.members]
    return [each.subscribed_topic_regex for each in members if each.subscribed_topic_regex]
