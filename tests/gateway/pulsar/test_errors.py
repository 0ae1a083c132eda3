"""The table of errors is total, and a SEND that failed for good is not sent again for ever."""

import pytest

from core.errors import Error
from gateway.pulsar.commands import ServerError
from gateway.pulsar.errors import send_error, server_error

ERRORS = [error for error in Error if error is not Error.NONE]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_every_error_has_a_number(error: Error) -> None:
    assert server_error(error) in ServerError


def test_success_has_no_number() -> None:
    with pytest.raises(KeyError):
        server_error(Error.NONE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Error.CORRUPT_MESSAGE, ServerError.CHECKSUM_ERROR),
        (Error.INVALID_RECORD, ServerError.NOT_ALLOWED_ERROR),
        (Error.MESSAGE_TOO_LARGE, ServerError.NOT_ALLOWED_ERROR),
        (Error.INVALID_TXN_STATE, ServerError.NOT_ALLOWED_ERROR),
        (Error.TRANSACTIONAL_ID_NOT_FOUND, ServerError.NOT_ALLOWED_ERROR),
        (Error.PRODUCER_FENCED, ServerError.NOT_ALLOWED_ERROR),
        (Error.TOPIC_AUTHORIZATION_FAILED, ServerError.NOT_ALLOWED_ERROR),
        (Error.NOT_LEADER_OR_FOLLOWER, ServerError.SERVICE_NOT_READY),
        (Error.KAFKA_STORAGE_ERROR, ServerError.PERSISTENCE_ERROR),
    ],
)
def test_what_a_send_is_answered_with(error: Error, code: ServerError) -> None:
    assert send_error(error) is code


def test_in_responses_the_code_says_more() -> None:
    assert server_error(Error.INVALID_TXN_STATE) is ServerError.INVALID_TXN_STATUS
    assert server_error(Error.TRANSACTIONAL_ID_NOT_FOUND) is ServerError.TRANSACTION_NOT_FOUND
    assert server_error(Error.UNKNOWN_TOPIC_OR_PARTITION) is ServerError.TOPIC_NOT_FOUND
