"""DescribeQuorum (key 55): refused; there is no quorum of controllers (KIP-595).

Behavior: UNSUPPORTED_VERSION for the whole request, which clients know from brokers that have no
KRaft, with the reason beside it. An answer for the partition alone (UNKNOWN_TOPIC_OR_PARTITION)
would have Java's admin client try again for a minute.

Versions: v2 has a message (KIP-853); all flexible.
"""

from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeQuorumRequest, DescribeQuorumResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_MESSAGE = (
    "There is no quorum of controllers here: brokers, topics and settings are rows in PostgreSQL."
)
(_DESCRIBE,) = REQUIREMENTS["DescribeQuorum"]


@api(55, versions=range(3))
async def describe_quorum(
    request: DescribeQuorumRequest, ctx: RequestContext
) -> DescribeQuorumResponse:
    """Refuse."""
    if not ctx.may(_DESCRIBE):
        code = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeQuorumResponse(error_code=code, error_message=None, topics=[], nodes=[])
    return DescribeQuorumResponse(
        error_code=kafka_code(Error.UNSUPPORTED_VERSION),
        error_message=_MESSAGE,
        topics=[],
        nodes=[],
    )
