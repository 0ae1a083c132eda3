"""SUBSCRIBE: a consumer comes to a subscription, which is made if there is none.

Behavior: a topic that is not there is made, if it may be (`force_topic_creation`, Kafka's
`auto.create.topics.enable`). A durable subscription is stored before the answer, if the namespace
lets clients make any (`autoSubscriptionCreation`; else SubscriptionNotFound), and begins at
`initialPosition`, or where `start_message_rollback_duration_sec` says; others, as readers have
them, live in memory as long as they have consumers, and begin at `start_message_id`, inclusive.
Only the broker that dispatches the partition takes consumers in: others answer ServiceNotReady, and
the client looks the topic up. Where somebody has the subscription for himself, it is looked at
whether he is still there, and the client tries again. Asked again for an id that it has, the answer
is the same. A schema has to read the topic's latest, else IncompatibleSchema; a topic that has none
gets it, also if it has messages (where Pulsar refuses: here Kafka's clients may have written them);
AutoConsume reads anything. `read_compacted` is refused, for there is no compaction, but not to
readers: a table view asks for it always, and takes the last of a key itself, as it does from a
topic that was never compacted. Replicated state is not kept: there are no other clusters.
Sources: ServerCnx.handleSubscribe, PersistentTopic.internalSubscribe.
"""

import secrets
from dataclasses import replace
from functools import partial

from core.errors import Refusal
from core.namespace.rules import allows_auto_subscription
from core.schema.values import SchemaRefusal, SchemaType
from core.subscription.values import HashRange, KeySharing, Reason, Refused, SubscriptionType
from gateway.pulsar import api
from gateway.pulsar.api import command
from gateway.pulsar.commands import (
    CommandType,
    InitialPosition,
    KeySharedMode,
    ServerError,
    SubType,
)
from gateway.pulsar.commands_pb2 import CommandSubscribe, CommandSuccess
from gateway.pulsar.consumers import Consumer
from gateway.pulsar.ids import AFTER_ALL, seek_offset
from gateway.pulsar.names import subscription_flaw
from gateway.pulsar.rights import may_still_read, refuse_subscription, refuse_topic, refused
from gateway.pulsar.schemas import read_schema
from gateway.pulsar.schemas import refused as refused_schema
from gateway.pulsar.session import Session
from gateway.pulsar.topics import NamedPartition, find_place
from gateway.runtime.subscriptions.partition import NOT_OWNED
from gateway.runtime.subscriptions.values import StartPosition, Subscribing

_MOST_CONSUMERS = 10_000  # of one connection
_MOST_RANGES = 65_536
TYPES = {
    SubType.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    SubType.SHARED: SubscriptionType.SHARED,
    SubType.FAILOVER: SubscriptionType.FAILOVER,
    SubType.KEY_SHARED: SubscriptionType.KEY_SHARED,
}
_CODES = {
    Reason.CONSUMER_BUSY: ServerError.CONSUMER_BUSY,
    Reason.OTHER_TYPE: ServerError.CONSUMER_BUSY,
    Reason.RANGE_CONFLICT: ServerError.CONSUMER_ASSIGN_ERROR,
}
_SubscribeAnswer = CommandSuccess | Refusal | api.Refused | None


@command(CommandType.SUBSCRIBE)
async def subscribe(message: CommandSubscribe, session: Session) -> _SubscribeAnswer:
    """Find the partition, and let the runtime take the consumer in."""
    consumer_id = message.consumer_id
    if refusal := _refuse(message, session):
        return refusal
    if (known := session.consumers.get(consumer_id)) is not None:
        return _again(message, known)
    session.opening_consumers.add(consumer_id)
    try:
        return await _enter(message, session)
    finally:
        session.opening_consumers.discard(consumer_id)


