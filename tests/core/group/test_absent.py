"""core.group.absent: what a group that does not exist answers."""

import pytest

from core.errors import Error
from core.group.absent import ABSENT
from core.group.values import Instant, LeavingMember, Reply, SyncRequest, SyncResult

NOW = Instant(0, 0)


def test_nobody_is_a_member() -> None:
    request = SyncRequest("member", None, 1, None, None, {})
    unknown = Error.UNKNOWN_MEMBER_ID
    assert ABSENT.sync(request, 7, NOW).replies == (Reply(7, SyncResult(unknown)),)
    assert ABSENT.heartbeat("member", None, 1, NOW)[0] is unknown
    leaving = (LeavingMember("one", None, None), LeavingMember("", "static", None))
    result, outcome = ABSENT.leave(leaving, NOW)
    assert result.members == tuple((each, unknown) for each in leaving)
    assert outcome.effects is None


@pytest.mark.parametrize(
    ("generation", "is_transactional", "error"),
    [
        (-1, False, Error.NONE),
        (-1, True, Error.NONE),
        (0, False, Error.GROUP_ID_NOT_FOUND),
        (0, True, Error.ILLEGAL_GENERATION),
    ],
)
def test_only_a_commit_without_a_generation_passes(
    generation: int, is_transactional: bool, error: Error
) -> None:
    told = ABSENT.commit_refusal("", None, generation, NOW, is_transactional=is_transactional)
    assert told is error


def test_there_is_nothing_to_delete() -> None:
    assert ABSENT.delete_refusal() is Error.GROUP_ID_NOT_FOUND
    assert ABSENT.delete_offsets_refusal() is Error.GROUP_ID_NOT_FOUND
