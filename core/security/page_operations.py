"""Which page, and which action of one, asks for which operation on what.

What a page shows is what one of Kafka's or Pulsar's APIs tells, and takes the same right; so does
what it changes. Does not know who may do it, nor how a page looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.errors import Error
from core.security.acls import Operation, ResourceType
from core.security.operations import Requirement, Right, Without

_CLUSTER, _TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC


def _shown(kind: ResourceType, of: str) -> Requirement:
    return Requirement((Right(Operation.DESCRIBE, kind),), of, Without.LEFT_OUT, None)


TOPIC_SHOWN: Final = _shown(_TOPIC, "each topic shown")
GROUP_SHOWN: Final = _shown(ResourceType.GROUP, "each group or subscription shown")
TRANSACTION_SHOWN: Final = _shown(
    ResourceType.TRANSACTIONAL_ID, "each transaction shown, of Kafka's"
)
SEE_CLUSTER: Final = Requirement(
    (Right(Operation.DESCRIBE, _CLUSTER),),
    "the brokers and the database",
    Without.LEFT_OUT,
    Error.CLUSTER_AUTHORIZATION_FAILED,
)

PAGES: Final[Mapping[str, tuple[Requirement, ...]]] = {
    "GET /": (SEE_CLUSTER, TOPIC_SHOWN, GROUP_SHOWN, TRANSACTION_SHOWN),
    "GET /static/{file}": (),
    "GET /login": (),
    "POST /login": (),
    "POST /logout": (),
}
"""By method and path. Nothing asked for: it is about the one who asks."""
