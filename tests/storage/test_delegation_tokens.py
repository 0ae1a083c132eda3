"""Delegation tokens as rows: made, read, moved, by brokers and by psql."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from core.ports.delegation_tokens import StoredTokens
from core.security.delegation_tokens import DelegationToken
from core.security.principal import Principal
from storage.delegation_tokens import DelegationTokenStore
from tests.storage.conftest import Log

TOKEN = DelegationToken(
    "one", Principal("alice"), Principal("bob"), (Principal("carol"),), 1_000, 2_000, 3_000
)
INSERT = (
    "INSERT INTO delegation_token (token_id, owner, requester, renewers, issued_at, expires_at, "
    "max_at) VALUES ('hand', 'User:a', 'User:a', {}, now(), now(), now())"
)


@pytest.fixture
def store(log: Log) -> DelegationTokenStore:
    return DelegationTokenStore(log.database)


async def read(store: DelegationTokenStore, known: StoredTokens | None = None) -> StoredTokens:
    found = await store.read(known or StoredTokens())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "renewers", ["ARRAY['User:b', NULL]", "ARRAY[NULL]::text[]", "'{{User:b},{User:c}}'"]
)
def test_renewers_that_mean_nothing_cannot_be_stored(log: Log, renewers: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        log.rows(INSERT.format(renewers))


@pytest.mark.parametrize("renewers", ["'{}'", "'[0:1]={User:b,User:c}'"])
async def test_those_that_mean_something_can(
    store: DelegationTokenStore, log: Log, renewers: str
) -> None:
    log.rows(INSERT.format(renewers))
    found = await read(store)
    assert (len(found.rows), found.unreadable) == (1, 0)


@pytest.mark.parametrize(
    "renewers", ["ARRAY['User:b', NULL]", "'{{User:b},{User:c}}'", "ARRAY['b']"]
)
async def test_a_row_that_means_nothing_is_counted(
    store: DelegationTokenStore, log: Log, renewers: str
) -> None:
    """The others are read."""
    log.rows("ALTER TABLE delegation_token DROP CONSTRAINT delegation_token_renewers_check")
    await store.put(TOKEN)
    log.rows(INSERT.format(renewers))
    found = await read(store)
    assert (list(found.rows.values()), found.unreadable) == ([TOKEN], 1)


async def test_an_end_is_moved_only_from_where_it_was(
    store: DelegationTokenStore, log: Log
) -> None:
    await store.put(TOKEN)
    moved = replace(TOKEN, expires_at_ms=2_500)
    assert not await store.move_end(moved, 1_999)
    assert await store.move_end(moved, TOKEN.expires_at_ms)
    assert not await store.move_end(TOKEN, TOKEN.expires_at_ms)
    log.rows("UPDATE delegation_token SET expires_at = '1970-01-01 00:00:02.700999+00'")
    [found] = (await read(store)).rows.values()
    assert found.expires_at_ms == 2_700
    assert await store.move_end(TOKEN, found.expires_at_ms)
    assert list((await read(store)).rows.values()) == [TOKEN]
