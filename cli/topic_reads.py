"""Is a topic there, what else might have been meant, and its newest records.

Knows clients of kafka-python; no flags. Works with any Kafka.
"""

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from cli import codecs
from cli.client import bootstrapping, connection_options, fail
from cli.errors import raise_if_unable, sentence, sentence_of, suggestion
from cli.records import json_line

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

UNKNOWN_TOPIC_OR_PARTITION = 3
NEWEST = 3  # records of a partition
_READ_WITHIN_S = 10.0


def existing_partitions(admin: "KafkaAdminClient", topic: str) -> int:
    """How many partitions a topic has; ends the command where there is none."""
    (found,) = admin.describe_topics([topic])
    code = found["error_code"]
    raise_if_unable(code)
    if code == UNKNOWN_TOPIC_OR_PARTITION:
        near = suggested_topic(admin, topic)
        create = "" if near else f" Create it with 'penstock topics create {topic}'."
        fail(f"There is no topic {topic}.{near}{create}")
    if code:
        fail(f"{topic}: {sentence(code)}")
    return len(found["partitions"])


def suggested_topic(admin: "KafkaAdminClient", topic: str) -> str:
    """ " Did you mean …?", or nothing."""
    return suggestion(topic, (str(each["name"]) for each in admin.describe_topics()))


def newest_records(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The last few records of each partition, as consume --json gives them.

    Fewer where markers of transactions are among the last offsets.
    """
    codecs.complete()
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    options = connection_options(bootstrap)
    with bootstrapping(bootstrap):
        consumer = KafkaConsumer(allow_auto_create_topics=False, **options)
    found = []
    try:
        with closing(consumer):
            numbers = sorted(consumer.partitions_for_topic(topic) or ())
            places = [TopicPartition(topic, number) for number in numbers]
            first, last = consumer.beginning_offsets(places), consumer.end_offsets(places)
            consumer.assign(places)
            for place in places:
                consumer.seek(place, max(first[place], last[place] - NEWEST))
            deadline = time.monotonic() + _READ_WITHIN_S
            while time.monotonic() < deadline and any(
                consumer.position(place) < last[place] for place in places
            ):
                for records in consumer.poll(timeout_ms=200).values():
                    found += [json.loads(json_line(record)) for record in records]
    except KafkaError as error:
        fail(sentence_of(bootstrap, error))
    return sorted(found, key=lambda each: (each["partition"], each["offset"]))
