"""DescribeClientQuotas (key 48): finds none, for there are no quotas yet (KIP-546).

Behavior: kafka-configs asks for a user's quotas before it shows his mechanisms, and would show
nothing without an answer. AlterClientQuotas is not served: none can be set.

Versions: v1 flexible.
"""

from core.errors import Error
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code


@api(48, versions=range(2))
async def describe_client_quotas(
    request: DescribeClientQuotasRequest, ctx: RequestContext
) -> DescribeClientQuotasResponse:
    """Describe nothing."""
    return DescribeClientQuotasResponse(
        error_code=kafka_code(Error.NONE), error_message="", entries=[]
    )
