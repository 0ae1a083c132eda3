"""What may be staged under a token: every relation of a request to what the token has."""

from __future__ import annotations

from uuid import UUID

import pytest

from core.errors import Error
from core.log.partition_log import Refused
from core.staging.token import Staged, StagedBefore, TokenDraft
from core.staging.values import MAX_BATCHES, TokenBatch
from tests.batches import batch, incoming

TOKEN = UUID(int=1)


def batches(count: int, first: int = 0) -> list[TokenBatch]:
    return [TokenBatch("t", 0, 7, incoming(batch(), first + n)) for n in range(count)]


@pytest.mark.parametrize(
    ("has", "first", "count", "expected"),
    [
        (0, 0, 1, Staged(1)),
        (0, 0, 3, Staged(3)),
        (5, 5, 2, Staged(7)),
        (5, 0, 5, StagedBefore(5)),
        (5, 0, 1, StagedBefore(5)),
        (5, 3, 2, StagedBefore(5)),
        (5, 6, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 1, 1, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (5, 4, 2, Error.INVALID_REQUEST),
        (5, 0, 6, Error.INVALID_REQUEST),
        (5, -1, 1, Error.INVALID_REQUEST),
        (0, 0, 0, Error.INVALID_REQUEST),
        (5, 2, 0, Error.INVALID_REQUEST),
        (MAX_BATCHES, MAX_BATCHES, 1, Error.POLICY_VIOLATION),
        (MAX_BATCHES - 1, MAX_BATCHES - 1, 1, Staged(MAX_BATCHES)),
    ],
)
def test_a_request_and_what_is_there(has: int, first: int, count: int, expected: object) -> None:
    draft = TokenDraft(TOKEN, has)
    decision = draft.prepare_stage(first, batches(count), has_room=True)
    if isinstance(decision, Refused):
        assert decision.error is expected
        assert decision.message
    else:
        assert decision == expected
    assert (draft.effects() is not None) == isinstance(decision, Staged)


def test_requests_of_one_flush_build_on_each_other() -> None:
    draft = TokenDraft(TOKEN, 2)
    first, second = batches(2, first=10), batches(1, first=20)
    assert draft.prepare_stage(2, first, has_room=True) == Staged(4)
    assert draft.prepare_stage(2, first, has_room=True) == StagedBefore(4)
    assert isinstance(draft.prepare_stage(5, second, has_room=True), Refused)
    assert draft.prepare_stage(4, second, has_room=True) == Staged(5)
    effects = draft.effects()
    assert effects is not None
    assert (effects.token, effects.expected_batches) == (TOKEN, 2)
    assert effects.added == (*first, *second)


def test_without_room_nothing_new_is_staged() -> None:
    draft = TokenDraft(TOKEN, 2)
    refused = draft.prepare_stage(2, batches(1), has_room=False)
    assert isinstance(refused, Refused)
    assert refused.error is Error.THROTTLING_QUOTA_EXCEEDED
    # What follows it is out of order, so that nothing is left out once there is room.
    assert isinstance(draft.prepare_stage(3, batches(1), has_room=True), Refused)
    # What is there already needs no room.
    assert draft.prepare_stage(0, batches(2), has_room=False) == StagedBefore(2)
    assert draft.effects() is None
