"""Writes groups' decisions into the database: one flush for all that wait.

A group's effects are committed in the order of its decisions, all of a batch together. If that
fails, the batch is split until only the culprits fail. Knows no rule of a group and no SQL.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from core.errors import Error
from core.group.records import GroupEffects, MemberRow, OffsetEffects
from core.ports.groups import GroupFlush, GroupStore, GuardedEffects
from core.ports.leases import Lease
from core.ports.log import (
    CommitUnknown,
    EffectRefused,
    RowLocked,
    StoreUnavailable,
    VersionMismatch,
)

log = structlog.get_logger(__name__)

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
LAZY_S: Final = 0.2
"""How long effects wait for others to join their flush, if no answer depends on them."""

_ROW_BYTES: Final = 200
_PARTITION_BYTES: Final = 10


class Owner(Protocol):
    """A group in memory, with effects to be written.

    lease: under which it decides. failure: set once it is dropped; then none of it is written.
    """

    @property
    def lease(self) -> Lease: ...

    @property
    def failure(self) -> Error | None: ...


OnFailed = Callable[[Owner, Error, bool], None]
"""(owner, the error for its clients, whether the effects may have been stored all the same)."""


@dataclass(frozen=True, slots=True)
class _Write:
    owner: Owner
    effects: GroupEffects | OffsetEffects

    @property
    def is_lazy(self) -> bool:
        return isinstance(self.effects, GroupEffects) and self.effects.lazy


@dataclass(slots=True)
class _Batch:
    """Writes for one flush. done: when they are stored, or have failed for good.

    groups, deleted: ids of those it writes, and of those it deletes.
    """

    done: asyncio.Future[None]
    writes: list[_Write] = field(default_factory=list)
    size: int = 0
    groups: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    def add(self, write: _Write) -> None:
        effects = write.effects
        self.writes.append(write)
        self.size += _size(effects)
        self.groups.add(effects.group_id)
        if _deletes(effects):
            self.deleted.add(effects.group_id)

    def takes(self, effects: GroupEffects | OffsetEffects) -> bool:
        """Whether these effects may join the batch.

        A flush stores groups before offsets, whichever was decided first. So effects that delete a
        group must not share a flush with others of that group.
        """
        group_id = effects.group_id
        is_apart = group_id in self.deleted or (_deletes(effects) and group_id in self.groups)
        return self.size < MAX_BATCH_BYTES and not is_apart


class GroupWriter:
    """All writes of this process's groups.

    on_failed: called for each owner with effects that were not stored, before their future is done.
    """

    def __init__(self, store: GroupStore, on_failed: OnFailed) -> None:
        self._store = store
        self._on_failed = on_failed
        self._batches: deque[_Batch] = deque()
        self._wake = asyncio.Event()
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._last: asyncio.Future[None] | None = None
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the work in the background."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Writes what is queued, then stops."""
        self._is_closing = True
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
        self._wake.set()
        if self._task is not None:
            await self._task

    def submit(self, owner: Owner, effects: GroupEffects | OffsetEffects) -> asyncio.Future[None]:
        """Queues effects. The future is done once they are stored or have failed; the owner knows
        which. Wait for it under `asyncio.shield`: callers share it."""
        write = _Write(owner, effects)
        if not (self._batches and self._batches[-1].takes(effects)):
            self._batches.append(_Batch(asyncio.get_running_loop().create_future()))
        batch = self._batches[-1]
        batch.add(write)
        self._last = batch.done
        if not write.is_lazy:
            self._wake.set()
        elif self._lazy_timer is None and not self._wake.is_set():
            self._lazy_timer = asyncio.get_running_loop().call_later(LAZY_S, self._wake.set)
        return batch.done

    async def drain(self) -> None:
        """Returns when everything queued so far is stored, or has failed."""
        if self._last is not None and not self._last.done():
            self._wake.set()
            await asyncio.shield(self._last)

    # The flusher.

    async def _run(self) -> None:
        flush = self._store.open_flush()
        while batch := await self._next_batch():
            try:
                await self._write(flush, batch.writes)
            except Exception:  # a bug must not stop every later write
                log.exception("group_flush_failed", writes=len(batch.writes))
                self._fail(batch.writes, Error.UNKNOWN_SERVER_ERROR, is_unknown=True)
                await flush.close()
                flush = self._store.open_flush()
            batch.done.set_result(None)
        await flush.close()

    async def _next_batch(self) -> _Batch | None:
        """The queued batch; None once the writer closes."""
        while True:
            is_due = self._wake.is_set() or len(self._batches) > 1 or self._is_closing
            if self._batches and is_due:
                if len(self._batches) == 1:
                    self._wake.clear()
                    if self._lazy_timer is not None:
                        self._lazy_timer.cancel()
                        self._lazy_timer = None
                return self._batches.popleft()
            if self._is_closing:
                return None
            self._wake.clear()
            await self._wake.wait()

    async def _write(self, flush: GroupFlush, writes: Sequence[_Write]) -> None:
        """Commits a batch, in as many parts as needed."""
        parts = deque([writes])
        try:
            while parts:
                part = [write for write in parts[0] if write.owner.failure is None]
                try:
                    if part:
                        await flush.commit(_guarded(part))
                    parts.popleft()
                except (VersionMismatch, RowLocked, EffectRefused) as error:
                    parts.popleft()
                    smaller = [] if _is_out_of_space(error) else _taken_apart(part)
                    if len(smaller) > 1:
                        parts.extendleft(reversed(smaller))
                    else:
                        self._refuse(part, error)
        except StoreUnavailable as error:
            left = [write for part in parts for write in part]
            is_unknown = isinstance(error, CommitUnknown)
            event = "group_commit_unknown" if is_unknown else "group_effects_not_stored"
            log.warning(event, writes=len(left), reason=str(error))
            self._fail(left, Error.COORDINATOR_NOT_AVAILABLE, is_unknown=is_unknown)

    def _refuse(
        self, writes: Sequence[_Write], error: VersionMismatch | RowLocked | EffectRefused
    ) -> None:
        """Handles effects that the database refuses even alone."""
        groups = sorted({write.effects.group_id[:100] for write in writes})[:5]
        match error:
            case VersionMismatch():
                log.info("coordinator_lease_is_anothers", groups=groups)
                self._fail(writes, Error.NOT_COORDINATOR, is_unknown=True)
            case EffectRefused() if not error.out_of_space:
                log.error("group_refused_by_database", groups=groups, reason=str(error))
                self._fail(writes, Error.UNKNOWN_SERVER_ERROR)
            case _:
                log.error("group_effects_not_stored", groups=groups, reason=str(error))
                self._fail(writes, Error.COORDINATOR_NOT_AVAILABLE)

    def _fail(self, writes: Sequence[_Write], error: Error, *, is_unknown: bool = False) -> None:
        owners = {
            id(write.owner): write.owner for write in writes if is_unknown or not write.is_lazy
        }
        for owner in owners.values():
            if owner.failure is None:
                self._on_failed(owner, error, is_unknown)


