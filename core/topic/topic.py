"""A topic and its effective configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from core.config.values import TopicConfig
from core.errors import Error, Refusal

Key = TypeVar("Key", str, UUID)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is in the database.

    partition_ids: index is Kafka's partition number, value the row's id in `topic_partition`.
    leader_epochs: index is the partition number; a leader epoch rises only if the database was
    restored or failed over.
    overrides: the settings made on the topic itself, by Kafka's name, as text.
    config: every setting in effect (overrides, else the broker's, else Kafka's default), typed.
    """

    topic_id: UUID
    name: str
    partition_ids: tuple[int, ...]
    leader_epochs: tuple[int, ...]
    overrides: Mapping[str, str]
    config: TopicConfig
    is_internal: bool = False

    def partition_id(self, number: int) -> int | None:
        """The id of partition `number`, or None if the topic has no such partition."""
        return self.partition_ids[number] if 0 <= number < len(self.partition_ids) else None

    def why_records_stay(self) -> Refusal | None:
        """Why no client may delete its records (`ReplicaManager.deleteRecordsOnLocalLog`)."""
        if self.is_internal:
            message = "Records of an internal topic may not be deleted."
            return Refusal(Error.INVALID_TOPIC_EXCEPTION, message)
        if not self.config.is_deleted:
            message = "Records of a topic that is only compacted may not be deleted."
            return Refusal(Error.POLICY_VIOLATION, message)
        return None


def find_partition(topics: Mapping[Key, Topic], topic: Key, number: int) -> int | None:
    """The id of a topic's partition, or None if there is no such topic or partition."""
    found = topics.get(topic)
    return None if found is None else found.partition_id(number)
