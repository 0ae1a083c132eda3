"""What workers do with groups: rebalance, heartbeat, commit. Each function is a worker's WORK.

Must not know brokers, cases or what the figures are compared with.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
import uuid
from typing import Any

from bench.members import (
    ClassicMember,
    Group,
    Member,
    Refused,
    Shared,
    Wire,
    coordinator,
    frame,
)
from gateway.kafka import codec

Result = dict[str, Any]

_COMMIT = 7
_SENTINEL = 0x0102030405060708


def group_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


async def rebalance(
    bootstrap: str, topic: str, protocol: str, members: int, partitions: int, delay_s: float
) -> Result:
    """A group of `members` forms at once; then one more joins; then one leaves.

    delay_s: the broker's group.initial.rebalance.delay.ms. The members' heartbeats are quick, so
    that they hear soon what the broker has decided. join_s: from the first JoinGroup until the last
    member has its assignment; after_delay_s: the same, less the whole delays that the broker waited
    by its own setting. coordinator_ms (classic): from the last JoinGroup to the last assignment.
    """
    from bench.worker import ready

    group = Group(Shared(bootstrap, group_name(), topic, partitions, 0.1), protocol)
    first = await group.connected(members)
    [late] = await group.connected(1)
    await asyncio.to_thread(ready)
    begun = time.monotonic()
    await group.join(first)
    await group.stable(lambda: True)
    figures = {"join_s": last_synced(group) - begun, "after_delay_s": last_synced(group) - begun}
    if protocol == "classic":
        answered = min(member.join_answered for member in classic(group)) - begun
        waited = answered // delay_s * delay_s if delay_s else 0.0
        figures["after_delay_s"] -= waited
    begun = time.monotonic()
    await group.join([late])
    await group.stable(lambda: len(group.members) == members + 1)
    figures["one_more_ms"] = 1e3 * (last_synced(group) - begun)
    if protocol == "classic":
        last_sent = max(member.join_sent for member in classic(group))
        figures["coordinator_ms"] = 1e3 * (last_synced(group) - last_sent)
    leaving = next(iter(group.members))
    before = {member.generation for member in group.members}
    begun = time.monotonic()
    await group.leave(leaving)
    await group.stable(lambda: before.isdisjoint(member.generation for member in group.members))
    figures["one_less_ms"] = 1e3 * (last_synced(group) - begun)
    await group.end()
    return figures


def last_synced(group: Group) -> float:
    return max(member.synced for member in group.members)


def classic(group: Group) -> list[ClassicMember]:
    return [member for member in group.members if isinstance(member, ClassicMember)]


async def heartbeats(
    bootstrap: str, topic: str, protocol: str, groups: int, members: int, seconds: float
) -> Result:
    """`groups` groups of `members` each: their steady heartbeats, at the interval they are told.

    Every member has a connection of its own, and every heartbeat must be answered without error.
    """
    from bench.worker import ready, summary

    made = [
        Group(Shared(bootstrap, group_name(), topic, members, 3.0), protocol) for _ in range(groups)
    ]

    async def form(group: Group) -> None:
        await group.join(await group.connected(members))
        await group.stable(lambda: True)

    await asyncio.gather(*[form(group) for group in made])
    await asyncio.gather(*[group.stop() for group in made])
    everybody = [member for group in made for member in group.members]
    interval_s = getattr(everybody[0], "interval_s", 0.0) or 3.0
    latencies: list[float] = []
    sending = asyncio.create_task(keep_alive(everybody, interval_s, latencies))
    await asyncio.to_thread(ready)
    latencies.clear()
    begun = time.monotonic()
    await asyncio.wait([sending], timeout=seconds)
    if sending.done():
        sending.result()
    figures = summary(latencies) | {
        "records": len(latencies),
        "seconds": time.monotonic() - begun,
    }
    await asyncio.to_thread(ready)  # once more: it is over, and may be counted
    sending.cancel()
    await asyncio.sleep(1.0)  # for the answers that are under way
    await asyncio.gather(*[group.end() for group in made])
    return figures


async def keep_alive(members: list[Member], interval_s: float, latencies: list[float]) -> None:
    """Heartbeats, evenly spread, each member's every `interval_s`; fails with the first error."""
    frames = [member.heartbeat_frame() for member in members]
    under_way: set[asyncio.Task[None]] = set()

    async def once(member: Member, sent: bytearray) -> None:
        begun = time.perf_counter()
        answer = await member.wire.exchange(sent)
        latencies.append(time.perf_counter() - begun)
        if error := member.heartbeat_error(answer):
            raise Refused(f"a heartbeat was answered with {error}")

    due = time.monotonic()
    for member, sent in itertools.cycle(list(zip(members, frames, strict=True))):
        due += interval_s / len(members)
        if (ahead := due - time.monotonic()) > 0.002:
            await asyncio.sleep(ahead)
        for task in [task for task in under_way if task.done()]:
            under_way.discard(task)
            task.result()
        under_way.add(asyncio.create_task(once(member, sent)))


