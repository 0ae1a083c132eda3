"""Members of groups that speak the bare protocol, thousands of them in one process.

A stock client costs more than what a broker does for it; here the broker is what is measured. Runs
inside a client process (`bench.worker`); must not know brokers, cases or what is compared.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from gateway.kafka import codec

PATIENCE_S = 120.0  # a group that is not where it should be by then has failed
SESSION_MS, REBALANCE_MS = 45_000, 60_000

_NONE, _REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 0, 27, 79
_LATER = {14, 15, 16}  # the coordinator is loading, away, elsewhere (and soon here again)
_ANEW = {22, 25}  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID: it has forgotten the member

_FIND, _JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _CONSUMER = 2, 7, 3, 3, 3, 7, 1  # versions


class Refused(RuntimeError):
    """An error that the broker should not have answered."""


class Wire:
    """A connection with one request under way at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, bootstrap: str) -> Wire:
        host, port = bootstrap.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: Any, version: int, answer: Any) -> Any:
        """The answer to a request, decoded."""
        received = await self.exchange(frame(request, version))
        body = 5 if answer.flexible_version_q(version) else 4  # after the correlation id, and tags
        return codec.decode_message(answer, version, memoryview(received), body)

    async def exchange(self, sent: bytes | bytearray) -> bytes:
        """The answer to a frame, without its size."""
        self._writer.write(sent)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


def frame(request: Any, version: int) -> bytearray:
    """A request with its size and header."""
    header = struct.pack(">hhih5s", request.API_KEY, version, 7, 5, b"bench")
    if request.flexible_version_q(version):
        header += b"\0"
    body = header + b"".join(map(bytes, codec.encode_message(request, version)))
    return bytearray(struct.pack(">i", len(body)) + body)


async def coordinator(bootstrap: str, group: str) -> str:
    """Where the group's coordinator is; waits until there is one."""
    wire = await Wire.open(bootstrap)
    begun = time.monotonic()
    while True:
        request = codec.FindCoordinatorRequest(key=group, key_type=0)
        found = await wire.ask(request, _FIND, codec.FindCoordinatorResponse)
        if found.error_code == _NONE:
            wire.close()
            return f"{found.host}:{found.port}"
        if time.monotonic() - begun > PATIENCE_S:
            raise Refused(f"FindCoordinator: {found.error_code}")
        await asyncio.sleep(0.1)


# --- members ---


