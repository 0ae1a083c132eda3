"""DescribeTransactions (key 65): what is known of transactional ids (KIP-664).

Behavior: any broker answers for any id, by a fresh read. Groups whose offsets take part show as
partitions of `__consumer_offsets`, the ones Kafka would keep them in: there is no such topic here,
but tools that look at a transaction see that it has offsets. An id such as `pulsar:(3,1234)` is a
transaction of Pulsar's, unless a producer has it (`shown_ids.py`); the partitions are those
that it writes to, and not those of its acknowledgements.

Versions: v0, flexible.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from core.errors import Error
from core.security.operations import REQUIREMENTS
from core.transaction.coordinator import transactional_id_refusal
from core.transaction.key import ParticipantKind, TransactionKey
from core.transaction.shown_ids import pulsar_key, shown_id
from core.transaction.values import StoredTransaction, TransactionState
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeTransactionsRequest, DescribeTransactionsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_State = DescribeTransactionsResponse.TransactionState
_TopicData = _State.TopicData
_Partition = tuple[str, int]
_DESCRIBE, _DESCRIBE_TOPIC = REQUIREMENTS["DescribeTransactions"]
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_PARTITIONS: Final = 50  # Kafka's default of offsets.topic.num.partitions


def _unavailable(
    request: DescribeTransactionsRequest, ctx: RequestContext
) -> DescribeTransactionsResponse:
    away = Error.COORDINATOR_NOT_AVAILABLE
    states = [_refused(each, away) for each in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


@api(65, versions=range(1), unavailable=_unavailable)
async def describe_transactions(
    request: DescribeTransactionsRequest, ctx: RequestContext
) -> DescribeTransactionsResponse:
    """Describe each id."""
    allowed = {each for each in set(request.transactional_ids) if ctx.may(_DESCRIBE, each)}
    wanted = [
        key
        for each in request.transactional_ids
        if each in allowed and transactional_id_refusal(each) is Error.NONE
        for key in (TransactionKey.of_kafka(each), pulsar_key(each))
        if key is not None
    ]
    found = await ctx.transactions.describe(wanted)
    partitions: Mapping[int, _Partition] = {}
    if any(each.partitions for each in found.values()):
        partitions = {
            partition_id: (topic.name, number)
            for topic in await ctx.topics.all()
            if ctx.may(_DESCRIBE_TOPIC, topic.name)
            for number, partition_id in enumerate(topic.partition_ids)
        }
    states = []
    for each in request.transactional_ids:
        stored = found.get(TransactionKey.of_kafka(each))
        if stored is None and (key := pulsar_key(each)) is not None:
            stored = found.get(key)
        if each not in allowed:
            states.append(_refused(each, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif not each:
            states.append(_refused(each, Error.INVALID_REQUEST))
        elif stored is None or stored.metadata.state is TransactionState.DEAD:
            states.append(_refused(each, Error.TRANSACTIONAL_ID_NOT_FOUND))
        else:
            states.append(_described(stored, partitions, ctx))
    return DescribeTransactionsResponse(transaction_states=states)


def _described(
    stored: StoredTransaction, partitions: Mapping[int, _Partition], ctx: RequestContext
) -> Any:
    numbers: dict[str, set[int]] = defaultdict(set)
    for partition_id in stored.partitions:
        if partition := partitions.get(partition_id):  # else deleted since it joined
            numbers[partition[0]].add(partition[1])
    for participant in stored.participants:
        if participant.kind is not ParticipantKind.GROUP:
            continue
        if ctx.may(_DESCRIBE_TOPIC, _OFFSETS_TOPIC):
            numbers[_OFFSETS_TOPIC].add(_offsets_partition(participant.name))
    known = stored.metadata
    return _State(
        error_code=0,
        transactional_id=shown_id(known.key),
        transaction_state=known.state.value,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_at,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=[
            _TopicData(topic=name, partitions=sorted(numbers[name])) for name in sorted(numbers)
        ],
    )


def _offsets_partition(group_id: str) -> int:
    """Where Kafka keeps a group: `Utils.abs(groupId.hashCode())`, modulo the partitions."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    signed = value - (value >> 31 << 32)
    return (0 if signed == -(2**31) else abs(signed)) % _OFFSETS_PARTITIONS


def _refused(transactional_id: str, error: Error) -> Any:
    return _State(
        error_code=kafka_code(error),
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
