"""Single messages, for people who look into a topic.

Behavior: an entry is given whole, decompressed; what its metadata says is in headers, and the admin
client takes a batch apart. Entries of Kafka's clients come as Pulsar's consumers get them. Sources:
PersistentTopicsBase.generateResponseWithEntry, TopicsImpl.getMessagesFromHttpResponse.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from core.security.pulsar_operations import (
    READ_TOPIC,
    SEE_TOPIC,
)
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import on_one, subscription_of
from gateway.pulsar.admin.stats import date_of
from gateway.pulsar.commands import CompressionType, signed
from gateway.pulsar.entries import Entry, InvalidEntry, decompressed, open_stored
from gateway.pulsar.topics import NamedPartition
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.ports.log import StoredBatch
    from gateway.pulsar.commands_pb2 import MessageMetadata
    from gateway.runtime.subscriptions.partition import OwnedPartition

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NOT_FOUND: Final = Refused(404, "Message not found")
# Fields that are text in a header as they are; and those that are in base64.
_PLAIN: Final = (
    "producer_name",
    "sequence_id",
    "replicated_from",
    "uncompressed_size",
    "encryption_algo",
    "highest_sequence_id",
    "uuid",
    "num_chunks_from_msg",
    "total_chunk_msg_size",
    "chunk_id",
)
_FLAGS: Final = ("null_value", "null_partition_key", "partition_key_b64_encoded")
_TIMES: Final = ("publish_time", "event_time", "deliver_at_time")
_ENCODED: Final = {
    "ordering_key": "ordering-key",
    "schema_version": "schema-version-b64encoded",
    "encryption_param": "encryption-param",
}


@endpoint("GET", f"{_TOPIC}/subscription/{{subscription}}/position/{{position}}", READ_TOPIC)
async def peek(call: AdminCall) -> Any:
    """The entry at a position, from 1 on, of those that a subscription has not acknowledged."""
    subscription, position = subscription_of(call), call.number("position")

    async def act(owned: OwnedPartition, place: NamedPartition) -> Response | Refused:
        opened = await owned.open(subscription)
        if opened is None:
            return Refused(404, f"Subscription {subscription} not found on {place.name}")
        if position < 1:
            return Refused(400, "Positions begin with 1")
        return _response(await owned.unacknowledged(opened, position), place)

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", READ_TOPIC)
async def by_id(call: AdminCall) -> Any:
    """The entry of a message's id."""
    ledger, entry = call.number("ledger"), call.number("entry")

    async def act(owned: OwnedPartition, place: NamedPartition) -> Response | Refused:
        if ledger != place.partition_id or entry < 0:
            return _NOT_FOUND
        found = await owned.entry_at(entry)
        is_it = found is not None and found.base_offset <= entry
        return _response(found, place) if is_it else _NOT_FOUND

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/examinemessage", READ_TOPIC)
async def examine(call: AdminCall) -> Any:
    """The entry of the n-th message from the beginning or the end of the topic."""
    query = call.request.query_params
    where = query.get("initialPosition", "latest")
    if where not in ("earliest", "latest"):
        raise ClientError(412, "initialPosition is either 'earliest' or 'latest'")
    try:
        position = max(int(query.get("messagePosition", "1")), 1)
    except ValueError:
        raise ClientError(400, "messagePosition is a whole number") from None

    async def act(owned: OwnedPartition, place: NamedPartition) -> Response | Refused:
        partitions = call.services.pulsar.partitions
        state = (await partitions.refresh([place.partition_id])).get(place.partition_id)
        if state is None or state.log_start_offset >= state.last_stable_offset:
            return Refused(412, "Could not examine messages due to the total message is zero")
        first, end = state.log_start_offset, state.last_stable_offset
        offset = first + position - 1 if where == "earliest" else end - position
        return _response(await owned.entry_at(max(first, min(offset, end - 1))), place)

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/messageid/{{timestamp}}", SEE_TOPIC)
async def id_by_time(call: AdminCall) -> Any:
    """The id of the first message published then (ms since the epoch) or later."""
    timestamp = call.number("timestamp")

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, int] | Refused:
        offset = await owned.offset_of_time(timestamp)
        return _NOT_FOUND if offset is None else _id(place, offset)

    return await on_one(call, act)