@dataclass(slots=True)
class Shared:
    """What the members of one group have in common. heartbeat_s: how often they are heard of."""

    bootstrap: str
    group: str
    topic: str
    partitions: int
    heartbeat_s: float


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member of the classic protocol, which may lead; times are of its last join."""

    shared: Shared
    wire: Wire
    member_id: str = ""
    generation: int = -1
    owned: int = 0
    stops: bool = False
    join_sent: float = 0.0
    join_answered: float = 0.0
    synced: float = 0.0

    async def join(self) -> None:
        """JoinGroup and SyncGroup until it has an assignment."""
        subscription = ConsumerProtocolSubscription(1, topics=[self.shared.topic], user_data=None)
        metadata = subscription.encode(version=1)
        while True:
            self.join_sent = time.monotonic()
            joined = await self.wire.ask(
                codec.JoinGroupRequest(
                    group_id=self.shared.group,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    member_id=self.member_id,
                    group_instance_id=None,
                    protocol_type="consumer",
                    protocols=[
                        codec.JoinGroupRequest.JoinGroupRequestProtocol(
                            name="range", metadata=metadata
                        )
                    ],
                ),
                _JOIN,
                codec.JoinGroupResponse,
            )
            if joined.error_code == _MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if joined.error_code in _LATER | _ANEW:
                self.member_id = "" if joined.error_code in _ANEW else self.member_id
                await asyncio.sleep(0.1)
                continue
            if joined.error_code != _NONE:
                raise Refused(f"JoinGroup: {joined.error_code}")
            self.join_answered = time.monotonic()
            self.member_id, self.generation = joined.member_id, joined.generation_id
            if await self._sync(joined):
                return

    async def _sync(self, joined: Any) -> bool:
        """Whether it got its assignment; not if another rebalance has begun already."""
        assignments = []
        if joined.leader == self.member_id:
            ids = sorted(member.member_id for member in joined.members)
            assignments = [
                codec.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=self._share(number, len(ids))
                )
                for number, member_id in enumerate(ids)
            ]
        synced = await self.wire.ask(
            codec.SyncGroupRequest(
                group_id=self.shared.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                assignments=assignments,
            ),
            _SYNC,
            codec.SyncGroupResponse,
        )
        if synced.error_code in _LATER | _ANEW | {_REBALANCE_IN_PROGRESS}:
            return False
        if synced.error_code != _NONE:
            raise Refused(f"SyncGroup: {synced.error_code}")
        self.synced = time.monotonic()
        assignment = ConsumerProtocolAssignment.decode(bytes(synced.assignment))
        self.owned = sum(len(topic.partitions) for topic in assignment.assigned_partitions)
        return True

    def _share(self, number: int, of: int) -> bytes:
        """What the leader gives to the member of this number."""
        mine = list(range(number, self.shared.partitions, of))
        assigned = [(self.shared.topic, mine)] if mine else []
        encoded: bytes = ConsumerProtocolAssignment(
            1, assigned_partitions=assigned, user_data=b""
        ).encode(version=1)
        return encoded

    def heartbeat_frame(self) -> bytearray:
        request = codec.HeartbeatRequest(
            group_id=self.shared.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
        )
        return frame(request, _HEARTBEAT)

    @staticmethod
    def heartbeat_error(answer: bytes) -> int:
        return int.from_bytes(answer[8:10], "big")

    async def live(self) -> None:
        """Heartbeats, and joins again whenever the group asks for it."""
        while not self.stops:
            await asyncio.sleep(self.shared.heartbeat_s)
            error = self.heartbeat_error(await self.wire.exchange(self.heartbeat_frame()))
            if error in _LATER | _ANEW | {_REBALANCE_IN_PROGRESS}:
                await self.join()
            elif error != _NONE:
                raise Refused(f"Heartbeat: {error}")

    async def leave(self) -> None:
        identity = codec.LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=None
        )
        request = codec.LeaveGroupRequest(group_id=self.shared.group, members=[identity])
        await self.wire.ask(request, _LEAVE, codec.LeaveGroupResponse)
        self.wire.close()


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member of KIP-848's protocol; it gives partitions up at once when it is told to."""

    shared: Shared
    wire: Wire
    member_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    generation: int = 0  # Kafka's member epoch
    owned: int = 0
    stops: bool = False
    interval_s: float = 0.0
    synced: float = 0.0
    _assigned: list[tuple[uuid.UUID, list[int]]] = field(default_factory=list)
    _to_tell: bool = False

    async def join(self) -> None:
        await self._heartbeat(**self._everything())

    def _everything(self) -> dict[str, Any]:
        return {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": [self.shared.topic],
            "topic_partitions": self._owned(),
        }

    def _owned(self) -> list[Any]:
        Topic = codec.ConsumerGroupHeartbeatRequest.TopicPartitions
        return [Topic(topic_id=topic, partitions=held) for topic, held in self._assigned]

    async def _heartbeat(self, **told: Any) -> None:
        while True:
            request = self._request(**told)
            answer = await self.wire.ask(request, _CONSUMER, codec.ConsumerGroupHeartbeatResponse)
            if answer.error_code not in _LATER:
                break
            told = self._everything()  # an answer that told it something may have been lost
            await asyncio.sleep(0.1)
        if answer.error_code != _NONE:
            raise Refused(f"ConsumerGroupHeartbeat: {answer.error_code} {answer.error_message}")
        if answer.member_epoch != self.generation:
            self.synced = time.monotonic()
        self.generation = answer.member_epoch
        self.interval_s = answer.heartbeat_interval_ms / 1000
        self._to_tell = answer.assignment is not None
        if answer.assignment is not None:
            self.synced = time.monotonic()
            self._assigned = [
                (found.topic_id, list(found.partitions))
                for found in answer.assignment.topic_partitions
            ]
            self.owned = sum(len(partitions) for _, partitions in self._assigned)

    def _request(self, **told: Any) -> Any:
        return codec.ConsumerGroupHeartbeatRequest(
            group_id=self.shared.group,
            member_id=self.member_id,
            member_epoch=self.generation,
            **{"subscribed_topic_names": None, "topic_partitions": None, **told},
        )

    def heartbeat_frame(self) -> bytearray:
        return frame(self._request(), _CONSUMER)

    @staticmethod
    def heartbeat_error(answer: bytes) -> int:
        return int.from_bytes(answer[9:11], "big")

    async def live(self) -> None:
        """Heartbeats, at once where it has something to tell."""
        while not self.stops:
            if self._to_tell:
                await self._heartbeat(topic_partitions=self._owned())
                continue
            await asyncio.sleep(self.shared.heartbeat_s)
            await self._heartbeat()

    async def leave(self) -> None:
        self.generation = -1
        await self.wire.ask(self._request(), _CONSUMER, codec.ConsumerGroupHeartbeatResponse)
        self.wire.close()


