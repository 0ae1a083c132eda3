"""Producers, as partitions remember them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """What a partition remembers of a producer id. open_from: the first offset of its open
    transaction there. newest_epoch: that of its transactional id, since newest_since.
    known_from: the oldest batch that is remembered, by its last offset. client_id, client_host,
    owner: of who asked for the id, as far as that is known."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_offset: int | None
    known_from: int | None
    last_record: datetime | None
    written_at: datetime
    transactional_id: str | None
    kind: int | None
    open_from: int | None
    newest_epoch: int | None
    newest_since: datetime | None
    client_id: str | None
    client_host: str | None
    owner: str | None

    @property
    def is_overtaken(self) -> bool:
        """Whether the producer has a newer epoch: whoever still writes with this one is fenced."""
        return self.newest_epoch is not None and self.newest_epoch > self.producer_epoch


@dataclass(frozen=True, slots=True)
class NamedProducerRow:
    """What a partition remembers of a producer's name (Pulsar's, deduplicated)."""

    topic: str
    partition: int
    name: str
    last_sequence_id: int | None
    written_at: datetime


@dataclass(frozen=True, slots=True)
class ProducerClientRow:
    """Who asked for a producer id that has no transactional id. None: he did not say."""

    client_id: str | None
    client_host: str | None
    owner: str | None
    since: datetime


class ProducerReads(Protocol):
    """Of producers. topics, producer_ids: only of these; None: of all."""

    async def page(
        self,
        topics: Collection[str] | None,
        producer_ids: Collection[int] | None,
        skipped: int,
        count: int,
    ) -> Sequence[ProducerRow]:
        """Those that have written last first."""

    async def count(
        self, topics: Collection[str] | None, producer_ids: Collection[int] | None, most: int
    ) -> int:
        """How many there are, counted up to `most`."""

    async def named_page(
        self, topics: Collection[str] | None, search: str, skipped: int, count: int
    ) -> Sequence[NamedProducerRow]:
        """Those that have written last first. search: part of a name; empty: all."""

    async def named_count(self, topics: Collection[str] | None, search: str, most: int) -> int:
        """How many there are, counted up to `most`."""

    async def of_producer(self, producer_id: int, most: int) -> Sequence[ProducerRow]:
        """All partitions that remember a producer, those it has written to last first."""

    async def ids_of_clients(self, search: str, most: int) -> Collection[int]:
        """Those without a transactional id whose client, host or owner has this text in it."""

    async def client(self, producer_id: int) -> ProducerClientRow | None:
        """Who asked for a producer id, without a transactional id; None: nobody knows any more."""
