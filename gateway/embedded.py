"""Keeps the embedded PostgreSQL running, for the process that owns it.

Knows when it has died; how it is started, it knows itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from storage.server.embedded import EmbeddedPostgres, EmbeddedPostgresError

log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 0.2


async def kept_running(server: EmbeddedPostgres) -> None:
    """Starts it again if it dies, until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if server.pid is not None:
            continue
        log.warning("embedded_postgres_died")
        try:
            await asyncio.to_thread(server.start)
        except EmbeddedPostgresError as error:
            log.error("embedded_postgres_does_not_start", reason=str(error))
        else:
            log.info("embedded_postgres_restarted")
