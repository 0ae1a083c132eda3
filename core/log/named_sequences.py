"""Deduplication by a producer's name: the highest sequence id that a partition has of each.

Pulsar's rule (MessageDeduplication): a batch is new if its first sequence id is above all that came
before under the name. Gaps are allowed. Kafka's idempotence is another rule, `producer_state`;
neither knows the other.

Who begins to write under a name claims it, and is told the highest sequence id. From then on
nothing of an earlier claim is stored: else a batch that was still on its way, here or at another
broker, would make a duplicate of the next that a restarted application sends, and that be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

NO_CHUNK = -1
NO_SEQUENCE_ID = -1
NO_CLAIM = 0
_PRUNE_FROM = 1_000
_REMEMBERED_FOR_S = 600.0  # far longer than a batch waits for its flush


@dataclass(frozen=True, slots=True)
class NamedSequence:
    """What a partition remembers of a producer.

    highest_sequence_id: of all that is complete; -1 where nothing is.
    chunked_sequence_id, chunk_id: the message whose chunks are coming in, and the last one of them
    that is there; or -1. claim: the latest, a number that no other claim has.
    """

    name: str
    highest_sequence_id: int = NO_SEQUENCE_ID
    chunked_sequence_id: int = NO_SEQUENCE_ID
    chunk_id: int = NO_CHUNK
    claim: int = NO_CLAIM


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """What is compared of a batch. Sequence ids are u64; a batch has those from the first to the
    highest. A chunk is a batch of its own: chunk_id from 0, chunk_count of its message; else -1.
    claim: under which it was sent."""

    name: str
    sequence_id: int
    highest_sequence_id: int = NO_SEQUENCE_ID
    chunk_id: int = NO_CHUNK
    chunk_count: int = NO_CHUNK
    claim: int = NO_CLAIM

    @property
    def last_sequence_id(self) -> int:
        """The highest one; senders of single messages leave it out or send something lower."""
        return max(self.highest_sequence_id, self.sequence_id)

    @property
    def is_chunk(self) -> bool:
        """Whether its message has other parts."""
        return self.chunk_id > NO_CHUNK and self.chunk_count > 1


class Sequenced(Enum):
    """The verdict on a batch. FENCED: its name was claimed again, or is forgotten."""

    NEW = auto()
    DUPLICATE = auto()
    FENCED = auto()


class NamedSequenceDraft:
    """Decisions of one flush on one partition: what is loaded, and an overlay on top.

    Every name that is asked about must be loaded (None: the partition knows nothing of it).
    """

    __slots__ = ("_changed", "_loaded")

    def __init__(self, loaded: Mapping[str, NamedSequence | None]) -> None:
        self._loaded = loaded
        self._changed: dict[str, NamedSequence] = {}

    def known(self, name: str) -> NamedSequence:
        """What is known of a producer, decisions of this flush included."""
        return self._changed.get(name) or self._loaded[name] or NamedSequence(name)

    def verdict(self, batch: SequencedBatch) -> Sequenced:
        """What `prepare` would say; changes nothing."""
        known = self.known(batch.name)
        if batch.claim != known.claim:
            return Sequenced.FENCED
        return Sequenced.DUPLICATE if is_duplicate(known, batch) else Sequenced.NEW

    def prepare(self, batch: SequencedBatch) -> Sequenced:
        """Decides on one batch, in order of arrival; a new one counts from now on."""
        verdict = self.verdict(batch)
        if verdict is Sequenced.NEW:
            self._changed[batch.name] = replay(self.known(batch.name), batch)
        return verdict

    def effects(self) -> tuple[NamedSequence, ...]:
        """The whole new state of each producer that has one, each once."""
        return tuple(self._changed.values())


class BrokenClaims:
    """Claims under which a batch was turned away without a decision, since the store was gone.

    Those behind it must not enter the log: it will be sent again, under a new claim, and would lie
    below what is stored by then, as a duplicate. Knows no clock: `now` is any that rises, in
    seconds.
    """

    __slots__ = ("_noted", "_prune_at")

    def __init__(self) -> None:
        self._noted: dict[int, float] = {}
        self._prune_at = _PRUNE_FROM

    def __contains__(self, batch: SequencedBatch) -> bool:
        return batch.claim in self._noted

    def note(self, batch: SequencedBatch, now: float) -> None:
        """The batch was turned away."""
        if len(self._noted) >= self._prune_at:
            self._noted = {
                claim: at for claim, at in self._noted.items() if at > now - _REMEMBERED_FOR_S
            }
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._noted))
        self._noted[batch.claim] = now


def is_duplicate(known: NamedSequence, batch: SequencedBatch) -> bool:
    """Whether the partition has the batch: its first sequence id is what counts, as in Pulsar.
    Chunks of one message share its sequence id, and are told apart by chunk_id.

    Apache Pulsar compares only the last chunk of a message, so that earlier ones that are sent
    again are stored again; here they are duplicates. A message of which only some chunks came is
    begun anew by its chunk 0: after a restart its sender may have cut it otherwise.
    """
    if batch.sequence_id <= known.highest_sequence_id:
        return True
    if not batch.is_chunk or batch.sequence_id != known.chunked_sequence_id:
        return False
    return 0 < batch.chunk_id <= known.chunk_id


def replay(known: NamedSequence, batch: SequencedBatch) -> NamedSequence:
    """The state once a new batch is there. A message counts when its last chunk has come."""
    if batch.is_chunk and batch.chunk_id < batch.chunk_count - 1:
        return replace(known, chunked_sequence_id=batch.sequence_id, chunk_id=batch.chunk_id)
    return NamedSequence(known.name, batch.last_sequence_id, claim=known.claim)