async def _enter(message: CommandSubscribe, session: Session) -> _SubscribeAnswer:
    services = session.services
    create = message.force_topic_creation
    place = await find_place(message.topic, services, create=create)
    if isinstance(place, Refusal):
        return place
    owned = await services.subscriptions.find(place.partition_id)
    if owned is None:
        return NOT_OWNED
    if refusal := await _check_schema(message, place, session):
        return refused_schema(refusal)
    wanted = replace(
        _wanted(message, place),
        may_make=allows_auto_subscription(services.namespaces.policies_of(place.topic)),
        limits=partial(services.upkeep.dispatch_settings, place.topic),
    )
    consumer = Consumer(session, message.consumer_id, place, message.subscription, wanted.type)
    member = await owned.subscribe(wanted, consumer)
    if isinstance(member, Refused):
        return api.Refused(_CODES[member.reason], member.message)
    if isinstance(member, Refusal):
        return member
    if session.is_lost or message.consumer_id not in session.opening_consumers:
        member.leave()
        reason = "The consumer was closed before it was made"
        return api.Refused(ServerError.SERVICE_NOT_READY, reason)
    if not may_still_read(consumer):  # the right may have gone meanwhile
        member.leave()
        return refused("SUBSCRIBE")
    consumer.enter(member)
    return CommandSuccess(request_id=message.request_id)


async def _check_schema(
    message: CommandSubscribe, place: NamedPartition, session: Session
) -> SchemaRefusal | None:
    schema = read_schema(message.schema)
    if isinstance(schema, SchemaRefusal):
        return schema
    if schema is not None and schema.type is SchemaType.AUTO_CONSUME:
        return None
    return await session.services.schemas.admit_reader(place.topic, schema)


def _refuse(message: CommandSubscribe, session: Session) -> api.Refused | None:
    """What is wrong before the topic is looked at."""
    if message.consumer_id in session.opening_consumers:
        reason = "Consumer is already present on the connection"
        return api.Refused(ServerError.SERVICE_NOT_READY, reason)
    not_allowed = ServerError.NOT_ALLOWED_ERROR
    if message.sub_type not in TYPES:
        return api.Refused(not_allowed, f"There is no subscription type {message.sub_type}")
    if message.read_compacted and message.durable:
        return api.Refused(not_allowed, "read_compacted: topics are not compacted here")
    properties = ((each.key, each.value) for each in message.subscription_properties)
    if (flaw := subscription_flaw(message.subscription, properties)) is not None:
        return api.Refused(not_allowed, flaw)
    if len(message.key_shared_meta.hash_ranges) > _MOST_RANGES:
        return api.Refused(not_allowed, f"A consumer may have {_MOST_RANGES} ranges")
    if len(session.consumers) + len(session.opening_consumers) >= _MOST_CONSUMERS:
        reason = f"A connection may have {_MOST_CONSUMERS} consumers"
        return api.Refused(ServerError.TOO_MANY_REQUESTS, reason)
    return refuse_topic(session, message.topic, "SUBSCRIBE") or refuse_subscription(
        session, message.topic, message.subscription, "SUBSCRIBE"
    )


def _again(message: CommandSubscribe, known: Consumer) -> _SubscribeAnswer:
    if message.topic != str(known.place.name) or message.subscription != known.subscription:
        reason = f"Consumer {known.consumer_id} of this connection reads {known.place.name}"
        return api.Refused(ServerError.NOT_ALLOWED_ERROR, reason)
    return CommandSuccess(request_id=message.request_id)


def _wanted(message: CommandSubscribe, place: NamedPartition) -> Subscribing:
    start: int | StartPosition
    is_earliest = message.initial_position == InitialPosition.EARLIEST
    start = StartPosition.EARLIEST if is_earliest else StartPosition.LATEST
    if not message.durable and message.HasField("start_message_id"):
        offset = seek_offset(message.start_message_id, place.partition_id)
        start = StartPosition.LATEST if offset == AFTER_ALL else offset
    meta = message.key_shared_meta
    return Subscribing(
        message.subscription,
        TYPES[SubType(message.sub_type)],
        is_durable=message.durable,
        start=start,
        rollback_ms=message.start_message_rollback_duration_sec * 1000,
        consumer_name=message.consumer_name or secrets.token_hex(3)[:5],
        priority_level=message.priority_level,
        epoch=message.consumer_epoch,
        hash_ranges=tuple(HashRange(each.start, each.end) for each in meta.hash_ranges),
        key_sharing=KeySharing(
            is_sticky=meta.key_shared_mode == KeySharedMode.STICKY,
            is_ordered=not meta.allow_out_of_order_delivery,
        ),
        properties={each.key: each.value for each in message.subscription_properties},
        partition_index=place.name.partition,
        topic_name=str(place.name),
    )
