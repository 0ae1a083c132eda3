"""An application beside the tables: its sessions, and what waits in the inbox once it commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import Error

from storage.schema import INBOX_SLOTS

_SLOTS = range(INBOX_SLOTS)


def _all(table: str) -> str:
    return " UNION ALL ".join(f"SELECT * FROM penstock.{table}_{slot}" for slot in _SLOTS)


_RECORDS = f"""
SELECT r.topic, r.partition, convert_from(r.key, 'UTF8'), convert_from(r.value, 'UTF8')
FROM (SELECT xid, max(stamp) AS stamp FROM ({_all("inbox_commit")}) AS c GROUP BY xid) AS c
JOIN ({_all("inbox_record")}) AS r ON r.xid = c.xid ORDER BY c.stamp, r.number
"""


@dataclass
class Doors:
    """A database with a topic `t` of two partitions, and whoever connects to it."""

    url: str
    psql: psycopg.Connection[Any]
    sessions: ExitStack = field(default_factory=ExitStack)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What a statement of the owner's gives, at once committed."""
        cursor = self.psql.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *parameters: Any) -> Any:
        """The one value it gives."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def make_topic(self, name: str = "t", partitions: int = 2, **config: str) -> str:
        """A topic; a setting's dots are written as underscores."""
        topic_id = uuid4()
        self.rows("INSERT INTO penstock.topic (topic_id, name) VALUES (%s, %s)", topic_id, name)
        for number in range(partitions):
            self.rows(
                "INSERT INTO penstock.topic_partition (topic_id, partition) VALUES (%s, %s)",
                topic_id,
                number,
            )
        for key, value in config.items():
            self.rows(
                "INSERT INTO penstock.config_entry (resource_type, resource_name, name, value)"
                " VALUES ('topic', %s, %s, %s)",
                str(topic_id),
                key.replace("_", "."),
                value,
            )
        return name

    def session(self, role: str | None = None, **options: Any) -> psycopg.Connection[Any]:
        """A session of the application's, in a transaction from its first statement on."""
        session = self.sessions.enter_context(
            psycopg.connect(self.url, options="-c search_path=public", **options)
        )
        if role is not None:
            session.execute(f"SET SESSION AUTHORIZATION {role}".encode())
            session.commit()
        return session

    def make_role(self, *members_of: str) -> str:
        """A role that may log in, and use what those may. Roles are the whole server's."""
        name = f"app_{uuid4().hex[:12]}"
        self.rows(f"CREATE ROLE {name} LOGIN")
        for each in members_of:
            self.rows(f"GRANT {each} TO {name}")
        return name

    def records(self) -> list[tuple[str, int | None, str | None, str | None]]:
        """Topic, partition, key and value of what waits, in the order of its publication."""
        return self.rows(_RECORDS)

    def values(self) -> list[str | None]:
        """The values only."""
        return [value for _, _, _, value in self.records()]

    def waiting(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of all rows, in the order of calls."""
        return self.rows(f"SELECT {columns} FROM ({_all('inbox_record')}) AS r ORDER BY number")

    def commits(self) -> int:
        """How many stamps were drawn and committed."""
        count: int = self.value(f"SELECT count(*) FROM ({_all('inbox_commit')}) AS c")
        return count


def refused(session: psycopg.Connection[Any], query: str, *parameters: Any) -> Error:
    """The error of a statement, or of the COMMIT behind it; the session is rolled back."""
    with pytest.raises(Error) as caught:
        session.execute(query.encode(), parameters or None)
        session.commit()
    session.rollback()
    return caught.value


@pytest.fixture
def doors(any_url: str) -> Iterator[Doors]:
    """On each version of PostgreSQL."""
    with psycopg.connect(any_url, autocommit=True) as psql, ExitStack() as sessions:
        made = Doors(any_url, psql, sessions)
        made.make_topic()
        yield made


@pytest.fixture
def doors18(database_url: str) -> Iterator[Doors]:
    """On the embedded PostgreSQL only."""
    with psycopg.connect(database_url, autocommit=True) as psql, ExitStack() as sessions:
        made = Doors(database_url, psql, sessions)
        made.make_topic()
        yield made
