"""ElectLeaders (key 43): every partition has its leader already, so no election is ever needed.

Behavior: a partition that exists is ELECTION_NOT_NEEDED. Where all are asked about (null), Kafka
leaves out those that need no election: each topic comes without partitions.

Versions: v1 names the type of election (KIP-460) and has an error of its own; v2 is flexible.
"""

from collections.abc import Collection
from typing import Any

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.topic.topic import Topic
from gateway.kafka.api import api
from gateway.kafka.codec import ElectLeadersRequest, ElectLeadersResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import CHANGE_REFUSED

TopicAnswer = ElectLeadersResponse.ReplicaElectionResult
PartitionAnswer = TopicAnswer.PartitionResult

(_ALTER,) = REQUIREMENTS["ElectLeaders"]
_PREFERRED, _UNCLEAN = 0, 1
_NOT_NEEDED = Refusal(Error.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def _refuse_all(request: ElectLeadersRequest, ctx: RequestContext) -> ElectLeadersResponse:
    return _refused(request, CHANGE_REFUSED)


@api(43, versions=range(3), unavailable=_refuse_all)
async def elect_leaders(request: ElectLeadersRequest, ctx: RequestContext) -> ElectLeadersResponse:
    """Say of each partition that it needs no election, or that it is not there."""
    if not ctx.may(_ALTER):
        return _refused(request, Refusal(Error.CLUSTER_AUTHORIZATION_FAILED))
    # v0 knows preferred leaders only.
    kind = request.election_type if ctx.api_version >= 1 else _PREFERRED
    if kind not in {_PREFERRED, _UNCLEAN}:
        if request.topic_partitions == []:
            return ElectLeadersResponse(error_code=0, replica_election_results=[])
        return _refused(request, Refusal(Error.INVALID_REQUEST, f"Unknown election type {kind}"))
    if request.topic_partitions is None:
        results = [_topic(topic.name, []) for topic in await ctx.topics.all()]
        return ElectLeadersResponse(error_code=0, replica_election_results=results)
    topics = await ctx.topics.get_many({each.topic for each in request.topic_partitions})
    results = [
        _topic(
            each.topic,
            [
                _partition(number, _verdict(topics.get(each.topic), each.topic, number))
                for number in each.partitions
            ],
        )
        for each in request.topic_partitions
    ]
    return ElectLeadersResponse(error_code=0, replica_election_results=results)


def _verdict(topic: Topic | None, name: str, number: int) -> Refusal:
    if topic is None:
        return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if topic.partition_id(number) is None:
        return Refusal(Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
    return _NOT_NEEDED


def _refused(request: ElectLeadersRequest, refusal: Refusal) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=kafka_code(refusal.error),
        replica_election_results=[
            _topic(each.topic, [_partition(number, refusal) for number in each.partitions])
            for each in request.topic_partitions or ()
        ],
    )


def _topic(name: str, partitions: Collection[Any]) -> Any:
    return TopicAnswer(topic=name, partition_result=list(partitions))


def _partition(number: int, refusal: Refusal) -> Any:
    return PartitionAnswer(
        partition_id=number,
        error_code=kafka_code(refusal.error),
        error_message=refusal.message,
    )
