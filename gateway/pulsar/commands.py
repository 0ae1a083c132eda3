"""Pulsar's commands, from and to bytes: their types, what each must have, the enumerations.

The messages themselves are data, `commands.proto`. This room does not know frames, entries or what
a command is answered with. Source: PulsarApi.proto of Apache Pulsar 4.2.
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from gateway.pulsar.commands_pb2 import BaseCommand

Buffer = bytes | bytearray | memoryview


_ONE_BYTE: Final = tuple(bytes((each,)) for each in range(0x80))


def encode_varint(number: int) -> bytes:
    """A number from 0 to 2^64-1 as protobuf's base-128 varint."""
    # Written out for what is common: receipts and messages have six of them each.
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def signed(number: int) -> int:
    """An unsigned 64-bit number as what its bits are in Java, where many a -1 is meant."""
    return number - (number >> 63 << 64)


class MalformedCommand(Exception):
    """The bytes are no command, or lack what it must have; the connection is of no more use."""


class UnknownCommand(MalformedCommand):
    """A type that is newer than this file."""


class CommandType(IntEnum):
    """BaseCommand.type. The command itself is in the field of that number."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    UNSUBSCRIBE = 12
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    REDELIVER_UNACKNOWLEDGED_MESSAGES = 20
    PARTITIONED_METADATA = 21
    PARTITIONED_METADATA_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    CONSUMER_STATS = 25
    CONSUMER_STATS_RESPONSE = 26
    REACHED_END_OF_TOPIC = 27
    SEEK = 28
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    ACTIVE_CONSUMER_CHANGE = 31
    GET_TOPICS_OF_NAMESPACE = 32
    GET_TOPICS_OF_NAMESPACE_RESPONSE = 33
    GET_SCHEMA = 34
    GET_SCHEMA_RESPONSE = 35
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    GET_OR_CREATE_SCHEMA = 39
    GET_OR_CREATE_SCHEMA_RESPONSE = 40
    NEW_TXN = 50
    NEW_TXN_RESPONSE = 51
    ADD_PARTITION_TO_TXN = 52
    ADD_PARTITION_TO_TXN_RESPONSE = 53
    ADD_SUBSCRIPTION_TO_TXN = 54
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE = 55
    END_TXN = 56
    END_TXN_RESPONSE = 57
    END_TXN_ON_PARTITION = 58
    END_TXN_ON_PARTITION_RESPONSE = 59
    END_TXN_ON_SUBSCRIPTION = 60
    END_TXN_ON_SUBSCRIPTION_RESPONSE = 61
    TC_CLIENT_CONNECT_REQUEST = 62
    TC_CLIENT_CONNECT_RESPONSE = 63
    WATCH_TOPIC_LIST = 64
    WATCH_TOPIC_LIST_SUCCESS = 65
    WATCH_TOPIC_UPDATE = 66
    WATCH_TOPIC_LIST_CLOSE = 67
    TOPIC_MIGRATED = 68


class ServerError(IntEnum):
    """What an ERROR, a SEND_ERROR or a response says. What clients do about each: `errors.py`."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION_ERROR = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED_ERROR = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN_ERROR = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED_ERROR = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class ProtocolVersion(IntEnum):
    """What came with a version of the protocol, where a broker has to care."""

    V0 = 0
    KEEP_ALIVE = 1
    REDELIVER_UNACKNOWLEDGED = 2
    COMPRESSION = 3
    BATCHES = 4
    CLOSE_WITHOUT_DISCONNECT = 5
    CHECKSUMS = 6
    LOOKUP = 7
    CONSUMER_STATS = 8
    END_OF_TOPIC = 9
    PROXY = 10
    CHECKSUMS_OF_CPP = 11
    LAST_MESSAGE_ID = 12
    SCHEMAS = 13
    AUTH_CHALLENGE = 14
    GET_OR_CREATE_SCHEMA = 15
    BROKER_ENTRY_METADATA = 16
    ACK_RECEIPTS = 17
    BROKER_ENTRY_METADATA_OF_CLIENTS = 18
    TRANSACTION_COORDINATOR_CLIENT = 19
    TOPIC_MIGRATION = 20
    V21 = 21


LATEST_PROTOCOL_VERSION: Final = ProtocolVersion.V21


class SubType(IntEnum):
    """CommandSubscribe.sub_type: who of a subscription's consumers gets a message."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class InitialPosition(IntEnum):
    """CommandSubscribe.initial_position: where a new subscription begins."""

    LATEST = 0
    EARLIEST = 1


class KeySharedMode(IntEnum):
    """KeySharedMeta.key_shared_mode: who divides the hashes of keys among consumers."""

    AUTO_SPLIT = 0
    STICKY = 1


class AckType(IntEnum):
    """CommandAck.ack_type: these messages, or all up to one."""

    INDIVIDUAL = 0
    CUMULATIVE = 1


class ValidationError(IntEnum):
    """CommandAck.validation_error: why a client could not read what it acknowledges."""

    UNCOMPRESSED_SIZE_CORRUPTION = 0
    DECOMPRESSION_ERROR = 1
    CHECKSUM_MISMATCH = 2
    BATCH_DESERIALIZE_ERROR = 3
    DECRYPTION_ERROR = 4


class CompressionType(IntEnum):
    """MessageMetadata.compression: the codec of an entry's payload."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class ProducerAccessMode(IntEnum):
    """CommandProducer.producer_access_mode: whether others may write to the topic meanwhile."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class MarkerType(IntEnum):
    """MessageMetadata.marker_type: entries that no consumer ever receives."""

    REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST = 10
    REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE = 11
    REPLICATED_SUBSCRIPTION_SNAPSHOT = 12
    REPLICATED_SUBSCRIPTION_UPDATE = 13
    TXN_COMMITTING = 20
    TXN_COMMIT = 21
    TXN_ABORT = 22


class PartitionedMetadataResult(IntEnum):
    """CommandPartitionedTopicMetadataResponse.response."""

    SUCCESS = 0
    FAILED = 1


class LookupResult(IntEnum):
    """CommandLookupTopicResponse.response."""

    REDIRECT = 0
    CONNECT = 1
    FAILED = 2


class TopicMode(IntEnum):
    """CommandGetTopicsOfNamespace.mode: topics of which domain."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


