"""Refusals of logins and of changes of users, under Kafka's names.

Apart from `core.errors.Error`, of which every front-end has a table: so far only Kafka's wire asks
who is there.
"""

from dataclasses import dataclass
from enum import Enum, auto


class SecurityError(Enum):
    """Why a login, or a change of a user, was refused."""

    UNSUPPORTED_SASL_MECHANISM = auto()
    ILLEGAL_SASL_STATE = auto()
    SASL_AUTHENTICATION_FAILED = auto()
    RESOURCE_NOT_FOUND = auto()
    DUPLICATE_RESOURCE = auto()
    UNACCEPTABLE_CREDENTIAL = auto()


@dataclass(frozen=True, slots=True)
class SecurityRefusal:
    """An error and the sentence that the client is told."""

    error: SecurityError
    message: str
