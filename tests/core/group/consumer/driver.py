"""Drives a group of either protocol, and keeps what the store would have.

After every event the rows that its effects left in the store must be the group's own. Regular
expressions are Python's here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from core.errors import Error
from core.group import coordinator as migration
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.consumer.protocol import (
    Assignment,
    Subscription,
    parse_assignment,
)
from core.group.records import GroupEffects, GroupRow, MemberRow, Partitions, StoredGroup
from core.group.subscribed_topics import InvalidRegularExpression
from core.group.values import (
    ClientIdentity,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    GroupProtocol,
    GroupSettings,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Outcome,
    Reply,
    SyncRequest,
    SyncResult,
    TopicImage,
    Waiter,
)
from tests.core.group.subscription_bytes import encode_subscription

GROUP = "group"
SESSION_MS = 45_000
CLASSIC_SESSION_MS = 30_000
REBALANCE_MS = 60_000
START_MS = 1_000_000
TIMESTAMP_MS = 1_700_000_000_000
CLIENT = ClientIdentity("client", "/127.0.0.1")

_T = TypeVar("_T")


def topic_id(name: str) -> str:
    return f"id-of-{name}"


def images(topics: Mapping[str, int]) -> dict[str, TopicImage]:
    return {name: TopicImage(topic_id(name), name, count) for name, count in topics.items()}


def held(**topics: Sequence[int]) -> Partitions:
    """Partitions by the names of topics, as rows and requests have them: by id."""
    return {topic_id(name): tuple(partitions) for name, partitions in topics.items() if partitions}


def subscription(
    *topics: str, owned: Mapping[str, Sequence[int]] | None = None, version: int = 1
) -> bytes:
    parts = {name: tuple(partitions) for name, partitions in (owned or {}).items()}
    return encode_subscription(Subscription(version, topics, None, parts))


def protocols(metadata: bytes, *names: str) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name, metadata) for name in names)


class Store:
    """The rows of one group, as effects leave them."""

    def __init__(self) -> None:
        self.group: GroupRow | None = None
        self.members: dict[str, MemberRow] = {}

    def apply(self, effects: GroupEffects) -> None:
        assert not effects.put_members or effects.group or self.group, "members without a group"
        self.group = effects.group or self.group
        for row in effects.put_members:
            self.members[row.member_id] = row
        for member_id in effects.delete_members:
            assert self.members.pop(member_id, None) is not None, "deleted what was not there"

    def read(self) -> StoredGroup:
        assert self.group is not None
        return StoredGroup(self.group, tuple(self.members.values()))


class Driver:
    """A group, its store, and the time. Every request is answered or waits in `waiting`."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: GroupSettings | None = None,
    ) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.store = Store()
        self.group: migration.Group | None = None
        self.now = Instant(START_MS, TIMESTAMP_MS)
        self.outcome = Outcome()
        self.replies: dict[Waiter, JoinResult | SyncResult] = {}
        self.last_token = 0
        self.show({"foo": 6} if topics is None else topics)

    # --- the world ---

    def show(self, topics: Mapping[str, int], ids: Mapping[str, str] | None = None) -> None:
        """Topics and their numbers of partitions from now on."""
        self.topics = images(topics)
        for name, its_id in (ids or {}).items():
            self.topics[name] = replace(self.topics[name], topic_id=its_id)
        if isinstance(self.group, ConsumerGroup):
            self.group.on_metadata_changed(self.topics, self.resolve)

    def resolve(self, expression: str) -> frozenset[str]:
        try:
            compiled = re.compile(expression)
        except re.error as error:
            raise InvalidRegularExpression(error.msg) from None
        return frozenset(name for name in self.topics if compiled.fullmatch(name))

    def pass_time(self, milliseconds: int) -> None:
        """Time passes, and nobody looks."""
        self.now = Instant(
            self.now.monotonic_ms + milliseconds, self.now.timestamp_ms + milliseconds
        )

    def advance(self, milliseconds: int) -> None:
        """Time passes, and the group is looked at each time it may have work."""
        end_ms = self.now.monotonic_ms + milliseconds
        wakings = 0
        while self.group is not None:
            wakings += 1
            assert wakings < 1_000, "it is woken again and again"
            deadline_ms = self.group.deadline_ms
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.pass_time(max(0, deadline_ms - self.now.monotonic_ms))
            self._apply(self.group.expire(self.now))
        self.pass_time(end_ms - self.now.monotonic_ms)

    def load(self, group: GroupRow, *members: MemberRow) -> ConsumerGroup:
        """Begins with these rows in the store."""
        self.store.group = group
        self.store.members = {row.member_id: row for row in members}
        self.reload()
        return self.consumer

    def reload(self) -> None:
        """The coordinator crashes: all there is, is in the store."""
        self.replies.clear()
        if self.store.group is None:
            self.group = None
            return
        stored = self.store.read()
        if stored.group.protocol == "classic":
            self.group = ClassicGroup.load(stored, self.settings, self.now)
        else:
            self.group = ConsumerGroup.load(stored, self.settings, self.now)
            self.group.on_metadata_changed(self.topics, self.resolve)

    @property
    def consumer(self) -> ConsumerGroup:
        assert isinstance(self.group, ConsumerGroup)
        return self.group

    @property
    def classic(self) -> ClassicGroup:
        assert isinstance(self.group, ClassicGroup)
        return self.group

    @property
    def state(self) -> str:
        assert self.group is not None
        return self.group.state

    def row(self, member_id: str) -> MemberRow:
        """A member of a consumer group."""
        return self.consumer.roster.members[member_id]

    @property
    def effects(self) -> GroupEffects | None:
        """Of the last event."""
        return self.outcome.effects

    # --- events ---

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        names: Sequence[str] | None = None,
        owned: Partitions | None = None,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        client: ClientIdentity = CLIENT,
    ) -> ConsumerHeartbeatResult:
        request = ConsumerHeartbeat(
            member_id,
            epoch,
            client,
            instance_id,
            rack_id,
            rebalance_timeout_ms,
            None if names is None else tuple(names),
            regex,
            assignor,
            owned,
        )
        result, outcome, self.group = migration.consumer_heartbeat(
            GROUP, self.group, request, self.topics, self.resolve, self.settings, self.now
        )
        self._take(outcome)
        if result.error is not Error.NONE:
            assert outcome == Outcome()
        return result

    def enter(
        self,
        member_id: str,
        *names: str,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> ConsumerHeartbeatResult:
        """A member's first heartbeat."""
        result = self.heartbeat(
            member_id,
            0,
            names=names,
            owned={},
            regex=regex,
            instance_id=instance_id,
            assignor=assignor,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        assert result.error is Error.NONE, result
        return result

    def go_on(self, member_id: str, *, owned: Partitions | None = None) -> ConsumerHeartbeatResult:
        """A member's heartbeat in the epoch it has. owned: all that it was given, if not said."""
        row = self.row(member_id)
        result = self.heartbeat(
            member_id,
            row.member_epoch,
            owned=row.assigned if owned is None else owned,
            instance_id=row.group_instance_id,
        )
        assert result.error is Error.NONE, result
        return result

    def converge(self) -> None:
        """All members of KIP-848 do as they are told until nothing is left to do."""
        for _ in range(50):
            for member_id, row in list(self.consumer.roster.members.items()):
                if row.protocol == "consumer" and row.member_epoch >= 0:
                    self.go_on(member_id)
            if self.state == "Stable":
                return
        raise AssertionError("it never gets stable")

    def join(
        self,
        member_id: str = "",
        *topics: str,
        owned: Mapping[str, Sequence[int]] | None = None,
        instance_id: str | None = None,
        new_member_id: str = "new",
        names: Sequence[str] = ("cooperative-sticky",),
        protocol_type: str = "consumer",
        session_timeout_ms: int = CLASSIC_SESSION_MS,
        requires_known_member_id: bool = True,
        metadata: bytes | None = None,
        version: int = 1,
    ) -> JoinResult | None:
        """JoinGroup; None: it waits."""
        if metadata is None:
            metadata = subscription(*topics or ("foo",), owned=owned, version=version)
        request = JoinRequest(
            member_id,
            instance_id,
            CLIENT,
            session_timeout_ms,
            REBALANCE_MS,
            protocol_type,
            protocols(metadata, *names),
            new_member_id,
            requires_known_member_id,
        )
        waiter = self._token()
        outcome, self.group = migration.join(
            GROUP, self.group, request, waiter, self.settings, self.now
        )
        self._take(outcome)
        return self._reply(waiter, JoinResult)

    def enter_classic(
        self, member_id: str, *topics: str, instance_id: str | None = None
    ) -> JoinResult:
        """A classic member's way into a consumer group."""
        result = self.join("", *topics, instance_id=instance_id, new_member_id=member_id)
        assert result is not None
        if result.error is Error.MEMBER_ID_REQUIRED:
            result = self.join(member_id, *topics)
        assert result is not None and result.error is Error.NONE, result
        return result

    def sync(
        self,
        member_id: str,
        generation: int,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "cooperative-sticky",
        assignments: Mapping[str, bytes] | None = None,
    ) -> SyncResult | None:
        """SyncGroup; None: it waits."""
        waiter = self._token()
        assert self.group is not None
        request = SyncRequest(
            member_id, instance_id, generation, protocol_type, protocol_name, assignments or {}
        )
        self._take(self.group.sync(request, waiter, self.now))
        return self._reply(waiter, SyncResult)

    def assigned(self, member_id: str, generation: int) -> Mapping[str, tuple[int, ...]]:
        """What a classic member is told by SyncGroup, by topic name."""
        result = self.sync(member_id, generation)
        assert result is not None and result.error is Error.NONE, result
        assignment = parse_assignment(result.assignment)
        assert isinstance(assignment, Assignment)
        return assignment.partitions

    def beat(self, member_id: str, generation: int, instance_id: str | None = None) -> Error:
        """Heartbeat of the classic protocol."""
        assert self.group is not None
        error, outcome = self.group.heartbeat(member_id, instance_id, generation, self.now)
        self._take(outcome)
        return error

    def leave(self, *members: tuple[str, str | None]) -> list[Error]:
        """LeaveGroup, of (member id, instance id)."""
        assert self.group is not None
        leaving = [LeavingMember(member_id, instance_id) for member_id, instance_id in members]
        result, outcome = self.group.leave(leaving, self.now)
        self._apply(outcome)
        return [error for _member, error in result.members]

    def commit(self, member_id: str, epoch: int, **how: bool) -> Error:
        assert self.group is not None
        return self.group.commit_refusal(member_id, None, epoch, self.now, **how)

    # --- inside ---

    def _token(self) -> Waiter:
        self.last_token += 1
        return self.last_token

    def _reply(self, waiter: Waiter, kind: type[_T]) -> _T | None:
        answer = self.replies.pop(waiter, None)
        assert answer is None or isinstance(answer, kind)
        return answer

    def _apply(self, outcome: Outcome) -> None:
        if isinstance(self.group, ConsumerGroup):
            outcome, self.group = migration.downgrade_if_due(self.group, outcome, self.now)
        self._take(outcome)

    def _take(self, outcome: Outcome) -> None:
        self.outcome = outcome
        for reply in outcome.replies:
            self._keep(reply)
        if outcome.effects is not None:
            self.store.apply(outcome.effects)
        if self.group is not None and self.store.group is not None:
            self._compare()

    def _keep(self, reply: Reply) -> None:
        assert isinstance(reply.answer, JoinResult | SyncResult)
        assert reply.waiter not in self.replies
        self.replies[reply.waiter] = reply.answer

    def _compare(self) -> None:
        """The store has what the group has."""
        assert self.group is not None
        if isinstance(self.group, ClassicGroup):
            expected = self.group.in_store()
        else:
            expected = self.group.stored()
        if self.store.group is not None and self.store.group.protocol != self.group.type.value:
            assert self.group.is_empty, "the store has not heard of the change of protocol"
            return
        stored = self.store.read()
        assert stored.group == expected.group
        assert {row.member_id: row for row in stored.members} == {
            row.member_id: row for row in expected.members
        }
