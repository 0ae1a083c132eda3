"""The nouns that all rooms share. Values only, frozen."""

from dataclasses import dataclass
from enum import Enum

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_OFFSET = -1
NO_TOPIC_EPOCH = -1

Payload = bytes | bytearray | memoryview
"""The bytes of a stored batch."""


class BatchFormat(Enum):
    """The protocol of a stored batch's bytes. A reader of that protocol gets them untouched."""

    KAFKA_V2 = 2
    PULSAR = 16


class IsolationLevel(Enum):
    """Whether a reader sees open and aborted transactions (Kafka's `isolation.level`)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TimestampType(Enum):
    """Whether the producer or the log set the timestamp (Kafka's `message.timestamp.type`)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """What the log must know of a batch to decide on it; the payload travels beside it.

    record_count: offsets the batch occupies, at least 1.
    max_timestamp: milliseconds since the epoch.
    size: bytes of the payload as stored.
    producer_id, producer_epoch: -1 if the producer is not known by an id. base_sequence: -1 if its
    batches have no sequences (it is not idempotent, or another protocol's).
    """

    record_count: int
    max_timestamp: int
    size: int
    format: BatchFormat
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False

    @property
    def has_producer_id(self) -> bool:
        """Whether its producer is known by an id (RecordBatch.hasProducerId: not below 0)."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def has_sequence(self) -> bool:
        """Whether a sequence says which batch of its producer it is: the producer is idempotent."""
        return self.base_sequence > NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a broker. listener: the name of the protocol spoken there ("kafka")."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker with a session that lasts, and how clients reach it: one endpoint per listener."""

    broker_id: int
    rack: str | None
    endpoints: tuple[Endpoint, ...]

    def at(self, listener: str) -> Endpoint | None:
        """Its address on a listener of this name, or None."""
        return next((each for each in self.endpoints if each.listener == listener), None)
