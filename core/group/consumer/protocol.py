"""What consumers of the classic protocol tell each other inside a group's opaque bytes.

ConsumerProtocolSubscription (a member's metadata) and ConsumerProtocolAssignment, versions 0 to 3.
Malformed bytes give a `Malformed`, never an exception. Knows no group.

As in Kafka's ConsumerProtocol, a newer version is read as the newest known one, and bytes after the
known fields are ignored. Unlike there, bytes may end before a field that the version added: some
clients claim a version and send the fields of an older one.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3

MAX_ENTRIES = 1_000_000
"""The most topics and partitions in one message; more would take too much memory."""

TopicPartitions = Mapping[str, tuple[int, ...]]
"""Topic name → partitions in the order they came; a topic named twice has all of them."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that cannot be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics and partitions. version: as its sender wrote it."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: TopicPartitions = field(default_factory=dict)
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A leader's assignment to a member. version: as its sender wrote it."""

    version: int
    partitions: TopicPartitions = field(default_factory=dict)
    user_data: bytes | None = None


class _Unreadable(Exception):
    """Caught within this module."""


class _Reader:
    """Reads Kafka's non-flexible types; every length is checked before anything is allocated."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._entries = 0

    def at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, size: int) -> int:
        """Takes the next `size` bytes; returns where they begin."""
        begin = self._position
        if size > len(self._data) - begin:
            raise _Unreadable(f"{size} bytes expected, {len(self._data) - begin} left")
        self._position = begin + size
        return begin

    def int16(self) -> int:
        value: int = struct.unpack_from(">h", self._data, self.take(2))[0]
        return value

    def int32(self) -> int:
        value: int = struct.unpack_from(">i", self._data, self.take(4))[0]
        return value

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        begin = self.take(length)
        # Java replaces what is not UTF-8, too.
        return self._data[begin : begin + length].decode(errors="replace")

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise _Unreadable("a string is null")
        return value

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        if length < 0:
            return None
        begin = self.take(length)
        return self._data[begin : begin + length]

    def count(self, smallest: int) -> int:
        """The length of an array with elements of at least `smallest` bytes."""
        count = self.int32()
        if count < 0:
            raise _Unreadable("an array is null")
        if count * smallest > len(self._data) - self._position:
            raise _Unreadable(f"an array of {count} does not fit")
        self._entries += count
        if self._entries > MAX_ENTRIES:
            raise _Unreadable(f"more than {MAX_ENTRIES} entries")
        return count

    def strings(self) -> tuple[str, ...]:
        return tuple([self.string() for _ in range(self.count(2))])

    def int32s(self) -> tuple[int, ...]:
        count = self.count(4)
        return struct.unpack_from(f">{count}i", self._data, self.take(4 * count))

    def topic_partitions(self) -> TopicPartitions:
        found: dict[str, list[int]] = {}
        for _ in range(self.count(6)):
            found.setdefault(self.string(), []).extend(self.int32s())
        return {topic: tuple(partitions) for topic, partitions in found.items()}

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise _Unreadable(f"unsupported version {version}")
        return version


def parse_subscription(data: bytes) -> Subscription | Malformed:
    """A member's metadata of protocol type "consumer"."""
    reader = _Reader(data)
    try:
        version = reader.version()
        topics = reader.strings()
        user_data = None if reader.at_end() else reader.nullable_bytes()
        owned: TopicPartitions = {}
        if version >= 1 and not reader.at_end():
            owned = reader.topic_partitions()
        generation_id = -1
        if version >= 2 and not reader.at_end():
            generation_id = reader.int32()
        rack_id = None
        if version >= 3 and not reader.at_end():
            rack_id = reader.nullable_string()
    except _Unreadable as unreadable:
        return Malformed(str(unreadable))
    return Subscription(version, topics, user_data, owned, generation_id, rack_id)


def parse_subscribed_topics(data: bytes) -> tuple[str, ...] | Malformed:
    """Only the topics of a member's metadata, whatever follows them (ClassicGroup does so)."""
    reader = _Reader(data)
    try:
        reader.version()
        return reader.strings()
    except _Unreadable as unreadable:
        return Malformed(str(unreadable))


def parse_assignment(data: bytes) -> Assignment | Malformed:
    """A member's assignment of protocol type "consumer"."""
    reader = _Reader(data)
    try:
        version = reader.version()
        partitions = reader.topic_partitions()
        user_data = None if reader.at_end() else reader.nullable_bytes()
    except _Unreadable as unreadable:
        return Malformed(str(unreadable))
    return Assignment(version, partitions, user_data)


def _string(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _topic_partitions(topics: TopicPartitions) -> bytes:
    parts = [struct.pack(">i", len(topics))]
    for topic, partitions in topics.items():
        parts.append(_string(topic))
        parts.append(struct.pack(f">{len(partitions) + 1}i", len(partitions), *partitions))
    return b"".join(parts)


def encode_assignment(assignment: Assignment) -> bytes:
    """The bytes of an assignment, in its version (at most the newest known)."""
    return b"".join(
        (
            struct.pack(">h", min(assignment.version, HIGHEST_VERSION)),
            _topic_partitions(assignment.partitions),
            _bytes(assignment.user_data),
        )
    )
