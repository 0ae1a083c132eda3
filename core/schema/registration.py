"""Whether a client's schema is a topic's already, and whether it may become a version of it.

What is compared with what is in `compatibility`; here is what does not need the schemas themselves.
Sources: AbstractTopic.addSchema, SchemaRegistryServiceImpl.putSchemaIfAbsent.
"""

from collections.abc import Sequence

from core.schema.values import (
    MAX_TOPIC_BYTES,
    MAX_VERSIONS,
    Schema,
    SchemaHead,
    SchemaPolicy,
    SchemaRefusal,
    SchemaType,
)


def find_version(heads: Sequence[SchemaHead], kind: SchemaType, fingerprint: bytes) -> int | None:
    """The first version of a topic that means the same as a schema; see `forms.fingerprint`."""
    wanted = kind, fingerprint
    return next((e.version for e in heads if (e.type, e.fingerprint) == wanted), None)


def refuse_another(
    heads: Sequence[SchemaHead], schema: Schema, policy: SchemaPolicy
) -> SchemaRefusal | None:
    """Why a topic with these versions takes no further one, whatever is in it."""
    if not policy.allows_auto_update:
        return SchemaRefusal("Schema not found and schema auto updating is disabled.")
    if len(heads) >= MAX_VERSIONS:
        return SchemaRefusal(
            f"The topic has {len(heads)} versions of its schema, as many as may be"
        )
    if sum(each.size for each in heads) + schema.size > MAX_TOPIC_BYTES:
        reason = f"The versions of the topic's schema would have more than {MAX_TOPIC_BYTES} bytes"
        return SchemaRefusal(reason)
    return None
