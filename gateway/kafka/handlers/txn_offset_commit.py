"""TxnOffsetCommit (key 28): offsets of a group that count if the transaction is committed.

Behavior: fenced by the group (generation and member, KIP-447) and by the transaction; durable when
answered, invisible until the transaction ends. V1 must have joined by AddOffsetsToTxn; V2 joins
here, within the same limits. The group may be a subscription of Pulsar's, on which messages are
acknowledged then (`subscription_groups.py`).

Versions: v2 leader epoch; v3 flexible, and says which member commits; v4 knows
TRANSACTION_ABORTABLE; v5 is V2 of transactions (KIP-890).
"""

from typing import Any, Final

from core.errors import Error
from core.group.records import CommittedOffset
from core.security.operations import REQUIREMENTS
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import TransactionKey
from core.transaction.values import ProducerIdAndEpoch
from gateway.kafka.api import api
from gateway.kafka.codec import TxnOffsetCommitRequest, TxnOffsetCommitResponse, java_length
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import NEVER, kafka_code
from gateway.kafka.late_requests import kept_name, note_asked, refuse_late
from gateway.kafka.subscription_groups import (
    SubscriptionGroup,
    acknowledge,
    find_subscription,
)

_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = _Topic.TxnOffsetCommitResponsePartition
_WRITE, _READ, _READ_TOPIC = REQUIREMENTS["TxnOffsetCommit"]
_FIRST_VERSION_WITH_MEMBERS: Final = 3


def _unavailable(request: TxnOffsetCommitRequest, ctx: RequestContext) -> TxnOffsetCommitResponse:
    return _refused(request, Error.COORDINATOR_NOT_AVAILABLE)


def _refused(request: TxnOffsetCommitRequest, error: Error) -> TxnOffsetCommitResponse:
    return _answer(request, [[error] * len(topic.partitions) for topic in request.topics])


def _about(request: TxnOffsetCommitRequest) -> tuple[ProducerIdAndEpoch, tuple[str, str]]:
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    return producer, ("TxnOffsetCommit", kept_name(request.group_id))


def _is_granted(answer: TxnOffsetCommitResponse) -> bool:
    return any(each.error_code == 0 for topic in answer.topics for each in topic.partitions)


@api(
    28,
    versions=range(6),
    unavailable=_unavailable,
    v2_since=5,
    known_since={
        Error.TRANSACTION_ABORTABLE: 4,
        Error.GROUP_ID_NOT_FOUND: NEVER,
        Error.STALE_MEMBER_EPOCH: NEVER,
    },
)
@refuse_late(_about, _is_granted)
async def txn_offset_commit(
    request: TxnOffsetCommitRequest, ctx: RequestContext
) -> TxnOffsetCommitResponse:
    """Put aside what can be; one error for each partition."""
    if not ctx.may(_WRITE, request.transactional_id):
        return _refused(request, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not ctx.may(_READ, request.group_id):
        return _refused(request, Error.GROUP_AUTHORIZATION_FAILED)
    names = {each.name for each in request.topics}
    hidden = {name for name in names if not ctx.may(_READ_TOPIC, name)}
    topics = await ctx.topics.get_many(names - hidden)
    max_length = ctx.configs.broker_int("offset.metadata.max.bytes")
    now = ctx.clock()
    errors: list[list[Error]] = []
    offsets: dict[int, CommittedOffset] = {}
    for each in request.topics:
        topic = topics.get(each.name)
        found = []
        for asked in each.partitions:
            partition_id = None if topic is None else topic.partition_id(asked.partition_index)
            if each.name in hidden:
                found.append(Error.TOPIC_AUTHORIZATION_FAILED)
            elif partition_id is None:
                found.append(Error.UNKNOWN_TOPIC_OR_PARTITION)
            elif java_length(asked.committed_metadata) > max_length:
                found.append(Error.OFFSET_METADATA_TOO_LARGE)
            else:
                found.append(Error.NONE)
                offsets[partition_id] = CommittedOffset(
                    partition_id,
                    asked.committed_offset,
                    asked.committed_leader_epoch,
                    asked.committed_metadata or "",
                    now,
                )
        errors.append(found)
    named = await find_subscription(request.group_id, ctx)
    if named is not None and offsets:
        if isinstance(named, SubscriptionGroup):
            refusal = await _acknowledge(request, named, offsets, ctx)
        else:
            refusal = named
        errors = [[refusal if e is Error.NONE else e for e in found] for found in errors]
    elif offsets:
        verdict = ctx.known(await _commit(request, list(offsets.values()), ctx))
        errors = [[verdict if e is Error.NONE else e for e in found] for found in errors]
    if any(error is Error.NONE for found in errors for error in found):
        producer, _ = _about(request)
        note_asked(TransactionKey.of_kafka(request.transactional_id), producer, ctx)
    return _answer(request, errors)


async def _acknowledge(
    request: TxnOffsetCommitRequest,
    named: SubscriptionGroup,
    offsets: dict[int, CommittedOffset],
    ctx: RequestContext,
) -> Error:
    """On a subscription of Pulsar's, in the partition that the group id names."""
    refusal = transactional_id_refusal(request.transactional_id)
    if refusal is not Error.NONE:
        return refusal
    wanted = offsets.pop(named.partition_id, None)
    if wanted is None or offsets:
        return ctx.known(Error.INVALID_REQUEST)
    key = TransactionKey.of_kafka(request.transactional_id)
    producer, _ = _about(request)
    return ctx.known(await acknowledge(named, key, producer, wanted.offset, wanted.metadata, ctx))


async def _commit(
    request: TxnOffsetCommitRequest, offsets: list[CommittedOffset], ctx: RequestContext
) -> Error:
    refusal = transactional_id_refusal(request.transactional_id)
    if request.group_id and refusal is not Error.NONE:  # no group is what is said first
        return refusal
    has_member = ctx.api_version >= _FIRST_VERSION_WITH_MEMBERS
    return await ctx.groups.commit_transactional_offsets(
        request.group_id,
        request.member_id if has_member else "",
        request.group_instance_id if has_member else None,
        request.generation_id if has_member else -1,
        lambda lease: ctx.transactions.commit_offsets(
            lease,
            request.group_id,
            TransactionKey.of_kafka(request.transactional_id),
            _about(request)[0],
            ctx.transaction_version,
            offsets,
        ),
    )


def _answer(request: TxnOffsetCommitRequest, errors: list[list[Error]]) -> TxnOffsetCommitResponse:
    topics: list[Any] = [
        _Topic(
            name=topic.name,
            partitions=[
                _Partition(partition_index=asked.partition_index, error_code=kafka_code(error))
                for asked, error in zip(topic.partitions, found, strict=True)
            ],
        )
        for topic, found in zip(request.topics, errors, strict=True)
    ]
    return TxnOffsetCommitResponse(topics=topics)
