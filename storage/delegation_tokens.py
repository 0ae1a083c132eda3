"""Delegation tokens: read, made, renewed, deleted. Implements DelegationTokenStore."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Uuid, cast, delete, func, text, update

from core.ports.delegation_tokens import StoredTokens
from core.security.delegation_tokens import DelegationToken
from core.security.principal import Principal
from storage.connection.pool import Database
from storage.schema import delegation_token, delegation_token_version
from storage.watched_rows import WatchedTable

_ROW: Final = delegation_token.c
_KEY: Final = cast(func.md5(text("delegation_token::text")), Uuid)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC)


class DelegationTokenStore:
    """`core.ports.delegation_tokens.DelegationTokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, known: StoredTokens) -> StoredTokens | None:
        """See DelegationTokenStore."""
        return await _TABLE.read(self._database, known)

    async def put(self, token: DelegationToken) -> None:
        """See DelegationTokenStore."""
        async with self._database.begin("create_delegation_token") as connection:
            await connection.execute(
                delegation_token.insert().values(
                    token_id=token.token_id,
                    owner=str(token.owner),
                    requester=str(token.requester),
                    renewers=[str(each) for each in token.renewers],
                    issued_at=_timestamp(token.issued_at_ms),
                    expires_at=_timestamp(token.expires_at_ms),
                    max_at=_timestamp(token.max_at_ms),
                )
            )

    async def move_end(self, token: DelegationToken, before_ms: int) -> bool:
        """See DelegationTokenStore."""
        async with self._database.begin("renew_delegation_token") as connection:
            # By psql it may have been set to a microsecond.
            stored = func.date_trunc("milliseconds", _ROW.expires_at)
            done = await connection.execute(
                update(delegation_token)
                .where(_ROW.token_id == token.token_id, stored == _timestamp(before_ms))
                .values(expires_at=_timestamp(token.expires_at_ms))
            )
            return done.rowcount > 0

    async def delete(self, token_id: str) -> bool:
        """See DelegationTokenStore."""
        return await self._delete(_ROW.token_id == token_id) > 0

    async def delete_over(self, now_ms: int) -> int:
        """See DelegationTokenStore."""
        return await self._delete(func.least(_ROW.expires_at, _ROW.max_at) < _timestamp(now_ms))

    async def _delete(self, which: ColumnElement[bool]) -> int:
        async with self._database.begin("delete_delegation_tokens") as connection:
            gone = await connection.execute(delete(delegation_token).where(which))
            return gone.rowcount


def _token(
    token_id: str,
    owner: str,
    requester: str,
    renewers: Sequence[str],
    *times: datetime,
) -> DelegationToken | None:
    """None if another version of Penstock, or somebody by hand, has written what means nothing
    here."""
    try:
        issued_at, expires_at, max_at = ((each - _EPOCH) // _MILLISECOND for each in times)
        return DelegationToken(
            token_id,
            _principal(owner),
            _principal(requester),
            tuple(map(_principal, renewers)),
            issued_at,
            expires_at,
            max_at,
        )
    except (AttributeError, TypeError, ValueError):  # NULL or a list instead of text
        return None


def _principal(text: str) -> Principal:
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError("a principal has a type")
    return Principal(name, kind)


def _timestamp(milliseconds: int) -> datetime:
    """The last that there is for what is later."""
    if milliseconds >= (_LAST - _EPOCH) // _MILLISECOND:
        return _LAST
    return _EPOCH + milliseconds * _MILLISECOND


_TABLE: Final = WatchedTable(
    "read_delegation_tokens",
    delegation_token,
    delegation_token_version,
    _KEY,
    tuple(_ROW),
    _token,
)
