"""Schemas of topics: what producers and consumers bring is looked up, checked and registered.

Nothing of it is kept in memory: what is asked of a topic is read, once for all who ask at that
moment, so that brokers agree without telling each other. A registration is decided under the
topic's lock, so that two brokers give one version each. Core has the rules; this knows no wire and
no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from core.ports.schemas import SchemaStore
from core.schema.compatibility import compared_versions, reader_strategy, refuse_incompatible
from core.schema.forms import fingerprint, refuse_malformed
from core.schema.registration import find_version, refuse_another
from core.schema.values import (
    CompatibilityStrategy,
    Schema,
    SchemaHead,
    SchemaPolicy,
    SchemaRefusal,
    SchemaType,
    VersionedSchema,
)
from core.topic.topic import Topic
from gateway.runtime.topics.shared_read import SharedRead

_Wanted = tuple[UUID, SchemaType, bytes]

_TOPIC_GONE: Final = SchemaRefusal("The topic was deleted meanwhile")
_WITHOUT_SCHEMA: Final = SchemaRefusal(
    "Producers cannot connect or send message without a schema to topics with a schema "
    "when SchemaValidationEnforced is enabled"
)


class Schemas:
    """The schemas of the cluster's topics. Every call may raise StoreUnavailable.

    policy_of: what holds for a topic's schemas, now.
    """

    def __init__(
        self,
        store: SchemaStore,
        policy_of: Callable[[Topic], SchemaPolicy] = lambda _: SchemaPolicy(),
    ) -> None:
        self._store = store
        self._heads = SharedRead(store.heads)
        self._registering: dict[_Wanted, asyncio.Task[int | SchemaRefusal]] = {}
        self.policy_of = policy_of

    # --- reading ---

    async def heads(self, topic: Topic) -> Sequence[SchemaHead]:
        """The versions that are not deleted, oldest first, without what they say."""
        return (await self._heads.find([topic.topic_id])).get(topic.topic_id, ())

    async def get(self, topic: Topic, version: int | None = None) -> VersionedSchema | None:
        """A version, or the latest (None); None where it is not there, or deleted."""
        if version is not None and not 0 <= version < 2**63:
            return None
        return await self._store.load(topic.topic_id, version)

    async def find_version(self, topic: Topic, schema: Schema) -> int | SchemaRefusal | None:
        """Which of the topic's versions a schema is, if any."""
        if refusal := refuse_malformed(schema):
            return refusal
        return find_version(await self.heads(topic), schema.type, fingerprint(schema))

    # --- using ---

    async def register(self, topic: Topic, schema: Schema) -> int | SchemaRefusal:
        """The version that a schema is; it becomes one if it may follow those that are there."""
        if refusal := refuse_malformed(schema):
            return refusal
        wanted = topic.topic_id, schema.type, fingerprint(schema)
        version = find_version(await self.heads(topic), *wanted[1:])
        if version is not None:
            return version
        # A thousand partitions' producers bring the same at once: one of them registers it for all.
        running = self._registering.get(wanted)
        if running is None:
            running = asyncio.create_task(self._register(topic, schema, wanted[2]))
            self._registering[wanted] = running
            running.add_done_callback(partial(self._on_registered, wanted))
        return await asyncio.shield(running)  # whoever gives up does not so for the others

    def _on_registered(self, wanted: _Wanted, done: asyncio.Task[int | SchemaRefusal]) -> None:
        del self._registering[wanted]
        if not done.cancelled():
            done.exception()  # in case all callers have given up

    async def _register(self, topic: Topic, schema: Schema, mark: bytes) -> int | SchemaRefusal:
        policy = self.policy_of(topic)
        async with self._store.change(topic.topic_id, "register_schema") as change:
            if not change.is_topic_there:
                return _TOPIC_GONE
            heads = await change.heads()
            version = find_version(heads, schema.type, mark)  # another may have been faster
            if version is not None:
                return version
            refusal = refuse_another(heads, schema, policy) or await _refuse_incompatible(
                change.load, heads, schema, policy.effective_strategy
            )
            return refusal or await change.add(schema, mark)

    async def admit_writer(self, topic: Topic, schema: Schema | None) -> int | SchemaRefusal | None:
        """The version that a producer writes; None: it brings none, and may do so."""
        if schema is not None:
            return await self.register(topic, schema)
        if self.policy_of(topic).is_enforced and await self.heads(topic):
            return _WITHOUT_SCHEMA
        return None

    async def admit_reader(self, topic: Topic, schema: Schema | None) -> SchemaRefusal | None:
        """Why a consumer may not read the topic by its schema. A topic that has none gets this one.

        Pulsar does so on topics only that nobody has used yet, and refuses else; here topics may
        have records of Kafka's clients, who know no schemas.
        """
        if schema is None:
            return None
        if refusal := refuse_malformed(schema):
            return refusal
        heads = await self.heads(topic)
        if not heads:
            registered = await self.register(topic, schema)
            return registered if isinstance(registered, SchemaRefusal) else None
        strategy = reader_strategy(self.policy_of(topic).effective_strategy)
        load = partial(self._store.load, topic.topic_id)
        return await _refuse_incompatible(load, heads, schema, strategy)

    # --- administration ---

    async def refuse_incompatible(self, topic: Topic, schema: Schema) -> SchemaRefusal | None:
        """Why a schema could not be registered by the topic's strategy; registers nothing."""
        if refusal := refuse_malformed(schema):
            return refusal
        load = partial(self._store.load, topic.topic_id)
        strategy = self.policy_of(topic).effective_strategy
        return await _refuse_incompatible(load, await self.heads(topic), schema, strategy)

    async def delete(self, topic: Topic, *, force: bool = False) -> int | None:
        """Deletes all versions; the version of the deletion, or None where there is no topic.

        force: no trace of them is kept.
        """
        async with self._store.change(topic.topic_id, "delete_schemas") as change:
            return await change.delete(force=force) if change.is_topic_there else None


async def _refuse_incompatible(
    load: Callable[[int], Awaitable[VersionedSchema | None]],
    heads: Sequence[SchemaHead],
    schema: Schema,
    strategy: CompatibilityStrategy,
) -> SchemaRefusal | None:
    """One version at a time, so that no more than two schemas are in memory."""
    for version in compared_versions(strategy, [head.version for head in heads]):
        old = await load(version)
        if old is not None and (refusal := refuse_incompatible(old.schema, schema, strategy)):
            return refusal
    return None
