"""Clients behind idempotent producers: implements ProducerClientStore. Knows no rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert

from core.ports.producer_clients import ProducerClient
from storage.connection.client_text import written
from storage.connection.pool import Database
from storage.schema import producer_client


class ProducerClientStore:
    """`core.ports.producer_clients.ProducerClientStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, clients: Sequence[ProducerClient]) -> None:
        """See ProducerClientStore."""
        new = insert(producer_client).on_conflict_do_nothing()
        rows = [asdict(replace(each, client_id=written(each.client_id))) for each in clients]
        async with self._database.begin("put_producer_clients") as connection:
            await connection.execute(new, rows)

    async def expire(self, age_s: float) -> int:
        """See ProducerClientStore."""
        since = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, age_s)
        old = delete(producer_client).where(producer_client.c.begun_at < since)
        async with self._database.begin("expire_producer_clients") as connection:
            return (await connection.execute(old)).rowcount
