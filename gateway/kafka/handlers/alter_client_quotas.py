"""AlterClientQuotas (key 49): sets and removes quotas of clients and addresses (KIP-546).

Behavior: as Kafka's. An entity is changed as a whole or not at all; the others are changed though
one is refused. It counts here when it is answered, at other brokers within a second. An address is
one, not the name of a host; no name may hold NUL, and a value is finite (Kafka takes them).

Versions: v1 flexible.
"""

from collections.abc import Iterable
from typing import Any

from core.errors import Error, Refusal
from core.quota.changes import Alteration, NamedEntity
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import AlterClientQuotasRequest, AlterClientQuotasResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.handlers.describe_acls import NOT_AUTHORIZED
from gateway.kafka.unavailable import CHANGE_REFUSED

Entry = AlterClientQuotasResponse.EntryData
(_ALTER_CONFIGS,) = REQUIREMENTS["AlterClientQuotas"]


def _unavailable(
    request: AlterClientQuotasRequest, ctx: RequestContext
) -> AlterClientQuotasResponse:
    return _refused(request, CHANGE_REFUSED)


@api(49, versions=range(2), unavailable=_unavailable)
async def alter_client_quotas(
    request: AlterClientQuotasRequest, ctx: RequestContext
) -> AlterClientQuotasResponse:
    """Change the entities named, each of them once."""
    if not ctx.may(_ALTER_CONFIGS):
        return _refused(request, NOT_AUTHORIZED)
    alterations = [
        Alteration(_named(entry), [(op.key, None if op.remove else op.value) for op in entry.ops])
        for entry in request.entries
    ]
    answers = await ctx.quotas.alter(
        alterations,
        only_validate=request.validate_only,
        principal=ctx.principal,
        peer=ctx.peer,
    )
    return _response(answers.items())


def _named(entry: AlterClientQuotasRequest.EntryData) -> NamedEntity:
    """Of two parts of one type the later counts, as in Kafka."""
    return tuple(sorted({each.entity_type: each.entity_name for each in entry.entity}.items()))


def _refused(request: AlterClientQuotasRequest, refusal: Refusal) -> AlterClientQuotasResponse:
    named = dict.fromkeys(_named(entry) for entry in request.entries)
    return _response((each, refusal) for each in named)


def _response(
    answers: Iterable[tuple[NamedEntity, Refusal | None]],
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[_answer(entity, refusal) for entity, refusal in answers]
    )


def _answer(entity: NamedEntity, refusal: Refusal | None) -> Any:
    return Entry(
        error_code=kafka_code(refusal.error) if refusal else kafka_code(Error.NONE),
        error_message=refusal.message if refusal else None,
        entity=[Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
    )
