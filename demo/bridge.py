"""The same delays, read with Pulsar's consumer and written with Kafka's producer, exactly once.

A process takes flights from a Shared subscription. For each batch it writes, in one transaction of
Kafka's, what the batch adds to each carrier's total, and takes the acknowledgements along: the
group id names the subscription, and the offsets' metadata the messages. It is killed in the middle
of a transaction several times and started again. What must come out: the totals that plain Python
counts, and a subscription of which SQL finds nothing left. Knows clients and SQL, as any user does;
must not know the server.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from demo.delays import (
    PATIENCE_S,
    Delays,
    Job,
    Totals,
    batch_of,
    make_topic,
    run_and_kill,
    what_came_out,
)
from demo.workers import left_of

# --- the process that is killed ---


def add_up(job: Job, pipe: Connection) -> None:
    """Until it is killed. Tells before each commit how many flights are in the transaction."""
    logging.disable(logging.CRITICAL)
    try:
        _add_up(job, pipe)
    except KafkaException as failed:
        pipe.send(failed.args[0].str())
    except Exception as failed:  # noqa: BLE001 - told by the process that started this one
        pipe.send(f"{type(failed).__name__}: {failed}")


def _add_up(job: Job, pipe: Connection) -> None:
    import pulsar

    producer = Producer({"bootstrap.servers": job.bootstrap, "transactional.id": job.group})
    producer.init_transactions(PATIENCE_S)  # what a killed predecessor left open is aborted
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    consumer = pulsar.Client(job.service_url, logger=logger).subscribe(
        job.source,
        job.group,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    while True:
        totals = Totals()
        taken: dict[int, list[int]] = defaultdict(list)  # offsets by partition
        for message in _batch(consumer, job.batch, pulsar.Timeout):
            totals.add(message.data())
            found = message.message_id()
            offset = found.entry_id() + max(found.batch_index(), 0)
            taken[max(found.partition(), 0)].append(offset)
        count = totals.flights.total()
        if not count:
            pipe.send(0)
            continue
        producer.begin_transaction()
        try:
            for carrier, value in totals.records():
                producer.produce(job.target, value, carrier)
            for partition, offsets in taken.items():
                _acknowledge(producer, job, partition, offsets)
            producer.flush()
            pipe.send(count)
            producer.commit_transaction()
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            producer.abort_transaction()  # somebody else has had one of the flights
            consumer.redeliver_unacknowledged_messages()


def _batch(consumer: Any, most: int, timeout: type[Exception]) -> Iterator[Any]:
    """Flights until there are none for a moment, or enough."""
    for _ in range(most):
        try:
            yield consumer.receive(200)
        except timeout:
            return


def _acknowledge(producer: Producer, job: Job, partition: int, offsets: list[int]) -> None:
    """In the producer's transaction, on the subscription in this partition."""
    group = f"pulsar-subscription:{job.source}:{partition}:{job.group}"
    place = TopicPartition(job.source, partition, max(offsets) + 1, ranges(offsets))
    with closing(Consumer({"bootstrap.servers": job.bootstrap, "group.id": group})) as named:
        producer.send_offsets_to_transaction([place], named.consumer_group_metadata())


def ranges(offsets: list[int]) -> str:
    """The offsets as metadata says them: `5,7-9`."""
    found: list[list[int]] = []
    for offset in sorted(offsets):
        if found and offset == found[-1][1] + 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


# --- the process that started it ---


def bridged_delays_of(
    bootstrap: str,
    service_url: str,
    database_url: str,
    source: str,
    total: int,
    advance: Callable[[int], None],
) -> Delays:
    """Has all of `total` flights added up from `source`; DelaysFailed."""
    job = Job(
        bootstrap, source, f"{source}-bridged", f"{source}-bridge", batch_of(total), service_url
    )
    make_topic(bootstrap, job.target)

    def is_done() -> bool:
        return left_of(database_url, source, job.group) == 0

    killed = run_and_kill(job, add_up, total, is_done, advance)
    return what_came_out(job, killed)
