"""ListConfigResources (key 74): topics, brokers and groups that have settings (KIP-1142).

Behavior: groups are those with settings of their own, as in Kafka. There are no client metrics and
no loggers to be set: none are listed. An unknown type is UNSUPPORTED_VERSION.

Versions: v0 was ListClientMetricsResources (KIP-1000) and lists those only; v1 names the types
wanted, none for all.
"""

from collections.abc import Iterable

from core.config.rules import ConfigResourceType
from core.errors import Error
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import ListConfigResourcesRequest, ListConfigResourcesResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

(_DESCRIBE_CONFIGS,) = REQUIREMENTS["ListConfigResources"]

_ALL = (
    ConfigResourceType.GROUP,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.BROKER,
    ConfigResourceType.TOPIC,
)


def _refuse(
    request: ListConfigResourcesRequest, ctx: RequestContext
) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=kafka_code(TIMED_OUT.error), config_resources=[])


@api(74, versions=range(2), unavailable=_refuse)
async def list_config_resources(
    request: ListConfigResourcesRequest, ctx: RequestContext
) -> ListConfigResourcesResponse:
    """List the resources of each type asked for."""
    if not ctx.may(_DESCRIBE_CONFIGS):
        code = kafka_code(Error.CLUSTER_AUTHORIZATION_FAILED)
        return ListConfigResourcesResponse(error_code=code, config_resources=[])
    wanted = {ConfigResourceType.of(number) for number in request.resource_types or ()}
    if ctx.api_version == 0:
        wanted = {ConfigResourceType.CLIENT_METRICS}
    if ConfigResourceType.UNKNOWN in wanted:
        code = kafka_code(Error.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(error_code=code, config_resources=[])
    return ListConfigResourcesResponse(
        error_code=0,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind.value)
            for kind in _ALL
            if kind in wanted or not wanted
            for name in await _names(kind, ctx)
        ],
    )


async def _names(kind: ConfigResourceType, ctx: RequestContext) -> Iterable[str]:
    match kind:
        case ConfigResourceType.TOPIC:
            return [topic.name for topic in await ctx.topics.all()]
        case ConfigResourceType.BROKER:
            return [str(broker.broker_id) for broker in ctx.cluster.live]
        case ConfigResourceType.GROUP:
            return await ctx.configs.groups_with_settings()
        case _:
            return ()
