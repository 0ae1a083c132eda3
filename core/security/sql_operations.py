"""Which function of the schema `penstock` asks for which operation on what, of the calling role.

The rights are those of Kafka's ACLs, for the principal `Role:name`. Beside them a role needs
EXECUTE (INSERT on the outbox), which members of penstock_producer, penstock_consumer or
penstock_reader have. Does not know who may do it, nor how a function is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.errors import Error
from core.security.acls import Operation, ResourceType
from core.security.operations import Requirement, Right, Without


def _topic(operation: Operation, of: str = "the topic") -> Requirement:
    error = Error.TOPIC_AUTHORIZATION_FAILED
    return Requirement((Right(operation, ResourceType.TOPIC),), of, Without.WHOLE, error)


_GROUP: Final = Requirement(
    (Right(Operation.READ, ResourceType.GROUP),),
    "the group",
    Without.WHOLE,
    Error.GROUP_AUTHORIZATION_FAILED,
)

SQL_REQUIREMENTS: Final[Mapping[str, tuple[Requirement, ...]]] = {
    "produce": (_topic(Operation.WRITE),),
    "take_record_unasked": (_topic(Operation.WRITE),),
    "headers_as_json": (),
    "outbox": (_topic(Operation.WRITE, "the topic of each row"),),
    "offset_box": (_GROUP, _topic(Operation.READ, "the topic of each row")),
    "commit_offsets": (_GROUP, _topic(Operation.READ, "each topic")),
    "read": (_topic(Operation.READ),),
    "read_text": (_topic(Operation.READ),),
    "read_between": (_topic(Operation.READ),),
    "read_between_text": (_topic(Operation.READ),),
    "records": (_topic(Operation.READ),),
    # Who calls, and how bytes are shown.
    "caller": (),
    "proof": (),
    "text_of": (),
    "utf8": (),
}
"""By the name of what is granted to others than the owner, a function or a view. Nothing asked for:
an empty row."""
