"""The table of error numbers is total and right."""

import kafka.errors as kafka_python
import pytest

from core.errors import Error
from gateway.kafka.api import Api, load_handlers
from gateway.kafka.errors import coordinator_error, kafka_code, known_to, log_error
from gateway.runtime.flush.outcomes import Reason, Unconfirmed

# kafka-python's class names differ from Kafka's enum here and there; its numbers are independent of
# ours, which is what this test is for.
RENAMED = {
    "NONE": "NoError",
    "UNKNOWN_SERVER_ERROR": "UnknownError",
    "INVALID_TOPIC_EXCEPTION": "InvalidTopicError",
    "INVALID_CONFIG": "InvalidConfigurationError",
    "REQUEST_TIMED_OUT": "RequestTimedOutError",
    "NOT_LEADER_OR_FOLLOWER": "NotLeaderForPartitionError",
    "MESSAGE_TOO_LARGE": "MessageSizeTooLargeError",
    "CORRUPT_MESSAGE": "CorruptRecordError",
    "INVALID_REPLICA_ASSIGNMENT": "InvalidReplicationAssignmentError",
}

# Kafka 4.0's, which kafka-python does not know (org.apache.kafka.common.protocol.Errors).
NEWER = {"INVALID_REGULAR_EXPRESSION": 128}


@pytest.mark.parametrize("error", list(Error), ids=lambda error: error.name)
def test_every_error_has_kafkas_number(error: Error) -> None:
    words = "".join(word.capitalize() for word in error.name.split("_"))
    name = RENAMED.get(error.name, words if words.endswith("Error") else words + "Error")
    expected = NEWER.get(error.name)
    if expected is None:
        expected = getattr(kafka_python, name).errno
    assert kafka_code(error) == expected


def test_no_two_errors_share_a_number() -> None:
    assert len({kafka_code(error) for error in Error}) == len(Error)


def test_older_clients_are_told_an_error_that_they_know() -> None:
    fenced, abortable = Error.PRODUCER_FENCED, Error.TRANSACTION_ABORTABLE
    since = {fenced: 2, abortable: 11}
    assert known_to(1, since, fenced) is Error.INVALID_PRODUCER_EPOCH
    assert known_to(2, since, fenced) is fenced
    assert known_to(10, since, abortable) is Error.INVALID_TXN_STATE
    assert known_to(11, since, abortable) is abortable
    assert known_to(3, since, Error.NONE) is Error.NONE
    assert known_to(3, since, Error.MESSAGE_TOO_LARGE) is Error.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("api", load_handlers().table(), ids=lambda api: api.name)
def test_what_older_clients_are_told_is_an_error(api: Api) -> None:
    for error, since in api.known_since.items():
        assert since > api.versions[0]
        assert known_to(api.versions[0], api.known_since, error) not in (error, Error.NONE)


@pytest.mark.parametrize(
    ("reason", "of_the_log", "of_a_coordinator"),
    [
        (Reason.NOT_STORED, Error.NOT_ENOUGH_REPLICAS, Error.COORDINATOR_NOT_AVAILABLE),
        (Reason.UNKNOWN, Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Error.COORDINATOR_NOT_AVAILABLE),
        (Reason.HELD_ELSEWHERE, Error.REQUEST_TIMED_OUT, Error.COORDINATOR_NOT_AVAILABLE),
        (Reason.OUT_OF_SPACE, Error.KAFKA_STORAGE_ERROR, Error.COORDINATOR_NOT_AVAILABLE),
        (Reason.TOO_EARLY, Error.NOT_ENOUGH_REPLICAS, Error.COORDINATOR_NOT_AVAILABLE),
        (Reason.FAILED, Error.UNKNOWN_SERVER_ERROR, Error.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_not_confirmed_has_a_name(
    reason: Reason, of_the_log: Error, of_a_coordinator: Error
) -> None:
    outcome = Unconfirmed(reason, "why")
    assert (log_error(outcome), coordinator_error(outcome)) == (of_the_log, of_a_coordinator)


def test_every_reason_has_a_name() -> None:
    assert all(log_error(Unconfirmed(each, "")) for each in Reason)
