"""What a session's client may do, by the ACLs that Kafka's clients go by as well.

Handlers ask before they look anything up, so that nobody learns what there is. Does not know which
command asks for what (`core/security/pulsar_operations.py`). Sentences are ServerCnx's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import Refusal
from core.security.pulsar_operations import COMMANDS
from core.subscription.group_ids import SubscriptionName
from gateway.pulsar.api import Refused
from gateway.pulsar.commands import ServerError
from gateway.pulsar.topics import parse_name
from gateway.pulsar.transactions import is_coordinator

if TYPE_CHECKING:
    from core.security.operations import Requirement
    from gateway.pulsar.consumers import Consumer
    from gateway.pulsar.session import Session

WRITE, _, _ = COMMANDS["PRODUCER"]
READ, SUBSCRIPTION = COMMANDS["SUBSCRIBE"]

_WORDS: Final = {
    "PARTITIONED_METADATA": "Get Partition Metadata",
    "LOOKUP": "Lookup",
    "PRODUCER": "Produce",
    "SUBSCRIBE": "subscribe",
    "GET_SCHEMA": "Get Schema",
    "GET_OR_CREATE_SCHEMA": "Get or Create Schema",
    "ADD_PARTITION_TO_TXN": "Produce",
}

_OF_COORDINATORS: Final = ("PARTITIONED_METADATA", "LOOKUP")
"""What everybody may ask of the topic that stands for coordinators of transactions."""


def refuse_topic(
    session: Session, topic: str, command: str, requirement: Requirement | None = None
) -> Refused | None:
    """Why a command is not done to a topic of this name, or None. requirement: the command's first,
    unless given. A name that is none is left to who looks it up."""
    if session.rights is None:
        return None
    parsed = parse_name(topic)
    if isinstance(parsed, Refusal) or (command in _OF_COORDINATORS and is_coordinator(parsed[0])):
        return None
    wanted = COMMANDS[command][0] if requirement is None else requirement
    return None if session.may(wanted, parsed[1], command) else refused(command)


def refuse_subscription(session: Session, topic: str, name: str, command: str) -> Refused | None:
    """Why a client may not use a subscription of a topic that it may read, or None."""
    if session.rights is None:
        return None
    group_id = group_id_of(topic, name)
    if group_id is None or session.may(SUBSCRIPTION, group_id, command):
        return None
    return refused(command)


def group_id_of(topic: str, subscription: str) -> str | None:
    """What ACLs call a subscription; None where the topic's name is none."""
    parsed = parse_name(topic)
    if isinstance(parsed, Refusal):
        return None
    name, log_name = parsed
    return SubscriptionName(log_name, max(name.partition, 0), subscription).group_id


def refused(command: str) -> Refused:
    """The refusal of a command."""
    reason = f"Client is not authorized to {_WORDS[command]}"
    return Refused(ServerError.AUTHORIZATION_ERROR, reason)


def close_without_right(session: Session) -> None:
    """The rules have changed: closes producers and consumers whose right has gone. Their clients
    come again, and are told."""
    for producer in list(session.producers.values()):
        if not session.still_may(WRITE, producer.place.topic.name):
            session.close_producer(producer)
    for consumer in list(session.consumers.values()):
        if not may_still_read(consumer):
            consumer.close()


def may_still_read(consumer: Consumer) -> bool:
    """Whether its client may read the topic, and use the subscription."""
    session, place = consumer.session, consumer.place
    group_id = SubscriptionName(place.topic.name, place.partition, consumer.subscription).group_id
    return session.still_may(READ, place.topic.name) and session.still_may(SUBSCRIPTION, group_id)
