"""Which page, and which action of one, asks for which operation on what.

What a page shows is what one of Kafka's or Pulsar's APIs tells, and takes the same right; so does
what it changes. Does not know who may do it, nor how a page looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.errors import Error
from core.security import pulsar_operations as pulsar
from core.security.acls import Operation, ResourceType
from core.security.operations import REQUIREMENTS, Requirement, Right, Without

_CLUSTER, _TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC


def _shown(kind: ResourceType, of: str) -> Requirement:
    return Requirement((Right(Operation.DESCRIBE, kind),), of, Without.LEFT_OUT, None)


TOPIC_SHOWN: Final = _shown(_TOPIC, "each topic shown")
GROUP_SHOWN: Final = _shown(ResourceType.GROUP, "each group or subscription shown")
TRANSACTION_SHOWN: Final = _shown(
    ResourceType.TRANSACTIONAL_ID, "each transaction shown, of Kafka's"
)
# Pulsar's as its REST does (SEE_CLUSTER), or as Kafka's tools are shown them, by an id such as
# `pulsar:(3,1234)`.
PULSARS_TRANSACTION_SHOWN: Final = Requirement(
    (Right(Operation.DESCRIBE, _CLUSTER), *TRANSACTION_SHOWN.rights),
    "each transaction shown, of Pulsar's",
    Without.LEFT_OUT,
    None,
)
TRANSACTIONS_SHOWN: Final = (TRANSACTION_SHOWN, PULSARS_TRANSACTION_SHOWN)
SEE_CLUSTER: Final = Requirement(
    (Right(Operation.DESCRIBE, _CLUSTER),),
    "the brokers and the database",
    Without.LEFT_OUT,
    Error.CLUSTER_AUTHORIZATION_FAILED,
)

# Groups: as Kafka's APIs of these names.
(LIST_GROUPS,) = REQUIREMENTS["ListGroups"]
(DESCRIBE_GROUP,) = REQUIREMENTS["DescribeGroups"]
(DELETE_GROUP,) = REQUIREMENTS["DeleteGroups"]
COMMIT_OFFSETS, COMMIT_OFFSETS_OF = REQUIREMENTS["OffsetCommit"]
DELETE_OFFSETS, DELETE_OFFSETS_OF = REQUIREMENTS["OffsetDelete"]
_RESET = (DESCRIBE_GROUP, TOPIC_SHOWN, COMMIT_OFFSETS, COMMIT_OFFSETS_OF)
_DELETE_OFFSETS = (DESCRIBE_GROUP, TOPIC_SHOWN, DELETE_OFFSETS, DELETE_OFFSETS_OF)
# Subscriptions: as Pulsar's REST.
SEE_SUBSCRIPTION: Final = pulsar.SEE_TOPIC.requirement
CHANGE_SUBSCRIPTION: Final = pulsar.READ_TOPIC.requirement
USE_THIS_SUBSCRIPTION: Final = pulsar.USE_SUBSCRIPTION
_CHANGE = (SEE_SUBSCRIPTION, CHANGE_SUBSCRIPTION, USE_THIS_SUBSCRIPTION)
READ_TOPIC: Final = REQUIREMENTS["Fetch"][0]
WRITE_TOPIC: Final = REQUIREMENTS["Produce"][1]
_RECORDS: Final = (READ_TOPIC, *TRANSACTIONS_SHOWN)
# --- transactions, producers ---
(ABORT_TRANSACTION,) = REQUIREMENTS["EndTxn"]
ABORT_PULSARS_TRANSACTION: Final = Requirement(
    (Right(Operation.ALTER, _CLUSTER), *ABORT_TRANSACTION.rights),
    "the transaction, of Pulsar's",
    Without.WHOLE,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
PRODUCERS_SHOWN: Final = Requirement(
    REQUIREMENTS["DescribeProducers"][0].rights,
    "each topic whose producers are shown",
    Without.LEFT_OUT,
    None,
)
_OF_TRANSACTIONS: Final = (
    TRANSACTION_SHOWN,
    PULSARS_TRANSACTION_SHOWN,
    TOPIC_SHOWN,
    GROUP_SHOWN,
    PRODUCERS_SHOWN,
)
_OF_ABORTS: Final = (*_OF_TRANSACTIONS, ABORT_TRANSACTION, ABORT_PULSARS_TRANSACTION)
_TRANSACTION_PAGES: Final = {
    "GET /transactions": _OF_TRANSACTIONS,
    "GET /transaction": _OF_ABORTS,
    "GET /transaction/abort": _OF_ABORTS,
    "POST /transaction/abort": _OF_ABORTS,
    "GET /producers": (PRODUCERS_SHOWN, TRANSACTION_SHOWN, PULSARS_TRANSACTION_SHOWN),
    "GET /producer": (PRODUCERS_SHOWN, TRANSACTION_SHOWN, PULSARS_TRANSACTION_SHOWN),
}

# --- topics ---
# As the APIs of Kafka that are named here; Pulsar's REST asks for the same.
READ_RECORDS: Final = REQUIREMENTS["Fetch"][0]
SEE_SETTINGS: Final = REQUIREMENTS["DescribeConfigs"][1]
CHANGE_SETTINGS: Final = REQUIREMENTS["IncrementalAlterConfigs"][1]
MAKE_TOPIC: Final = REQUIREMENTS["CreateTopics"][0]
MAKE_TOPICS: Final = Requirement(
    (Right(Operation.CREATE, _CLUSTER), Right(Operation.CREATE, _TOPIC, is_on_any=True)),
    "whether it is offered to make a topic",
    Without.LEFT_OUT,
    None,
)
(ADD_PARTITIONS,) = REQUIREMENTS["CreatePartitions"]
_, DELETE_TOPIC = REQUIREMENTS["DeleteTopics"]
(DELETE_RECORDS,) = REQUIREMENTS["DeleteRecords"]
OF_A_TOPIC: Final = (TOPIC_SHOWN, READ_RECORDS, SEE_SETTINGS)
"""What each page of a topic asks for, to show it and the links to the others."""
_LOST: Final = (*OF_A_TOPIC, GROUP_SHOWN)
_TOPIC_PAGES: Final = {
    "GET /topics": (TOPIC_SHOWN, MAKE_TOPICS),
    "GET /topics/create": (MAKE_TOPICS, MAKE_TOPIC, TOPIC_SHOWN),
    "POST /topics/create": (MAKE_TOPICS, MAKE_TOPIC, TOPIC_SHOWN),
    "GET /topic": (
        *(*OF_A_TOPIC, GROUP_SHOWN, TRANSACTION_SHOWN, PULSARS_TRANSACTION_SHOWN),
        *(ADD_PARTITIONS, DELETE_RECORDS, DELETE_TOPIC),
    ),
    "GET /topic/schemas": OF_A_TOPIC,
    "GET /topic/settings": (*OF_A_TOPIC, CHANGE_SETTINGS),
    "POST /topic/settings": (*OF_A_TOPIC, CHANGE_SETTINGS),
    "GET /topic/partitions": (*OF_A_TOPIC, ADD_PARTITIONS),
    "POST /topic/partitions": (*OF_A_TOPIC, ADD_PARTITIONS),
    "GET /topic/empty": (*_LOST, DELETE_RECORDS),
    "POST /topic/empty": (*_LOST, DELETE_RECORDS),
    "GET /topic/delete": (*_LOST, DELETE_TOPIC),
    "POST /topic/delete": (*_LOST, DELETE_TOPIC),
}

# --- users, ACLs, quotas ---
(SEE_ACLS,) = REQUIREMENTS["DescribeAcls"]
(CREATE_ACLS,) = REQUIREMENTS["CreateAcls"]
(DELETE_ACLS,) = REQUIREMENTS["DeleteAcls"]
(SEE_USERS,) = REQUIREMENTS["DescribeUserScramCredentials"]
(CHANGE_USERS,) = REQUIREMENTS["AlterUserScramCredentials"]
(SEE_QUOTAS,) = REQUIREMENTS["DescribeClientQuotas"]
(CHANGE_QUOTAS,) = REQUIREMENTS["AlterClientQuotas"]
SEE_TOKEN, SEE_TOKENS_OF = REQUIREMENTS["DescribeDelegationToken"]


def _offered(requirement: Requirement, what: str) -> Requirement:
    return Requirement(requirement.rights, f"whether {what} are offered", Without.LEFT_OUT, None)


OFFER_ACLS: Final = _offered(SEE_ACLS, "ACLs")
OFFER_USERS: Final = _offered(SEE_USERS, "users")
OFFER_QUOTAS: Final = _offered(SEE_QUOTAS, "quotas")
_TABS: Final = (OFFER_ACLS, OFFER_USERS, OFFER_QUOTAS)
"""Which of these pages are offered on each, and what the first tells of them."""
_SECURITY_PAGES: Final = {
    "GET /security": _TABS,
    "GET /security/users": (*_TABS, SEE_USERS, CHANGE_USERS),
    "GET /security/users/set": (CHANGE_USERS,),
    "POST /security/users/set": (CHANGE_USERS,),
    "GET /security/users/delete": (CHANGE_USERS,),
    "POST /security/users/delete": (CHANGE_USERS,),
    "GET /security/tokens": (*_TABS, SEE_TOKEN, SEE_TOKENS_OF),
    "GET /security/acls": (*_TABS, SEE_ACLS, CREATE_ACLS, DELETE_ACLS),
    "GET /security/acls/create": (CREATE_ACLS,),
    "POST /security/acls/create": (CREATE_ACLS,),
    "GET /security/acls/delete": (DELETE_ACLS,),
    "POST /security/acls/delete": (DELETE_ACLS,),
    "GET /security/quotas": (*_TABS, SEE_QUOTAS, CHANGE_QUOTAS),
    "GET /security/quotas/set": (CHANGE_QUOTAS,),
    "POST /security/quotas/set": (CHANGE_QUOTAS,),
    "GET /security/quotas/remove": (CHANGE_QUOTAS,),
    "POST /security/quotas/remove": (CHANGE_QUOTAS,),
    "GET /security/may": (*_TABS, SEE_ACLS),
    "GET /security/why": (*_TABS, SEE_ACLS),
}

PAGES: Final[Mapping[str, tuple[Requirement, ...]]] = {
    "GET /": (SEE_CLUSTER, TOPIC_SHOWN, GROUP_SHOWN, *TRANSACTIONS_SHOWN),
    "GET /topic/messages": (*OF_A_TOPIC, *TRANSACTIONS_SHOWN, WRITE_TOPIC),
    "GET /topic/messages/stream": _RECORDS,
    "GET /topic/messages/download": _RECORDS,
    "GET /topic/record": _RECORDS,
    "GET /topic/record/json": _RECORDS,
    "GET /topic/record/value": _RECORDS,
    "GET /topic/produce": (WRITE_TOPIC,),
    "POST /topic/produce": (WRITE_TOPIC, READ_TOPIC),
    "GET /static/{file}": (),
    "GET /login": (),
    "POST /login": (),
    "POST /logout": (),
    "GET /groups": (LIST_GROUPS, GROUP_SHOWN, TOPIC_SHOWN),
    "GET /group": (*_RESET, *TRANSACTIONS_SHOWN, DELETE_OFFSETS, DELETE_OFFSETS_OF, DELETE_GROUP),
    "GET /group/reset": _RESET,
    "POST /group/reset": _RESET,
    "GET /group/delete-offsets": _DELETE_OFFSETS,
    "POST /group/delete-offsets": _DELETE_OFFSETS,
    "GET /group/delete": (DESCRIBE_GROUP, TOPIC_SHOWN, DELETE_GROUP),
    "POST /group/delete": (DESCRIBE_GROUP, DELETE_GROUP),
    "GET /subscriptions": (SEE_SUBSCRIPTION,),
    "GET /subscription": (*_CHANGE, *TRANSACTIONS_SHOWN),
    "GET /subscription/reset": _CHANGE,
    "POST /subscription/reset": _CHANGE,
    "GET /subscription/skip": _CHANGE,
    "POST /subscription/skip": _CHANGE,
    "GET /subscription/delete": _CHANGE,
    "POST /subscription/delete": _CHANGE,
    **_TRANSACTION_PAGES,
    **_TOPIC_PAGES,
    **_SECURITY_PAGES,
}
"""By method and path. Nothing asked for: it is about the one who asks."""
