"""Is a topic there, and what else might have been meant.

Knows an admin client; no flags. Works with any Kafka.
"""

from typing import TYPE_CHECKING

from cli.client import fail
from cli.errors import raise_if_unable, sentence, suggestion

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

UNKNOWN_TOPIC_OR_PARTITION = 3


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
