"""Which of Pulsar's commands, and of its REST, asks for which operation on what.

The rights are those of Kafka's ACLs, so that one list holds at both doors: what Pulsar calls
produce is Write on the topic, consume Read, a lookup takes any of the two (Describe). Where Pulsar
asks for its admins' roles, an operation of the ACLs stands for it. Sources: ServerCnx,
PulsarAuthorizationProvider, TopicOperation, NamespaceOperation. Does not know who may do it, nor
how a command looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from core.errors import Error
from core.security.acls import Operation, ResourceType
from core.security.operations import Requirement, Right, Without

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_NO_TOPIC: Final = Error.TOPIC_AUTHORIZATION_FAILED
_NO_GROUP: Final = Error.GROUP_AUTHORIZATION_FAILED


def _topic(operation: Operation, of: str = "the topic") -> Requirement:
    return Requirement((Right(operation, _TOPIC),), of, Without.WHOLE, _NO_TOPIC)


_DESCRIBE: Final = _topic(Operation.DESCRIBE)
_SUBSCRIPTION: Final = Requirement(
    (Right(Operation.READ, _GROUP, is_if_named=True),),
    "the subscription, where an ALLOW names it",
    Without.WHOLE,
    _NO_GROUP,
)
_LISTED: Final = Requirement(
    (Right(Operation.DESCRIBE, _TOPIC),), "each topic there is", Without.LEFT_OUT, None
)

COMMANDS: Final[Mapping[str, tuple[Requirement, ...]]] = {
    # Topics.
    "PARTITIONED_METADATA": (_DESCRIBE,),
    "LOOKUP": (_DESCRIBE,),
    "GET_TOPICS_OF_NAMESPACE": (_LISTED,),
    "WATCH_TOPIC_LIST": (_LISTED,),
    "WATCH_TOPIC_LIST_CLOSE": (),
    # Writing. A right that is taken away later closes the producer.
    "PRODUCER": (
        _topic(Operation.WRITE),
        _topic(Operation.READ, "the topic, where a first subscription is to be made"),
        replace(_SUBSCRIPTION, of="that subscription, where an ALLOW names it"),
    ),
    "SEND": (),
    "CLOSE_PRODUCER": (),
    "GET_SCHEMA": (_DESCRIBE,),
    "GET_OR_CREATE_SCHEMA": (_topic(Operation.WRITE),),
    # Reading. A right that is taken away later closes the consumer.
    "SUBSCRIBE": (_topic(Operation.READ), _SUBSCRIPTION),
    "FLOW": (),
    "ACK": (),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": (),
    "SEEK": (),
    "UNSUBSCRIBE": (),
    "GET_LAST_MESSAGE_ID": (),
    "CONSUMER_STATS": (),
    "CLOSE_CONSUMER": (),
    # Transactions: ids of open ones are told to nobody else.
    "TC_CLIENT_CONNECT_REQUEST": (),
    "NEW_TXN": (),
    "ADD_PARTITION_TO_TXN": (_topic(Operation.WRITE, "each partition's topic"),),
    "ADD_SUBSCRIPTION_TO_TXN": (),
    "END_TXN": (),
    "END_TXN_ON_PARTITION": (),
    "END_TXN_ON_SUBSCRIPTION": (),
}
"""By the command's name in PulsarApi.proto. Nothing asked for: it is about what was asked for
before."""


class Scope(Enum):
    """What of a path of REST names the resource. The value: in words."""

    TOPIC = "topic"
    NAMESPACE = "all topics of the namespace"
    TENANT = "all topics of the tenant"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What a request of REST asks for. topic: also, of the topic of the path. subscription: also,
    where the path has one."""

    scope: Scope
    requirement: Requirement
    topic: Requirement | None = None
    subscription: Requirement | None = None


def _need(scope: Scope, *operations: Operation, on_cluster: Operation | None = None) -> Need:
    kind = _CLUSTER if scope is Scope.CLUSTER else _TOPIC
    is_many = scope in (Scope.NAMESPACE, Scope.TENANT)
    rights = [Right(each, kind, needs_acl=is_many) for each in operations]
    if on_cluster is not None:
        rights.insert(0, Right(on_cluster, _CLUSTER))
    error = Error.CLUSTER_AUTHORIZATION_FAILED if kind is _CLUSTER else _NO_TOPIC
    return Need(scope, Requirement(tuple(rights), scope.value, Without.WHOLE, error))


SEE_CLUSTER: Final = _need(Scope.CLUSTER, Operation.DESCRIBE)
CHANGE_CLUSTER: Final = _need(Scope.CLUSTER, Operation.ALTER)
SEE_TENANT: Final = _need(Scope.TENANT, Operation.DESCRIBE, on_cluster=Operation.DESCRIBE)
MAKE_NAMESPACE: Final = _need(Scope.NAMESPACE, Operation.CREATE, on_cluster=Operation.CREATE)
DELETE_NAMESPACE: Final = _need(Scope.NAMESPACE, Operation.DELETE, on_cluster=Operation.ALTER)
"""By `force` also Delete on each topic."""
SEE_POLICIES: Final = _need(
    Scope.NAMESPACE, Operation.DESCRIBE_CONFIGS, on_cluster=Operation.DESCRIBE_CONFIGS
)
SET_POLICIES: Final = _need(
    Scope.NAMESPACE, Operation.ALTER_CONFIGS, on_cluster=Operation.ALTER_CONFIGS
)
SEE_PERMISSIONS: Final = _need(Scope.NAMESPACE, Operation.ALL, on_cluster=Operation.DESCRIBE)
SET_PERMISSIONS: Final = _need(Scope.NAMESPACE, Operation.ALL, on_cluster=Operation.ALTER)
"""As for DescribeAcls and CreateAcls; or everything on all that is in the namespace, which roles
that administer its tenant have."""
SET_TOPIC_PERMISSIONS: Final = replace(
    SET_PERMISSIONS,
    topic=_need(Scope.TOPIC, Operation.ALL, on_cluster=Operation.ALTER).requirement,
)
"""Who is denied something of a topic does not give it to others."""
SEE_TOPIC: Final = _need(Scope.TOPIC, Operation.DESCRIBE)
MAKE_TOPIC: Final = _need(Scope.TOPIC, Operation.CREATE, on_cluster=Operation.CREATE)
CHANGE_TOPIC: Final = _need(Scope.TOPIC, Operation.ALTER)
DELETE_TOPIC: Final = _need(Scope.TOPIC, Operation.DELETE)
"""Or its messages, as for DeleteRecords."""
WRITE_TOPIC: Final = _need(Scope.TOPIC, Operation.WRITE)
DELETE_EACH_TOPIC: Final = DELETE_TOPIC.requirement
USE_SUBSCRIPTION: Final = _SUBSCRIPTION
READ_TOPIC: Final = replace(_need(Scope.TOPIC, Operation.READ), subscription=_SUBSCRIPTION)
OPEN: Final = None
"""Whoever has come in may ask, or is told of what he may see."""
