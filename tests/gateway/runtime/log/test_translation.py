"""gateway.runtime.log.translation: made once, remembered within bounds, forgotten with history."""

from __future__ import annotations

import pytest

from core.log.records import Record, RecordSet
from core.ports.log import StoredBatch
from core.types import BatchFormat
from gateway.runtime.log.translation import Translations, Translator


class Formats:
    """A reader and a writer that count what they are asked."""

    def __init__(self, budget: int = 1000) -> None:
        self.made: list[int] = []
        self.translations = Translations({BatchFormat.PULSAR: self.read}, budget)
        self.translator: Translator = self.translations.into(BatchFormat.KAFKA_V2, self.write)

    def read(self, batch: StoredBatch) -> RecordSet:
        return RecordSet((Record(None, bytes(batch.payload)),), 0)

    def write(self, batch: StoredBatch, records: RecordSet) -> bytes:
        self.made.append(batch.base_offset)
        (record,) = records.records
        return b"<%b>" % record.value  # type: ignore[union-attr]


def stored(offset: int, payload: bytes = b"x", count: int = 1) -> StoredBatch:
    return StoredBatch(offset, offset + count - 1, payload, BatchFormat.PULSAR)


async def test_it_is_made_once_for_each_partition_and_offset() -> None:
    formats = Formats()
    for _ in range(2):
        for partition_id in (1, 2):
            for offset in (0, 1):
                found = await formats.translator.translated(partition_id, stored(offset))
                assert (found.payload, found.format) == (b"<x>", BatchFormat.KAFKA_V2)
                assert (found.base_offset, found.last_offset) == (offset, offset)
    assert formats.made == [0, 1, 0, 1]


async def test_ones_own_and_markers_stay_as_they_are() -> None:
    formats = Formats()
    own = StoredBatch(0, 0, b"x", BatchFormat.KAFKA_V2)
    marker = StoredBatch(1, 1, b"x", BatchFormat.PULSAR, is_control=True)
    assert await formats.translator.all_translated(1, [own, marker], 100) == [own, marker]
    assert formats.made == []


async def test_the_oldest_are_forgotten_first() -> None:
    formats = Formats(budget=9)
    for offset in (0, 1, 2, 0, 3, 0, 1):  # three bytes each
        await formats.translator.translated(1, stored(offset))
    assert formats.made == [0, 1, 2, 3, 1]
    assert formats.translations.size_bytes == 9


@pytest.mark.parametrize("count", [1, 5000])
async def test_another_history_has_other_batches(count: int) -> None:
    formats = Formats()
    await formats.translator.translated(1, stored(0, count=count))
    formats.translations.forget_everything()
    found = await formats.translator.translated(1, stored(0, b"other", count))
    assert found.payload == b"<other>"


async def test_no_more_than_one_beyond_the_limit() -> None:
    formats = Formats()
    batches = [stored(offset) for offset in range(5)]
    found = await formats.translator.all_translated(1, batches, 5)
    assert [each.base_offset for each in found] == [0, 1]
