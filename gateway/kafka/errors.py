"""Kafka's number for each refusal (org.apache.kafka.common.protocol.Errors): one total table; and
what clients are told that are too old for an error; and what they are told where nothing says that
their request is stored.

It does not know why a request was refused, nor which response carries the number.
"""

from collections.abc import Mapping
from typing import Final

from core.errors import Error
from gateway.runtime.flush.outcomes import Reason, Unconfirmed

_CODES: Final[dict[Error, int]] = {
    Error.UNKNOWN_SERVER_ERROR: -1,
    Error.NONE: 0,
    Error.OFFSET_OUT_OF_RANGE: 1,
    Error.CORRUPT_MESSAGE: 2,
    Error.UNKNOWN_TOPIC_OR_PARTITION: 3,
    Error.LEADER_NOT_AVAILABLE: 5,
    Error.NOT_LEADER_OR_FOLLOWER: 6,
    Error.REQUEST_TIMED_OUT: 7,
    Error.MESSAGE_TOO_LARGE: 10,
    Error.OFFSET_METADATA_TOO_LARGE: 12,
    Error.COORDINATOR_LOAD_IN_PROGRESS: 14,
    Error.COORDINATOR_NOT_AVAILABLE: 15,
    Error.NOT_COORDINATOR: 16,
    Error.INVALID_TOPIC_EXCEPTION: 17,
    Error.NOT_ENOUGH_REPLICAS: 19,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: 20,
    Error.INVALID_REQUIRED_ACKS: 21,
    Error.ILLEGAL_GENERATION: 22,
    Error.INCONSISTENT_GROUP_PROTOCOL: 23,
    Error.INVALID_GROUP_ID: 24,
    Error.UNKNOWN_MEMBER_ID: 25,
    Error.INVALID_SESSION_TIMEOUT: 26,
    Error.REBALANCE_IN_PROGRESS: 27,
    Error.TOPIC_AUTHORIZATION_FAILED: 29,
    Error.GROUP_AUTHORIZATION_FAILED: 30,
    Error.CLUSTER_AUTHORIZATION_FAILED: 31,
    Error.INVALID_TIMESTAMP: 32,
    Error.UNSUPPORTED_SASL_MECHANISM: 33,
    Error.ILLEGAL_SASL_STATE: 34,
    Error.UNSUPPORTED_VERSION: 35,
    Error.TOPIC_ALREADY_EXISTS: 36,
    Error.INVALID_PARTITIONS: 37,
    Error.INVALID_REPLICATION_FACTOR: 38,
    Error.INVALID_REPLICA_ASSIGNMENT: 39,
    Error.INVALID_CONFIG: 40,
    Error.NOT_CONTROLLER: 41,
    Error.INVALID_REQUEST: 42,
    Error.UNSUPPORTED_FOR_MESSAGE_FORMAT: 43,
    Error.POLICY_VIOLATION: 44,
    Error.OUT_OF_ORDER_SEQUENCE_NUMBER: 45,
    Error.INVALID_PRODUCER_EPOCH: 47,
    Error.INVALID_TXN_STATE: 48,
    Error.INVALID_PRODUCER_ID_MAPPING: 49,
    Error.INVALID_TRANSACTION_TIMEOUT: 50,
    Error.CONCURRENT_TRANSACTIONS: 51,
    Error.TRANSACTION_COORDINATOR_FENCED: 52,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 53,
    Error.SECURITY_DISABLED: 54,
    Error.OPERATION_NOT_ATTEMPTED: 55,
    Error.KAFKA_STORAGE_ERROR: 56,
    Error.SASL_AUTHENTICATION_FAILED: 58,
    Error.DELEGATION_TOKEN_AUTH_DISABLED: 61,
    Error.DELEGATION_TOKEN_NOT_FOUND: 62,
    Error.DELEGATION_TOKEN_OWNER_MISMATCH: 63,
    Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: 64,
    Error.DELEGATION_TOKEN_AUTHORIZATION_FAILED: 65,
    Error.DELEGATION_TOKEN_EXPIRED: 66,
    Error.INVALID_PRINCIPAL_TYPE: 67,
    Error.NON_EMPTY_GROUP: 68,
    Error.GROUP_ID_NOT_FOUND: 69,
    Error.FETCH_SESSION_ID_NOT_FOUND: 70,
    Error.INVALID_FETCH_SESSION_EPOCH: 71,
    Error.TOPIC_DELETION_DISABLED: 73,
    Error.FENCED_LEADER_EPOCH: 74,
    Error.UNKNOWN_LEADER_EPOCH: 75,
    Error.UNSUPPORTED_COMPRESSION_TYPE: 76,
    Error.MEMBER_ID_REQUIRED: 79,
    Error.GROUP_MAX_SIZE_REACHED: 81,
    Error.FENCED_INSTANCE_ID: 82,
    Error.ELECTION_NOT_NEEDED: 84,
    Error.NO_REASSIGNMENT_IN_PROGRESS: 85,
    Error.GROUP_SUBSCRIBED_TO_TOPIC: 86,
    Error.INVALID_RECORD: 87,
    Error.UNSTABLE_OFFSET_COMMIT: 88,
    Error.THROTTLING_QUOTA_EXCEEDED: 89,
    Error.PRODUCER_FENCED: 90,
    Error.RESOURCE_NOT_FOUND: 91,
    Error.DUPLICATE_RESOURCE: 92,
    Error.UNACCEPTABLE_CREDENTIAL: 93,
    Error.INVALID_UPDATE_VERSION: 95,
    Error.UNKNOWN_TOPIC_ID: 100,
    Error.TRANSACTIONAL_ID_NOT_FOUND: 105,
    Error.FETCH_SESSION_TOPIC_ID_ERROR: 106,
    Error.FENCED_MEMBER_EPOCH: 110,
    Error.UNRELEASED_INSTANCE_ID: 111,
    Error.UNSUPPORTED_ASSIGNOR: 112,
    Error.STALE_MEMBER_EPOCH: 113,
    Error.MISMATCHED_ENDPOINT_TYPE: 114,
    Error.UNSUPPORTED_ENDPOINT_TYPE: 115,
    Error.TRANSACTION_ABORTABLE: 120,
    Error.INVALID_REGULAR_EXPRESSION: 128,
}

