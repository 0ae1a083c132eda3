"""Schemas of topics: read, registered, tried, deleted.

Behavior: as commands do it; what they check is checked here. Sources: SchemasResourceBase,
SchemasImpl, SchemaInfo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.schema.values import Schema, SchemaRefusal, SchemaType
from core.security.pulsar_operations import (
    CHANGE_TOPIC,
    SEE_TOPIC,
    WRITE_TOPIC,
)
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import topic_of
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.schema.values import VersionedSchema

_TOPIC: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_NOT_FOUND: Final = Refused(404, "Schema not found")
_INCOMPATIBLE: Final = 409
_INVALID: Final = 422


@endpoint("GET", f"{_TOPIC}/schema", SEE_TOPIC)
async def latest(call: AdminCall) -> Any:
    """The latest version."""
    _, topic = await topic_of(call)
    found = await call.services.pulsar.schemas.get(topic)
    return _NOT_FOUND if found is None else _shown(found)


@endpoint("GET", f"{_TOPIC}/schema/{{version}}", SEE_TOPIC)
async def version(call: AdminCall) -> Any:
    """One version."""
    _, topic = await topic_of(call)
    found = await call.services.pulsar.schemas.get(topic, call.number("version"))
    return _NOT_FOUND if found is None else _shown(found)


@endpoint("GET", f"{_TOPIC}/schemas", SEE_TOPIC)
async def versions(call: AdminCall) -> Any:
    """All versions, oldest first."""
    _, topic = await topic_of(call)
    schemas = call.services.pulsar.schemas
    found = [await schemas.get(topic, head.version) for head in await schemas.heads(topic)]
    return {"getSchemaResponses": [_shown(each) for each in found if each is not None]}


@endpoint("POST", f"{_TOPIC}/schema", WRITE_TOPIC)
async def register(call: AdminCall) -> Any:
    """Make a schema the latest version, if it may follow those that are there."""
    _, topic = await topic_of(call)
    answer = await call.services.pulsar.schemas.register(topic, await _given(call))
    if isinstance(answer, SchemaRefusal):
        return Refused(_INCOMPATIBLE, answer.message)
    return {"version": answer}


@endpoint("DELETE", f"{_TOPIC}/schema", CHANGE_TOPIC)
async def delete(call: AdminCall) -> Any:
    """Delete all versions. `force`: leave no trace of them."""
    _, topic = await topic_of(call)
    deleted = await call.services.pulsar.schemas.delete(topic, force=call.flag("force"))
    return _NOT_FOUND if deleted is None else {"version": deleted}


@endpoint("POST", f"{_TOPIC}/compatibility", SEE_TOPIC)
async def try_out(call: AdminCall) -> Any:
    """Whether a schema could be registered."""
    _, topic = await topic_of(call)
    schemas = call.services.pulsar.schemas
    refusal = await schemas.refuse_incompatible(topic, await _given(call))
    strategy = schemas.policy_of(topic).effective_strategy.name
    return {"compatibility": refusal is None, "schemaCompatibilityStrategy": strategy}


@endpoint("POST", f"{_TOPIC}/version", SEE_TOPIC)
async def find_version(call: AdminCall) -> Any:
    """Which version a schema is; -1 where it is none."""
    _, topic = await topic_of(call)
    answer = await call.services.pulsar.schemas.find_version(topic, await _given(call))
    if isinstance(answer, SchemaRefusal):
        return Refused(_INVALID, answer.message)
    return {"version": -1 if answer is None else answer}


def _shown(found: VersionedSchema) -> dict[str, Any]:
    schema = found.schema
    return {
        "version": found.version,
        "type": schema.type.name,
        "timestamp": found.created_ms,
        "data": schema.data.decode(errors="replace"),
        "properties": dict(schema.properties),
    }


async def _given(call: AdminCall) -> Schema:
    """The schema of a PostSchemaPayload. Raises ClientError."""
    given = await call.json()
    try:
        kind = SchemaType[given["type"]]
        text, properties = given["schema"], given.get("properties") or {}
        is_well_formed = isinstance(text, str) and all(
            isinstance(each, str) for pair in properties.items() for each in pair
        )
    except (TypeError, KeyError, AttributeError):
        is_well_formed = False
    if not is_well_formed:
        reason = 'A schema is {"type": "JSON", "schema": "…", "properties": {}}'
        raise ClientError(_INVALID, reason)
    return Schema(kind, text.encode(), "", properties)
