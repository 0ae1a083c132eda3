"""ListPartitionReassignments (key 46): none; a partition has one replica and never moves.

Behavior: like Kafka, says nothing of topics that are not there.

Versions: v0, flexible.
"""

from gateway.kafka.api import api
from gateway.kafka.codec import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from gateway.kafka.context import RequestContext


@api(46, versions=range(1))
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, ctx: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Answer that nothing is being reassigned."""
    return ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
