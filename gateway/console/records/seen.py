"""A record with all that is known of it where it is read. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from core.log.records import Record, RecordSet
from core.types import BatchFormat


class Fate(Enum):
    """How the transaction ended that a record was written in. The value: in words."""

    NONE = ""
    COMMITTED = "committed"
    OPEN = "open"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is at an offset. record: None for a marker, which says what became of its transaction
    (fate). of: the batch it is in."""

    number: int
    offset: int
    record: Record | None
    of: RecordSet
    format: BatchFormat
    producer_id: int
    fate: Fate

    @property
    def timestamp(self) -> int:
        """ms since the epoch, as Kafka's clients are told it."""
        if self.record is None or self.record.event_time is None:
            return self.of.timestamp
        return self.record.event_time
