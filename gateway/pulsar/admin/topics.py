"""Topics: listed, made, grown, deleted, unloaded, emptied.

Behavior: a topic that Pulsar's clients see as a plain one has one partition in the log; one with
several is partitioned, and so is what is made here as such with one partition. Topics that
are made here start as those that clients make. Sources: PersistentTopicsBase, TopicsImpl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.errors import Error, Refusal
from core.security.pulsar_operations import (
    CHANGE_TOPIC,
    DELETE_TOPIC,
    MAKE_TOPIC,
    OPEN,
    SEE_TOPIC,
)
from core.topic.rules import NewTopic
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import (
    gather_all,
    is_refused,
    name_of,
    namespace_of,
    on_each,
    on_one,
    places_of,
    refused,
    topic_of,
)
from gateway.pulsar.admin.rights import what_may_be_seen
from gateway.pulsar.admin.stats import usage_of
from gateway.pulsar.names import TopicName
from gateway.pulsar.session import Session
from gateway.pulsar.topic_lists import list_names
from gateway.pulsar.topics import (
    OWN_SETTINGS,
    PARTITIONED_SETTINGS,
    NamedPartition,
    count_partitions,
    is_partitioned,
)
from gateway.runtime.namespaces import check_there
from gateway.runtime.topics.topics import CreatedTopic, PartitionIncrease
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.topic.topic import Topic
    from gateway.runtime.subscriptions.partition import OwnedPartition

_MOST_PARTITIONS = 2**31 - 1
_EXISTS = Refused(409, "This topic already exists")
_TOPICS = "/admin/v2/persistent/{tenant}/{namespace}"
_TOPIC = f"{_TOPICS}/{{topic}}"


# --- lists ---


@endpoint("GET", _TOPICS, OPEN)
async def topics(call: AdminCall) -> list[str] | Refused:
    """The names of a namespace's topics, partitions one by one."""
    namespace = namespace_of(call)
    all_topics = await call.services.pulsar.topics.all()
    names = list_names(all_topics, namespace, "", what_may_be_seen(call)).names
    if not names and await call.services.pulsar.namespaces.get(*namespace) is None:
        return Refused(404, "Namespace does not exist")
    return names


@endpoint("GET", f"{_TOPICS}/partitioned", OPEN)
async def partitioned_topics(call: AdminCall) -> list[str]:
    """The names of a namespace's partitioned topics."""
    namespace = namespace_of(call)
    found = (each for each in await call.services.pulsar.topics.all() if is_partitioned(each))
    listed = list_names(found, namespace, "", what_may_be_seen(call))
    return sorted({name.rpartition("-partition-")[0] for name in listed.names})


@endpoint("GET", "/admin/v2/non-persistent/{tenant}/{namespace}", OPEN)
async def non_persistent_topics(call: AdminCall) -> list[str]:
    """No name: non-persistent topics are not served."""
    namespace_of(call)
    return []


@endpoint("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", OPEN)
async def non_persistent_partitioned_topics(call: AdminCall) -> list[str]:
    """No name, either."""
    return await non_persistent_topics(call)


# --- making and growing ---


@endpoint("PUT", _TOPIC, MAKE_TOPIC)
async def create(call: AdminCall) -> Refused | None:
    """Make a plain topic."""
    if await call.json({}):
        return Refused(501, "Penstock keeps no properties of topics")
    name, log_name = name_of(call)
    if name.partition >= 0:
        return Refused(412, f"{name} is a partition: make its topic, with so many partitions")
    return await _create(call, NewTopic(log_name, 1, configs=OWN_SETTINGS))


@endpoint("PUT", f"{_TOPIC}/partitions", MAKE_TOPIC)
async def create_partitioned(call: AdminCall) -> Refused | None:
    """Make a topic with so many partitions."""
    given = await call.json()
    if isinstance(given, dict):
        if given.get("properties"):
            return Refused(501, "Penstock keeps no properties of topics")
        given = given.get("partitions")
    name, log_name = name_of(call)
    if name.partition >= 0:
        return Refused(412, f"{name} is a partition already")
    if not _is_count(given):
        return Refused(406, "Number of partitions should be more than 0")
    return await _create(call, NewTopic(log_name, given, configs=PARTITIONED_SETTINGS))


async def _create(call: AdminCall, new: NewTopic) -> Refused | None:
    full_name = namespace_of(call)
    made = await call.services.pulsar.topics.create(
        [new], check=lambda change: check_there(change, full_name)
    )
    answer = made[new.name]
    if isinstance(answer, CreatedTopic):
        return None
    return _EXISTS if answer.error is Error.TOPIC_ALREADY_EXISTS else refused(answer)


@endpoint("GET", f"{_TOPIC}/partitions", SEE_TOPIC)
async def partitions(call: AdminCall) -> dict[str, Any] | Refused:
    """How many partitions a topic has; 0 for a plain one. `checkAllowAutoCreation`: make it, if its
    namespace says so."""
    name, _ = name_of(call)
    may_make = call.flag("checkAllowAutoCreation")
    count = await count_partitions(str(name), call.services.pulsar, may_make=may_make)
    if isinstance(count, Refusal):
        return refused(count)
    return {"partitions": count, "deleted": False}


