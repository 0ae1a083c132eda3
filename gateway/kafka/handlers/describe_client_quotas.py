"""DescribeClientQuotas (key 48): the quotas that a filter means (KIP-546).

Behavior: as Kafka's; read from the database at each request.

Versions: v1 flexible.
"""

from typing import Any, Final

from core.errors import Error, Refusal
from core.quota.changes import Component, MatchType, read_filter
from core.quota.entities import DEFAULT, QuotaEntity, Quotas
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

Entry = DescribeClientQuotasResponse.EntryData
(_DESCRIBE_CONFIGS,) = REQUIREMENTS["DescribeClientQuotas"]
# DescribeClientQuotasRequest.MATCH_TYPE_…
_MATCH_TYPES: Final = {0: MatchType.EXACT, 1: MatchType.DEFAULT, 2: MatchType.SPECIFIED}


def _unavailable(
    request: DescribeClientQuotasRequest, ctx: RequestContext
) -> DescribeClientQuotasResponse:
    return _refused(TIMED_OUT)


@api(48, versions=range(2), unavailable=_unavailable)
async def describe_client_quotas(
    request: DescribeClientQuotasRequest, ctx: RequestContext
) -> DescribeClientQuotasResponse:
    """Answer entity by entity."""
    if not ctx.may(_DESCRIBE_CONFIGS):
        return _refused(Refusal(Error.CLUSTER_AUTHORIZATION_FAILED))
    components = [
        Component(each.entity_type, _MATCH_TYPES.get(each.match_type), each.match, each.match_type)
        for each in request.components
    ]
    asked = read_filter(components, request.strict)
    if isinstance(asked, Refusal):
        return _refused(asked)
    found = await ctx.quotas.describe(asked)
    return DescribeClientQuotasResponse(
        error_code=kafka_code(Error.NONE),
        error_message="",
        entries=[_entry(entity, quotas) for entity, quotas in found.items()],
    )


def _entry(entity: QuotaEntity, quotas: Quotas) -> Any:
    return Entry(
        entity=[
            Entry.EntityData(entity_type=kind.value, entity_name=None if name == DEFAULT else name)
            for kind, name in entity
        ],
        values=[Entry.ValueData(key=key.value, value=value) for key, value in quotas.items()],
    )


def _refused(refusal: Refusal) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=kafka_code(refusal.error), error_message=refusal.message, entries=None
    )
