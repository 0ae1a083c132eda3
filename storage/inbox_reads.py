"""What waits in the inbox and what was refused, from the database's views, for the command line.

On a connection of its own. Must not know a rule, nor how it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg
from psycopg.rows import class_row

from core.ports.log import StoreUnavailable
from storage.connection.url import check_url

_CONNECT_WITHIN_S: Final = 10
Row = TypeVar("Row")

READ_WAITING: Final = """
SELECT topic, transactions, records, bytes, extract(epoch FROM age)::float8 AS age_s
FROM penstock.v_inbox
"""
READ_REFUSED: Final = """
SELECT topic, partition, records, bytes, reason, refused_at FROM penstock.v_inbox_refused
ORDER BY refused_at DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class WaitingTopic:
    """Records of a topic that are committed and not published. age_s: of the oldest, in seconds."""

    topic: str
    transactions: int
    records: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Records that could not be published. partition: None where none was chosen."""

    topic: str
    partition: int | None
    records: int
    bytes: int
    reason: str
    refused_at: datetime


def read_waiting(url: str) -> list[WaitingTopic]:
    """By topic. Raises StoreUnavailable, without a password in its text."""
    return _read(url, WaitingTopic, READ_WAITING, {})


def read_refused(url: str, limit: int) -> list[RefusedRow]:
    """The newest first. Raises StoreUnavailable, without a password in its text."""
    return _read(url, RefusedRow, READ_REFUSED, {"limit": limit})


def _read(url: str, kind: type[Row], query: str, parameters: dict[str, Any]) -> list[Row]:
    check_url(url)
    try:
        with (
            psycopg.connect(url, connect_timeout=_CONNECT_WITHIN_S) as connection,
            connection.cursor(row_factory=class_row(kind)) as cursor,
        ):
            return cursor.execute(query, parameters).fetchall()
    except psycopg.Error as error:
        raise StoreUnavailable(str(error).strip().partition("\n")[0]) from error
