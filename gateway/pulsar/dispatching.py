"""What dispatch has to know of an entry: its key's hash, its time, which chunks belong together.

Knows no consumer. An entry that cannot be opened has none of it, and goes to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.subscription.values import Entry
from core.types import BatchFormat
from gateway.pulsar.conversion import split_entry
from gateway.pulsar.entries import Entry as PulsarEntry
from gateway.pulsar.entries import InvalidEntry, messages, open_stored
from gateway.pulsar.keys import key_hash, key_of

if TYPE_CHECKING:
    from core.ports.log import StoredBatch
    from gateway.pulsar.commands_pb2 import MessageMetadata, SingleMessageMetadata


def entry_of(batch: StoredBatch, *, has_to_have_key: bool) -> Entry:
    """The entry that this stored batch, in Pulsar's format, is for dispatch.

    has_to_have_key: whether a batch is opened to find one.
    """
    base, last = batch.base_offset, batch.last_offset
    try:
        entry = open_stored(batch.payload)
    except InvalidEntry:
        return Entry(base, last)
    metadata = entry.metadata
    key = _sticky_key(entry) if has_to_have_key else _key(metadata)
    return Entry(
        base,
        last,
        None if key is None else key_hash(key),
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        f"{metadata.producer_name}/{metadata.uuid}" if entry.is_chunk else None,
    )


def pieces_of(stored: StoredBatch, translated: StoredBatch) -> Sequence[StoredBatch]:
    """See Split. What Pulsar's clients wrote stays whole, as in Pulsar: who wants the order of keys
    has keys batched apart (BatcherBuilder.KEY_BASED). Kafka's clients know nothing of that."""
    if stored.format is BatchFormat.PULSAR or stored.record_count == 1:
        return ()
    try:
        return split_entry(translated)
    except InvalidEntry:
        return ()


def _sticky_key(entry: PulsarEntry) -> bytes | None:
    """Its own key, or its first message's; None: nobody minds the order."""
    key = _key(entry.metadata)
    if key is None and entry.is_batch and not entry.is_opaque:
        try:
            return _key(messages(entry)[0].metadata)
        except InvalidEntry:
            return None
    return key


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    return metadata.ordering_key if metadata.HasField("ordering_key") else key_of(metadata)
