"""What the runtime asks of the store for schemas of topics.

Implemented by `storage`; knows no SQL. Every call may raise `core.ports.log.StoreUnavailable`.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from core.schema.values import Schema, SchemaHead, VersionedSchema


class SchemaChange(Protocol):
    """A change of one topic's schemas, under the topic's lock.

    Whatever it reads stays true until the change commits, so decisions on it are safe.
    """

    @property
    def is_topic_there(self) -> bool:
        """Whether there is such a topic; if not, it has no schemas, and gets none."""

    async def heads(self) -> Sequence[SchemaHead]:
        """The topic's versions that are not deleted, oldest first."""

    async def load(self, version: int) -> VersionedSchema | None:
        """One of them."""

    async def add(self, schema: Schema, fingerprint: bytes) -> int:
        """Makes it the newest version; gives that. No version's number is ever given twice."""

    async def delete(self, *, force: bool) -> int:
        """Deletes all versions; the deletion has a version of its own, and this gives it.

        force: their definitions as well, which are kept otherwise for who looks into the table.
        """


class SchemaStore(Protocol):
    """Schemas of topics, all partitions of one having the same."""

    def change(self, topic_id: UUID, name: str) -> AbstractAsyncContextManager[SchemaChange]:
        """A change that commits when the block ends well. name: the query's name in metrics."""

    async def heads(self, topic_ids: Collection[UUID]) -> dict[UUID, Sequence[SchemaHead]]:
        """By topic, versions that are not deleted, oldest first; topics without are omitted."""

    async def load(self, topic_id: UUID, version: int | None) -> VersionedSchema | None:
        """A version that is not deleted, or the latest one (None)."""
