"""The table of error numbers is total and right."""

import kafka.errors as kafka_python
import pytest

from core.errors import Error
from gateway.kafka.errors import kafka_code

# kafka-python's class names differ from Kafka's enum here and there; its numbers are independent of
# ours, which is what this test is for.
RENAMED = {
    "NONE": "NoError",
    "UNKNOWN_SERVER_ERROR": "UnknownError",
    "INVALID_TOPIC_EXCEPTION": "InvalidTopicError",
    "NETWORK_EXCEPTION": "NetworkExceptionError",
    "INVALID_CONFIG": "InvalidConfigurationError",
    "REQUEST_TIMED_OUT": "RequestTimedOutError",
    "NOT_LEADER_OR_FOLLOWER": "NotLeaderForPartitionError",
    "MESSAGE_TOO_LARGE": "MessageSizeTooLargeError",
    "CORRUPT_MESSAGE": "CorruptRecordError",
    "RECORD_LIST_TOO_LARGE": "RecordListTooLargeError",
    "INVALID_REPLICA_ASSIGNMENT": "InvalidReplicationAssignmentError",
}


@pytest.mark.parametrize("error", list(Error), ids=lambda error: error.name)
def test_every_error_has_kafkas_number(error: Error) -> None:
    words = "".join(word.capitalize() for word in error.name.split("_"))
    name = RENAMED.get(error.name, words if words.endswith("Error") else words + "Error")
    assert kafka_code(error) == getattr(kafka_python, name).errno


def test_no_two_errors_share_a_number() -> None:
    assert len({kafka_code(error) for error in Error}) == len(Error)
