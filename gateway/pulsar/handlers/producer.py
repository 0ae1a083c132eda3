"""PRODUCER: begins to write to a partition, under a name, shared or alone.

Behavior: a topic that is not there is made, if Kafka's `auto.create.topics.enable` lets clients do
so. Without a name the broker invents one that nobody else has. A name in use is ProducerBusy, but
for the same client that has come again; whether its holder is still there is looked at meanwhile.
Access modes are Pulsar's. Who is alone raises the topic epoch, which is stored before the answer;
with an earlier one a producer that was replaced meanwhile comes back as ProducerFenced, whatever
became of the broker. Names and modes hold for the broker that has the partition's lease, and others
answer ServiceNotReady: then the client looks the topic up. When the lease is lost, the producers
are closed. Asked again for an id that it has, the answer is the same. A schema is looked up among
the topic's, and registered if it may follow them; else IncompatibleSchema. The answer has its
version, which is empty where the producer brings none: then it writes whatever the topic has.
`initial_subscription_name` is made first, from the earliest on, if its namespace lets clients make
subscriptions. Where a backlog exceeds a quota of the namespace's, the answer is
ProducerBlockedQuotaExceededError, or …Exception, by its policy. On a topic that is deduplicated
(`penstock.deduplication.enabled`) the answer tells the highest sequence id that is stored under the
name, or -1; what was sent under it before and is not stored then never will be. A terminated topic
is TopicTerminatedError, here or with the first SEND. Sources: ServerCnx.handleProducer,
tryAddSchema; AbstractTopic.addProducer, PersistentTopic.setTopicEpoch.
"""

import asyncio
from functools import partial

from core.errors import Refusal
from core.namespace.rules import allows_auto_subscription
from core.namespace.values import QuotaPolicy
from core.ports.log import StoreUnavailable
from core.schema.values import SchemaRefusal
from core.subscription.values import SubscriptionType
from core.topic.writers import AccessMode, Admitted, Denial, Denied, Waiting, Writer
from core.types import NO_TOPIC_EPOCH
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ProducerAccessMode, ServerError, signed
from gateway.pulsar.commands_pb2 import CommandError, CommandProducer, CommandProducerSuccess
from gateway.pulsar.producers import Producer
from gateway.pulsar.rights import READ, WRITE, refuse_subscription, refuse_topic, refused
from gateway.pulsar.schemas import read_schema, write_version
from gateway.pulsar.schemas import refused as refused_schema
from gateway.pulsar.session import Session
from gateway.pulsar.topics import NamedPartition, find_place
from gateway.runtime.subscriptions.partition import NO_SUBSCRIPTION, NOT_OWNED
from gateway.runtime.subscriptions.values import StartPosition, Subscribing

_MOST_PRODUCERS = 10_000  # of one connection
_MOST_NAME_BYTES = 1_000
_MOST_TOPIC_EPOCH = 2**62  # far from where the next one would not be stored
_MODES = {
    ProducerAccessMode.SHARED: AccessMode.SHARED,
    ProducerAccessMode.EXCLUSIVE: AccessMode.EXCLUSIVE,
    ProducerAccessMode.WAIT_FOR_EXCLUSIVE: AccessMode.WAIT_FOR_EXCLUSIVE,
    ProducerAccessMode.EXCLUSIVE_WITH_FENCING: AccessMode.EXCLUSIVE_WITH_FENCING,
}
_CODES = {
    Denial.NAME_TAKEN: ServerError.PRODUCER_BUSY,
    Denial.BUSY: ServerError.PRODUCER_BUSY,
    Denial.FENCED: ServerError.PRODUCER_FENCED,
    Denial.MOVED: ServerError.SERVICE_NOT_READY,
}
_BLOCKED = {
    QuotaPolicy.PRODUCER_REQUEST_HOLD: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    QuotaPolicy.PRODUCER_EXCEPTION: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}
_BACKLOG = "Cannot create producer on topic with backlog quota exceeded"
_NO_SUBSCRIPTION = (
    "Could not create the initial subscription due to the auto subscription creation is not "
    "allowed."
)
_CLOSED = Refused(ServerError.SERVICE_NOT_READY, "The producer was closed before it was made")
_ProducerAnswer = CommandProducerSuccess | Refusal | Refused | None


