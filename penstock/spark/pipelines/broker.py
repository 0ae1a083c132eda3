"""What a pipeline asks a broker before Spark does, so that what is wrong is said in a sentence.

Knows kafka-python's admin client; works with any Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.connecting import KNOWN, Connecting, PropertyError, connecting
from penstock.connection import addresses_of, why_not_let_in
from penstock.spark.pipelines.options import Broker, PipelineFailed, WrongArgument, listed

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_EARLIEST, _LATEST = -2, -1  # ListOffsets' timestamps for both ends of a log
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_BOOTSTRAP_TIMEOUT_MS: Final = 5_000
_ANSWER_TIMEOUT_MS: Final = 30_000
_STORES: Final = ("ssl.truststore", "ssl.keystore")
_OF_A_STORE: Final = ("location", "certificates", "key")


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """A partition as it is now. start: the first offset there is. stable: what readers of committed
    data see ends here. end: where the next record goes."""

    topic: str
    partition: int
    start: int
    stable: int
    end: int


def partition_counts(broker: Broker, topics: Sequence[str]) -> dict[str, int]:
    """Of topics that must be there; PipelineFailed where one is not."""
    with _admin_client(broker) as client:
        return _counts(client, broker, topics)


def partition_ends(broker: Broker, topics: Sequence[str]) -> list[PartitionEnds]:
    """Of all partitions of topics that must be there; PipelineFailed where one is not."""
    from kafka import TopicPartition

    with _admin_client(broker) as client:
        counts = _counts(client, broker, topics)
        places = [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]

        def offsets(which: int, isolation_level: int) -> Any:
            wanted = dict.fromkeys(places, which)
            return client.list_partition_offsets(wanted, isolation_level=isolation_level)

        # In this order, so that neither end is behind what comes before it.
        start = offsets(_EARLIEST, _READ_UNCOMMITTED)
        stable = offsets(_LATEST, _READ_COMMITTED)
        end = offsets(_LATEST, _READ_UNCOMMITTED)
    return [
        PartitionEnds(at.topic, at.partition, start[at].offset, stable[at].offset, end[at].offset)
        for at in places
    ]


def _counts(client: KafkaAdminClient, broker: Broker, topics: Sequence[str]) -> dict[str, int]:
    names = list(dict.fromkeys(topics))
    found = {str(topic["name"]): topic for topic in client.describe_topics(names)}
    missing = [name for name in names if name not in found or found[name]["error_code"]]
    if missing:
        word = "is no topic" if len(missing) == 1 else "are no topics"
        raise PipelineFailed(f"There {word} {listed(missing)} at {broker.bootstrap}.")
    return {name: len(found[name]["partitions"]) for name in names}


@contextmanager
def _admin_client(broker: Broker) -> Iterator[KafkaAdminClient]:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    # The client reports each failed connection; we say once what it comes to.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    given = _connecting(broker.properties)
    named = _as_kafka_python_has_them(broker.properties, KafkaAdminClient.DEFAULT_CONFIG)
    try:
        named |= given.for_kafka_python()
        addresses = addresses_of(broker.bootstrap)
    except ValueError as wrong:  # PropertyError as well
        raise WrongArgument(str(wrong)) from None
    if given.login is not None:
        context, login = named["ssl_context"], given.login
        if reason := why_not_let_in(addresses, _BOOTSTRAP_TIMEOUT_MS / 1000, context, login):
            raise PipelineFailed(reason)
    try:
        client = KafkaAdminClient(
            **named,
            bootstrap_servers=broker.bootstrap.split(","),
            client_id="penstock-pipeline",
            bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=_ANSWER_TIMEOUT_MS,
        )
    except KafkaError:
        raise PipelineFailed(
            f"No broker answers at {broker.bootstrap}: name one with --bootstrap-server."
        ) from None
    try:
        yield client
    except KafkaError as error:
        raise PipelineFailed(f"The broker at {broker.bootstrap} refused: {error}.") from None
    finally:
        client.close()


def _connecting(properties: Mapping[str, str]) -> Connecting:
    """What is said in a way that Java and Python both understand. Raises WrongArgument."""
    for store in _STORES:
        given = any(f"{store}.{what}" in properties for what in _OF_A_STORE)
        if given and properties.get(f"{store}.type", "").upper() != "PEM":
            raise WrongArgument(
                f"What {store}.location names must be a PEM file, which all that a pipeline "
                f"consists of can read: say --kafka {store}.type=PEM as well."
            )
    try:
        return connecting({name: properties[name] for name in KNOWN if name in properties})
    except PropertyError as wrong:
        raise WrongArgument(str(wrong)) from None


def _as_kafka_python_has_them(
    properties: Mapping[str, str], known: Mapping[str, object]
) -> dict[str, Any]:
    """Kafka's properties under kafka-python's names; what it does not know concerns others."""
    named = {name.replace(".", "_"): value for name, value in properties.items()}
    return {name: value for name, value in named.items() if name in known}
