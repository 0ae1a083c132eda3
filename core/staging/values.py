"""What is staged and what is to be published: values only.

A *token* names what one writer has staged; it is published whole, with others, or not at all. The
*guard* of a query and its sink is the highest batch id published for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from core.errors import Error
from core.log.effects import IncomingBatch

MAX_BATCHES = 50_000
"""Of one publication. It is decided at once, in one commit, while its partitions are locked: that
has to take well below the two seconds for which the store lets a broker hold rows in silence."""

BATCH_JOB = -1
"""The batch id of a job that is not a stream: its first publication is the only one."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch of a token, and the partition it is for: its topic's name, its number and its id."""

    topic: str
    partition: int
    partition_id: int
    incoming: IncomingBatch


@dataclass(frozen=True, slots=True)
class TokenEffects:
    """What one flush adds to a token.

    expected_batches: how many the token has, which is its version: the store refuses the flush if
    it has another number by then (0: there is no such token).
    """

    token: UUID
    expected_batches: int
    added: tuple[TokenBatch, ...]


@dataclass(frozen=True, slots=True)
class WantedToken:
    """A token to be published, and how many batches its writer has staged under it.

    Staging is not durable by itself, so a crash of the store may cut the end of a token off.
    """

    token: UUID
    batches: int


@dataclass(frozen=True, slots=True)
class Guard:
    """What is published once only: the batches of a query into one of its sinks."""

    query_id: str
    sink: str


@dataclass(frozen=True, slots=True)
class Publication:
    """A request to publish exactly these tokens as batch `batch_id`."""

    guard: Guard
    batch_id: int
    tokens: tuple[WantedToken, ...]


class Outcome(Enum):
    """How a publication went. ALREADY_PUBLISHED: this batch, or a later one, had been before."""

    PUBLISHED = 1
    ALREADY_PUBLISHED = 2


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """What a partition got: so many records from `base_offset` on, without a gap."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class PublicationAnswer:
    """What is answered. outcome: None where it was refused; then nothing was published.

    highest: the guard's batch id by now, where it was not refused. A query that restarts repeats
    its last batch; one that finds a later one published has lost what it knew of its progress.
    """

    error: Error = Error.NONE
    message: str | None = None
    outcome: Outcome | None = None
    highest: int = BATCH_JOB
    partitions: tuple[PublishedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardMove:
    """A guard's batch id anew. expected: the one decided on, None where there is no row."""

    guard: Guard
    expected: int | None
    batch_id: int


@dataclass(frozen=True, slots=True)
class PublicationEffects:
    """What one flush changes of guards and tokens, beside the log.

    gone: tokens that are published, or dropped because their batch was published before.
    """

    moves: tuple[GuardMove, ...] = ()
    gone: tuple[UUID, ...] = ()