@command(CommandType.PRODUCER)
async def producer(message: CommandProducer, session: Session) -> _ProducerAnswer:
    """Find the partition, see whether it may write there, remember it."""
    producer_id = message.producer_id
    if refusal := _refuse(message, session):
        return refusal
    if (known := session.producers.get(producer_id)) is not None:
        return _again(message, known)
    session.opening.add(producer_id)
    try:
        place = await _find(message, session)
        if isinstance(place, Refusal | Refused):
            return place
        version = await _register(message, place, session)
        if isinstance(version, SchemaRefusal):
            return refused_schema(version)
        if not await session.services.producers.own(place.partition_id):
            return NOT_OWNED
        if not _is_wanted(producer_id, session):
            return _CLOSED
        if session.services.partitions.is_known_terminated(place.partition_id):
            return Refused(ServerError.TOPIC_TERMINATED_ERROR, "Topic was already terminated")
        return await _admit(message, place, version, session)
    finally:
        session.opening.discard(producer_id)


def _is_wanted(producer_id: int, session: Session) -> bool:
    return producer_id in session.opening and not session.is_lost


async def _find(message: CommandProducer, session: Session) -> NamedPartition | Refusal | Refused:
    """The partition, if this broker has it and its backlog is not too large, with the subscription
    that is to be there first."""
    services = session.services
    subscriptions = services.subscriptions
    place = await find_place(message.topic, services, create=True)
    if isinstance(place, Refusal):
        return place
    exceeded = await services.upkeep.exceeded(place.topic, place.partition_id)
    if exceeded is not None:
        return Refused(_BLOCKED[exceeded.policy], _BACKLOG)
    if not message.initial_subscription_name:
        return place if await subscriptions.claim(place.partition_id) else NOT_OWNED
    owned = await subscriptions.find(place.partition_id)
    if owned is None:
        return NOT_OWNED
    wanted = Subscribing(
        message.initial_subscription_name,
        SubscriptionType.EXCLUSIVE,
        start=StartPosition.EARLIEST,
        partition_index=place.name.partition,
        topic_name=str(place.name),
        may_make=allows_auto_subscription(services.namespaces.policies_of(place.topic)),
    )
    refusal = await owned.ensure(wanted)
    if refusal is NO_SUBSCRIPTION:
        return Refused(ServerError.NOT_ALLOWED_ERROR, _NO_SUBSCRIPTION)
    return refusal or place


async def _register(
    message: CommandProducer, place: NamedPartition, session: Session
) -> int | SchemaRefusal | None:
    """The version of its schema."""
    schema = read_schema(message.schema)
    if isinstance(schema, SchemaRefusal):
        return schema
    return await session.services.schemas.admit_writer(place.topic, schema)


def _refuse(message: CommandProducer, session: Session) -> Refused | None:
    """What is wrong before the topic is looked at."""
    if message.producer_id in session.opening:
        reason = "Producer is already present on the connection"
        return Refused(ServerError.SERVICE_NOT_READY, reason)
    if message.producer_access_mode not in _MODES:
        reason = f"There is no producer access mode {message.producer_access_mode}"
        return Refused(ServerError.NOT_ALLOWED_ERROR, reason)
    if len(message.producer_name.encode()) > _MOST_NAME_BYTES:
        reason = f"A producer's name may have {_MOST_NAME_BYTES} bytes"
        return Refused(ServerError.NOT_ALLOWED_ERROR, reason)
    if signed(message.topic_epoch) > _MOST_TOPIC_EPOCH:
        return Refused(ServerError.NOT_ALLOWED_ERROR, "The topic epoch is not one of this topic's")
    if len(session.producers) + len(session.opening) >= _MOST_PRODUCERS:
        reason = f"A connection may have {_MOST_PRODUCERS} producers"
        return Refused(ServerError.TOO_MANY_REQUESTS, reason)
    refusal = refuse_topic(session, message.topic, "PRODUCER")
    if refusal is None and message.initial_subscription_name:
        refusal = refuse_topic(session, message.topic, "PRODUCER", READ) or refuse_subscription(
            session, message.topic, message.initial_subscription_name, "PRODUCER"
        )
    return refusal


