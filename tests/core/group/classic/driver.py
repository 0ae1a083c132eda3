"""A classic group, its clients and its store: what tests of `core.group.classic` act with.

Time stands still but for `advance`, which calls `expire` whenever the group asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.consumer.protocol import Assignment, Subscription, encode_assignment
from core.group.records import GroupEffects, GroupRow, MemberRow, StoredGroup
from core.group.values import (
    ClientIdentity,
    GroupAnswer,
    GroupProtocol,
    GroupSettings,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Outcome,
    SyncRequest,
    SyncResult,
)
from tests.core.group.subscription_bytes import encode_subscription as encode

SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 3_000
BEGIN = Instant(monotonic_ms=1_000_000, timestamp_ms=1_700_000_000_000)
CLIENT = ClientIdentity("client", "/127.0.0.1")


def subscription(*topics: str) -> bytes:
    return encode(Subscription(1, topics))


def assignment(topic: str, *partitions: int) -> bytes:
    return encode_assignment(Assignment(1, {topic: partitions}))


def protocols(*names: str, topics: tuple[str, ...] = ("orders",)) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name, subscription(*topics)) for name in names)


class ModelStore:
    """What the database has: effects applied in order."""

    def __init__(self) -> None:
        self.group: GroupRow | None = None
        self.members: dict[str, MemberRow] = {}

    def apply(self, effects: GroupEffects | None) -> None:
        if effects is None:
            return
        assert not (effects.lazy and (effects.put_members or effects.delete_members))
        if effects.deleted:
            self.group, self.members = None, {}
            return
        self.group = effects.group or self.group
        for member_id in effects.delete_members:
            del self.members[member_id]
        for row in effects.put_members:
            assert self.members.get(row.member_id) != row, "written again unchanged"
            self.members[row.member_id] = row

    def stored(self) -> StoredGroup:
        assert self.group is not None
        return StoredGroup(self.group, tuple(self.members.values()))


class Driver:
    """Sends requests, keeps answers by waiter, and applies effects to a store."""

    def __init__(self, settings: GroupSettings | None = None, group: ClassicGroup | None = None):
        self.now = BEGIN
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        self.group = group or ClassicGroup.create("g", self.settings, self.now)
        self.store = ModelStore()
        self.answers: dict[int, GroupAnswer] = {}
        self.waiting: set[int] = set()
        self.notes: list[tuple[str, Mapping[str, object]]] = []
        self.outcome = Outcome()
        self._token = 0
        self._ids = 0

    # --- events ---

    def join(
        self,
        member_id: str = "",
        instance: str | None = None,
        *,
        offers: tuple[GroupProtocol, ...] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        reason: str | None = None,
        client: ClientIdentity = CLIENT,
    ) -> int:
        self._ids += 1
        return self._send(
            lambda waiter: self.group.join(
                JoinRequest(
                    member_id,
                    instance,
                    client,
                    session_ms,
                    rebalance_ms,
                    protocol_type,
                    protocols("range") if offers is None else offers,
                    new_member_id=f"{instance or 'm'}-{self._ids}",
                    requires_known_member_id=version >= 4,
                    supports_skip_assignment=version >= 9,
                    reason=reason,
                ),
                waiter,
                self.now,
            )
        )

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = SyncRequest(
            member_id, instance, generation, protocol_type, protocol_name, assignments or {}
        )
        return self._send(lambda waiter: self.group.sync(request, waiter, self.now))

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> Error:
        error, outcome = self.group.heartbeat(member_id, instance, generation, self.now)
        self.take(outcome)
        return error

    def leave(self, *members: str | LeavingMember) -> list[Error]:
        named = [LeavingMember(each) if isinstance(each, str) else each for each in members]
        result, outcome = self.group.leave(named, self.now)
        self.take(outcome)
        assert result.error is Error.NONE
        assert [each for each, _ in result.members] == named
        return [error for _, error in result.members]

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> Error:
        return self.group.commit_refusal(member_id, instance, generation, self.now)

    def expire(self) -> None:
        self.take(self.group.expire(self.now))
        deadline = self.group.deadline_ms
        assert deadline is None or deadline > self.now.monotonic_ms, "expire would spin"

    def advance(self, ms: int) -> None:
        """Time passes; the group is looked after exactly when it asked for it."""
        end = self.now.monotonic_ms + ms
        while self.group.deadline_ms is not None and self.group.deadline_ms <= end:
            self._pass(max(self.group.deadline_ms - self.now.monotonic_ms, 0))
            self.expire()
        self._pass(end - self.now.monotonic_ms)

    def _pass(self, ms: int) -> None:
        self.now = Instant(self.now.monotonic_ms + ms, self.now.timestamp_ms + ms)

    def _send(self, call: object) -> int:
        self._token += 1
        self.waiting.add(self._token)
        assert callable(call)
        self.take(call(self._token))
        return self._token

    def take(self, outcome: Outcome) -> None:
        """What an event brought: effects first, then answers."""
        self.outcome = outcome
        self.store.apply(outcome.effects)
        self.notes += outcome.notes
        for reply in outcome.replies:
            assert reply.waiter in self.waiting, "answered twice, or never asked"
            self.waiting.remove(reply.waiter)
            self.answers[reply.waiter] = reply.answer

    # --- what came of them ---

    def joined(self, waiter: int) -> JoinResult:
        answer = self.answers[waiter]
        assert isinstance(answer, JoinResult)
        return answer

    def synced(self, waiter: int) -> SyncResult:
        answer = self.answers[waiter]
        assert isinstance(answer, SyncResult)
        return answer

    def error(self, waiter: int) -> Error:
        answer = self.answers[waiter]
        assert isinstance(answer, (JoinResult, SyncResult))
        return answer.error

    def note(self, event: str) -> Mapping[str, object]:
        """The latest note of this name."""
        return next(fields for name, fields in reversed(self.notes) if name == event)

    # --- whole conversations ---

    def given_id(self, **request: object) -> str:
        """A new dynamic member's id, by MEMBER_ID_REQUIRED."""
        result = self.joined(self.join(**request))  # type: ignore[arg-type]
        assert result.error is Error.MEMBER_ID_REQUIRED
        return result.member_id

    def preparing(self, count: int = 2, instances: tuple[str, ...] = ()) -> list[int]:
        """Members of an empty group who have joined, static ones first, in the initial delay."""
        waiters = [self.join(instance=instance) for instance in instances]
        return waiters + [self.join(self.given_id()) for _ in range(count - len(instances))]

    def completing(self, count: int = 2, instances: tuple[str, ...] = ()) -> list[str]:
        """Members, the leader first, who have been told the generation."""
        waiters = self.preparing(count, instances)
        self.advance(DELAY_MS)
        while not all(waiter in self.answers for waiter in waiters):
            self.advance(DELAY_MS)
        ids = [self.joined(waiter).member_id for waiter in waiters]
        leader = self.joined(waiters[0]).leader
        return sorted(ids, key=lambda member_id: member_id != leader)

    def stable(self, count: int = 2, instances: tuple[str, ...] = ()) -> list[str]:
        """Members of a stable group, the leader first, member n having partition n of `orders`."""
        ids = self.completing(count, instances)
        self.sync_all(ids)
        return ids

    def sync_all(self, ids: list[str]) -> None:
        """The leader first; member n gets partition n of `orders`."""
        parts = {member_id: assignment("orders", n) for n, member_id in enumerate(ids)}
        waiters = [self.sync(ids[0], self.group.generation_id, parts)]
        waiters += [self.sync(member_id, self.group.generation_id) for member_id in ids[1:]]
        for member_id, waiter in zip(ids, waiters, strict=True):
            assert self.synced(waiter) == SyncResult(
                protocol_type="consumer",
                protocol_name=self.group.protocol_name,
                assignment=parts[member_id],
            )

    def keep_alive(self, ids: list[str], ms: int, every_ms: int = 3_000) -> None:
        """Time passes while these send heartbeats."""
        for _ in range(ms // every_ms):
            self.advance(every_ms)
            for member_id in ids:
                self.heartbeat(member_id, self.group.generation_id)
        self.advance(ms % every_ms)

    def reloaded(self) -> Driver:
        """The group as another broker finds it in the store."""
        loaded = Driver(self.settings)
        loaded.now = replace(self.now, monotonic_ms=77)
        loaded.group = ClassicGroup.load(self.store.stored(), self.settings, loaded.now)
        loaded.store.group = self.store.group
        loaded.store.members = dict(self.store.members)
        loaded._ids = self._ids
        return loaded
