"""The nouns of schemas: types, a schema, versions, strategies, refusals. Values only.

Names and numbers are Pulsar's, for Kafka's brokers know no schemas. Sources: SchemaType,
SchemaCompatibilityStrategy, SchemaInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final

MAX_SCHEMA_BYTES: Final = 2**20
"""Of one schema, its properties counted; larger ones are refused."""

MAX_AVRO_BYTES: Final = 2**18
"""Of what is read as an Avro schema: that, and a comparison, takes tenths of a second at most."""

MAX_VERSIONS: Final = 1_000
MAX_TOPIC_BYTES: Final = 64 * 2**20
"""What a topic may have of versions that are not deleted, and of bytes in them."""


class SchemaType(IntEnum):
    """What a schema describes. The value is Pulsar's number; those below 0 are never stored.

    AUTO_CONSUME is said by a consumer that takes whatever the topic has, AUTO_PUBLISH
    (AUTO_PRODUCE_BYTES) by nobody: such a producer asks for the topic's schema and brings that.
    """

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    AUTO = -2
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20

    @property
    def has_avro_data(self) -> bool:
        """Whether the schema's data is an Avro schema in JSON, so that Avro's rules decide."""
        return self in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF)

    @property
    def is_bytes(self) -> bool:
        """Whether it says no more than that there are bytes."""
        return self in (SchemaType.NONE, SchemaType.BYTES)


class CompatibilityStrategy(Enum):
    """Which of two schemas must read what the other has written, where one is to follow another.

    BACKWARD: the new one reads the old one's. FORWARD: the other way round. FULL: both. Each with
    the latest version, or, if transitive, with all. UNDEFINED: what is the default.
    """

    UNDEFINED = auto()
    ALWAYS_INCOMPATIBLE = auto()
    ALWAYS_COMPATIBLE = auto()
    BACKWARD = auto()
    FORWARD = auto()
    FULL = auto()
    BACKWARD_TRANSITIVE = auto()
    FORWARD_TRANSITIVE = auto()
    FULL_TRANSITIVE = auto()

    @property
    def is_transitive(self) -> bool:
        """Whether all versions count, not the latest alone."""
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether a new schema has to read what was written with those before."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether those before have to read what is written with the new one."""
        return self.name.startswith(("FORWARD", "FULL"))


DEFAULT_STRATEGY: Final = CompatibilityStrategy.FULL


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What holds for a topic's schemas; the defaults are Pulsar's.

    allows_auto_update: whether clients register new schemas by using them. is_enforced: whether a
    producer without a schema is refused where the topic has one.
    """

    strategy: CompatibilityStrategy = CompatibilityStrategy.UNDEFINED
    allows_auto_update: bool = True
    is_enforced: bool = False

    @property
    def effective_strategy(self) -> CompatibilityStrategy:
        """The strategy, or the default where none is set."""
        is_set = self.strategy is not CompatibilityStrategy.UNDEFINED
        return self.strategy if is_set else DEFAULT_STRATEGY


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a client brings it.

    name: for people. data: its definition, as its type has it; empty for primitive types.
    """

    type: SchemaType
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its bytes, as far as they are counted: UTF-8 of text, and data."""
        texts = [self.name, *self.properties, *self.properties.values()]
        return len(self.data) + sum(len(text.encode()) for text in texts)


@dataclass(frozen=True, slots=True)
class SchemaHead:
    """A version of a topic's schema, as much of it as tells it from others.

    version: from 0, and never given twice. fingerprint: of what it means (`forms.fingerprint`).
    size: in bytes, see Schema.
    """

    version: int
    type: SchemaType
    fingerprint: bytes
    size: int


@dataclass(frozen=True, slots=True)
class VersionedSchema:
    """A version of a topic's schema. created_ms: since the epoch, by the database's clock."""

    version: int
    schema: Schema
    created_ms: int


@dataclass(frozen=True, slots=True)
class SchemaRefusal:
    """A schema that may not be registered, or used. message: why, for people."""

    message: str
