"""Pulsar's number for each refusal (PulsarApi.proto's ServerError): one total table.

It does not know why something was refused, nor which command carries the number. What clients do
by it, as far as a code decides anything:

* In ERROR and in responses: SERVICE_NOT_READY has them look the topic up and try again, and so, for
  producers and consumers, do most codes; final are AUTHENTICATION_ERROR, AUTHORIZATION_ERROR,
  INCOMPATIBLE_SCHEMA, TOPIC_NOT_FOUND, TOPIC_TERMINATED_ERROR, PRODUCER_FENCED, NOT_ALLOWED_ERROR,
  PRODUCER_BLOCKED_QUOTA_EXCEEDED_*. CONSUMER_BUSY and PRODUCER_BUSY end a first try and are
  retried after a reconnect.
* In SEND_ERROR: CHECKSUM_ERROR has the message sent again, unless the client finds its own copy
  broken; TOPIC_TERMINATED_ERROR fails all that waits; NOT_ALLOWED_ERROR fails this message.
  **All others drop the connection and send again**, for ever where there is no send timeout, as
  with transactions. So `send_error` has no others for what another try cannot change. The C++
  client and those made of it (Python, Node) end messages on CHECKSUM_ERROR only: `ending`.
* In transactions: TRANSACTION_COORDINATOR_NOT_FOUND has them look for the coordinator;
  INVALID_TXN_STATUS, TRANSACTION_NOT_FOUND and TRANSACTION_CONFLICT are final.
"""

from typing import Final

from core.errors import Error
from gateway.pulsar.commands import ServerError
from gateway.runtime.flush.outcomes import Reason, Unconfirmed

