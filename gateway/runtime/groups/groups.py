"""Consumer groups, as handlers use them: those that this broker coordinates, in memory.

load → decide (core) → persist (store) → answer. Only the holder of a shard's lease touches its
groups, and no answer is sent before all earlier decisions of the group are committed. Knows no
wire, no SQL and no rule of a group.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from core.errors import Error, Refusal
from core.group import coordinator
from core.group.absent import ABSENT
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.records import CommittedOffset, OffsetEffects
from core.group.values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
    DescribedGroup,
    GroupAnswer,
    GroupType,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from core.ports.groups import GroupStore
from core.ports.leases import Lease
from core.ports.log import StoreUnavailable
from core.shard import shard_of
from core.types import LiveBroker
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.groups.loaded_groups import LoadedGroup, LoadedGroups, instant
from gateway.runtime.groups.offset_expiry import OffsetExpiry
from gateway.runtime.groups.topic_images import Sight, TopicImages
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics

log = structlog.get_logger(__name__)

_STOP_S: Final = 2.0
"""How long a stopping broker waits until its groups' decisions are stored."""


@dataclass(frozen=True, slots=True)
class OffsetsWanted:
    """What OffsetFetch asks of one group. partition_ids: None means all with a committed offset.

    member_id, member_epoch: None and -1 if the caller names no member.
    """

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    partition_ids: Sequence[int] | None = None
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group in ListGroups. state: Kafka's word ("Stable")."""

    group_id: str
    protocol_type: str
    state: str
    type: GroupType


UnstablePartitions = Callable[[Sequence[str]], Awaitable[Sequence[frozenset[int]]]]
FoundOffsets = Mapping[int, CommittedOffset | Error]