def _again(message: CommandProducer, known: Producer) -> _ProducerAnswer:
    if message.topic != str(known.place.name):
        reason = f"Producer {known.producer_id} of this connection writes to {known.place.name}"
        return Refused(ServerError.NOT_ALLOWED_ERROR, reason)
    return _success(message, known)


async def _admit(
    message: CommandProducer, place: NamedPartition, version: int | None, session: Session
) -> _ProducerAnswer:
    services = session.services
    given = message.producer_name
    writer = Writer(
        given or services.producers.make_name(),
        _MODES[ProducerAccessMode(message.producer_access_mode)],
        bool(given) and message.user_provided_producer_name,
        message.epoch,
        signed(message.topic_epoch) if message.HasField("topic_epoch") else None,
        session,
        message.producer_id,
    )
    made = Producer(session, message.producer_id, place, writer, write_version(version))
    on_verdict = partial(_on_verdict, message, made)
    verdict = services.producers.admit(place.partition_id, writer, on_verdict)
    if isinstance(verdict, Denied):
        if verdict.other is not None and isinstance(verdict.other.connection, Session):
            verdict.other.connection.outlet.probe()
        return Refused(_CODES[verdict.denial], verdict.message)
    if isinstance(verdict, Waiting):
        made.is_ready = False
    else:
        made.topic_epoch = verdict.topic_epoch
    if refusal := await _claim_name_and_epoch(made):
        made.detach()
        return refusal
    if not session.still_may(WRITE, place.topic.name):  # it may have gone meanwhile
        made.detach()
        return refused("PRODUCER")
    made.is_opening = False
    session.producers[message.producer_id] = made
    session.closed_producers.discard(message.producer_id)
    return _success(message, made)


async def _claim_name_and_epoch(made: Producer) -> Refusal | Refused | None:
    """Claims its name, now that no other has it here, and has its epoch stored, now that it is let
    in. Why it is not wanted any more, or None."""
    is_kept = True
    try:
        if made.is_deduplicated:
            await made.claim_name()
        if made.topic_epoch is not None:  # else its turn comes later
            is_kept = await made.keep_epoch()
    except BaseException:
        made.detach()
        raise
    if not _is_wanted(made.producer_id, made.session):
        return _CLOSED
    if made.denied is not None:
        return Refused(_CODES[made.denied.denial], made.denied.message)
    return None if is_kept else NOT_OWNED


def _on_verdict(message: CommandProducer, made: Producer, verdict: Admitted | Denied) -> None:
    """Later: its turn has come, which is a second answer to the same request; or it is out."""
    session = made.session
    if isinstance(verdict, Admitted):
        made.topic_epoch = verdict.topic_epoch
        if made.is_opening:
            made.is_ready = True
        else:
            made.turn = asyncio.create_task(_take_turn(message, made))
    elif made.is_opening:
        made.denied = verdict
    elif verdict.denial is Denial.MOVED:
        made.leave()
    elif made.is_ready:
        session.close_producer(made)
    else:
        session.producers.pop(made.producer_id, None)
        code, reason = _CODES[verdict.denial], verdict.message
        session.send(CommandError(request_id=message.request_id, error=code, message=reason))


async def _take_turn(message: CommandProducer, made: Producer) -> None:
    """The second answer, once the epoch is stored; or its client comes again."""
    try:
        is_kept = await made.keep_epoch()
    except StoreUnavailable:
        is_kept = False
    session = made.session
    if session.producers.get(made.producer_id) is not made:
        return
    if not is_kept:
        session.close_producer(made)
        return
    made.is_ready = True
    session.send(_success(message, made))


def _success(message: CommandProducer, made: Producer) -> CommandProducerSuccess:
    answer = CommandProducerSuccess(
        request_id=message.request_id,
        producer_name=made.name,
        last_sequence_id=signed(made.last_sequence_id % 2**64),
        schema_version=made.schema_version,
        producer_ready=made.is_ready,
    )
    if made.is_ready and made.topic_epoch is not None and made.topic_epoch != NO_TOPIC_EPOCH:
        answer.topic_epoch = made.topic_epoch
    return answer
