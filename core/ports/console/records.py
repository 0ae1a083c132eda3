"""Records in the log: where they lie, and who has written them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A stored batch. size: of its bytes as they are stored. What a producer has none of is -1."""

    base_offset: int
    last_offset: int
    size: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class WriterRow:
    """Whose a producer id is. transactional_id: Kafka's, or a TxnID of Pulsar's (protocol); both
    None of a producer without transactions. client_id, client_host, owner: of who has it now, or
    has asked for it."""

    producer_id: int
    transactional_id: str | None
    protocol: str | None
    client_id: str | None
    client_host: str | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """What a partition remembers of a producer: by its id, or by Pulsar's name."""

    last_sequence: int | None
    updated_at: datetime


class RecordReads(Protocol):
    """Of records."""

    async def batch_at(self, partition_id: int, offset: int) -> BatchRow | None:
        """The first batch that ends at the offset or behind it; None at the log's end."""

    async def stretch_before(
        self, partition_id: int, end_offset: int, most_bytes: int, most_records: int
    ) -> int | None:
        """Where the batches begin that hold the last offsets before `end_offset`: so many bytes and
        offsets at most, but at least one batch. None where there is none."""

    async def writers(self, producer_ids: Collection[int]) -> Mapping[int, WriterRow]:
        """Of these ids those whose client or transaction is remembered."""

    async def producer(self, partition_id: int, producer_id: int) -> ProducerRow | None:
        """By its id."""

    async def named_producer(self, partition_id: int, name: str) -> ProducerRow | None:
        """By its name."""