async def commits(bootstrap: str, topic: str, committers: int, seconds: float) -> Result:
    """The members of one group, a partition and a connection each, commit as fast as answered."""
    from bench.worker import ready, summary

    group = Group(Shared(bootstrap, group_name(), topic, committers, 1.0), "classic")
    await group.join(await group.connected(committers))
    await group.stable(lambda: True)
    where = await coordinator(bootstrap, group.shared.group)
    frames = [
        commit_frame(group.shared, member, number) for number, member in enumerate(classic(group))
    ]
    wires = [await Wire.open(where) for _ in frames]
    await asyncio.to_thread(ready)
    latencies: list[float] = []
    begun = time.monotonic()
    end = begun + seconds
    await asyncio.gather(
        *[
            commit_until(end, wire, *sent, latencies)
            for wire, sent in zip(wires, frames, strict=True)
        ]
    )
    elapsed = time.monotonic() - begun
    await group.end()
    return summary(latencies) | {"records": len(latencies), "seconds": elapsed}


def commit_frame(shared: Shared, member: ClassicMember, partition: int) -> tuple[bytearray, int]:
    """An OffsetCommit of the member, and where in its bytes the offset is."""
    Topic = codec.OffsetCommitRequest.OffsetCommitRequestTopic
    committed = Topic.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=_SENTINEL,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    request = codec.OffsetCommitRequest(
        group_id=shared.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=None,
        topics=[Topic(name=shared.topic, partitions=[committed])],
    )
    encoded = frame(request, _COMMIT)
    return encoded, encoded.index(_SENTINEL.to_bytes(8, "big"))


async def commit_until(
    end: float, wire: Wire, encoded: bytearray, position: int, latencies: list[float]
) -> None:
    offset = 0
    while time.monotonic() < end:
        struct.pack_into(">q", encoded, position, offset)
        begun = time.perf_counter()
        answer = await wire.exchange(bytes(encoded))
        latencies.append(time.perf_counter() - begun)
        if error := int.from_bytes(answer[-2:], "big"):
            raise Refused(f"a commit was answered with {error}")
        offset += 1


def commits_confluent(bootstrap: str, topic: str, seconds: float) -> Result:
    """One librdkafka consumer that waits for each of its commits."""
    from confluent_kafka import Consumer, TopicPartition

    from bench.worker import librdkafka, ready, summary

    consumer = Consumer(
        librdkafka(
            bootstrap, group_id=group_name(), enable_auto_commit=False, auto_offset_reset="earliest"
        )
    )
    consumer.subscribe([topic])
    begun = time.monotonic()
    while not consumer.assignment():
        consumer.poll(0.1)
        if time.monotonic() - begun > 60:
            raise RuntimeError("no partition was assigned within 60 s")
    ready()
    latencies: list[float] = []
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        sent = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(topic, 0, len(latencies))], asynchronous=False)
        latencies.append(time.perf_counter() - sent)
    elapsed = time.monotonic() - begun
    consumer.close()
    return summary(latencies) | {"records": len(latencies), "seconds": elapsed}