@endpoint("POST", f"{_TOPIC}/partitions", CHANGE_TOPIC)
async def grow(call: AdminCall) -> Refused | None:
    """Add partitions, up to so many."""
    count = await call.json()
    if not _is_count(count):
        return Refused(406, "Number of partitions should be more than 0")
    name, topic = await topic_of(call)
    if name.partition >= 0 or not is_partitioned(topic):
        return Refused(409, f"Topic {name} is not the partitioned topic.")
    increase = PartitionIncrease(topic.name, count)
    refusal = (await call.services.pulsar.topics.create_partitions([increase]))[topic.name]
    return None if refusal is None else refused(refusal)


@endpoint("POST", f"{_TOPIC}/createMissedPartitions", SEE_TOPIC)
async def create_missed_partitions(call: AdminCall) -> None:
    """Nothing to do: a topic is made with all its partitions."""
    await topic_of(call)


def _is_count(given: object) -> bool:
    return type(given) is int and 0 < given <= _MOST_PARTITIONS


# --- deleting and emptying ---


@endpoint("DELETE", _TOPIC, DELETE_TOPIC)
async def delete(call: AdminCall) -> Refused | None:
    """Delete a plain topic. `force`: also where clients use it."""
    name, topic = await topic_of(call)
    if is_partitioned(topic):
        return Refused(412, f"{name} is of a partitioned topic: delete that")
    return await _delete(call, name, topic)


@endpoint("DELETE", f"{_TOPIC}/partitions", DELETE_TOPIC)
async def delete_partitioned(call: AdminCall) -> Refused | None:
    """Delete a partitioned topic. `force`: also where clients use it."""
    name, topic = await topic_of(call)
    if name.partition >= 0 or not is_partitioned(topic):
        return Refused(404, f"Partitioned Topic not found: {name}")
    return await _delete(call, name, topic)


async def _delete(call: AdminCall, name: TopicName, topic: Topic) -> Refused | None:
    if not call.flag("force") and await usage_of(call, name, topic):
        return Refused(412, "Topic has active producers/subscriptions")
    (answer,) = await call.services.pulsar.topics.delete([topic.name])
    return None if answer.refusal is None else refused(answer.refusal)


@endpoint("DELETE", f"{_TOPIC}/truncate", DELETE_TOPIC)
async def truncate(call: AdminCall) -> Any:
    """Delete all messages; subscriptions begin behind them."""
    partitions = call.services.pulsar.partitions

    async def act(owned: OwnedPartition, place: NamedPartition) -> Refused | None:
        state = (await partitions.refresh([place.partition_id])).get(place.partition_id)
        if state is None:
            return Refused(404, f"Topic {place.name} not found")
        error, _ = await partitions.delete_records(place.partition_id, state.next_offset)
        if error is not Error.NONE:
            return refused(Refusal(error))
        for name in owned.names:
            opened = await owned.open(name)
            if opened is not None and (refusal := await owned.expire(opened, state.next_offset)):
                return refused(refusal)
        return None

    return await on_each(call, act)


@endpoint("POST", f"{_TOPIC}/terminate", CHANGE_TOPIC)
async def terminate(call: AdminCall) -> Any:
    """No message is added any more, by any client; the id of the last one."""
    name, topic = await topic_of(call)
    if len(places_of(name, topic)) > 1 or (name.partition < 0 and is_partitioned(topic)):
        return Refused(405, "Termination of a partitioned topic is not allowed")
    return await on_one(call, _terminate)


@endpoint("POST", f"{_TOPIC}/terminate/partitions", CHANGE_TOPIC)
async def terminate_partitions(call: AdminCall) -> Any:
    """The same of each partition of a partitioned topic: ids by number."""
    name, topic = await topic_of(call)
    if name.partition >= 0 or not is_partitioned(topic):
        return Refused(405, f"Topic {name} is not partitioned: terminate it as a plain one")
    answers = await gather_all(call, name, topic, _terminate, ("POST", "terminate"))
    failed = next((each for each in answers if is_refused(each)), None)
    return failed or {str(number): each for number, each in enumerate(answers)}


async def _terminate(owned: OwnedPartition, place: NamedPartition) -> dict[str, int] | Refused:
    state = await owned.terminate()
    if state is None:
        return Refused(404, f"Topic {place.name} not found")
    return {
        "ledgerId": place.partition_id,
        "entryId": state.terminated_offset - 1,
        "partitionIndex": place.name.partition,
    }


@endpoint("PUT", f"{_TOPIC}/unload", CHANGE_TOPIC)
async def unload(call: AdminCall) -> Any:
    """Have its clients look it up again, as after a failover."""
    producers = call.services.pulsar.producers

    async def act(owned: OwnedPartition, place: NamedPartition) -> None:
        writers = producers.of(place.partition_id)
        for writer in (*writers.present, *writers.waiting):
            if isinstance(session := writer.connection, Session):
                producer = session.producers.get(writer.number)
                if producer is not None and producer.writer is writer:
                    await producer.all_answered()
                    session.close_producer(producer)
        await owned.unload()

    return await on_each(call, act)


@endpoint("GET", f"{_TOPIC}/subscriptions", SEE_TOPIC)
async def subscriptions(call: AdminCall) -> Any:
    """The names of its subscriptions, of any of its partitions."""

    async def act(owned: OwnedPartition, _: NamedPartition) -> list[str]:
        return owned.names

    name, topic = await topic_of(call)
    answers = await gather_all(call, name, topic, act)
    failed = next((each for each in answers if is_refused(each)), None)
    if failed is not None:
        raise ClientError(failed.status, failed.reason)
    return sorted({name for each in answers for name in each})
