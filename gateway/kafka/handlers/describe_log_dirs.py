"""DescribeLogDirs (key 35): how much each partition holds.

Behavior: there is one log directory, the database, called "postgresql". A broker reports the
partitions it leads, so that a sum over all brokers counts each once. The volume's size is unknown
(-1): the gateway cannot see PostgreSQL's disk.

Versions: v1 is Kafka 4's first; v2 is flexible; v3 has a top-level error; v4 the volume's size
(KIP-827); v5 cordoned directories (KIP-1066).
"""

from typing import Any

from core.errors import Error
from core.ports.topics import PartitionSize
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeLogDirsRequest, DescribeLogDirsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

LOG_DIR = "postgresql"
Result = DescribeLogDirsResponse.DescribeLogDirsResult
TopicAnswer = Result.DescribeLogDirsTopic
(_DESCRIBE,) = REQUIREMENTS["DescribeLogDirs"]
_UNKNOWN_BYTES = -1


def _refuse_all(request: DescribeLogDirsRequest, ctx: RequestContext) -> DescribeLogDirsResponse:
    return _response([], Error.KAFKA_STORAGE_ERROR)


@api(35, versions=range(1, 6), unavailable=_refuse_all)
async def describe_log_dirs(
    request: DescribeLogDirsRequest, ctx: RequestContext
) -> DescribeLogDirsResponse:
    """Report the sizes of the partitions asked for, or of all (null), that this broker leads."""
    if not ctx.may(_DESCRIBE):
        code = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeLogDirsResponse(error_code=code, results=[])
    asked = None
    if request.topics is not None:
        asked = {(each.topic, number) for each in request.topics for number in each.partitions}
    by_topic: dict[str, list[Any]] = {}
    for size in await ctx.topics.partition_sizes():
        if asked is not None and (size.topic_name, size.partition) not in asked:
            continue
        if ctx.cluster.leader_of(size.partition_id) == ctx.cluster.broker_id:
            by_topic.setdefault(size.topic_name, []).append(_partition(size))
    topics = [TopicAnswer(name=name, partitions=sizes) for name, sizes in by_topic.items()]
    return _response(topics, Error.NONE)


def _partition(size: PartitionSize) -> Any:
    return TopicAnswer.DescribeLogDirsPartition(
        partition_index=size.partition,
        partition_size=size.size_bytes,
        offset_lag=0,
        is_future_key=False,
    )


def _response(topics: list[Any], error: Error) -> DescribeLogDirsResponse:
    directory = Result(
        error_code=kafka_code(error),
        log_dir=LOG_DIR,
        topics=topics,
        total_bytes=_UNKNOWN_BYTES,
        usable_bytes=_UNKNOWN_BYTES,
        is_cordoned=False,
    )
    return DescribeLogDirsResponse(error_code=0, results=[directory])
