"""Users and their verifiers: read, changed, deleted. Implements UserStore. Knows no rule.

A broker reads all of them, and asks every half second whether they are still the same: so whatever
psql changes counts, too, and no news has to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Select,
    Text,
    any_,
    cast,
    delete,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from core.ports.log import StoreUnavailable
from core.ports.users import StoredUsers
from core.security.credentials import Credential, CredentialChanges
from core.security.verifier import ScramMechanism, Verifier, read_verifier
from storage.connection.pool import Database
from storage.connection.url import check_url
from storage.notifications import USERS_CHANGED
from storage.schema import cluster, scram_credential

_ROW: Final = scram_credential.c

# Differs whenever a row does, however it was changed.
_VERSION: Final = select(
    func.concat_ws(
        "/",
        func.count(),
        func.sum(
            func.hashtextextended(
                (_ROW.user_name + literal(" ") + _ROW.verifier).collate("C"),
                cast(literal(0), BigInteger),
            )
        ),
    )
).select_from(scram_credential)


_PAGE: Final = 1000


def _page(after: tuple[str, str]) -> Select[Any]:
    """Rows behind this user and mechanism, in order of them."""
    return (
        select(_ROW.user_name, _ROW.mechanism, _ROW.verifier)
        .where(tuple_(_ROW.user_name, _ROW.mechanism) > tuple_(*map(literal, after)))
        .order_by(_ROW.user_name, _ROW.mechanism)
        .limit(_PAGE)
    )


class UserRefused(Exception):
    """The database refuses a row by a rule of its own; nothing took effect. Shows no secret."""


class UserStore:
    """`core.ports.users.UserStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, known_version: str | None) -> StoredUsers | None:
        """See UserStore."""
        async with self._database.begin("read_users") as connection:
            # Reads the version first: users may then be newer than it says, never older.
            version = str(await connection.scalar(_VERSION))
            if version == known_version:
                return None
            secret = await connection.scalar(select(cluster.c.login_secret))
            users: dict[str, list[Verifier]] = {}
            unusable: dict[str, None] = {}
            after = ("", "")
            # By pages: other work of the process goes on between them.
            while page := (await connection.execute(_page(after))).all():
                for name, mechanism, text in page:
                    verifier = read_verifier(text)
                    if verifier is None:
                        unusable[name] = None
                    else:
                        users.setdefault(name, []).append(verifier)
                    after = (name, mechanism)
        assert secret is not None, "the cluster has a row"
        return StoredUsers(version, users, secret.bytes, tuple(unusable))

    async def alter(
        self,
        names: Collection[str],
        decide: Callable[[Collection[Credential]], CredentialChanges],
    ) -> None:
        """See UserStore."""
        async with self._database.begin("alter_users") as connection:
            existing = await _lock(connection, names)
            changes = decide(existing)
            await _delete(connection, changes.deletions)
            for name, verifier in sorted(changes.upserts, key=lambda each: each[0]):
                await _put(connection, name, verifier)
            if changes.deletions or changes.upserts:
                await connection.execute(select(func.pg_notify(USERS_CHANGED, "")))


async def _lock(connection: AsyncConnection, names: Collection[str]) -> set[Credential]:
    """What there is of these users, kept as it is until the transaction ends."""
    wanted = cast(list(names), ARRAY(Text))
    query = (
        select(_ROW.user_name, _ROW.mechanism)
        .where(_ROW.user_name == any_(wanted))
        .order_by(_ROW.user_name, _ROW.mechanism)
        .with_for_update()
    )
    rows = await connection.execute(query)
    return {(name, ScramMechanism(mechanism)) for name, mechanism in rows}


async def _delete(connection: AsyncConnection, credentials: Collection[Credential]) -> None:
    if credentials:
        gone = [(name, mechanism.value) for name, mechanism in credentials]
        await connection.execute(
            delete(scram_credential).where(tuple_(_ROW.user_name, _ROW.mechanism).in_(gone))
        )


async def _put(connection: AsyncConnection, name: str, verifier: Verifier) -> None:
    values: dict[str, Any] = {"verifier": verifier.text, "changed_at": func.clock_timestamp()}
    statement = insert(scram_credential).values(user_name=name, **values)
    try:
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["user_name", "mechanism"], set_=values)
        )
    except DBAPIError as error:
        if not isinstance(error.orig, psycopg.IntegrityError | psycopg.DataError):
            raise
        # Its detail is the row that is refused; the log is told of it without.
        raise UserRefused(error.orig.diag.message_primary) from None


# --- for the command line, on a connection of its own ---

_CONNECT_WITHIN_S: Final = 10
_PUT: Final = """
INSERT INTO penstock.scram_credential (user_name, verifier) VALUES (%s, %s)
ON CONFLICT (user_name, mechanism) DO UPDATE
SET verifier = excluded.verifier, changed_at = clock_timestamp()
"""
_DELETE_OTHERS: Final = (
    "DELETE FROM penstock.scram_credential WHERE user_name = %s AND mechanism <> ALL (%s::text[])"
)


@dataclass(frozen=True, slots=True)
class UserView:
    """A row of `v_user`."""

    user: str
    mechanism: str
    iterations: int


def read_users(url: str) -> list[UserView]:
    """By name and mechanism. Raises StoreUnavailable, without a password in its text."""
    query = "SELECT user_name AS user, mechanism, iterations::bigint FROM penstock.v_user"
    with (
        _connected(url) as connection,
        connection.cursor(row_factory=class_row(UserView)) as cursor,
    ):
        return cursor.execute(query).fetchall()


def put_user(url: str, name: str, verifiers: Sequence[Verifier]) -> None:
    """Gives a user these verifiers, and no others: an old password is to open nothing any more.
    Raises StoreUnavailable."""
    mechanisms = [each.mechanism.value for each in verifiers]
    with _connected(url) as connection:
        connection.execute(_DELETE_OTHERS, (name, mechanisms))
        for each in verifiers:
            connection.execute(_PUT, (name, each.text))
        connection.execute("SELECT pg_notify(%s, '')", (USERS_CHANGED,))


def delete_user(url: str, name: str) -> bool:
    """Deletes all of a user; whether there was anything. Raises StoreUnavailable."""
    with _connected(url) as connection:
        delete = "DELETE FROM penstock.scram_credential WHERE user_name = %s"
        gone = connection.execute(delete, (name,))
        connection.execute("SELECT pg_notify(%s, '')", (USERS_CHANGED,))
        return gone.rowcount > 0


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    check_url(url)
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_WITHIN_S) as connection:
            yield connection
    except psycopg.Error as error:
        raise StoreUnavailable(str(error).strip().partition("\n")[0]) from error
