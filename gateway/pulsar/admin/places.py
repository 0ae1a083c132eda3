"""What a request's path names: a topic, its partitions, and the brokers that dispatch them.

A partition is administered by the broker that dispatches it. Asked of another one, what is about
one partition is redirected; what is about all is asked of each partition's broker, and put
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, unquote_plus

from core.errors import Error, Refusal
from core.subscription.values import SubscriptionType
from gateway.pulsar.admin.api import AdminCall
from gateway.pulsar.names import TopicName, log_topic_name, parse_namespace, parse_topic_name
from gateway.pulsar.session import Services
from gateway.pulsar.topics import NamedPartition, is_partitioned
from gateway.runtime.subscriptions.values import StartPosition, Subscribing
from gateway.web.api import Redirected, Refused
from gateway.web.call import ClientError
from gateway.web.peers import PeerAnswer, http_url

if TYPE_CHECKING:
    from core.topic.topic import Topic
    from gateway.runtime.subscriptions.partition import OwnedPartition

OfOne = Callable[["OwnedPartition", NamedPartition], Awaitable[Any]]
"""What is done to one partition, at its broker. Gives what the request is answered with."""

_TOPIC: Final = 6  # the segment of /admin/v2/persistent/{tenant}/{namespace}/{topic}/…
_PLAIN: Final = "plain_subscription"
_STATUS: Final = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: 404,
    Error.GROUP_ID_NOT_FOUND: 404,
    Error.TOPIC_ALREADY_EXISTS: 409,
    Error.NON_EMPTY_GROUP: 412,
    Error.NOT_LEADER_OR_FOLLOWER: 503,
    Error.INVALID_TOPIC_EXCEPTION: 412,
    Error.INVALID_PARTITIONS: 422,
}


def refused(refusal: Refusal) -> Refused:
    """A refusal with its status; 400 for what has none of its own."""
    return Refused(_STATUS.get(refusal.error, 400), refusal.message or refusal.error.name)


def is_refused(answer: Any) -> bool:
    """Whether a handler's answer says that it was not done here."""
    return isinstance(answer, (Refused, Redirected))


# --- topics ---


def namespace_of(call: AdminCall) -> tuple[str, str]:
    """Tenant and namespace of the path. Raises ClientError."""
    found = parse_namespace(f"{call.name('tenant')}/{call.name('namespace')}")
    if isinstance(found, Refusal):
        raise ClientError(412, found.message or "Namespace name is not valid")
    return found


def name_of(call: AdminCall) -> tuple[TopicName, str]:
    """The topic of the path, and what the log calls it. Raises ClientError."""
    tenant, namespace = namespace_of(call)
    name = parse_topic_name(f"persistent://{tenant}/{namespace}/{call.name('topic')}")
    log_name = name if isinstance(name, Refusal) else log_topic_name(name)
    if isinstance(name, Refusal) or isinstance(log_name, Refusal):
        refusal = name if isinstance(name, Refusal) else log_name
        assert isinstance(refusal, Refusal)
        raise ClientError(412, refusal.message or "Topic name is not valid")
    return name, log_name


def subscription_of(call: AdminCall) -> str:
    """The subscription of the path: Pulsar's clients encode its name as a form's, and that once
    more as a path's; a `plain_subscription` as a path's alone."""
    if _PLAIN in call.request.path_params:
        return unquote(str(call.request.path_params[_PLAIN]))
    return unquote_plus(call.name("subscription"))


def has_subscription(call: AdminCall) -> bool:
    """Whether the path has one."""
    return not call.request.path_params.keys().isdisjoint(("subscription", _PLAIN))


async def topic_of(call: AdminCall) -> tuple[TopicName, Topic]:
    """The topic of the path, which has the partition that is named, if one is. Raises ClientError,
    StoreUnavailable."""
    name, log_name = name_of(call)
    topic = await call.services.pulsar.topics.get(log_name)
    if topic is None or topic.is_internal or name.partition >= len(topic.partition_ids):
        raise ClientError(404, f"Topic {name} not found")
    return name, topic


