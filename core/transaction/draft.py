"""Decisions of one flush on one transaction: its row as read, and an overlay on top.

Composes the coordinator's decisions in order of arrival; changes nothing by itself. Knows no store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from core.errors import Error
from core.transaction.coordinator import verify_write
from core.transaction.key import Participant, TransactionKey
from core.transaction.values import (
    Joining,
    Marker,
    ProducerIdAndEpoch,
    StoredTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionVersion,
    Transition,
    first_version,
)

Decide = Callable[[StoredTransaction | None], Transition]
"""A request to the coordinator; it still needs the stored transaction."""


class TransactionDraft:
    """key: None for a producer that no row names; then nothing is changed.

    is_fresh: whether its row was read within this flush, so that a refusal is certain.
    """

    def __init__(
        self, key: TransactionKey | None, stored: StoredTransaction | None, *, is_fresh: bool
    ) -> None:
        self.key = key
        self.is_fresh = is_fresh
        self._stored = stored
        self._metadata: TransactionMetadata | None = stored.metadata if stored else None
        self._partitions = stored.partitions if stored else frozenset()
        self._put: TransactionMetadata | None = None
        self._joined: list[int] = []  # since the last end
        self._marker: Marker | None = None  # of the first end: only that has offsets and joins
        self._is_deleted = False
        self._is_used = False

    def prepare_append(
        self,
        partition_id: int,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        now_ms: int,
        *,
        is_first: bool,
    ) -> Joining:
        """Whether a transactional batch may enter the partition, which then joins.

        is_first: whether it is the transaction's first one there. Then its join is written again,
        since a crash may have lost the join that was answered.
        """
        is_joined = partition_id in self._partitions
        joining = verify_write(self._metadata, producer, version, now_ms, is_joined=is_joined)
        self._is_used = True
        if joining.put is not None:
            self._metadata = self._put = joining.put
        if joining.error is Error.NONE and (joining.joins or is_first):
            self._partitions |= {partition_id}
            self._joined.append(partition_id)
        return joining

    def prepare_transition(self, decide: Decide) -> tuple[Transition, frozenset[int]]:
        """The coordinator's decision, and the partitions that get its marker."""
        known = self._metadata
        transition = decide(
            StoredTransaction(known, self._partitions, self._participants())
            if known is not None
            else None
        )
        partitions: frozenset[int] = frozenset()
        if transition.put is not None:
            self._metadata = self._put = transition.put
        if transition.marker is not None:
            partitions, self._partitions = self._partitions, frozenset()
            self._marker = self._marker or transition.marker
            self._joined.clear()
        if transition.is_deleted:
            self._metadata = self._put = None
            self._is_deleted = True
        return transition, partitions

    def effects(self) -> TransactionEffects | None:
        """What the decisions change, or the version that appends rest on; None for neither."""
        expected = self._stored.metadata.version if self._stored else 0
        if self._is_deleted and self._metadata is None:
            return TransactionEffects(self._named(), expected, is_deleted=True)
        if self._put is None and not (self._is_used and self._stored):
            return None
        ended = self._stored if self._marker is not None else None
        return TransactionEffects(
            key=self._named(),
            expected_version=expected,
            put=self._put,
            joined=tuple(self._joined),
            marker=self._marker,
            partitions=ended.partitions if ended else frozenset(),
            participants=ended.participants if ended else frozenset(),
        )

    def committed(self) -> StoredTransaction | None:
        """What is stored once the effects are; None if there is no such row."""
        metadata = self._metadata
        if metadata is None:
            return None
        if self._stored is None:
            metadata = replace(metadata, version=first_version(metadata.producer_id))
        elif self._put is not None:
            metadata = replace(metadata, version=self._stored.metadata.version + 1)
        return StoredTransaction(metadata, self._partitions, self._participants())

    def _participants(self) -> frozenset[Participant]:
        """Participants of the open transaction; an end removes all of them."""
        return self._stored.participants if self._stored and self._marker is None else frozenset()

    def _named(self) -> TransactionKey:
        assert self.key is not None, "without a row and a key nothing changes"
        return self.key
