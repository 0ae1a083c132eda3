"""Appends a bite of the inbox, all that can be, and says what cannot.

Composes the decisions of one flush on the logs; changes nothing by itself. Knows no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.inbox.values import BiteBatch, InboxMove, RefusedRecords
from core.log.partition_log import Appended, LogDraft
from core.staging.values import TokenBatch

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
    left_out: list[BiteBatch] = []
    records = 0
    for each in batches:
        log = find_log(each.partition_id)
        if log is not None and isinstance(log.prepare_append(each.incoming), Appended):
            records += each.incoming.batch.record_count
        else:
            left_out.append(each)
    return BiteAnswer(with_left_out(move, left_out, find_log), records)


def with_left_out(
    move: InboxMove, left_out: Sequence[BiteBatch | TokenBatch], find_log: FindLog
) -> InboxMove:
    """The same move, which says of these batches, too, that they are not published."""
    counts: Counter[tuple[str, int, str]] = Counter()
    sizes: Counter[tuple[str, int, str]] = Counter()
    for each in left_out:
        reason = DELETED if find_log(each.partition_id) is None else TERMINATED
        place = (each.topic, each.partition, reason)
        counts[place] += each.incoming.batch.record_count
        sizes[place] += each.incoming.batch.size
    refused = tuple(
        RefusedRecords(topic, partition, count, sizes[topic, partition, reason], reason)
        for (topic, partition, reason), count in counts.items()
    )
    return replace(move, refused=move.refused + refused)