class Groups:
    """The groups this broker coordinates. One per process.

    Refusals are part of the answers: NOT_COORDINATOR if another broker has the group's lease,
    COORDINATOR_NOT_AVAILABLE if a decision could not be stored. Every method may raise
    StoreUnavailable if it must read the database and cannot.
    """

    def __init__(
        self,
        store: GroupStore,
        leases: ShardLeases,
        topics: Topics,
        configs: Configs,
        unstable_partitions: UnstablePartitions,
        sight: Sight | None = None,
    ) -> None:
        """unstable_partitions: per group, partitions with an offset that an open transaction may
        still change. sight: of which topics a member's client may know; None: of all."""
        self._store = store
        self._unstable_partitions = unstable_partitions
        self._leases = leases
        self._topic_images = TopicImages(topics, sight)
        self._settings_of = configs.group_settings
        self._loaded = LoadedGroups(store, leases, self._topic_images, self._settings_of)
        self._expiry = OffsetExpiry(store, leases, self._loaded, configs)
        self._is_stopping = False
        self.offsets_committed = 0

    # --- start and stop ---

    def start(self) -> None:
        """Starts the work in the background; run `run` as well."""
        self._loaded.start()

    def on_rights_changed(self) -> None:
        """ACLs have changed: members subscribe to what they may see now."""
        self._topic_images.on_rights_changed()

    async def run(self) -> None:
        """With each heartbeat, takes over members of lost coordinators, until cancelled."""
        while True:
            await self._leases.wait_for_heartbeat()
            try:
                await self._loaded.keep_watch()
            except StoreUnavailable as error:
                log.debug("groups_not_watched", reason=str(error))

    async def run_expiry(self) -> None:
        """Deletes expired offsets now and then, until cancelled."""
        await self._expiry.run()

    async def expire_offsets(self, now_ms: int) -> None:
        """One round of that. Raises StoreUnavailable."""
        await self._expiry.expire(now_ms)

    async def stop(self) -> None:
        """Gives the groups to other brokers, and tells waiting clients to go there."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(_STOP_S):
                await self._loaded.drain()
                await self._leases.release()
        except (StoreUnavailable, TimeoutError) as error:
            log.info("groups_left_without_notice", reason=str(error))
        self._leases.forget_everything()

    async def close(self) -> None:
        """Ends the work in the background. After `stop`."""
        await self._loaded.close()
        await self._leases.close()
        self._topic_images.close()

    def forget_everything(self) -> None:
        """The database has another history: drops all that is in memory."""
        self._leases.forget_everything()

    def count_by_state(self) -> Mapping[tuple[GroupType, str], int]:
        """The number of groups in memory, by type and state. Any thread may call it."""
        return Counter(
            (group.type, group.state)
            for loaded in self._loaded.snapshot()
            if (group := loaded.group) is not None
        )

    @property
    def offsets_expired(self) -> int:
        """The number of expired offsets."""
        return self._expiry.offsets_expired

    def rebalances(self, kind: GroupType) -> int:
        """The number of new generations, or epochs, so far."""
        return self._loaded.rebalances[kind]

    # --- finding ---

    async def find_coordinator(self, group_id: str) -> LiveBroker:
        """A group's coordinator: the live holder of its lease, else the broker that may take it."""
        return await self._leases.find(shard_of(group_id))

    async def _find(self, group_id: str, *, may_be_empty: bool = False) -> LoadedGroup | Error:
        """The group, loaded; act on it before the next `await`.

        may_be_empty: accepts the id "", which old clients use that only commit and fetch.
        """
        refusal = self._refusal(group_id, may_be_empty=may_be_empty)
        return await self._loaded.find(group_id) if refusal is Error.NONE else refusal

    def _refusal(self, group_id: str, *, may_be_empty: bool) -> Error:
        if "\0" in group_id or not (group_id or may_be_empty):
            # PostgreSQL's text has no NUL; only such ids are valid in Kafka and not here.
            return Error.INVALID_GROUP_ID
        return Error.NOT_COORDINATOR if self._is_stopping else Error.NONE

    # --- members of the classic protocol ---

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup. Waits until the group's members have joined, or the group gives up."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return JoinResult(loaded, member_id=request.member_id)
        waiter, waiting = self._loaded.expect(loaded)
        with self._loaded.dropped_on_failure(loaded):
            now, settings = instant(), self._settings_of(group_id)
            outcome, loaded.group = coordinator.join(
                group_id, loaded.group, request, waiter, settings, now
            )
            self._loaded.apply(loaded, outcome)
        answer = await self._answer(loaded, waiting)
        if isinstance(answer, JoinResult):
            return answer
        assert isinstance(answer, Error)
        return JoinResult(answer, member_id=request.member_id)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """SyncGroup. Waits for the leader's assignment."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return SyncResult(loaded)
        waiter, waiting = self._loaded.expect(loaded)
        with self._loaded.dropped_on_failure(loaded):
            group = loaded.group or ABSENT
            self._loaded.apply(loaded, group.sync(request, waiter, instant()))
        answer = await self._answer(loaded, waiting)
        if isinstance(answer, SyncResult):
            return answer
        assert isinstance(answer, Error)
        return SyncResult(answer)

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> Error:
        """Heartbeat of a member that speaks the classic protocol."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return loaded
        with self._loaded.dropped_on_failure(loaded):
            error, outcome = (loaded.group or ABSENT).heartbeat(
                member_id, group_instance_id, generation_id, instant()
            )
            self._loaded.apply(loaded, outcome)
        return await self._once_stored(loaded, error)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        """LeaveGroup."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return LeaveResult((), loaded)
        with self._loaded.dropped_on_failure(loaded):
            result, outcome = (loaded.group or ABSENT).leave(members, instant())
            self._loaded.apply(loaded, outcome)
        error = await self._loaded.flushed(loaded)
        return result if error is Error.NONE else LeaveResult((), error)

    # --- KIP-848 ---

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> ConsumerHeartbeatResult:
        """ConsumerGroupHeartbeat (KIP-848): joins, goes on, leaves."""
        if not group_id.strip():
            return ConsumerHeartbeatResult(Error.INVALID_REQUEST, "GroupId can't be empty.")
        expression = request.subscribed_topic_regex
        await self._topic_images.ready([expression] if expression else ())
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return ConsumerHeartbeatResult(loaded)
        with self._loaded.dropped_on_failure(loaded):
            result, outcome, loaded.group = coordinator.consumer_heartbeat(
                group_id,
                loaded.group,
                request,
                self._topic_images.picture,
                self._topic_images.resolve,
                self._settings_of(group_id),
                instant(),
            )
            self._loaded.apply(loaded, outcome)
        error = await self._loaded.flushed(loaded)
        return result if error is Error.NONE else ConsumerHeartbeatResult(error)

    # --- offsets ---

    async def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        offsets: Sequence[CommittedOffset],
        *,
        knows_member_epochs: bool = True,
    ) -> Error:
        """Commits offsets; one verdict for all of them, NONE once they are durable.

        GROUP_ID_NOT_FOUND if there is no such group and a generation was given (ILLEGAL_GENERATION
        in versions without member epochs).
        """
        loaded = await self._find(group_id, may_be_empty=True)
        if isinstance(loaded, Error):
            return loaded
        if loaded.group is None:
            absent = ABSENT.commit_refusal(
                member_id, group_instance_id, generation_or_epoch, instant()
            )
            if absent is not Error.NONE:
                return await self._once_stored(loaded, absent)
        with self._loaded.dropped_on_failure(loaded):
            group = loaded.group or self._loaded.create_classic(loaded)
            refusal = group.commit_refusal(
                member_id,
                group_instance_id,
                generation_or_epoch,
                instant(),
                knows_member_epochs=knows_member_epochs,
            )
            if refusal is Error.NONE and offsets:
                self._loaded.write(loaded, OffsetEffects(group_id, put=tuple(offsets)))
        error = await self._once_stored(loaded, refusal)
        if error is Error.NONE:
            self.offsets_committed += len(offsets)
        return error

    async def commit_transactional_offsets(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        write: Callable[[Lease], Awaitable[Error]],
    ) -> Error:
        """TxnOffsetCommit: `write` stores the offsets, under the group's lease, if they may pass.

        Meanwhile, a request for stable offsets waits until these are stored: a member that has
        taken over must not miss its predecessor's offsets (KIP-447).
        """
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return loaded
        refusal = (loaded.group or ABSENT).commit_refusal(
            member_id, group_instance_id, generation_or_epoch, instant(), is_transactional=True
        )
        if refusal is not Error.NONE:
            return await self._once_stored(loaded, refusal)
        done = asyncio.get_running_loop().create_future()
        loaded.uncommitted.add(done)
        try:
            error = await write(loaded.lease)
        finally:
            loaded.uncommitted.discard(done)
            done.set_result(None)
        return await self._once_stored(loaded, error)

    async def fetch_offsets(self, requests: Sequence[OffsetsWanted]) -> list[Error | FoundOffsets]:
        """Per request: the committed offsets by partition id (others are omitted), or a refusal.

        If stable offsets are asked for: UNSTABLE_OFFSET_COMMIT for a partition with an offset that
        an open transaction may still change.
        """
        leases = [await self._lease_to_fetch(wanted) for wanted in requests]
        granted = [
            (wanted.group_id, wanted.partition_ids)
            for wanted, lease in zip(requests, leases, strict=True)
            if isinstance(lease, Lease)
        ]
        # Read before the offsets, so that these include whatever is committed in between.
        unstable = await self._unstable(requests)
        found = iter(await self._store.fetch_offsets(granted) if granted else ())
        answers: list[Error | FoundOffsets] = []
        for asked, lease in zip(requests, leases, strict=True):
            if isinstance(lease, Error):
                answers.append(lease)
                continue
            offsets = next(found)
            if not self._leases.is_valid(lease):
                answers.append(Error.NOT_COORDINATOR)
                continue
            waiting = unstable.get(asked.group_id, frozenset()) if asked.require_stable else ()
            named = offsets if asked.partition_ids is None else asked.partition_ids
            held = {i: Error.UNSTABLE_OFFSET_COMMIT for i in waiting if i in named}
            answers.append({**offsets, **held})
        return answers

    async def _unstable(self, requests: Sequence[OffsetsWanted]) -> Mapping[str, frozenset[int]]:
        groups = sorted({each.group_id for each in requests if each.require_stable})
        if not groups:
            return {}
        return dict(zip(groups, await self._unstable_partitions(groups), strict=True))

    async def _lease_to_fetch(self, wanted: OffsetsWanted) -> Lease | Error:
        """The lease under which offsets may be read, from the database. A caller that names no
        member may read any group's; an unknown group has no offsets."""
        refusal = self._refusal(wanted.group_id, may_be_empty=True)
        if refusal is not Error.NONE:
            return refusal
        loaded: LoadedGroup | Error | None = self._loaded.get(wanted.group_id)
        if loaded is None and wanted.member_id is None and wanted.member_epoch < 0:
            return await self._leases.take(shard_of(wanted.group_id)) or Error.NOT_COORDINATOR
        loaded = loaded or await self._loaded.find(wanted.group_id)
        if isinstance(loaded, Error):
            return loaded
        if loaded.group is not None:
            refusal = loaded.group.fetch_refusal(wanted.member_id, wanted.member_epoch)
        if refusal is not Error.NONE or wanted.require_stable:
            # A request for stable offsets sees all earlier commits, as in Kafka.
            if refusal is Error.NONE and loaded.uncommitted:
                await asyncio.wait(set(loaded.uncommitted))
            refusal = await self._once_stored(loaded, refusal)
        return loaded.lease if refusal is Error.NONE else refusal

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> Error | Mapping[int, Error]:
        """Deletes offsets of (topic name, partition id); returns each result by partition id."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return loaded
        group = loaded.group
        refusal = (group or ABSENT).delete_offsets_refusal()
        if group is None or refusal is not Error.NONE:
            return await self._once_stored(loaded, refusal)
        answers = {
            partition_id: Error.GROUP_SUBSCRIBED_TO_TOPIC
            if group.is_subscribed_to(topic_name)
            else Error.NONE
            for topic_name, partition_id in partitions
        }
        doomed = tuple(each for each, error in answers.items() if error is Error.NONE)
        if doomed:
            self._loaded.write(loaded, OffsetEffects(group_id, delete=doomed))
        error = await self._loaded.flushed(loaded)
        return answers if error is Error.NONE else error

    # --- groups as a whole ---

    async def delete_groups(self, group_ids: Sequence[str]) -> list[Error]:
        """Deletes groups that have no members, with their offsets."""
        return list(await asyncio.gather(*map(self._delete_group, group_ids)))

    async def _delete_group(self, group_id: str) -> Error:
        loaded = await self._find(group_id, may_be_empty=True)
        if isinstance(loaded, Error):
            return loaded
        group = loaded.group
        refusal = (group or ABSENT).delete_refusal()
        if group is not None and refusal is Error.NONE:
            with self._loaded.dropped_on_failure(loaded):
                self._loaded.apply(loaded, group.delete(instant()))
        return await self._once_stored(loaded, refusal)

    async def list_groups(self) -> Error | list[GroupOverview]:
        """The groups that this broker coordinates."""
        if self._is_stopping or not self._leases.is_live:
            return Error.COORDINATOR_NOT_AVAILABLE
        await self._loaded.keep_watch()
        listed = await self._store.list_groups(self._leases.shards)
        overviews = {
            each.group.group_id: GroupOverview(
                each.group.group_id,
                each.group.protocol_type,
                each.group.state if each.has_members else "Empty",
                GroupType(each.group.protocol),
            )
            for each in listed
        }
        # Memory is newer, but its decisions must be stored before they are shown. A group that was
        # missing when it was loaded may exist by now: transactions make groups, too.
        loaded = self._loaded.snapshot()
        for each in loaded:
            if each.group is not None:
                overviews[each.group_id] = _overview(each.group)
            elif not each.is_flushed:
                overviews.pop(each.group_id, None)
        await self._loaded.drain()
        if any(self._loaded.verdict(each) is not Error.NONE for each in loaded):
            return Error.COORDINATOR_NOT_AVAILABLE
        return list(overviews.values())

    async def describe_classic(self, group_id: str) -> DescribedGroup | Refusal:
        """A classic group. GROUP_ID_NOT_FOUND if there is none, or if it is of the other type."""
        loaded = await self._find(group_id, may_be_empty=True)
        if isinstance(loaded, Error):
            return Refusal(loaded)
        described = _describe_classic(loaded)
        error = await self._loaded.flushed(loaded)
        return described if error is Error.NONE else Refusal(error)

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup | Refusal:
        """A consumer group. GROUP_ID_NOT_FOUND if there is none, or if it is of the other type."""
        loaded = await self._find(group_id)
        if isinstance(loaded, Error):
            return Refusal(loaded)
        described = _describe_consumer(loaded)
        error = await self._loaded.flushed(loaded)
        return described if error is Error.NONE else Refusal(error)

    # --- answering ---

    async def _answer(
        self, loaded: LoadedGroup, waiting: asyncio.Future[GroupAnswer]
    ) -> GroupAnswer:
        """The answer to a request that had to wait, once it may be given."""
        answer = await waiting
        error = self._loaded.verdict(loaded)
        return answer if error is Error.NONE else error

    async def _once_stored(self, loaded: LoadedGroup, error: Error) -> Error:
        """`error`, once everything it depends on is stored."""
        trouble = await self._loaded.flushed(loaded)
        return error if trouble is Error.NONE else trouble


def _overview(group: ClassicGroup | ConsumerGroup) -> GroupOverview:
    protocol_type = "consumer" if isinstance(group, ConsumerGroup) else group.protocol_type
    return GroupOverview(group.group_id, protocol_type, group.state, group.type)


def _describe_classic(loaded: LoadedGroup) -> DescribedGroup | Refusal:
    match loaded.group:
        case ClassicGroup() as group:
            return group.describe()
        case None:
            return Refusal(Error.GROUP_ID_NOT_FOUND, f"Group {loaded.group_id} not found.")
        case _:
            message = f"Group {loaded.group_id} is not a classic group."
            return Refusal(Error.GROUP_ID_NOT_FOUND, message)


def _describe_consumer(loaded: LoadedGroup) -> DescribedConsumerGroup | Refusal:
    match loaded.group:
        case ConsumerGroup() as group:
            return group.describe()
        case None:
            return Refusal(Error.GROUP_ID_NOT_FOUND, f"Group {loaded.group_id} not found.")
        case _:
            message = f"Group {loaded.group_id} is not a consumer group."
            return Refusal(Error.GROUP_ID_NOT_FOUND, message)
