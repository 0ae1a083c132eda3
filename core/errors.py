"""Refusals, under Kafka's names (org.apache.kafka.common.protocol.Errors).

A refusal is a returned value; an exception means a bug or a lost database. Each front-end gives
refusals their numbers on its wire (`gateway/kafka/errors.py`).
"""

from dataclasses import dataclass
from enum import Enum, auto


class Error(Enum):
    """Why a request, or a part of it, was refused. NONE: success, for answers that need one."""

    NONE = auto()
    UNKNOWN_SERVER_ERROR = auto()
    OFFSET_OUT_OF_RANGE = auto()
    CORRUPT_MESSAGE = auto()
    UNKNOWN_TOPIC_OR_PARTITION = auto()
    LEADER_NOT_AVAILABLE = auto()
    NOT_LEADER_OR_FOLLOWER = auto()
    REQUEST_TIMED_OUT = auto()
    MESSAGE_TOO_LARGE = auto()
    COORDINATOR_LOAD_IN_PROGRESS = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    NOT_COORDINATOR = auto()
    OFFSET_METADATA_TOO_LARGE = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()
    ELECTION_NOT_NEEDED = auto()
    NO_REASSIGNMENT_IN_PROGRESS = auto()
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    UNSTABLE_OFFSET_COMMIT = auto()
    FENCED_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    STALE_MEMBER_EPOCH = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    INVALID_TOPIC_EXCEPTION = auto()
    NOT_ENOUGH_REPLICAS = auto()
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = auto()
    INVALID_REQUIRED_ACKS = auto()
    UNSUPPORTED_VERSION = auto()
    TOPIC_ALREADY_EXISTS = auto()
    INVALID_PARTITIONS = auto()
    INVALID_REPLICATION_FACTOR = auto()
    INVALID_REPLICA_ASSIGNMENT = auto()
    INVALID_CONFIG = auto()
    INVALID_REQUEST = auto()
    INVALID_TIMESTAMP = auto()
    UNSUPPORTED_FOR_MESSAGE_FORMAT = auto()
    POLICY_VIOLATION = auto()
    OUT_OF_ORDER_SEQUENCE_NUMBER = auto()
    INVALID_PRODUCER_EPOCH = auto()
    INVALID_TXN_STATE = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    CONCURRENT_TRANSACTIONS = auto()
    TRANSACTION_COORDINATOR_FENCED = auto()
    PRODUCER_FENCED = auto()
    OPERATION_NOT_ATTEMPTED = auto()
    TRANSACTIONAL_ID_NOT_FOUND = auto()
    TRANSACTION_ABORTABLE = auto()
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = auto()
    TOPIC_AUTHORIZATION_FAILED = auto()
    GROUP_AUTHORIZATION_FAILED = auto()
    CLUSTER_AUTHORIZATION_FAILED = auto()
    KAFKA_STORAGE_ERROR = auto()
    FETCH_SESSION_ID_NOT_FOUND = auto()
    INVALID_FETCH_SESSION_EPOCH = auto()
    TOPIC_DELETION_DISABLED = auto()
    FENCED_LEADER_EPOCH = auto()
    UNKNOWN_LEADER_EPOCH = auto()
    UNSUPPORTED_COMPRESSION_TYPE = auto()
    INVALID_RECORD = auto()
    NOT_CONTROLLER = auto()
    THROTTLING_QUOTA_EXCEEDED = auto()
    RESOURCE_NOT_FOUND = auto()
    DUPLICATE_RESOURCE = auto()
    UNACCEPTABLE_CREDENTIAL = auto()
    UNSUPPORTED_SASL_MECHANISM = auto()
    ILLEGAL_SASL_STATE = auto()
    SASL_AUTHENTICATION_FAILED = auto()
    SECURITY_DISABLED = auto()
    DELEGATION_TOKEN_AUTH_DISABLED = auto()
    DELEGATION_TOKEN_NOT_FOUND = auto()
    DELEGATION_TOKEN_OWNER_MISMATCH = auto()
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = auto()
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = auto()
    DELEGATION_TOKEN_EXPIRED = auto()
    INVALID_PRINCIPAL_TYPE = auto()
    INVALID_UPDATE_VERSION = auto()
    UNKNOWN_TOPIC_ID = auto()
    FETCH_SESSION_TOPIC_ID_ERROR = auto()
    MISMATCHED_ENDPOINT_TYPE = auto()
    UNSUPPORTED_ENDPOINT_TYPE = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error and, for wires with room for it, a sentence that explains it.

    message: None means the error's usual text.
    """

    error: Error
    message: str | None = None
