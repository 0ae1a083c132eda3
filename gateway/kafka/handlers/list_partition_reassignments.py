"""ListPartitionReassignments (key 46): none; a partition has one replica and never moves.

Behavior: like Kafka, says nothing of topics that are not there.

Versions: v0, flexible.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

(_DESCRIBE,) = REQUIREMENTS["ListPartitionReassignments"]


@api(46, versions=range(1))
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, ctx: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Answer that nothing is being reassigned."""
    if not ctx.may(_DESCRIBE):
        code = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)
        return ListPartitionReassignmentsResponse(error_code=code, error_message=None, topics=[])
    return ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
