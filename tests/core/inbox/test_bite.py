"""A bite gets its offsets, and what no log takes is left out and said."""

from __future__ import annotations

from dataclasses import replace

from core.inbox.bite import DELETED, TERMINATED, append_bite
from core.inbox.values import BiteBatch, InboxMove, InboxPosition, RefusedRecords
from core.log.partition_log import LogDraft, PartitionState
from tests.batches import batch, incoming

MOVE = InboxMove(1, InboxPosition(2, 0, "1:1:"), 0.0)


def bite_batch(partition: int, records: int, size: int = 100) -> BiteBatch:
    return BiteBatch("t", partition, partition, incoming(batch(records, size=size)))


def draft(partition_id: int, *, is_terminated: bool = False) -> LogDraft:
    state = PartitionState(partition_id, 10)
    return LogDraft(replace(state, terminated_offset=10) if is_terminated else state, {})


def test_batches_get_the_offsets_that_follow() -> None:
    logs = {1: draft(1), 2: draft(2)}
    batches = [bite_batch(1, 3), bite_batch(2, 1), bite_batch(1, 2)]
    answer = append_bite(batches, MOVE, logs.get)
    assert (answer.records, answer.move) == (6, MOVE)
    ends = {i: effect.next_offset for i, log in logs.items() if (effect := log.effects())}
    assert ends == {1: 15, 2: 11}


def test_what_no_log_takes_is_counted_by_place_and_reason() -> None:
    already = RefusedRecords("u", None, 1, 5, DELETED)
    logs = {1: draft(1), 2: draft(2, is_terminated=True)}
    batches = [bite_batch(2, 2, 70), bite_batch(3, 1), bite_batch(1, 1), bite_batch(2, 3, 80)]
    answer = append_bite(batches, replace(MOVE, refused=(already,)), logs.get)
    assert answer.records == 1
    assert answer.move.refused == (
        already,
        RefusedRecords("t", 2, 5, 150, TERMINATED),
        RefusedRecords("t", 3, 1, 100, DELETED),
    )
    assert answer.move.position == MOVE.position


def test_an_empty_bite_moves_all_the_same() -> None:
    assert append_bite([], MOVE, {}.get).move == MOVE
