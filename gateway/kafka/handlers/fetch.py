"""Fetch (key 1): record batches from given offsets on, waiting for more where there is too little.

Versions: v4 isolation level; v5 log start offset; v7 sessions (KIP-227); v9 leader epochs
(KIP-320); v12 flexible; v13 topic ids (KIP-516); v15 replica state as a tagged field; v17 directory
ids; v18 high watermark as a tagged field (those three are for replicas and change nothing here).
Behavior: whole batches only; the first one found is given however large (KIP-74). A long poll
sleeps until a partition grows, or until something else is asked on its connection; a partition
that does not exist does not cut it short, unless no other was asked for. Of several requests for
one partition the last counts. Any broker serves any partition, so there is no preferred replica.
But one that stops sends readers to the others, as Kafka's do that hand their leaderships over: a
client asks for metadata then, and is connected elsewhere before this one has gone.
Where a quota limits what is read, one answer has a quarter of a second of it at most; whoever says
that it is a replica is held to quotas, too (Kafka's replicas are not). What Pulsar's clients have
stored comes as record batches (`conversion.py`).
`last_fetched_epoch` is ignored: a log is never truncated but by a restore of the database, so there
is no divergence to tell of (KIP-595).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from core.errors import Error
from core.log.leader_epochs import UNDEFINED_EPOCH, check_leader_epoch, epoch_at
from core.ports.log import StoreUnavailable
from core.quota.rules import Limit
from core.security.operations import REQUIREMENTS
from core.topic.topic import Topic
from core.types import NO_OFFSET, BatchFormat, IsolationLevel
from gateway.kafka.api import api
from gateway.kafka.codec import FetchRequest, FetchResponse, isolation_level, made
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.fetch_sessions import (
    FetchContext,
    FetchedPartition,
    FetchPartition,
    PartitionKey,
)
from gateway.kafka.records import patched
from gateway.runtime.log.partitions import Found, Want, hold_to_limits
from gateway.runtime.throttling import Throttles, to_ms

TOPIC_IDS_SINCE: Final = 13
_READ, _REPLICATE = REQUIREMENTS["Fetch"]
_NOT_THERE: Final = (Error.UNKNOWN_TOPIC_OR_PARTITION, Error.UNKNOWN_TOPIC_ID)
_LED_ELSEWHERE: Final = Found(Error.NOT_LEADER_OR_FOLLOWER, None)
_NOT_AUTHORIZED: Final = Found(Error.TOPIC_AUTHORIZATION_FAILED, None)
_Topic: TypeAlias = FetchResponse.FetchableTopicResponse
_Partition: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
_Aborted: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction


class _Asker:
    """Whether the client may read topics: asked once a request for each, and again if the rules
    have changed, so that a refusal is noted once.

    Who says that it is a replica is asked for what replicas need (CVE-2018-1288). names: of topics
    asked for by id, once they are known.
    """

    __slots__ = ("_allowed", "_ctx", "_requirement", "_rules", "names")

    def __init__(self, request: FetchRequest, ctx: RequestContext) -> None:
        replica_id = request.replica_state.replica_id if request.replica_state else -1
        is_replica = max(request.replica_id, replica_id) >= 0
        self._requirement = _REPLICATE if is_replica else _READ
        self._ctx = ctx
        self._rules = ctx.rights.rules if ctx.rights else None
        self._allowed: dict[str, bool] = {}
        self.names: dict[str | UUID, str] = {}

    def may_read(self, topic: str | UUID) -> bool:
        """By name or id. An id that stands for nothing is no secret."""
        rights = self._ctx.rights
        if rights is None:
            return True
        name = self.names.get(topic, topic)
        if isinstance(name, UUID):
            return True
        if rights.rules is not self._rules:
            self._rules = rights.rules
            self._allowed.clear()
        allowed = self._allowed.get(name)
        if allowed is None:
            allowed = self._allowed[name] = self._ctx.may(self._requirement, name)
        return allowed


class _Quota:
    """What of its client's `consumer_byte_rate` one request uses.

    Nothing is given while other connections of the client have used it up, also if they did so
    while this one was reading: else many at once would have a window each
    (FetchContext.getThrottledResponse).
    """

    __slots__ = ("_limit", "_throttles", "throttle_time_ms")

    def __init__(self, limit: Limit, throttles: Throttles) -> None:
        self._limit = limit
        self._throttles = throttles
        self.throttle_time_ms = 0

    @classmethod
    def of(cls, ctx: RequestContext) -> _Quota | None:
        """None for a client without one."""
        limits = ctx.limits
        if limits is None or limits.consume is None:
            return None
        return cls(limits.consume, ctx.services.throttles)

    @property
    def is_used_up(self) -> bool:
        return self._throttles.owed_s(self._limit) > 0

    @property
    def piece(self) -> int:
        """Bytes that one answer has at most, but for a batch that is larger."""
        return self._throttles.piece(self._limit)

    def take(self, size_bytes: int) -> bool:
        """Whether so much may be given; then it is used."""
        if size_bytes and self.is_used_up:
            return False
        self.throttle_time_ms = to_ms(self._throttles.take(self._limit, size_bytes))
        return True

    def nothing(self, session: FetchContext) -> FetchResponse:
        """The answer to who has to wait."""
        return FetchResponse(
            throttle_time_ms=to_ms(self._throttles.owed_s(self._limit)),
            error_code=0,
            session_id=session.session_id,
            responses=[],
        )


@api(1, versions=range(4, 19), is_long_poll=True)
async def fetch(request: FetchRequest, ctx: RequestContext) -> FetchResponse:
    """Find the session's partitions, read until there is enough or time is up, answer."""
    isolation = isolation_level(request.isolation_level)
    if isolation is None:
        return _all_refused(request, Error.UNKNOWN_SERVER_ERROR, ctx)
    session = _open_session(request, ctx)
    if isinstance(session, Error):
        return FetchResponse(error_code=kafka_code(session), session_id=0, responses=[])
    asker = _Asker(request, ctx)
    most_bytes = ctx.configs.broker_int("fetch.max.bytes")
    quota = _Quota.of(ctx)
    if quota is not None:
        if quota.is_used_up:
            return quota.nothing(session)
        most_bytes = min(most_bytes, quota.piece)
    found = await _read_enough(request, session.partitions, isolation, most_bytes, asker, ctx)
    if quota is not None and not quota.take(sum(each.size_bytes for _, each in found)):
        return quota.nothing(session)
    if ctx.rights is not None:
        # It may have waited: a right may be gone.
        found = [
            (asked, each if asker.may_read(asked.topic) else _NOT_AUTHORIZED)
            for asked, each in found
        ]
    answers = [
        FetchedPartition(
            asked.key,
            each.error,
            each.state.high_watermark if each.state else NO_OFFSET,
            each.state.log_start_offset if each.state else NO_OFFSET,
            each.size_bytes,
        )
        for asked, each in found
    ]
    closed = session.close(answers)
    if isinstance(closed, Error):
        return FetchResponse(
            error_code=kafka_code(closed), session_id=request.session_id, responses=[]
        )
    session_id, told = closed
    by_topic: dict[str | UUID, list[_Partition]] = {}
    committed = isolation is IsolationLevel.READ_COMMITTED
    for asked, each in found:
        if told is None or asked.key in told:
            by_topic.setdefault(asked.topic, []).append(_answer(asked, each, committed))
    return FetchResponse(
        throttle_time_ms=0 if quota is None else quota.throttle_time_ms,
        error_code=0,
        session_id=session_id,
        responses=[_topic(topic, partitions) for topic, partitions in by_topic.items()],
    )


