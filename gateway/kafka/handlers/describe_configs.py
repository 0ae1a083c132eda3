"""DescribeConfigs (key 32): the settings of topics, of groups, of this broker, and of all brokers.

Behavior: a broker describes itself only, as in Kafka; clients ask the broker they mean. The empty
broker name is what is set for all brokers, not their defaults. A group need not exist (KIP-848);
its defaults are the broker's. Loggers and client metrics are not there.

Versions: v1 is Kafka 4's first and has sources and synonyms (KIP-226); v3 types and documentation
(KIP-569); v4 is flexible.
"""

from collections.abc import Collection
from typing import Any

from core.config.rules import ConfigResource
from core.config.values import ConfigEntry
from core.errors import Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeConfigsRequest, DescribeConfigsResponse
from gateway.kafka.config_rights import config_refusal
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

Result = DescribeConfigsResponse.DescribeConfigsResult
Described = Result.DescribeConfigsResourceResult
_RIGHTS = REQUIREMENTS["DescribeConfigs"]


def _refuse_all(request: DescribeConfigsRequest, ctx: RequestContext) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_result(_resource(each), TIMED_OUT, request) for each in request.resources]
    )


@api(32, versions=range(1, 5), unavailable=_refuse_all)
async def describe_configs(
    request: DescribeConfigsRequest, ctx: RequestContext
) -> DescribeConfigsResponse:
    """Describe each resource as the database has it now."""
    resources = [_resource(each) for each in request.resources]
    refusals = [config_refusal(_RIGHTS, each, ctx) for each in resources]
    allowed = [each for each, no in zip(resources, refusals, strict=True) if no is None]
    rest = iter(await ctx.configs.describe(allowed) if allowed else ())
    described = [no or next(rest) for no in refusals]
    return DescribeConfigsResponse(
        results=[
            _result(resource, _chosen(found, each.configuration_keys), request)
            for each, resource, found in zip(request.resources, resources, described, strict=True)
        ]
    )


def _chosen(
    described: tuple[ConfigEntry, ...] | Refusal, keys: Collection[str] | None
) -> tuple[ConfigEntry, ...] | Refusal:
    """The entries asked for; null and the empty list are all."""
    if isinstance(described, Refusal) or not keys:
        return described
    return tuple(entry for entry in described if entry.name in keys)


def _resource(each: Any) -> ConfigResource:
    return ConfigResource(each.resource_type, each.resource_name)


def _result(
    resource: ConfigResource,
    described: tuple[ConfigEntry, ...] | Refusal,
    request: DescribeConfigsRequest,
) -> Any:
    refusal = described if isinstance(described, Refusal) else None
    return Result(
        error_code=kafka_code(refusal.error) if refusal else 0,
        error_message=refusal.message if refusal else "",
        resource_type=resource.type_number,
        resource_name=resource.name,
        configs=[] if isinstance(described, Refusal) else [_entry(e, request) for e in described],
    )


def _entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> Any:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return Described(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source.value,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            Described.DescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=synonym.source.value
            )
            for synonym in synonyms
        ],
        config_type=entry.type.value,
        documentation=entry.documentation if request.include_documentation else None,
    )