@endpoint("GET", f"{_TOPIC}/lastMessageId", SEE_TOPIC)
async def last_id(call: AdminCall) -> Any:
    """The id of the last message; -1:-1 of an empty topic."""

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, int]:
        batch = await owned.last_entry()
        if batch is None:
            return {"ledgerId": -1, "entryId": -1, "partitionIndex": place.name.partition}
        found = _id(place, batch.base_offset)
        if _opened(batch).is_batch:
            found |= {"batchIndex": batch.record_count - 1, "batchSize": batch.record_count}
        return found

    return await on_one(call, act)


def _id(place: NamedPartition, offset: int) -> dict[str, int]:
    return {
        "ledgerId": place.partition_id,
        "entryId": offset,
        "partitionIndex": place.name.partition,
    }


def _opened(batch: StoredBatch) -> Entry:
    try:
        return open_stored(batch.payload)
    except InvalidEntry as broken:
        raise ClientError(500, f"The entry cannot be read: {broken}") from broken


def _response(batch: StoredBatch | None, place: NamedPartition) -> Response | Refused:
    if batch is None:
        return _NOT_FOUND
    entry = _opened(batch)
    body = entry.payload
    if not entry.is_encrypted:
        try:
            body = entry.payload if entry.is_chunk else decompressed(entry)
        except InvalidEntry as broken:
            raise ClientError(500, f"The entry cannot be read: {broken}") from broken
    headers = _headers(entry.metadata)
    headers["X-Pulsar-Message-ID"] = f"{place.partition_id}:{batch.base_offset}"
    headers["X-Pulsar-Is-Encrypted"] = str(entry.is_encrypted).lower()
    if entry.is_batch:
        headers["X-Pulsar-num-batch-message"] = str(entry.message_count)
        headers["X-Pulsar-batch-size"] = str(len(body))
    response = Response(bytes(body), media_type="application/octet-stream")
    named = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
    named += [
        (b"X-Pulsar-Base64-encryption-keys", base64.b64encode(each.SerializeToString()))
        for each in entry.metadata.encryption_keys
    ]
    # Added so, since Starlette would spell names in small letters: Java's client wants them exact.
    response.raw_headers += named
    return response


def _headers(metadata: MessageMetadata) -> dict[str, str]:
    """Of what is set. What a header cannot hold is left out: HTTP has Latin 1 and one line."""
    found = {}
    for name in _PLAIN:
        if metadata.HasField(name):
            found[_header(name)] = str(getattr(metadata, name))
    for name in _FLAGS:
        if metadata.HasField(name):
            found[_header(name)] = str(getattr(metadata, name)).lower()
    for name in _TIMES:
        if metadata.HasField(name):
            found[_header(name)] = date_of(signed(getattr(metadata, name)))
    for name, header in _ENCODED.items():
        if metadata.HasField(name):
            encoded = base64.b64encode(getattr(metadata, name)).decode()
            found[f"X-Pulsar-Base64-{header}"] = encoded
    if metadata.HasField("partition_key"):
        found["X-Pulsar-partition-key"] = bytes(metadata.partition_key).decode(errors="replace")
    if metadata.HasField("compression"):
        found["X-Pulsar-compression"] = CompressionType(metadata.compression).name
    if metadata.properties:
        properties = {
            bytes(each.key).decode(errors="replace"): bytes(each.value).decode(errors="replace")
            for each in metadata.properties
        }
        found["X-Pulsar-PROPERTY"] = json.dumps(properties)  # nothing but ASCII
    return {key: value for key, value in found.items() if _fits(key) and _fits(value)}


def _header(name: str) -> str:
    return f"X-Pulsar-{name.replace('_', '-')}"


def _fits(text: str) -> bool:
    return text.isprintable() and all(ord(letter) < 256 for letter in text)
