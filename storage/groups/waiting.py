"""The members that a group waits for, from the database: the classic protocol tells no client.

The command line reads it, on its own connection. Must not know a rule of groups.
"""

from typing import Final

import psycopg

from core.group.progress import Waiting
from core.ports.log import StoreUnavailable
from storage.connection.url import check_url

_CONNECT_WITHIN_S: Final = 10

# `v_group` shows the same to people; its members are one text there.
READ_WAITING: Final = (
    "SELECT state, leader, waiting_for FROM penstock.consumer_group WHERE group_id = %s"
)


def read_waiting(url: str, group_id: str) -> Waiting | None:
    """None if there is no such group. Raises StoreUnavailable, without a password in its text."""
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_WITHIN_S) as connection:
            row = connection.execute(READ_WAITING, [group_id]).fetchone()
    except psycopg.Error as error:
        raise StoreUnavailable(str(error).strip().partition("\n")[0]) from error
    return None if row is None else Waiting(row[0], row[1], tuple(row[2]))
