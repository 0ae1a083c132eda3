"""Who a group waits for, as the database has it: the classic protocol tells no client.

Read by the command line, on a connection of its own. Must not know a rule of groups.
"""

from dataclasses import dataclass
from typing import Final

import psycopg

from core.ports.log import StoreUnavailable
from storage.connection.url import check_url

_CONNECT_WITHIN_S: Final = 10

# `v_group` shows the same to people; its members are one text there.
READ_WAITING: Final = "SELECT state, leader, waiting_for FROM consumer_group WHERE group_id = %s"


@dataclass(frozen=True, slots=True)
class Waiting:
    """leader, waiting_for: ids of members. waiting_for: the first of them, if they are many."""

    state: str
    leader: str | None
    waiting_for: tuple[str, ...]


def read_waiting(url: str, group_id: str) -> Waiting | None:
    """None where the database has no such group. Raises StoreUnavailable, without a password."""
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_WITHIN_S) as connection:
            row = connection.execute(READ_WAITING, [group_id]).fetchone()
    except psycopg.Error as error:
        raise StoreUnavailable(str(error).strip().partition("\n")[0]) from error
    return None if row is None else Waiting(row[0], row[1], tuple(row[2]))
