"""Decides whether to publish a query's batch, and appends all of its tokens, once.

Composes the decisions of one flush on guards and tokens read under their locks, and on the logs
they go to; changes nothing by itself. Knows no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from core.errors import Error
from core.log.partition_log import TERMINATED, Appended, LogDraft
from core.staging.values import (
    BATCH_JOB,
    MAX_BATCHES,
    Guard,
    GuardMove,
    Outcome,
    Publication,
    PublicationAnswer,
    PublicationEffects,
    PublishedPartition,
    TokenBatch,
)

FindLog = Callable[[int], LogDraft | None]
"""The draft of a partition by its id; None if the partition was deleted."""


def malformed(publication: Publication, *, is_limited: bool = True) -> PublicationAnswer | None:
    """The refusal of an invalid request, or None. is_limited: also of one with too many batches."""
    if not publication.guard.query_id:
        return _refused(Error.INVALID_REQUEST, "A publication names its query.")
    if publication.batch_id < BATCH_JOB:
        return _refused(
            Error.INVALID_REQUEST, f"There is no batch {publication.batch_id} (-1: a batch job)."
        )
    seen: set[UUID] = set()
    for wanted in publication.tokens:
        if wanted.token in seen:
            return _refused(Error.INVALID_REQUEST, f"Token {wanted.token} is listed twice.")
        if wanted.batches < 0:
            return _refused(Error.INVALID_REQUEST, f"Token {wanted.token} holds no fewer than 0.")
        seen.add(wanted.token)
    batches = sum(wanted.batches for wanted in publication.tokens)
    if is_limited and batches > MAX_BATCHES:
        return _refused(
            Error.POLICY_VIOLATION,
            f"{batches} batches are to be published at once, {MAX_BATCHES} is the limit;"
            " make batches larger, micro-batches smaller, or tasks fewer (coalesce).",
        )
    return None


class PublicationDraft:
    """Decisions of one flush: what was read under the lock, and an overlay on top of it.

    published: the batch id of each guard that has one. tokens: the batches of each, in order;
    missing tokens are omitted.
    """

    def __init__(
        self, published: Mapping[Guard, int], tokens: Mapping[UUID, Sequence[TokenBatch]]
    ) -> None:
        self._published = published
        self._tokens = tokens
        self._moved: dict[Guard, int] = {}
        self._gone: dict[UUID, None] = {}

    def prepare_publish(
        self,
        publication: Publication,
        find_log: FindLog,
        left_out: list[TokenBatch] | None = None,
    ) -> PublicationAnswer:
        """Decides on one request, in order of arrival; appends all of it, or nothing.

        left_out: takes the batches that no log takes any more; without it they refuse all. Who
        gives it publishes what is committed (the inbox): nobody is left to make it smaller.
        """
        if refusal := malformed(publication, is_limited=left_out is None):
            return refusal
        highest = self._moved.get(publication.guard, self._published.get(publication.guard))
        if highest is not None and publication.batch_id <= highest:
            # Writes the guard again, unchanged: its commit may not have reached a required standby
            # yet, and the client will rely on the answer.
            self._moved[publication.guard] = highest
            self._forget(wanted.token for wanted in publication.tokens)
            return PublicationAnswer(outcome=Outcome.ALREADY_PUBLISHED, highest=highest)
        batches: list[TokenBatch] = []
        for wanted in publication.tokens:
            held = () if wanted.token in self._gone else self._tokens.get(wanted.token, ())
            if len(held) != wanted.batches:
                return _refused(
                    Error.RESOURCE_NOT_FOUND,
                    f"Token {wanted.token} holds {len(held)} batches, not {wanted.batches}: it was"
                    " dropped, has expired, or was lost with a crash of the database.",
                )
            batches += held
        if left_out is not None:
            left_out += [each for each in batches if not _takes_any(find_log(each.partition_id))]
            batches = [each for each in batches if _takes_any(find_log(each.partition_id))]
        logs: dict[int, LogDraft] = {}
        for batch in batches:
            if batch.partition_id not in logs:
                log = find_log(batch.partition_id)
                if log is None:
                    return _refused(
                        Error.UNKNOWN_TOPIC_OR_PARTITION,
                        f"{batch.topic}-{batch.partition} was deleted after batches had been staged"
                        " for it.",
                    )
                if log.state.is_terminated:
                    return _refused(TERMINATED.error, TERMINATED.message)
                logs[batch.partition_id] = log
        partitions = _append(batches, logs)
        self._moved[publication.guard] = publication.batch_id
        self._forget(wanted.token for wanted in publication.tokens)
        return PublicationAnswer(
            outcome=Outcome.PUBLISHED, highest=publication.batch_id, partitions=partitions
        )

    def _forget(self, tokens: Iterable[UUID]) -> None:
        self._gone |= {token: None for token in tokens if token in self._tokens}

    def effects(self) -> PublicationEffects | None:
        """What the decisions change, or None if they change nothing."""
        if not self._moved and not self._gone:
            return None
        moves = (
            GuardMove(guard, self._published.get(guard), batch_id)
            for guard, batch_id in self._moved.items()
        )
        return PublicationEffects(tuple(moves), tuple(self._gone))


def _append(
    batches: Sequence[TokenBatch], logs: Mapping[int, LogDraft]
) -> tuple[PublishedPartition, ...]:
    """Gives every batch its offsets. None is refused: batches without a producer never are,
    where the log is not terminated."""
    first: dict[int, tuple[TokenBatch, int]] = {}
    counts: dict[int, int] = {}
    for batch in batches:
        decision = logs[batch.partition_id].prepare_append(batch.incoming)
        assert isinstance(decision, Appended), "staged batches have no producer"
        first.setdefault(batch.partition_id, (batch, decision.base_offset))
        counts[batch.partition_id] = (
            counts.get(batch.partition_id, 0) + batch.incoming.batch.record_count
        )
    return tuple(
        PublishedPartition(batch.topic, batch.partition, base_offset, counts[partition_id])
        for partition_id, (batch, base_offset) in first.items()
    )


def _takes_any(log: LogDraft | None) -> bool:
    return log is not None and not log.state.is_terminated


def _refused(error: Error, message: str) -> PublicationAnswer:
    return PublicationAnswer(error, message)
