"""DescribeCluster (key 60): the cluster's id and its live brokers (KIP-700).

Behavior: from memory, a second old at most. The controller is whoever answers: every broker can do
what Kafka's controller does. There are no fenced brokers: one that is not live is not shown.

Versions: v1 names the type of endpoint asked for (KIP-919): brokers only; v2 fenced brokers
(KIP-1073).
"""

from core.errors import Error
from core.security.acls import ResourceType
from core.security.operations import REQUIREMENTS
from gateway.kafka.acl_codes import NOT_ASKED
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeClusterRequest, DescribeClusterResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

(_DESCRIBE,) = REQUIREMENTS["DescribeCluster"]
_BROKERS, _CONTROLLERS = 1, 2


@api(60, versions=range(3))
async def describe_cluster(
    request: DescribeClusterRequest, ctx: RequestContext
) -> DescribeClusterResponse:
    """Describe the cluster, to those who ask for brokers."""
    asked = request.endpoint_type
    if asked == _CONTROLLERS:
        message = (
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER"
        )
        return _refused(Error.MISMATCHED_ENDPOINT_TYPE, message)
    if asked != _BROKERS:
        return _refused(Error.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {asked}")
    asks_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_code=0,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=ctx.cluster.cluster_id,
        controller_id=ctx.cluster.broker_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=False,
            )
            for broker in ctx.brokers
        ],
        authorized_operations=_operations(ctx) if asks_operations else NOT_ASKED,
    )


def _operations(ctx: RequestContext) -> int:
    return ctx.authorized_operations(ResourceType.CLUSTER) if ctx.may(_DESCRIBE) else 0


def _refused(error: Error, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=kafka_code(error),
        error_message=message,
        endpoint_type=_BROKERS,
        cluster_id="",
        controller_id=-1,
        brokers=[],
        authorized_operations=NOT_ASKED,
    )
