"""DescribeClientQuotas (key 48): finds none, for there are no quotas yet (KIP-546).

Behavior: kafka-configs asks for a user's quotas before it shows his mechanisms, and would show
nothing without an answer. AlterClientQuotas is not served: none can be set.

Versions: v1 flexible.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

(_DESCRIBE_CONFIGS,) = REQUIREMENTS["DescribeClientQuotas"]


@api(48, versions=range(2))
async def describe_client_quotas(
    request: DescribeClientQuotasRequest, ctx: RequestContext
) -> DescribeClientQuotasResponse:
    """Describe nothing."""
    if not ctx.may(_DESCRIBE_CONFIGS):
        code = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeClientQuotasResponse(error_code=code, error_message=None, entries=None)
    return DescribeClientQuotasResponse(
        error_code=kafka_code(Error.NONE), error_message="", entries=[]
    )
