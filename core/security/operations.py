"""Which API asks for which operation on what: the one table, for handlers, docs and tests.

Rows are those of Kafka 4.1 (KafkaApis, ControllerApis, AuthHelper, AclApis, ConfigHelper), in the
order in which it asks, and those of Penstock's own APIs. Does not know who may do it (`acls.py`),
nor how a request looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from core.errors import Error
from core.security.acls import Operation, ResourceType


class Without(Enum):
    """What the client is answered that lacks the right, in words for the docs."""

    WHOLE = "everything is refused"
    PART = "this part is refused, the rest done"
    LEFT_OUT = "it is left out"


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on a resource; on CLUSTER it is the cluster.

    is_on_any: on any resource of the type, there or not (KIP-679). is_if_named: needed only if an
    ACL is about this one resource by its name (Pulsar's permissions of subscriptions). needs_acl:
    not by `allow.everyone.if.no.acl.found`, since the resource stands for others, which may have
    some.
    """

    operation: Operation
    resource_type: ResourceType
    is_on_any: bool = False
    is_if_named: bool = False
    needs_acl: bool = False


@dataclass(frozen=True, slots=True, eq=False)  # to look up what was decided takes no time
class Requirement:
    """What an API asks for before it does a thing.

    rights: one of them is enough; Kafka looks in this order. of: what of the request or its answer
    names the resource, in words. error: what is answered; None where nothing is said of it.
    """

    rights: tuple[Right, ...]
    of: str
    without: Without
    error: Error | None


_ALTER, _ALTER_CONFIGS, _CREATE = Operation.ALTER, Operation.ALTER_CONFIGS, Operation.CREATE
_DELETE, _DESCRIBE = Operation.DELETE, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _CLUSTER_ACTION = Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION
_READ, _WRITE = Operation.READ, Operation.WRITE
_WHOLE, _PART, _LEFT_OUT = Without.WHOLE, Without.PART, Without.LEFT_OUT
_NO_TOPIC: Final = Error.TOPIC_AUTHORIZATION_FAILED
_NO_CLUSTER: Final = Error.CLUSTER_AUTHORIZATION_FAILED


def _topic(operation: Operation, of: str = "each topic", without: Without = _PART) -> Requirement:
    error = None if without is _LEFT_OUT else _NO_TOPIC
    return Requirement((Right(operation, ResourceType.TOPIC),), of, without, error)


def _group(operation: Operation, of: str = "the group", without: Without = _WHOLE) -> Requirement:
    error = Error.GROUP_AUTHORIZATION_FAILED
    return Requirement((Right(operation, ResourceType.GROUP),), of, without, error)


def _transactional_id(
    operation: Operation, of: str = "the transactional id", without: Without = _WHOLE
) -> Requirement:
    error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Requirement((Right(operation, ResourceType.TRANSACTIONAL_ID),), of, without, error)


def _cluster(
    operation: Operation, of: str = "the request", without: Without = _WHOLE
) -> Requirement:
    return Requirement((_on_cluster(operation),), of, without, _NO_CLUSTER)


def _on_cluster(operation: Operation) -> Right:
    return Right(operation, ResourceType.CLUSTER)


_OPERATIONS_OF_CLUSTER: Final = Requirement(
    (_on_cluster(_DESCRIBE),), "the cluster's authorized operations: told as 0", _LEFT_OUT, None
)


def _configs(operation: Operation) -> tuple[Requirement, ...]:
    return (
        _cluster(operation, "each broker, broker's loggers, client metrics", _PART),
        _topic(operation),
        _group(operation, "each group", _PART),
    )


