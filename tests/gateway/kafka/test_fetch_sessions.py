"""Fetch sessions by KIP-227, rule by rule as in Kafka's FetchSession.scala."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import pytest

from core.errors import Error
from gateway.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchedPartition,
    FetchPartition,
    FetchSessions,
    PartitionKey,
)

LATER = 120_001


def asks(*partitions: int, topic: str = "t", offset: int = 0) -> list[FetchPartition]:
    return [FetchPartition(topic, each, offset, 1000) for each in partitions]


def answer(
    partition: int, *, hw: int = 10, start: int = 0, size: int = 0, error: Error = Error.NONE
) -> FetchedPartition:
    return FetchedPartition(("t", partition), error, hw, start, size)


def opened(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    asked: list[FetchPartition] | None = None,
    forgotten: Iterable[PartitionKey] = (),
    *,
    ids: bool = False,
    now: int = 0,
) -> FetchContext:
    context = sessions.open(
        session_id, epoch, asked or [], forgotten, uses_topic_ids=ids, now_ms=now
    )
    assert isinstance(context, FetchContext), context
    return context


def new_session(sessions: FetchSessions, *partitions: int, now: int = 0, ids: bool = False) -> int:
    context = opened(sessions, NO_SESSION, INITIAL_EPOCH, asks(*partitions), now=now, ids=ids)
    session_id, told = context.close([answer(each) for each in partitions])
    assert told is None, "a full fetch is answered in full"
    return session_id


def asked_of(context: FetchContext) -> list[int]:
    return [each.partition for each in context.partitions]


def test_a_full_fetch_makes_a_session_and_its_epochs_count_on() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0, 1)
    assert session_id > 0
    for epoch in (1, 2, 3):
        context = opened(sessions, session_id, epoch)
        assert asked_of(context) == [0, 1]
        assert context.close([answer(0), answer(1)]) == (session_id, set())


def test_wrong_epochs_and_sessions() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0)
    for epoch in (2, 7):
        assert (
            sessions.open(session_id, epoch, [], [], uses_topic_ids=False, now_ms=0)
            is Error.INVALID_FETCH_SESSION_EPOCH
        )
    assert (
        sessions.open(session_id + 1, 1, [], [], uses_topic_ids=False, now_ms=0)
        is Error.FETCH_SESSION_ID_NOT_FOUND
    )
    # A refused request changes nothing.
    assert asked_of(opened(sessions, session_id, 1)) == [0]
    assert (
        sessions.open(session_id, 1, [], [], uses_topic_ids=False, now_ms=0)
        is Error.INVALID_FETCH_SESSION_EPOCH
    )


def test_epochs_wrap_to_one() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0)
    sessions._sessions[session_id].epoch = 2**31 - 1
    opened(sessions, session_id, 2**31 - 1)
    opened(sessions, session_id, 1)


def test_names_and_ids_do_not_mix() -> None:
    sessions = FetchSessions(5)
    by_name, by_id = new_session(sessions, 0), new_session(sessions, 0, ids=True)
    for session_id, ids in ((by_name, True), (by_id, False)):
        assert (
            sessions.open(session_id, 1, [], [], uses_topic_ids=ids, now_ms=0)
            is Error.FETCH_SESSION_TOPIC_ID_ERROR
        )
    topic_id = uuid4()
    added = [FetchPartition(topic_id, 3, 0, 10)]
    assert opened(sessions, by_id, 1, added, ids=True).partitions[-1].key == (topic_id, 3)


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_fetch_ends_the_session_it_names(epoch: int) -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0)
    context = opened(sessions, session_id, epoch, asks(3))
    assert asked_of(context) == [3]
    new_id, told = context.close([answer(3)])
    assert told is None
    assert (new_id == NO_SESSION) is (epoch == FINAL_EPOCH)
    assert len(sessions) == (epoch == INITIAL_EPOCH)
    assert (
        sessions.open(session_id, 1, [], [], uses_topic_ids=False, now_ms=0)
        is Error.FETCH_SESSION_ID_NOT_FOUND
    )


def test_partitions_are_added_changed_and_forgotten() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0, 1, 2)
    changed = [*asks(1, offset=7), *asks(5)]
    context = opened(sessions, session_id, 1, changed, [("t", 0), ("t", 99)])
    assert [(each.partition, each.fetch_offset) for each in context.partitions] == [
        (1, 7),
        (2, 0),
        (5, 0),
    ]
    assert context.close([answer(1), answer(2), answer(5)]) == (session_id, {("t", 5)})


def test_a_session_without_partitions_is_closed() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0)
    context = opened(sessions, session_id, 1, [], [("t", 0)])
    assert context.partitions == []
    assert context.close([]) == (NO_SESSION, None)
    assert len(sessions) == 0


def test_only_what_has_changed_is_told() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, *range(6))
    context = opened(sessions, session_id, 1)
    told = context.close(
        [
            answer(0),
            answer(1, hw=11),
            answer(2, start=1),
            answer(3, size=5),
            answer(4, error=Error.NOT_LEADER_OR_FOLLOWER),
            answer(5),
        ]
    )
    assert told == (session_id, {("t", 1), ("t", 2), ("t", 3), ("t", 4)})
    # Errors are told each time, and once more when they are gone; changes once.
    still = [answer(1, hw=11), answer(2, start=1), answer(3)]
    context = opened(sessions, session_id, 2)
    broken = answer(4, error=Error.NOT_LEADER_OR_FOLLOWER)
    assert context.close([*still, broken])[1] == {("t", 4)}
    context = opened(sessions, session_id, 3)
    assert context.close([*still, answer(4)])[1] == {("t", 4)}
    context = opened(sessions, session_id, 4)
    assert context.close([*still, answer(4)])[1] == set()


def test_an_error_in_the_first_answer_is_told_once_it_is_gone() -> None:
    sessions = FetchSessions(5)
    context = opened(sessions, NO_SESSION, INITIAL_EPOCH, asks(0))
    session_id, _ = context.close([answer(0, error=Error.KAFKA_STORAGE_ERROR)])
    assert opened(sessions, session_id, 1).close([answer(0)])[1] == {("t", 0)}


def test_who_got_data_goes_to_the_end() -> None:
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0, 1, 2)
    opened(sessions, session_id, 1).close([answer(0, size=5), answer(1), answer(2, hw=11)])
    assert asked_of(opened(sessions, session_id, 2)) == [1, 2, 0]


def test_an_answer_overtaken_by_the_sessions_next_request_is_invalid() -> None:
    """IncrementalFetchContext.updateAndGenerateResponseData: a client gave up on the first one."""
    sessions = FetchSessions(5)
    session_id = new_session(sessions, 0)
    given_up = opened(sessions, session_id, 1)
    current = opened(sessions, session_id, 2)
    assert given_up.close([answer(0, hw=11)]) is Error.INVALID_FETCH_SESSION_EPOCH
    # It must not have eaten the news.
    assert current.close([answer(0, hw=11)]) == (session_id, {("t", 0)})


def test_no_slots_no_sessions() -> None:
    assert new_session(FetchSessions(0), 0) == NO_SESSION


def test_a_full_cache_keeps_sessions_that_are_new_and_in_use() -> None:
    sessions = FetchSessions(1)
    first = new_session(sessions, 0)
    assert new_session(sessions, 0, 1, 2, now=LATER - 1) == NO_SESSION
    assert asked_of(opened(sessions, first, 1)) == [0]


def test_a_session_unused_for_long_makes_room() -> None:
    sessions = FetchSessions(2)
    idle, used = new_session(sessions, 0, 1, 2), new_session(sessions, 0)
    opened(sessions, used, 1, now=50)
    assert new_session(sessions, 5, now=LATER) > 0
    assert (
        sessions.open(idle, 1, [], [], uses_topic_ids=False, now_ms=LATER)
        is Error.FETCH_SESSION_ID_NOT_FOUND
    )
    opened(sessions, used, 2)


def test_a_smaller_session_that_is_not_new_makes_room_for_a_larger_one() -> None:
    sessions = FetchSessions(2)
    large, small = new_session(sessions, 0, 1, 2), new_session(sessions, 0, 1)
    for session_id in (large, small):
        opened(sessions, session_id, 1, now=LATER)  # both in use, both old
    assert new_session(sessions, 5, 6, now=LATER) == NO_SESSION  # no larger than the small one
    assert new_session(sessions, 5, 6, 7, now=LATER) > 0
    assert (
        sessions.open(small, 2, [], [], uses_topic_ids=False, now_ms=LATER)
        is Error.FETCH_SESSION_ID_NOT_FOUND
    )
    opened(sessions, large, 2)


def test_session_ids_are_positive_and_differ() -> None:
    sessions = FetchSessions(200)
    ids = {new_session(sessions, 0) for _ in range(200)}
    assert len(ids) == 200
    assert min(ids) > 0
    assert max(ids) < 2**31