Member = ClassicMember | ConsumerMember
PROTOCOLS: dict[str, type[ClassicMember] | type[ConsumerMember]] = {
    "classic": ClassicMember,
    "consumer": ConsumerMember,
}


@dataclass(slots=True)
class Group:
    """Members of one group and the tasks they live in."""

    shared: Shared
    protocol: str
    members: dict[Member, asyncio.Task[None]] = field(default_factory=dict)

    async def connected(self, count: int) -> list[Member]:
        """New members, connected to the coordinator, that have not joined."""
        where = await coordinator(self.shared.bootstrap, self.shared.group)
        kind = PROTOCOLS[self.protocol]
        return [kind(self.shared, await Wire.open(where)) for _ in range(count)]

    async def join(self, new: Sequence[Member]) -> None:
        """They join, all at once, and live from then on; returns when each has an assignment."""
        await asyncio.gather(*[member.join() for member in new])
        for member in new:
            self.members[member] = asyncio.create_task(member.live())

    async def leave(self, member: Member) -> None:
        """It finishes what it is about to ask, then leaves."""
        member.stops = True
        await self.members.pop(member)
        await member.leave()

    def is_stable(self) -> bool:
        """Whether all partitions have owners, all members as many, and nothing is under way."""
        shares = [member.owned for member in self.members]
        generations = {member.generation for member in self.members}
        telling = any(getattr(member, "_to_tell", False) for member in self.members)
        return (
            sum(shares) == self.shared.partitions
            and max(shares) - min(shares) <= 1
            and len(generations) == 1
            and not telling
        )

    async def stable(self, condition: Callable[[], bool]) -> None:
        """Waits until the group is stable and `condition` holds; fails as a member fails."""
        begun = time.monotonic()
        while not (self.is_stable() and condition()):
            for task in self.members.values():
                if task.done() and not task.cancelled() and task.exception():
                    task.result()
            if time.monotonic() - begun > PATIENCE_S:
                raise TimeoutError(f"the group does not become stable: {self.protocol}")
            await asyncio.sleep(0.005)

    async def end(self) -> None:
        """All leave, so that no session runs out in the middle of what is measured next."""
        await self.stop()
        await asyncio.gather(*[member.leave() for member in self.members])
        self.members.clear()

    async def stop(self) -> None:
        """Members stay members, but somebody else has to send their heartbeats."""
        for member in self.members:
            member.stops = True
        await asyncio.gather(*self.members.values())
