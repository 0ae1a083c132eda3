"""Stages each batch under a token once, in order, however often it is sent.

With each request a writer says how many batches it has sent before. So it can repeat a request if
the answer was lost, and a request after a refused one is refused. Decides; stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from core.errors import Error
from core.log.partition_log import Refused
from core.staging.values import MAX_BATCHES, TokenBatch, TokenEffects


@dataclass(frozen=True, slots=True)
class Staged:
    """The batches join the token once the effects are stored. batches: how many it has then."""

    batches: int


@dataclass(frozen=True, slots=True)
class StagedBefore:
    """The token has them already."""

    batches: int


StageDecision = Staged | StagedBefore | Refused


class TokenDraft:
    """Decisions of one flush on one token: how many batches it has, and an overlay on top.

    batches: 0 if there is no such token.
    """

    __slots__ = ("_added", "_expected", "batches", "token")

    def __init__(self, token: UUID, batches: int) -> None:
        self.token = token
        self.batches = batches
        self._expected = batches
        self._added: list[TokenBatch] = []

    def prepare_stage(
        self, first_batch: int, added: Sequence[TokenBatch], *, has_room: bool
    ) -> StageDecision:
        """Decides on one request, in order of arrival.

        first_batch: how many batches its writer has sent before it. has_room: whether the limit of
        unpublished bytes leaves room for it.
        """
        if first_batch < 0 or not added:
            return Refused(Error.INVALID_REQUEST, "A request stages one batch or more, from 0 on.")
        end = first_batch + len(added)
        if end <= self.batches:
            return StagedBefore(self.batches)
        if first_batch > self.batches:
            return Refused(
                Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Batch {first_batch} of token {self.token} was sent, but {self.batches} are"
                " staged: an earlier request was refused, or what it staged is gone.",
            )
        if first_batch < self.batches:
            return Refused(
                Error.INVALID_REQUEST,
                f"Batches {first_batch} to {end - 1} of token {self.token} were sent, of which some"
                " are staged already: a request that is repeated must be the same.",
            )
        if end > MAX_BATCHES:
            return Refused(
                Error.POLICY_VIOLATION,
                f"A token holds at most {MAX_BATCHES} batches; make them larger.",
            )
        if not has_room:
            return Refused(
                Error.THROTTLING_QUOTA_EXCEEDED,
                "What is staged and not yet published has reached penstock.staged.max.bytes; try"
                " again once something is published, dropped or expired.",
            )
        self.batches = end
        self._added += added
        return Staged(end)

    def effects(self) -> TokenEffects | None:
        """What the decisions add, or None if they add nothing."""
        if not self._added:
            return None
        return TokenEffects(self.token, self._expected, tuple(self._added))