def places_of(name: TopicName, topic: Topic) -> list[NamedPartition]:
    """The partitions that a name means: the one that it names, or all."""
    if name.partition >= 0 or not is_partitioned(topic):
        return [NamedPartition(name, topic, max(name.partition, 0))]
    return [
        NamedPartition(
            TopicName(name.tenant, name.namespace, name.local_name, number), topic, number
        )
        for number in range(len(topic.partition_ids))
    ]


async def place_of(call: AdminCall) -> NamedPartition:
    """The one partition that is meant. Raises ClientError where it is several."""
    name, topic = await topic_of(call)
    places = places_of(name, topic)
    if len(places) > 1:
        raise ClientError(405, f"{name} is partitioned: name one of its partitions")
    return places[0]


def subscribing(
    place: NamedPartition,
    name: str,
    start: int | StartPosition = StartPosition.LATEST,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Subscribing:
    """A subscription of this partition, as consumers ask for it. start: where a new one begins."""
    return Subscribing(
        name,
        SubscriptionType.EXCLUSIVE,
        start=start,
        properties=properties,
        partition_index=place.name.partition,
        topic_name=str(place.name),
    )


# --- brokers ---


async def _find(place: NamedPartition, services: Services) -> OwnedPartition | str:
    """The partition, if this broker dispatches it, else the address of the one that does. Raises
    ClientError where it has none."""
    owned = await services.subscriptions.find(place.partition_id)
    if owned is not None:
        return owned
    broker = await services.subscriptions.owner_of(place.partition_id)
    url = http_url(broker, is_tls=services.is_tls)
    if broker.broker_id == services.cluster.broker_id:
        raise ClientError(503, "The topic is changing hands; try again")
    if url is None:
        raise ClientError(503, f"Broker {broker.broker_id} has the topic, and no address for HTTP")
    return url


async def on_one(call: AdminCall, act: OfOne) -> Any:
    """Does something to the one partition that is meant, here or by sending the client there."""
    place = await place_of(call)
    found = await _find(place, call.services.pulsar)
    return Redirected(found) if isinstance(found, str) else await act(found, place)


async def on_each(call: AdminCall, act: OfOne) -> Any:
    """Does something to each partition that is meant; what the first said that refused, else None.

    A single one is answered as `on_one` does it.
    """
    name, topic = await topic_of(call)
    if len(places_of(name, topic)) == 1:
        return await on_one(call, act)
    answers = await gather_all(call, name, topic, act)
    return next((each for each in answers if isinstance(each, Refused)), None)


async def gather_all(
    call: AdminCall, name: TopicName, topic: Topic, act: OfOne, ask: tuple[str, str] | None = None
) -> list[Any]:
    """What was answered for each partition, in order; Refused where it was not done.

    ask: method, and what follows the topic in the path, of what another broker is asked for one
    partition; None: as this request.
    """
    services = call.services
    method = call.request.method if ask is None else ask[0]
    body = await call.body() if ask is None and method in ("PUT", "POST") else b""

    async def one(place: NamedPartition) -> Any:
        try:
            found = await _find(place, services.pulsar)
        except ClientError as error:
            return error.refused
        if not isinstance(found, str):
            return await act(found, place)
        path = _path_of(call, place, None if ask is None else ask[1])
        kind = call.request.headers.get("content-type")
        return _value(await services.peers.ask(found, method, path, call.caller, body, kind))

    return list(await asyncio.gather(*(one(place) for place in places_of(name, topic))))


def _value(answer: PeerAnswer) -> Any:
    return answer.value if answer.is_done else Refused(answer.status, answer.reason)


def _path_of(call: AdminCall, place: NamedPartition, rest: str | None) -> str:
    """The request's path, with a partition for the topic; rest: of what follows, if it differs."""
    segments: list[str] = call.request.scope["path"].split("/")
    before, topic, after = segments[:_TOPIC], segments[_TOPIC], segments[_TOPIC + 1 :]
    given = call.request.scope["query_string"].decode("ascii") if rest is None else ""
    query = f"?{given}" if given else ""
    following = after if rest is None else [rest]
    return "/".join([*before, f"{topic}-partition-{place.partition}", *following]) + query