# Kafka's group of errors for groups, sessions and admin requests comes from no Pulsar command; it
# has numbers all the same, so that no refusal can be without one.
_CODES: Final[dict[Error, ServerError]] = {
    Error.UNKNOWN_SERVER_ERROR: ServerError.UNKNOWN_ERROR,
    Error.OFFSET_OUT_OF_RANGE: ServerError.METADATA_ERROR,
    Error.CORRUPT_MESSAGE: ServerError.CHECKSUM_ERROR,
    Error.UNKNOWN_TOPIC_OR_PARTITION: ServerError.TOPIC_NOT_FOUND,
    Error.LEADER_NOT_AVAILABLE: ServerError.SERVICE_NOT_READY,
    Error.NOT_LEADER_OR_FOLLOWER: ServerError.SERVICE_NOT_READY,
    Error.REQUEST_TIMED_OUT: ServerError.SERVICE_NOT_READY,
    Error.MESSAGE_TOO_LARGE: ServerError.NOT_ALLOWED_ERROR,
    Error.COORDINATOR_LOAD_IN_PROGRESS: ServerError.SERVICE_NOT_READY,
    Error.COORDINATOR_NOT_AVAILABLE: ServerError.SERVICE_NOT_READY,
    Error.NOT_COORDINATOR: ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
    Error.OFFSET_METADATA_TOO_LARGE: ServerError.NOT_ALLOWED_ERROR,
    Error.ILLEGAL_GENERATION: ServerError.CONSUMER_ASSIGN_ERROR,
    Error.INCONSISTENT_GROUP_PROTOCOL: ServerError.CONSUMER_BUSY,
    Error.INVALID_GROUP_ID: ServerError.NOT_ALLOWED_ERROR,
    Error.UNKNOWN_MEMBER_ID: ServerError.CONSUMER_NOT_FOUND,
    Error.INVALID_SESSION_TIMEOUT: ServerError.NOT_ALLOWED_ERROR,
    Error.REBALANCE_IN_PROGRESS: ServerError.SERVICE_NOT_READY,
    Error.NON_EMPTY_GROUP: ServerError.CONSUMER_BUSY,
    Error.GROUP_ID_NOT_FOUND: ServerError.SUBSCRIPTION_NOT_FOUND,
    Error.MEMBER_ID_REQUIRED: ServerError.CONSUMER_NOT_FOUND,
    Error.GROUP_MAX_SIZE_REACHED: ServerError.CONSUMER_BUSY,
    Error.FENCED_INSTANCE_ID: ServerError.CONSUMER_BUSY,
    Error.ELECTION_NOT_NEEDED: ServerError.NOT_ALLOWED_ERROR,
    Error.NO_REASSIGNMENT_IN_PROGRESS: ServerError.NOT_ALLOWED_ERROR,
    Error.GROUP_SUBSCRIBED_TO_TOPIC: ServerError.CONSUMER_BUSY,
    Error.UNSTABLE_OFFSET_COMMIT: ServerError.SERVICE_NOT_READY,
    Error.FENCED_MEMBER_EPOCH: ServerError.CONSUMER_ASSIGN_ERROR,
    Error.UNRELEASED_INSTANCE_ID: ServerError.CONSUMER_BUSY,
    Error.UNSUPPORTED_ASSIGNOR: ServerError.NOT_ALLOWED_ERROR,
    Error.STALE_MEMBER_EPOCH: ServerError.CONSUMER_ASSIGN_ERROR,
    Error.INVALID_REGULAR_EXPRESSION: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_TOPIC_EXCEPTION: ServerError.INVALID_TOPIC_NAME,
    Error.NOT_ENOUGH_REPLICAS: ServerError.PERSISTENCE_ERROR,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ServerError.PERSISTENCE_ERROR,
    Error.INVALID_REQUIRED_ACKS: ServerError.NOT_ALLOWED_ERROR,
    Error.UNSUPPORTED_VERSION: ServerError.UNSUPPORTED_VERSION_ERROR,
    Error.TOPIC_ALREADY_EXISTS: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_PARTITIONS: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_REPLICATION_FACTOR: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_REPLICA_ASSIGNMENT: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_CONFIG: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_REQUEST: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_TIMESTAMP: ServerError.NOT_ALLOWED_ERROR,
    Error.UNSUPPORTED_FOR_MESSAGE_FORMAT: ServerError.UNSUPPORTED_VERSION_ERROR,
    # Of what Pulsar's clients ask only an append to a terminated topic is one.
    Error.POLICY_VIOLATION: ServerError.TOPIC_TERMINATED_ERROR,
    # Not of Pulsar's sequence ids, which may have gaps, but of the log's producers, as an open
    # transaction has one: a batch before this one was lost.
    Error.OUT_OF_ORDER_SEQUENCE_NUMBER: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_PRODUCER_EPOCH: ServerError.PRODUCER_FENCED,
    Error.INVALID_TXN_STATE: ServerError.INVALID_TXN_STATUS,
    Error.INVALID_PRODUCER_ID_MAPPING: ServerError.TRANSACTION_NOT_FOUND,
    Error.INVALID_TRANSACTION_TIMEOUT: ServerError.NOT_ALLOWED_ERROR,
    Error.CONCURRENT_TRANSACTIONS: ServerError.TRANSACTION_CONFLICT,
    Error.TRANSACTION_COORDINATOR_FENCED: ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
    Error.PRODUCER_FENCED: ServerError.PRODUCER_FENCED,
    Error.OPERATION_NOT_ATTEMPTED: ServerError.NOT_ALLOWED_ERROR,
    Error.TRANSACTIONAL_ID_NOT_FOUND: ServerError.TRANSACTION_NOT_FOUND,
    Error.TRANSACTION_ABORTABLE: ServerError.INVALID_TXN_STATUS,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ServerError.AUTHORIZATION_ERROR,
    Error.TOPIC_AUTHORIZATION_FAILED: ServerError.AUTHORIZATION_ERROR,
    Error.GROUP_AUTHORIZATION_FAILED: ServerError.AUTHORIZATION_ERROR,
    Error.CLUSTER_AUTHORIZATION_FAILED: ServerError.AUTHORIZATION_ERROR,
    Error.KAFKA_STORAGE_ERROR: ServerError.PERSISTENCE_ERROR,
    Error.FETCH_SESSION_ID_NOT_FOUND: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_FETCH_SESSION_EPOCH: ServerError.NOT_ALLOWED_ERROR,
    Error.TOPIC_DELETION_DISABLED: ServerError.NOT_ALLOWED_ERROR,
    Error.FENCED_LEADER_EPOCH: ServerError.SERVICE_NOT_READY,
    Error.UNKNOWN_LEADER_EPOCH: ServerError.SERVICE_NOT_READY,
    Error.UNSUPPORTED_COMPRESSION_TYPE: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_RECORD: ServerError.NOT_ALLOWED_ERROR,
    Error.NOT_CONTROLLER: ServerError.SERVICE_NOT_READY,
    Error.THROTTLING_QUOTA_EXCEEDED: ServerError.TOO_MANY_REQUESTS,
    Error.RESOURCE_NOT_FOUND: ServerError.METADATA_ERROR,
    Error.DUPLICATE_RESOURCE: ServerError.METADATA_ERROR,
    Error.UNACCEPTABLE_CREDENTIAL: ServerError.NOT_ALLOWED_ERROR,
    Error.UNSUPPORTED_SASL_MECHANISM: ServerError.AUTHENTICATION_ERROR,
    Error.ILLEGAL_SASL_STATE: ServerError.AUTHENTICATION_ERROR,
    Error.SASL_AUTHENTICATION_FAILED: ServerError.AUTHENTICATION_ERROR,
    Error.SECURITY_DISABLED: ServerError.NOT_ALLOWED_ERROR,
    Error.DELEGATION_TOKEN_AUTH_DISABLED: ServerError.NOT_ALLOWED_ERROR,
    Error.DELEGATION_TOKEN_NOT_FOUND: ServerError.NOT_ALLOWED_ERROR,
    Error.DELEGATION_TOKEN_OWNER_MISMATCH: ServerError.AUTHORIZATION_ERROR,
    Error.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ServerError.AUTHORIZATION_ERROR,
    Error.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ServerError.AUTHORIZATION_ERROR,
    Error.DELEGATION_TOKEN_EXPIRED: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_PRINCIPAL_TYPE: ServerError.NOT_ALLOWED_ERROR,
    Error.INVALID_UPDATE_VERSION: ServerError.NOT_ALLOWED_ERROR,
    Error.UNKNOWN_TOPIC_ID: ServerError.TOPIC_NOT_FOUND,
    Error.FETCH_SESSION_TOPIC_ID_ERROR: ServerError.NOT_ALLOWED_ERROR,
    Error.MISMATCHED_ENDPOINT_TYPE: ServerError.NOT_ALLOWED_ERROR,
    Error.UNSUPPORTED_ENDPOINT_TYPE: ServerError.NOT_ALLOWED_ERROR,
}

