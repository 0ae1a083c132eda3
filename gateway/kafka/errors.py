"""Kafka's number for each refusal (org.apache.kafka.common.protocol.Errors): one total table.

It does not know why a request was refused, nor which response carries the number.
"""

from typing import Final

from core.errors import Error

_CODES: Final[dict[Error, int]] = {
    Error.UNKNOWN_SERVER_ERROR: -1,
    Error.NONE: 0,
    Error.OFFSET_OUT_OF_RANGE: 1,
    Error.CORRUPT_MESSAGE: 2,
    Error.UNKNOWN_TOPIC_OR_PARTITION: 3,
    Error.LEADER_NOT_AVAILABLE: 5,
    Error.NOT_LEADER_OR_FOLLOWER: 6,
    Error.REQUEST_TIMED_OUT: 7,
    Error.BROKER_NOT_AVAILABLE: 8,
    Error.MESSAGE_TOO_LARGE: 10,
    Error.NETWORK_EXCEPTION: 13,
    Error.COORDINATOR_NOT_AVAILABLE: 15,
    Error.INVALID_TOPIC_EXCEPTION: 17,
    Error.RECORD_LIST_TOO_LARGE: 18,
    Error.NOT_ENOUGH_REPLICAS: 19,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: 20,
    Error.INVALID_REQUIRED_ACKS: 21,
    Error.INVALID_TIMESTAMP: 32,
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
    Error.DUPLICATE_SEQUENCE_NUMBER: 46,
    Error.INVALID_PRODUCER_EPOCH: 47,
    Error.INVALID_TXN_STATE: 48,
    Error.INVALID_TRANSACTION_TIMEOUT: 50,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 53,
    Error.KAFKA_STORAGE_ERROR: 56,
    Error.UNKNOWN_PRODUCER_ID: 59,
    Error.FETCH_SESSION_ID_NOT_FOUND: 70,
    Error.INVALID_FETCH_SESSION_EPOCH: 71,
    Error.TOPIC_DELETION_DISABLED: 73,
    Error.FENCED_LEADER_EPOCH: 74,
    Error.UNKNOWN_LEADER_EPOCH: 75,
    Error.UNSUPPORTED_COMPRESSION_TYPE: 76,
    Error.OFFSET_NOT_AVAILABLE: 78,
    Error.INVALID_RECORD: 87,
    Error.THROTTLING_QUOTA_EXCEEDED: 89,
    Error.UNKNOWN_TOPIC_ID: 100,
    Error.BROKER_ID_NOT_REGISTERED: 102,
    Error.INCONSISTENT_TOPIC_ID: 103,
    Error.FETCH_SESSION_TOPIC_ID_ERROR: 106,
    Error.MISMATCHED_ENDPOINT_TYPE: 114,
    Error.UNSUPPORTED_ENDPOINT_TYPE: 115,
}


def kafka_code(error: Error) -> int:
    """The int16 that stands for `error` in a Kafka response; 0 for NONE."""
    return _CODES[error]
