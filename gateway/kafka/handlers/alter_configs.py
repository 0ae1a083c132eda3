"""AlterConfigs (key 33): replaces all settings of a resource. Deprecated by Kafka for key 44.

Versions: v2 is flexible.
"""

from typing import Any

from core.config.rules import AlterOperation, ConfigAlteration, ConfigOperation, ConfigResource
from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import AlterConfigsRequest, AlterConfigsResponse
from gateway.kafka.config_rights import config_refusal
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

_RIGHTS = REQUIREMENTS["AlterConfigs"]


def _refuse_all(request: AlterConfigsRequest, ctx: RequestContext) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_result(each, TIMED_OUT) for each in request.resources])


@api(33, versions=range(3), unavailable=_refuse_all)
async def alter_configs(request: AlterConfigsRequest, ctx: RequestContext) -> AlterConfigsResponse:
    """Replace (or only validate) the settings of each resource, whole or not at all."""
    alterations = [_alteration(each) for each in request.resources]
    refused = [config_refusal(_RIGHTS, each.resource, ctx) for each in alterations]
    allowed = [each for each, no in zip(alterations, refused, strict=True) if no is None]
    rest = iter(await ctx.configs.alter(allowed, validate_only=request.validate_only))
    refusals = [no or next(rest) for no in refused]
    return AlterConfigsResponse(
        responses=[
            _result(each, refusal)
            for each, refusal in zip(request.resources, refusals, strict=True)
        ]
    )


def _alteration(each: Any) -> ConfigAlteration:
    return ConfigAlteration(
        resource=ConfigResource(each.resource_type, each.resource_name),
        operations=tuple(
            ConfigOperation(config.name, AlterOperation.SET.value, config.value)
            for config in each.configs
        ),
        replaces_all=True,
    )


def _result(each: Any, refusal: Refusal | None) -> Any:
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=kafka_code(refusal.error if refusal else Error.NONE),
        error_message=refusal.message if refusal else None,
        resource_type=each.resource_type,
        resource_name=each.resource_name,
    )