def _open_session(request: FetchRequest, ctx: RequestContext) -> FetchContext | Error:
    by_id = ctx.api_version >= TOPIC_IDS_SINCE
    asked: dict[PartitionKey, FetchPartition] = {}  # of several for one partition, the last counts
    for topic in request.topics:
        key = (topic.topic_id or _ZERO) if by_id else topic.topic
        for each in topic.partitions:
            asked[key, each.partition] = FetchPartition(
                key,
                each.partition,
                each.fetch_offset,
                each.partition_max_bytes,
                max(each.current_leader_epoch, UNDEFINED_EPOCH),  # FetchRequest.optionalEpoch
            )
    forgotten = [
        ((topic.topic_id or _ZERO) if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data or ()
        for partition in topic.partitions
    ]
    return ctx.fetch_sessions.open(
        request.session_id,
        request.session_epoch,
        list(asked.values()),
        forgotten,
        uses_topic_ids=by_id,
        now_ms=ctx.clock(),
    )


async def _read_enough(
    request: FetchRequest,
    asked: Sequence[FetchPartition],
    isolation: IsolationLevel,
    most_bytes: int,
    asker: _Asker,
    ctx: RequestContext,
) -> list[tuple[FetchPartition, Found]]:
    """Reads, and reads again whenever something has changed, until `min_bytes` or a failed read.

    A partition that does not exist is not read, so it ends nothing: Kafka leaves it out before it
    reads (KafkaApis.handleFetchRequest), and a client with one such would not poll but spin.
    """
    max_bytes = min(request.max_bytes, most_bytes)
    min_bytes = min(request.min_bytes, max_bytes)
    deadline = ctx.clock() + request.max_wait_ms
    while True:
        try:
            found = await _read(asked, isolation, max_bytes, asker, ctx)
        except StoreUnavailable:
            return [(each, Found(Error.KAFKA_STORAGE_ERROR, None)) for each in asked]
        if ctx.partitions.is_stopping and not ctx.cluster.is_alone:
            return [
                (partition, each if want is None else _LED_ELSEWHERE)
                for partition, want, each in found
            ]
        read = [(want, each) for _, want, each in found if want is not None]
        wait_ms = deadline - ctx.clock()
        if (
            wait_ms <= 0
            or not read
            or (ctx.behind is not None and ctx.behind.is_any)
            or sum(each.size_bytes for _, each in read) >= min_bytes
            or any(each.error is not Error.NONE for _, each in read)
        ):
            return [(partition, each) for partition, _, each in found]
        await ctx.partitions.wait_for_more(
            [want for want, _ in read],
            [each for _, each in read],
            wait_ms / 1000,
            ctx.behind.arrival() if ctx.behind is not None else None,
        )


async def _read(
    asked: Sequence[FetchPartition],
    isolation: IsolationLevel,
    max_bytes: int,
    asker: _Asker,
    ctx: RequestContext,
) -> list[tuple[FetchPartition, Want | None, Found]]:
    topics = await _find_topics(asked, ctx)
    wants: list[Want | Found] = []
    for each in asked:
        topic = topics.get(each.topic)
        if topic is not None:
            asker.names[each.topic] = topic.name
        if not asker.may_read(each.topic):
            wants.append(_NOT_AUTHORIZED)
        elif topic is None:
            by_id = isinstance(each.topic, UUID)
            error = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
            wants.append(Found(error, None))
        elif (partition_id := topic.partition_id(each.partition)) is None:
            wants.append(Found(Error.UNKNOWN_TOPIC_OR_PARTITION, None))
        else:
            wants.append(Want(partition_id, each.fetch_offset, each.max_bytes, isolation))
    readable = [want for want in wants if isinstance(want, Want)]
    read = iter(await _read_batches(readable, max_bytes, ctx) if readable else ())
    answers: list[tuple[FetchPartition, Want | None, Found]] = []
    for each, want in zip(asked, wants, strict=True):
        if isinstance(want, Found):
            answers.append((each, None, want))
        else:
            answers.append((each, want, await _check_epoch(each, want, next(read), ctx)))
    return answers


async def _read_batches(wants: Sequence[Want], max_bytes: int, ctx: RequestContext) -> list[Found]:
    """What other front-ends have stored is translated, which changes its size."""
    found = await ctx.partitions.read(wants, max_bytes)
    is_foreign = False
    for position, (want, each) in enumerate(zip(wants, found, strict=True)):
        if any(batch.format is not BatchFormat.KAFKA_V2 for batch in each.batches):
            is_foreign = True
            batches = await ctx.translator.all_translated(
                want.partition_id, each.batches, min(want.max_bytes, max_bytes)
            )
            found[position] = replace(each, batches=batches)
    if is_foreign:
        hold_to_limits(wants, found, max_bytes)
    return found


async def _find_topics(
    asked: Sequence[FetchPartition], ctx: RequestContext
) -> Mapping[str | UUID, Topic]:
    ids = {each.topic for each in asked if isinstance(each.topic, UUID)}
    names = {each.topic for each in asked if isinstance(each.topic, str)}
    if ids:
        return dict((await ctx.topics.get_many_by_id(ids)).items())
    return dict((await ctx.topics.get_many(names)).items())


async def _check_epoch(
    asked: FetchPartition, want: Want, found: Found, ctx: RequestContext
) -> Found:
    """A client that knows another leader epoch is told so (KIP-320), after a fresh look."""
    if found.state is None or asked.current_leader_epoch == UNDEFINED_EPOCH:
        return found
    if check_leader_epoch(found.state.leader_epoch, asked.current_leader_epoch):
        return found
    states = await ctx.partitions.refresh([want.partition_id])
    state = states.get(want.partition_id)
    if state is None:
        return Found(Error.UNKNOWN_TOPIC_OR_PARTITION, None)
    match check_leader_epoch(state.leader_epoch, asked.current_leader_epoch):
        case None:
            return Found(Error.UNKNOWN_LEADER_EPOCH, None)
        case False:
            return Found(Error.FENCED_LEADER_EPOCH, None)
    return found


def _answer(asked: FetchPartition, found: Found, committed: bool) -> _Partition:
    state = found.state
    if found.error is not Error.NONE or state is None:
        return _refused(asked, found.error)
    records: list[Any] = []
    for batch in found.batches:
        epoch = epoch_at(found.leader_epochs, batch.base_offset)
        records += patched(batch.payload, batch.base_offset, epoch)
    return made(
        _Partition,
        partition_index=asked.partition,
        error_code=0,
        high_watermark=state.high_watermark,
        last_stable_offset=state.last_stable_offset,
        log_start_offset=state.log_start_offset,
        aborted_transactions=[
            _Aborted(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in found.aborted
        ]
        if committed
        else None,
        preferred_read_replica=-1,
        records=records,
    )


def _refused(asked: FetchPartition, error: Error) -> _Partition:
    """No offsets. Where a read failed Kafka has no list of aborted transactions; where there was
    nothing to read, an empty one (ReplicaManager.createLogReadResult, FetchResponse)."""
    return made(
        _Partition,
        partition_index=asked.partition,
        error_code=kafka_code(error),
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        aborted_transactions=[] if error in _NOT_THERE else None,
        preferred_read_replica=-1,
        records=[],
    )


def _all_refused(request: FetchRequest, error: Error, ctx: RequestContext) -> FetchResponse:
    """As Kafka says it where a request fails as a whole (FetchRequest.getErrorResponse)."""
    by_name = request.topics if ctx.api_version < TOPIC_IDS_SINCE else ()
    return FetchResponse(
        error_code=kafka_code(error),
        session_id=request.session_id,
        responses=[
            _topic(
                each.topic,
                [
                    _refused(FetchPartition(each.topic, asked.partition, 0, 0), error)
                    for asked in each.partitions
                ],
            )
            for each in by_name
        ],
    )


def _topic(topic: str | UUID, partitions: list[_Partition]) -> _Topic:
    if isinstance(topic, UUID):
        return _Topic(topic_id=topic, partitions=partitions)
    return _Topic(topic=topic, partitions=partitions)


_ZERO: Final = UUID(int=0)