# What may be over when the client has looked the topic up, connected and sent again.
_PASSING: Final = frozenset(
    {
        ServerError.UNKNOWN_ERROR,
        ServerError.PERSISTENCE_ERROR,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
    }
)
# All are tried again by clients; the number only says why.
_OF_THE_LOG: Final[dict[Reason, Error]] = {
    Reason.NOT_STORED: Error.NOT_ENOUGH_REPLICAS,
    Reason.UNKNOWN: Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Reason.HELD_ELSEWHERE: Error.REQUEST_TIMED_OUT,
    Reason.OUT_OF_SPACE: Error.KAFKA_STORAGE_ERROR,
    Reason.TOO_EARLY: Error.NOT_ENOUGH_REPLICAS,
    Reason.FAILED: Error.UNKNOWN_SERVER_ERROR,
}
_CPP: Final = "Pulsar-CPP"  # what the C++ client's name begins with, whatever is made of it
_ACTED_ON: Final = frozenset(
    {
        ServerError.CHECKSUM_ERROR,
        ServerError.TOPIC_TERMINATED_ERROR,
        ServerError.NOT_ALLOWED_ERROR,
    }
)


def server_error(error: Error) -> ServerError:
    """The code for `error` in an ERROR or a response. NONE has none: success leaves it out."""
    return _CODES[error]


def send_error(error: Error) -> ServerError:
    """The code for `error` in SEND_ERROR: what fails for good gets a code that clients end on."""
    code = _CODES[error]
    return code if code in _ACTED_ON or code in _PASSING else ServerError.NOT_ALLOWED_ERROR


def ending(code: ServerError, client_version: str) -> ServerError:
    """What ends a message at this client, where `code` says that it ends. (Seen of 4.2.0: on others
    it connects and sends again for ever, whatever its send timeout; Java does so on this one.)"""
    is_final = code in (ServerError.NOT_ALLOWED_ERROR, ServerError.TOPIC_TERMINATED_ERROR)
    return ServerError.CHECKSUM_ERROR if is_final and client_version.startswith(_CPP) else code


def log_error(outcome: Unconfirmed) -> Error:
    """How the log names what a flush does not confirm."""
    return _OF_THE_LOG[outcome.reason]
