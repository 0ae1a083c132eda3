"""Which of the servers in a URL is tried first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from storage.connection.hosts import Hosts
from storage.connection.pool import CONNECT_TIMEOUT_S, Database
from tests.conftest import memory, open_directory
from tests.faults.replicas import Replicas


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://penstock@a.example/penstock",
        "postgresql:///penstock",
        "host=a.example,b.example hostaddr=10.0.0.1,10.0.0.2",
        "host=a.example,b.example port=1,2,3",
    ],
)
def test_what_has_no_order_stays_as_it_is(url: str) -> None:
    assert Hosts(url).parameters == {}


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql://penstock@a.example,b.example/penstock", ","),
        ("postgresql://a.example:5433,b.example/penstock", "5433,"),
        ("host=a.example,b.example port=5433", "5433,5433"),
    ],
)
def test_they_begin_as_they_are_written(url: str, ports: str) -> None:
    assert Hosts(url).parameters == {"host": "a.example,b.example", "port": ports}


@pytest.fixture
def replicas(migrated_dir: Path) -> Iterator[Replicas]:
    with open_directory(memory()) as other:
        replicas = Replicas(migrated_dir, other / "data")
        with replicas.running():
            yield replicas


async def test_the_server_that_is_of_use_is_tried_first(replicas: Replicas) -> None:
    """Also if the one before stands still, or comes back."""
    database = Database(replicas.url)

    async def connected_to() -> str:
        connection = await database.connect()
        host = connection.info.host
        await connection.close()
        return host

    former = replicas.primary
    assert await connected_to() == str(former.data_dir / "run")
    replicas.pause()
    await asyncio.to_thread(replicas.promote)
    assert await connected_to() == str(replicas.primary.data_dir / "run")
    async with asyncio.timeout(CONNECT_TIMEOUT_S / 2):  # nobody waits for the former
        await connected_to()
    replicas.resume(former)
    assert await connected_to() == str(replicas.primary.data_dir / "run")
    replicas.primary.kill()
    with pytest.raises(StoreUnavailable, match="another one was promoted"):
        await database.connect()
    await database.close()


async def test_a_server_that_leaves_an_answer_out_is_tried_last(replicas: Replicas) -> None:
    """Its commits may wait for ever, while it takes connections as ever."""
    database = Database(replicas.url)
    connection = await database.connect(deadline_s=1)
    former = replicas.primary
    replicas.pause()
    await asyncio.to_thread(replicas.promote)
    replicas.resume(former)
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("UPDATE penstock.cluster SET metadata_version = 0")
    connection = await database.connect()
    assert connection.info.host == str(replicas.primary.data_dir / "run")
    await connection.close()
    await database.close()