# What clients are told instead whose version of an API does not know the error. Since which
# version an API's clients know it, its handler says: `@api(…, known_since=…)`.
_INSTEAD: Final[dict[Error, Error]] = {
    Error.PRODUCER_FENCED: Error.INVALID_PRODUCER_EPOCH,
    Error.TRANSACTION_ABORTABLE: Error.INVALID_TXN_STATE,
    Error.TOPIC_DELETION_DISABLED: Error.INVALID_REQUEST,
    Error.GROUP_ID_NOT_FOUND: Error.ILLEGAL_GENERATION,  # OffsetMetadataManager
    Error.STALE_MEMBER_EPOCH: Error.ILLEGAL_GENERATION,
}
NEVER: Final = 2**15
"""For `known_since`: no version of the API knows the error."""

# Both ways of NOT_ENOUGH_REPLICAS are retried; the first says that it is certainly not stored.
_OF_THE_LOG: Final[dict[Reason, Error]] = {
    Reason.NOT_STORED: Error.NOT_ENOUGH_REPLICAS,
    Reason.UNKNOWN: Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Reason.HELD_ELSEWHERE: Error.REQUEST_TIMED_OUT,
    Reason.OUT_OF_SPACE: Error.KAFKA_STORAGE_ERROR,
    Reason.TOO_EARLY: Error.NOT_ENOUGH_REPLICAS,
    Reason.FAILED: Error.UNKNOWN_SERVER_ERROR,
}

NO_ERROR: Final = "NONE"
"""What Kafka says where it explains a success (Errors.NONE.message())."""


def kafka_code(error: Error) -> int:
    """The int16 that stands for `error` in a Kafka response; 0 for NONE."""
    # NONE is nearly always the answer, and to hash an Enum is a call of Python's.
    return 0 if error is Error.NONE else _CODES[error]


def known_to(version: int, known_since: Mapping[Error, int], error: Error) -> Error:
    """The error itself, or what this version of an API says instead."""
    if error is Error.NONE or version >= known_since.get(error, 0):
        return error
    return _INSTEAD[error]


def log_error(outcome: Unconfirmed) -> Error:
    """How the log names it."""
    return _OF_THE_LOG[outcome.reason]


def coordinator_error(outcome: Unconfirmed) -> Error:
    """How a coordinator names it: clients look for the coordinator again, and ask again."""
    if outcome.reason is Reason.FAILED:
        return Error.UNKNOWN_SERVER_ERROR
    return Error.COORDINATOR_NOT_AVAILABLE