REQUIREMENTS: Final[Mapping[str, tuple[Requirement, ...]]] = {
    # Before the login there is nobody whom one could ask.
    "ApiVersions": (),
    "SaslHandshake": (),
    "SaslAuthenticate": (),
    # Records.
    "Produce": (
        # Also refused without an id where a batch is transactional (CVE-2018-17196).
        _transactional_id(_WRITE, "the transactional id, where a batch is transactional"),
        _topic(_WRITE),
    ),
    "Fetch": (
        _topic(_READ),
        Requirement(
            (_on_cluster(_CLUSTER_ACTION),),
            "each topic instead, where the request says that it is a replica's (CVE-2018-1288)",
            _PART,
            _NO_TOPIC,
        ),
    ),
    "ListOffsets": (_topic(_DESCRIBE),),
    "OffsetForLeaderEpoch": (
        Requirement(
            (_on_cluster(_CLUSTER_ACTION), Right(_DESCRIBE, ResourceType.TOPIC)),
            "each topic",
            _PART,
            _NO_TOPIC,
        ),
    ),
    "DeleteRecords": (_topic(_DELETE),),
    "StageRecords": (_topic(_WRITE, without=_WHOLE),),
    "PublishStaged": (
        _topic(_WRITE, "each topic of the tokens", _WHOLE),
        # It moves the guard of a query all the same.
        Requirement(
            (Right(_WRITE, ResourceType.TOPIC, is_on_any=True),),
            "the request, where the tokens hold nothing",
            _WHOLE,
            _NO_TOPIC,
        ),
    ),
    "DropStaged": (_topic(_WRITE, "each topic of the tokens", _WHOLE),),
    # Topics, the cluster, settings.
    "Metadata": (
        _topic(_DESCRIBE, "each topic asked for by name or id"),
        _topic(_DESCRIBE, "each topic there is, where all are asked for", _LEFT_OUT),
        Requirement(
            (_on_cluster(_CREATE), Right(_CREATE, ResourceType.TOPIC)),
            "each topic that is not there, where it would be made",
            _PART,
            _NO_TOPIC,
        ),
        _OPERATIONS_OF_CLUSTER,
    ),
    "DescribeTopicPartitions": (
        _topic(_DESCRIBE, "each topic asked for"),
        _topic(_DESCRIBE, "each topic there is, where all are asked for", _LEFT_OUT),
    ),
    "CreateTopics": (
        Requirement(
            (_on_cluster(_CREATE), Right(_CREATE, ResourceType.TOPIC)),
            "each topic",
            _PART,
            _NO_TOPIC,
        ),
        Requirement(
            (Right(_DESCRIBE_CONFIGS, ResourceType.TOPIC),),
            "each topic's settings and counts in the answer",
            _LEFT_OUT,
            _NO_TOPIC,
        ),
    ),
    "DeleteTopics": (
        # Delete on the cluster stands for both; no tool grants it but by ALL.
        Requirement(
            (_on_cluster(_DELETE), Right(_DESCRIBE, ResourceType.TOPIC)),
            "each topic: whether it is there, and by id its name",
            _PART,
            _NO_TOPIC,
        ),
        Requirement(
            (_on_cluster(_DELETE), Right(_DELETE, ResourceType.TOPIC)),
            "each topic",
            _PART,
            _NO_TOPIC,
        ),
    ),
    "CreatePartitions": (_topic(_ALTER),),
    "DescribeConfigs": _configs(_DESCRIBE_CONFIGS),
    "AlterConfigs": _configs(_ALTER_CONFIGS),
    "IncrementalAlterConfigs": _configs(_ALTER_CONFIGS),
    "ListConfigResources": (_cluster(_DESCRIBE_CONFIGS),),
    "DescribeCluster": (_OPERATIONS_OF_CLUSTER,),
    "DescribeQuorum": (_cluster(_DESCRIBE),),
    "DescribeLogDirs": (_cluster(_DESCRIBE),),
    "ElectLeaders": (_cluster(_ALTER),),
    "AlterPartitionReassignments": (_cluster(_ALTER),),
    "ListPartitionReassignments": (_cluster(_DESCRIBE),),
    "UpdateFeatures": (_cluster(_ALTER),),
    # Groups.
    "FindCoordinator": (
        _group(_DESCRIBE, "each key that is a group's", _PART),
        _transactional_id(_DESCRIBE, "each key that is a transactional id", _PART),
    ),
    "JoinGroup": (_group(_READ),),
    "SyncGroup": (_group(_READ),),
    "Heartbeat": (_group(_READ),),
    "LeaveGroup": (_group(_READ),),
    "ConsumerGroupHeartbeat": (
        _group(_READ),
        _topic(_DESCRIBE, "each topic subscribed to by name", _WHOLE),
        _topic(_DESCRIBE, "each topic that the regular expression fits", _LEFT_OUT),
    ),
    "ListGroups": (
        Requirement(
            (_on_cluster(_DESCRIBE), Right(_DESCRIBE, ResourceType.GROUP)),
            "each group",
            _LEFT_OUT,
            None,
        ),
    ),
    "DescribeGroups": (_group(_DESCRIBE, "each group", _PART),),
    "ConsumerGroupDescribe": (
        _group(_DESCRIBE, "each group", _PART),
        _topic(_DESCRIBE, "each topic that a member of the group has, or will have"),
    ),
    "DeleteGroups": (_group(_DELETE, "each group", _PART),),
    "OffsetCommit": (_group(_READ), _topic(_READ)),
    "OffsetFetch": (
        _group(_DESCRIBE, "each group", _PART),
        _topic(_DESCRIBE, "each topic asked for"),
        _topic(_DESCRIBE, "each topic that has offsets, where all are asked for", _LEFT_OUT),
    ),
    "OffsetDelete": (_group(_DELETE), _topic(_READ)),
    # Producers and transactions.
    "InitProducerId": (
        _transactional_id(_WRITE, "the transactional id, where there is one"),
        Requirement(
            (
                _on_cluster(Operation.IDEMPOTENT_WRITE),
                Right(_WRITE, ResourceType.TOPIC, is_on_any=True),
            ),
            "the request, where there is no transactional id",
            _WHOLE,
            _NO_CLUSTER,
        ),
    ),
    "AddPartitionsToTxn": (
        _transactional_id(_WRITE),
        # As where a topic is not there, the others get OPERATION_NOT_ATTEMPTED.
        _topic(_WRITE, "each topic; with one refused, none is added"),
        # Then nothing else is asked for.
        _cluster(_CLUSTER_ACTION, "the request instead, from version 4 on: brokers ask so"),
    ),
    "AddOffsetsToTxn": (_transactional_id(_WRITE), _group(_READ)),
    "TxnOffsetCommit": (_transactional_id(_WRITE), _group(_READ), _topic(_READ)),
    "EndTxn": (_transactional_id(_WRITE),),
    "WriteTxnMarkers": (
        Requirement(
            (_on_cluster(_ALTER), _on_cluster(_CLUSTER_ACTION)), "the request", _WHOLE, _NO_CLUSTER
        ),
    ),
    "DescribeProducers": (_topic(_READ),),
    "ListTransactions": (
        Requirement(
            (Right(_DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
            "each transactional id",
            _LEFT_OUT,
            None,
        ),
    ),
    "DescribeTransactions": (
        _transactional_id(_DESCRIBE, "each transactional id", _PART),
        _topic(_DESCRIBE, "each topic of the transaction", _LEFT_OUT),
    ),
    # Users, tokens, ACLs, quotas.
    "DescribeUserScramCredentials": (_cluster(_DESCRIBE),),
    "AlterUserScramCredentials": (_cluster(_ALTER),),
    "CreateDelegationToken": (
        Requirement(
            (Right(Operation.CREATE_TOKENS, ResourceType.USER),),
            "the token's owner, where that is another than who asks",
            _WHOLE,
            Error.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ),
    ),
    # By owner and renewers, and nobody else may.
    "RenewDelegationToken": (),
    "ExpireDelegationToken": (),
    "DescribeDelegationToken": (
        # One of the two is enough; owner and renewers need none.
        Requirement(
            (Right(_DESCRIBE, ResourceType.DELEGATION_TOKEN),), "each token", _LEFT_OUT, None
        ),
        Requirement(
            (Right(Operation.DESCRIBE_TOKENS, ResourceType.USER),),
            "each token's owner, where the token may not be described",
            _LEFT_OUT,
            None,
        ),
    ),
    "DescribeAcls": (_cluster(_DESCRIBE),),
    "CreateAcls": (_cluster(_ALTER),),
    "DeleteAcls": (_cluster(_ALTER),),
    "DescribeClientQuotas": (_cluster(_DESCRIBE_CONFIGS),),
    "AlterClientQuotas": (_cluster(_ALTER_CONFIGS),),
}
"""By the API's name, as in Kafka's documentation. Nothing asked for: an empty row."""
