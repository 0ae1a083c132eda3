"""What is staged and what is to be published: values only.

A *token* names one writer's staged batches; it is published whole, with others, or not at all. The
*guard* of a query and its sink is the highest batch id published for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from core.errors import Error
from core.log.effects import IncomingBatch

MAX_BATCHES = 50_000
"""In one publication. One commit decides it while its partitions are locked. That must take well
below two seconds: for so long the store lets a silent broker hold rows."""

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
    that has changed by then (0: there is no such token).
    """

    token: UUID
    expected_batches: int
    added: tuple[TokenBatch, ...]


@dataclass(frozen=True, slots=True)
class WantedToken:
    """A token to be published, and how many batches its writer has staged under it.

    Staging is not durable by itself: a crash of the store may lose the last batches of a token.
    """

    token: UUID
    batches: int


@dataclass(frozen=True, slots=True)
class Guard:
    """Names what is published only once: the batches of a query into one of its sinks."""

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
    """The records that a partition got: so many from `base_offset` on, without a gap."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class PublicationAnswer:
    """To a publication. outcome: None if it was refused; then nothing was published.

    highest: the guard's batch id now, unless it was refused. A query that restarts repeats its last
    batch; if a later one is published already, the query has lost its own progress.
    """

    error: Error = Error.NONE
    message: str | None = None
    outcome: Outcome | None = None
    highest: int = BATCH_JOB
    partitions: tuple[PublishedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardMove:
    """A guard's new batch id. expected: the one decided on, None if there is no row."""

    guard: Guard
    expected: int | None
    batch_id: int


@dataclass(frozen=True, slots=True)
class PublicationEffects:
    """What one flush changes in guards and tokens, beside the log.

    gone: tokens that are published, or dropped because their batch was published before.
    """

    moves: tuple[GuardMove, ...] = ()
    gone: tuple[UUID, ...] = ()