class TxnAction(IntEnum):
    """CommandEndTxn.txn_action."""

    COMMIT = 0
    ABORT = 1


class ResourceType(IntEnum):
    """CommandTopicMigrated.resource_type."""

    PRODUCER = 0
    CONSUMER = 1


class Command(NamedTuple):
    """A command: its type, and the message that belongs to it (CommandSend for SEND, …)."""

    type: CommandType
    message: Any


# What a command may not lack (`required` in PulsarApi.proto), of those that clients send. Without
# an id there is nobody to answer, so all of them are checked at once.
_REQUIRED: Final[dict[CommandType, tuple[str, ...]]] = {
    CommandType.CONNECT: ("client_version",),
    CommandType.SUBSCRIBE: ("topic", "subscription", "sub_type", "consumer_id", "request_id"),
    CommandType.PRODUCER: ("topic", "producer_id", "request_id"),
    CommandType.SEND: ("producer_id", "sequence_id"),
    CommandType.ACK: ("consumer_id", "ack_type"),
    CommandType.FLOW: ("consumer_id", "message_permits"),
    CommandType.UNSUBSCRIBE: ("consumer_id", "request_id"),
    CommandType.CLOSE_PRODUCER: ("producer_id", "request_id"),
    CommandType.CLOSE_CONSUMER: ("consumer_id", "request_id"),
    CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("consumer_id",),
    CommandType.PARTITIONED_METADATA: ("topic", "request_id"),
    CommandType.LOOKUP: ("topic", "request_id"),
    CommandType.CONSUMER_STATS: ("request_id", "consumer_id"),
    CommandType.SEEK: ("consumer_id", "request_id"),
    CommandType.GET_LAST_MESSAGE_ID: ("consumer_id", "request_id"),
    CommandType.GET_TOPICS_OF_NAMESPACE: ("request_id", "namespace"),
    CommandType.GET_SCHEMA: ("request_id", "topic"),
    CommandType.GET_OR_CREATE_SCHEMA: ("request_id", "topic", "schema"),
    CommandType.NEW_TXN: ("request_id",),
    CommandType.ADD_PARTITION_TO_TXN: ("request_id",),
    CommandType.ADD_SUBSCRIPTION_TO_TXN: ("request_id",),
    CommandType.END_TXN: ("request_id",),
    CommandType.END_TXN_ON_PARTITION: ("request_id",),
    CommandType.END_TXN_ON_SUBSCRIPTION: ("request_id",),
    CommandType.TC_CLIENT_CONNECT_REQUEST: ("request_id", "tc_id"),
    CommandType.WATCH_TOPIC_LIST: ("request_id", "watcher_id", "namespace", "topics_pattern"),
    CommandType.WATCH_TOPIC_LIST_CLOSE: ("request_id", "watcher_id"),
}


# By a command's number: its type, its field in BaseCommand, what it must have.
_KNOWN: Final = {
    int(each): (each, each.name.lower(), _REQUIRED.get(each, ())) for each in CommandType
}
# By a message's class: the bytes of BaseCommand before the message's length. A tag is its field's
# number and 2, "length-delimited".
_PREFIX: Final = {
    type(getattr(BaseCommand(), each.name.lower())): bytes((0x08, each))
    + encode_varint(each << 3 | 2)
    for each in CommandType
}


def parse_command(data: Buffer) -> Command:
    """The command in the bytes of a BaseCommand. Raises MalformedCommand.

    Fields that are newer than this file do no harm; a text that is not UTF-8 is malformed.
    """
    try:
        base = BaseCommand.FromString(data)  # type: ignore[arg-type] # it takes every buffer
    except DecodeError as broken:
        raise MalformedCommand(f"a command cannot be read: {broken}") from None
    known = _KNOWN.get(base.type)
    if known is None:
        raise UnknownCommand(f"unknown command type {base.type}")
    command_type, field, required = known
    if not base.HasField(field):
        raise MalformedCommand(f"{command_type.name} without its command")
    message = getattr(base, field)
    for name in required:
        if not message.HasField(name):
            raise MalformedCommand(f"{command_type.name} without {name}")
    return Command(command_type, message)


def encode_command(message: Message) -> bytes:
    """The BaseCommand that holds `message`, whose class says which command it is."""
    body = message.SerializeToString()
    return _PREFIX[type(message)] + encode_varint(len(body)) + body
