"""IncrementalAlterConfigs (key 44): single changes to the settings of a resource (KIP-339).

Behavior: each resource whole or not at all. A broker alters its own settings and those of all
brokers; what it cannot change while it runs is INVALID_REQUEST, Kafka's code (KAFKA-13609).
A group need not exist to be given settings. Loggers (KIP-412) and client metrics are not there.

Versions: v1 is flexible.
"""

from typing import Any

from core.config.rules import ConfigAlteration, ConfigOperation, ConfigResource
from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from gateway.kafka.config_rights import config_refusal
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

_RIGHTS = REQUIREMENTS["IncrementalAlterConfigs"]


def _refuse_all(
    request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_result(each, TIMED_OUT) for each in request.resources]
    )


@api(44, versions=range(2), unavailable=_refuse_all)
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Alter (or only validate) the settings of each resource."""
    alterations = [_alteration(each) for each in request.resources]
    refused = [config_refusal(_RIGHTS, each.resource, ctx) for each in alterations]
    allowed = [each for each, no in zip(alterations, refused, strict=True) if no is None]
    rest = iter(await ctx.configs.alter(allowed, validate_only=request.validate_only))
    refusals = [no or next(rest) for no in refused]
    return IncrementalAlterConfigsResponse(
        responses=[
            _result(each, refusal)
            for each, refusal in zip(request.resources, refusals, strict=True)
        ]
    )


def _alteration(each: Any) -> ConfigAlteration:
    return ConfigAlteration(
        resource=ConfigResource(each.resource_type, each.resource_name),
        operations=tuple(
            ConfigOperation(config.name, config.config_operation, config.value)
            for config in each.configs
        ),
    )


def _result(each: Any, refusal: Refusal | None) -> Any:
    return IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
        resource_type=each.resource_type,
        resource_name=each.resource_name,
    )