def _deletes(effects: GroupEffects | OffsetEffects) -> bool:
    return isinstance(effects, GroupEffects) and (effects.deleted or effects.forgotten)


def _guarded(writes: Iterable[_Write]) -> list[GuardedEffects]:
    """Effects under the leases they were decided under."""
    groups: dict[Lease, list[GroupEffects]] = {}
    offsets: dict[Lease, list[OffsetEffects]] = {}
    for write in writes:
        if isinstance(write.effects, GroupEffects):
            groups.setdefault(write.owner.lease, []).append(write.effects)
        else:
            offsets.setdefault(write.owner.lease, []).append(write.effects)
    return [
        GuardedEffects(lease, tuple(groups.get(lease, ())), tuple(offsets.get(lease, ())))
        for lease in sorted({*groups, *offsets}, key=lambda lease: lease.shard)
    ]


def _taken_apart(writes: Sequence[_Write]) -> list[list[_Write]]:
    """Splits writes by shard or, if they are of one shard, by group; each part in order."""
    by_lease: dict[Lease, list[_Write]] = {}
    by_group: dict[str, list[_Write]] = {}
    for write in writes:
        by_lease.setdefault(write.owner.lease, []).append(write)
        by_group.setdefault(write.effects.group_id, []).append(write)
    return list(by_lease.values()) if len(by_lease) > 1 else list(by_group.values())


def _is_out_of_space(error: Exception) -> bool:
    return isinstance(error, EffectRefused) and error.out_of_space


def _size(effects: GroupEffects | OffsetEffects) -> int:
    """About how many bytes they are to send."""
    if isinstance(effects, OffsetEffects):
        metadata = sum(len(each.metadata) for each in effects.put)
        return _ROW_BYTES * (1 + len(effects.put) + len(effects.delete)) + metadata
    return _ROW_BYTES + sum(map(_member_size, effects.put_members))


def _member_size(member: MemberRow) -> int:
    opaque = len(member.assignment) + sum(len(metadata) for _, metadata in member.protocols)
    placed = (member.assigned, member.revoking, member.target)
    partitions = sum(len(numbers) for each in placed for numbers in each.values())
    return _ROW_BYTES + opaque + partitions * _PARTITION_BYTES
