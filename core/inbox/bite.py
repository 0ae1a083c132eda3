"""Appends a bite of the inbox, all that can be, and says what cannot.

Composes the decisions of one flush on the logs; changes nothing by itself. Knows no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.inbox.values import BiteBatch, InboxMove, RefusedRecords
from core.log.partition_log import Appended, LogDraft

FindLog = Callable[[int], LogDraft | None]
"""The draft of a partition by its id; None if the partition was deleted."""

DELETED = "its topic was deleted before it was published"
TERMINATED = "its topic was terminated before it was published"


@dataclass(frozen=True, slots=True)
class BiteAnswer:
    """A bite is published. move: as it was stored, with all that was left out."""

    move: InboxMove
    records: int


def append_bite(batches: Sequence[BiteBatch], move: InboxMove, find_log: FindLog) -> BiteAnswer:
    """Gives every batch its offsets; batches without a producer are refused only where no log takes
    any."""
    left_out: Counter[tuple[str, int, str]] = Counter()
    sizes: Counter[tuple[str, int, str]] = Counter()
    records = 0
    for each in batches:
        log = find_log(each.partition_id)
        batch = each.incoming.batch
        if log is not None and isinstance(log.prepare_append(each.incoming), Appended):
            records += batch.record_count
            continue
        place = (each.topic, each.partition, DELETED if log is None else TERMINATED)
        left_out[place] += batch.record_count
        sizes[place] += batch.size
    refused = tuple(
        RefusedRecords(topic, partition, count, sizes[topic, partition, reason], reason)
        for (topic, partition, reason), count in left_out.items()
    )
    return BiteAnswer(replace(move, refused=move.refused + refused), records)
